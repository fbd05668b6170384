"""Somebody else who may write to the same server writes garbage where workers tell each other that they live."""

from __future__ import annotations

import pytest

from tests.support.waiting import eventually
from tocsin.inspection.inspector import Inspector
from tocsin.model import msgpack
from tocsin.store.views import wrong_types

BAD_NAME = b"\xff\xfe"


@pytest.fixture
def job(live_app):
    @live_app.job
    async def job(x):
        return x

    return job


@pytest.fixture
def fleet(live_app):
    """The fleet's keys, by what they hold."""
    return live_app.store.keys.fleet()


async def works(app, job, x: int) -> bool:
    return await (await app.enqueue(job, x)).result("10s") == x


@pytest.mark.parametrize(
    ("name", "counter"), [(BAD_NAME, b"1"), (b"other", b"many"), (b"other", b"9" * 5000), (b"", b"nan")]
)
async def test_a_beat_that_cannot_be_read_stops_no_heart_and_is_buried_like_a_dead_worker(
    live_app, make_worker, job, fleet, name, counter
):
    client = live_app.store.client
    await client.hset(fleet["beats"], name, counter)
    await client.hset(fleet["workers"], name, b"\xc1")
    if counter == b"many":
        await client.zadd(fleet["pulses"], {name: "inf"})
    worker = await make_worker(live_app, start=True, beat_s=0.05, ttl_s=0.5)
    assert await works(live_app, job, 1)

    async def is_gone() -> bool:
        if await client.zscore(fleet["pulses"], name) is not None:
            return False
        return not any([await client.hexists(fleet[key], name) for key in ("beats", "workers")])

    await eventually(is_gone, "the garbage is buried")
    await eventually(lambda: _no_burials(client, fleet), "and no burial is left")
    assert [seen.id for seen in await Inspector(live_app.store).workers()] == [worker.name]
    assert await works(live_app, job, 2)


async def _no_burials(client, fleet) -> bool:
    return not await client.exists(fleet["buried"])


async def test_burials_of_garbage_hide_no_real_one(live_app, make_worker, fleet):
    client = live_app.store.client
    await client.zadd(fleet["buried"], {BAD_NAME + b"%d" % n: "-inf" for n in range(150)})
    await make_worker(live_app, start=True, beat_s=0.05)
    await eventually(lambda: _no_burials(client, fleet), "all are looked after")


async def test_a_heart_that_meets_the_unexpected_beats_on(live_app, make_worker, job, monkeypatch):
    worker = await make_worker(live_app, start=True, beat_s=0.05)
    failing = [RuntimeError("never seen before")] * 3

    def about():
        if failing:
            raise failing.pop()
        return type(worker).about(worker)

    monkeypatch.setattr(worker.heart, "_about", about)
    await eventually(lambda: not failing, "it has failed three times")
    lease = worker.heart.lease.until
    await eventually(lambda: worker.heart.lease.until > lease, "it beats")
    assert await works(live_app, job, 1)


@pytest.mark.parametrize(
    "mail",
    [
        b"\xc1",
        b"",
        b"\x91" * 2000 + b"\x00",
        msgpack.encode(["a", "b"]),
        msgpack.encode({"cancel": 3}),
        msgpack.encode({"cancel": "a", "token": "b"}),
        msgpack.encode({"look": "everywhere"}),
        msgpack.encode({"look": [["default", "first"], ["default", -1]]}),
        msgpack.encode({"look": [["default", -1], ["default", 10**9]]}),
    ],
)
async def test_mail_and_bells_that_cannot_be_read_are_dropped_and_said_once(live_app, make_worker, job, mail, caplog):
    worker = await make_worker(live_app, start=True, poll_s=600)
    keys, client = live_app.store.keys, live_app.store.client
    await client.rpush(keys.mail(worker.name), *[mail] * 3)
    await client.rpush(keys.bell("default"), mail, b"-1", b"9" * 5000, b"nan", b"7")
    await eventually(lambda: _is_empty(client, keys.mail(worker.name), keys.bell("default")), "all is taken")
    assert await works(live_app, job, 1)
    assert [line for line in caplog.records if line.levelname == "ERROR"] == []
    assert sum("cannot read" in line.message for line in caplog.records) == 1


async def _is_empty(client, *keys) -> bool:
    return not await client.exists(*keys)


@pytest.mark.parametrize("base", ["beats", "workers", "pulses", "buried"])
async def test_another_kind_of_data_in_the_place_of_beats_is_set_aside_and_the_worker_goes_on(
    live_app, make_worker, job, fleet, base
):
    client = live_app.store.client
    worker = await make_worker(live_app, start=True, beat_s=0.05)
    await client.delete(fleet[base])
    await client.set(fleet[base], "not ours")
    await eventually(lambda: client.exists(wrong_types.aside(fleet[base])), "it is set aside")
    assert await client.get(wrong_types.aside(fleet[base])) == b"not ours"
    assert await works(live_app, job, 1)
    lease = worker.heart.lease.until
    await eventually(lambda: worker.heart.lease.until > lease, "it beats")


async def test_another_kind_of_data_in_the_place_of_a_bell_is_set_aside_and_other_bells_are_heard(
    live_app, make_worker
):
    for name in ("a", "b"):
        live_app.queue(name, partitions=1)

    @live_app.job(queue="b")
    async def job(x):
        return x

    worker = await make_worker(live_app, start=True, queues=["a", "b"], poll_s=600)
    bell, mail = live_app.store.keys.bell("a"), live_app.store.keys.mail(worker.name)
    for key in (bell, mail):
        await live_app.store.client.set(key, "not ours")
    assert await works(live_app, job, 1)
    await eventually(lambda: _are_aside(live_app.store.client, bell, mail), "both are set aside")


async def _are_aside(client, *keys) -> bool:
    return all([await client.exists(wrong_types.aside(key)) and not await client.exists(key) for key in keys])
