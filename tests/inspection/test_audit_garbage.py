"""The audit finds what somebody else wrote into each key, and clears it without harm to what is in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tocsin import Tocsin
from tocsin.inspection.doctor import Doctor, DoctorReport
from tocsin.model import msgpack
from tocsin.model.queue import Queue
from tocsin.model.record import body_of
from tocsin.store.keys import FLEET_KEYS, LEADER_KEY, PARTITION_KEYS, TYPES
from tocsin.store.transitions.fleet import Fleet, WorkerInfo
from tocsin.store.views import wrong_types
from tocsin.store.views.audit import AuditReader

USUAL = {"no-aof", "buried", "dead"}


async def audit(app: Tocsin, *, repair: bool = False) -> DoctorReport:
    return await Doctor(AuditReader(app.store), Fleet(app.store), repair=repair, patience_s=0).run()


async def found_in(app: Tocsin, *, repair: bool = False) -> dict[str, tuple[int, int]]:
    """kind -> found, left."""
    report = await audit(app, repair=repair)
    return {found.kind: (found.count, found.left) for found in report.findings if found.kind not in USUAL}


@pytest.fixture
async def app(tocsin_app: Tocsin) -> Tocsin:
    """Queues of each order with jobs."""
    tocsin_app.queue("d", partitions=1)
    tocsin_app.queue("p", order="priority")
    tocsin_app.queue("f", order="fair")

    @tocsin_app.job(name="job")
    async def job(x: object = None) -> None: ...

    for queue in "dpf":
        await tocsin_app.enqueue(job, id=f"{queue}-due", queue=queue)
        await tocsin_app.enqueue(job, id=f"{queue}-later", queue=queue, delay="1h")
        await tocsin_app.enqueue(job, id=f"{queue}-paused", queue=queue, delay="1h")
        await tocsin_app.pause(f"{queue}-paused")
    await tocsin_app.enqueue(job, id="waits", queue="d", after=["d-later"])
    return tocsin_app


def keys_of(app: Tocsin, queue: str) -> dict[str, str]:
    return app.store.keys.partition(queue, 0)


def fleet_keys(app: Tocsin) -> dict[str, str]:
    return app.store.keys.fleet() | {LEADER_KEY: app.store.keys.leader(), "bell": app.store.keys.bell("d")}


async def ids_of(app: Tocsin) -> set[str]:
    return {job.id async for job in app.jobs()}


async def misuse(app: Tocsin, key: str, base: str) -> None:
    client = app.store.client
    await client.delete(key)
    await (client.rpush(key, "not ours") if TYPES[base] == "string" else client.set(key, "not ours"))


@pytest.mark.parametrize("queue", ["d", "p", "f"])
@pytest.mark.parametrize("base", PARTITION_KEYS)
async def test_a_key_of_a_queue_that_holds_another_kind_of_data_is_named_and_set_aside(app, base, queue):
    key = keys_of(app, queue)[base]
    await misuse(app, key, base)
    report = await audit(app)
    [finding] = [finding for finding in report.findings if finding.kind == "wrong-type"]
    assert (finding.where, finding.examples) == (queue, [f"{key} holds a string"])
    # The others are looked at all the same.
    assert {size.name for size in report.queues} >= {"d", "p", "f"} - {queue}
    await audit(app, repair=True)
    assert await app.store.client.get(wrong_types.aside(key)) == b"not ours"
    if base == "meta":
        # Its epoch is lost as well: whoever opens it gives it another.
        await app.store.reopen(await app.store.find_queue(queue))
    assert await found_in(app) == {}
    if base != "jobs":
        # Whatever was lost with the key, each job that has a record stands somewhere.
        assert {f"{queue}-due", f"{queue}-later", f"{queue}-paused"} <= await ids_of(app)


@pytest.mark.parametrize("base", [*FLEET_KEYS, LEADER_KEY, "bell"])
async def test_a_key_of_the_fleet_that_holds_another_kind_of_data_is_named_and_set_aside(app, base):
    key = fleet_keys(app)[base]
    await misuse(app, key, base)
    [finding] = [finding for finding in (await audit(app)).findings if finding.kind == "wrong-type"]
    assert finding.examples == [f"{key} holds a {'list' if TYPES[base] == 'string' else 'string'}"]
    assert not (await audit(app, repair=True)).wrong
    assert await app.store.client.exists(wrong_types.aside(key))
    assert await found_in(app) == {}


BAD = b"\xff\xfe"
# Of an entry of the register: a text that is none.
ONE_BAD_BYTE = b"\x82\xa5order\xa3\x98ue\xaapartitions\x01"
Write = Callable[[Any, dict[str, str]], Awaitable[Any]]


def values(base: str, *garbage: bytes) -> tuple[str, str, Write]:
    async def write(client: Any, keys: dict[str, str]) -> None:
        for n, value in enumerate(garbage):
            await client.hset(keys[base], BAD + b"%d" % n, value)

    return "f", base, write


def members(base: str, *garbage: bytes) -> tuple[str, str, Write]:
    async def write(client: Any, keys: dict[str, str]) -> None:
        await client.zadd(keys[base], dict.fromkeys(garbage, 0))

    return "d", base, write


def scores(base: str, queue: str, member: str) -> list[tuple[str, str, Write]]:
    def at(score: str) -> Write:
        async def write(client: Any, keys: dict[str, str]) -> None:
            for key in keys.values():
                if key != keys[base] and await client.type(key) == b"zset":
                    await client.zrem(key, member)
            await client.zadd(keys[base], {member: score})

        return write

    return [(queue, base, at(score)) for score in ("inf", "-inf", "1e300")]


GARBAGE = [
    values("results", b"", b"\x01", b"\xff" * 20),
    values("errors", b"", b"\xc1", b"\x05"),
    values("needs", b"", b"\xc1", b"\x91\x01"),
    values("sessions", b"", b"x" * 16),
    values("tenants", b"", b"x" * 51),
    values("weights", b"nan", b"1e400", b"heavy", b"-1"),
    members("watchers", b"", BAD, b"a\0b", b"a\0b\0c\0d\0e"),
    members("outbox", b"", BAD, b"E\0x\0", b"E\0x\0zz", b"E\0x\0007", b"W\0x\0y"),
    *scores("waiting", "d", "d-later"),
    *scores("paused", "d", "d-paused"),
    *scores("dead", "d", "d-later"),
    *scores("parked", "d", "d-later"),
    *scores("done", "d", "gone"),
]


@pytest.mark.parametrize(("queue", "base", "write"), GARBAGE, ids=lambda it: it if isinstance(it, str) else "")
async def test_entries_that_nobody_can_have_written_are_found_and_cleared(app, queue, base, write):
    await write(app.store.client, keys_of(app, queue))
    [finding] = [finding for finding in (await audit(app)).findings if finding.kind == "garbage"]
    assert finding.where == queue
    assert all(example.startswith(f"{base}: ") for example in finding.examples)
    await audit(app, repair=True)
    left = await found_in(app)
    assert "garbage" not in left
    assert (await audit(app)).wrong is False
    assert {"d-due", "d-later", "d-paused"} <= await ids_of(app)


@pytest.mark.parametrize(
    ("queue", "base", "score"),
    [
        ("p", "ready2", "inf"),
        ("p", "ready2", "-1"),
        ("f", "ready2", "inf"),
        ("f", "ready2", "-1"),
        ("f", "turns2", "inf"),
    ],
)
async def test_impossible_scores_in_a_line_are_mended_and_the_job_keeps_its_line(app, base, score, queue):
    key = keys_of(app, queue)[base]
    [member] = await app.store.client.zrange(key, 0, -1)
    await app.store.client.zadd(key, {member: score})
    assert "garbage" in await found_in(app)
    await audit(app, repair=True)
    await audit(app, repair=True)
    assert await found_in(app) == {}
    assert await app.handle(f"{queue}-due").status() == "ready"


@pytest.mark.parametrize("value", [BAD, b"nan", b"1e400", b"-1", b"many"])
async def test_settings_and_counters_that_are_no_numbers_are_dropped(app, value):
    meta = keys_of(app, "f")["meta"]
    fields = ["put", "succeeded", "seq", "fence", "max_active", "v0", "tenant_every", "widest", "partitions", "order"]
    await app.store.client.hset(meta, mapping=dict.fromkeys(fields, value))
    [finding] = [finding for finding in (await audit(app)).findings if finding.kind == "garbled-settings"]
    assert (finding.where, finding.count) == ("f", len(fields))
    await audit(app, repair=True)
    assert await found_in(app) == {}
    assert await app.store.client.hmget(meta, "order", "partitions", "max_active") == [b"fair", b"1", None]
    assert await app.update("f-later", tenant="t")


@pytest.mark.parametrize("entry", [b"junk", b"", BAD, msgpack.encode([1, 2]), b"\x91" * 2000, ONE_BAD_BYTE])
async def test_a_garbled_entry_of_the_register_is_written_anew_as_the_partition_says(app, entry):
    queues = fleet_keys(app)["queues"]
    before = await app.store.client.hget(queues, "p")
    await app.store.client.hset(queues, mapping={"p": entry, "nobodys": entry, BAD: entry})
    assert (await found_in(app))["unreadable-queue"] == (3, 3)
    assert (await found_in(app, repair=True))["unreadable-queue"] == (3, 0)
    assert await app.store.client.hget(queues, "p") == before
    assert await app.store.client.hmget(queues, "nobodys", BAD) == [None, None]
    assert await found_in(app) == {}


async def test_a_garbled_entry_of_a_queue_whose_settings_are_another_kind_of_data_is_mended_too(app):
    queues, meta, client = fleet_keys(app)["queues"], keys_of(app, "p")["meta"], app.store.client
    await client.hset(queues, "p", b"junk")
    await misuse(app, meta, "meta")
    assert await found_in(app) == {"unreadable-queue": (1, 1), "wrong-type": (1, 1)}
    assert await found_in(app, repair=True) == {"unreadable-queue": (1, 0), "wrong-type": (1, 0)}
    # Nothing says any more what the queue was: whoever declares it opens it anew.
    assert await client.hget(queues, "p") is None
    await app.store.reopen(await app.store.open_queue(Queue("p", order="priority")))
    await audit(app, repair=True)
    assert await found_in(app) == {}
    assert {"p-due", "p-later", "p-paused"} <= await ids_of(app)


@pytest.mark.parametrize(
    ("base", "name", "value"),
    [
        ("workers", "w", b"\xc1"),
        ("workers", BAD, b"\x91" * 2000),
        ("beats", BAD, b"1"),
        ("beats", "w", b"many"),
        ("pulses", "w", b"inf"),
    ],
)
async def test_entries_of_workers_that_cannot_be_read_are_named_and_cleared(app, base, name, value):
    key, client = fleet_keys(app)[base], app.store.client
    await (client.zadd(key, {name: value}) if base == "pulses" else client.hset(key, name, value))
    assert (await found_in(app))["unreadable-worker"] == (1, 1)
    assert (await found_in(app, repair=True))["unreadable-worker"] == (1, 0)
    assert await found_in(app) == {}


async def test_a_worker_that_beats_again_while_the_audit_listens_is_not_buried(app):
    keys, client = fleet_keys(app), app.store.client
    about = msgpack.encode(WorkerInfo(host="h", pid=1, started=1, queues=[], handlers=[], concurrency=1))
    await client.hset(keys["workers"], "w", about)
    await client.hset(keys["beats"], "w", "garbled")
    listening = Doctor(AuditReader(app.store), Fleet(app.store), repair=True, patience_s=0.5).run()
    task = asyncio.ensure_future(listening)
    await client.hset(keys["beats"], "w", "7")
    await task
    assert await client.hget(keys["beats"], "w") == b"7"


async def test_hosts_that_nobody_can_have_named_are_cleared(app):
    keys, client = fleet_keys(app), app.store.client
    await client.zadd(keys["hosts"], {"example.org": "inf"})
    await client.hset(keys["outages"], "example.org", b"since ever")
    assert (await found_in(app))["garbage"] == (2, 2)
    await audit(app, repair=True)
    assert await found_in(app) == {}


async def test_a_seal_of_nobody_is_broken_and_that_of_a_move_is_kept(app):
    meta, client = keys_of(app, "d")["meta"], app.store.client
    await client.hset(meta, "sealed", BAD)
    assert (await found_in(app))["sealed"] == (1, 1)
    assert (await found_in(app, repair=True))["sealed"] == (1, 0)
    assert await app.update("d-later", timeout="5s")


async def test_records_whose_body_cannot_be_read_are_named(app):
    jobs, client = keys_of(app, "d")["jobs"], app.store.client
    record = await client.hget(jobs, "d-later")
    header = record[: len(record) - len(body_of(record))]
    for n, body in enumerate(
        [b"", b"\xc1", b"\x91" * 2000 + b"\x00", msgpack.encode(["job", [], {}, None, [-1, -1.0]])]
    ):
        await client.hset(jobs, "d-later", header + body)
        report = await audit(app)
        assert [(each.kind, each.examples) for each in report.findings if each.kind == "unreadable-record"] == [
            ("unreadable-record", ["d-later"])
        ], n
