"""A full server: what would add work is refused and changes nothing, what ends or moves work passes."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.one_queue import Line
from tests.support.script_examples import CHANGES, IDLE, in_each_order
from tests.support.servers import Server, flavours
from tocsin.model.errors import StoreFull
from tocsin.model.outcome import EDIT
from tocsin.model.queue import Queue
from tocsin.store.store import Store
from tocsin.store.transitions.jobs import REMOVED, REVIVED, Jobs, PutItem

ADDING = ("job_put", "job_fire", "dependency_block")


@pytest.fixture(scope="module", params=flavours())
def small_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with getattr(Server, request.param)() as server:
        yield server


@pytest.fixture
async def full(request: pytest.FixtureRequest, small_server: Server, clock) -> AsyncIterator[Line]:
    """A line of order `due`, or as the test is parametrized, whose server is full after `fill`."""
    store = Store(small_server.url, prefix=f"t{secrets.token_hex(4)}:", clock=clock)
    await store.open()
    order = getattr(request, "param", "due")
    yield Line(store, await store.open_queue(Queue("line", order, partitions=1)), clock)
    await store.client.config_set("maxmemory", 0)
    await store.close()


async def fill(line: Line) -> None:
    await line.store.client.config_set("maxmemory", 1)


@pytest.mark.parametrize(("name", "full"), in_each_order(ADDING), indirect=["full"])
async def test_what_adds_work_is_refused_and_changes_nothing(full: Line, name: str):
    args = await CHANGES[name](full)
    await fill(full)
    before = await full.dump()
    with pytest.raises(StoreFull):
        await full.store.change(name, full.queue, 0, *args)
    assert await full.dump() == before
    await full.store.client.config_set("maxmemory", 0)
    assert (await full.store.change(name, full.queue, 0, *args))[1] != b"0"


async def test_a_batch_is_refused_as_a_whole(full: Line):
    await full.put("old")
    [claim] = await full.claim()
    await fill(full)
    before = await full.dump()
    record = claim.record
    puts = [PutItem("new", record, full.now), PutItem("old", record, 0, mode=EDIT), PutItem("new2", record, full.now)]
    with pytest.raises(StoreFull):
        await full.jobs.put_many(full.queue, puts)
    assert await full.dump() == before


async def test_a_change_of_a_working_job_is_refused_and_changes_nothing(full: Line):
    await full.put("a")
    await full.take("a")
    await fill(full)
    before = await full.dump()
    with pytest.raises(StoreFull):
        await full.put("a", mode=EDIT, args=(2,))
    assert await full.dump() == before


async def test_a_working_job_can_be_paused_resumed_cancelled_and_removed(full: Line):
    await full.put("a", every=5)
    claim = await full.take("a")
    await fill(full)
    assert await full.pause("a") == 2
    assert await full.resume("a") == 2
    assert await full.cancel("a") == 2
    assert await full.delete("a")
    await full.finish(claim, claim.due + 5000)
    assert await full.stage("a") is None


@pytest.mark.parametrize(
    ("name", "full"), in_each_order(name for name in CHANGES if name not in ADDING), indirect=["full"]
)
async def test_all_else_passes(full: Line, name: str):
    args = await CHANGES[name](full)
    await fill(full)
    before = await full.dump()
    first = await full.raw(name, args, seq=1)
    assert first[0] == 1
    assert await full.dump() != before
    assert await full.raw(name, args, seq=1) == first


@pytest.mark.parametrize(("name", "full"), in_each_order(IDLE), indirect=["full"])
async def test_what_changes_nothing_is_answered(full: Line, name: str):
    await fill(full)
    assert (await full.raw(name, IDLE[name]))[0] == 1


async def test_a_full_server_still_runs_what_it_has(full: Line):
    for n in range(20):
        await full.put(f"{n:02}", every=5 if n % 2 else None, keep=60)
    await fill(full)
    claims = await full.claim()
    assert len(claims) == 20
    for n, claim in enumerate(claims):
        if n < 10:
            assert await full.finish(claim, claim.due + 5000 if n % 2 else 0, keep=60 * (1 - n % 2)) == []
        elif n < 15:
            assert await full.release(claim) == []
        else:
            assert await full.retry(claim) == []
    assert await full.jobs.count(full.queue, ["waiting", "working"]) == {"waiting": 15, "working": 0}
    assert (await full.outcome("00")) == "succeeded"
    assert len(await full.claim(full.other)) == 5
    assert await full.recover(full.other.owner) == 5


@pytest.mark.parametrize("full", ["due", "priority", "fair"], indirect=True)
async def test_a_program_that_comes_now_can_look_and_remove(full: Line):
    await full.put_all([f"j{n}" for n in range(50)])
    await full.bury(await full.take("j0"))
    await fill(full)
    store = Store(full.store.address.shown, prefix=full.store.keys.prefix, clock=full.clock)
    await store.open()
    try:
        queue = await store.find_queue("line")
        assert queue is not None
        jobs, members = Jobs(store), [f"j{n}".encode() for n in range(50)]
        assert len(await jobs.get_all(queue, 0, members)) == 50
        assert await jobs.revive_many(queue, [b"j0", b"j1"]) == bytes([REVIVED, 0])
        assert await jobs.delete_many(queue, members) == bytes([REMOVED]) * 50
        assert await jobs.get_all(queue, 0, members) == []
    finally:
        await store.close()
