"""Lost calls and lost replies: a connection that is cut before or after a script ran changes nothing in the end."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.support.one_queue import FOR_EVER, Line
from tests.support.proxy import CUTS, Proxy, comparable
from tests.support.records import record
from tests.support.script_examples import CHANGES, in_each_order
from tests.support.servers import Server
from tocsin.model.errors import StoreUnavailable
from tocsin.model.outcome import SUCCEEDED
from tocsin.model.queue import Queue
from tocsin.store.store import Store
from tocsin.store.transitions.claims import ClaimReply, ClaimRequest, Runs
from tocsin.store.transitions.jobs import PutItem
from tocsin.store.transitions.settle import finish_item
from tocsin.testing import ManualClock

WORKERS_OWN = [name for name in CHANGES if name.startswith("run_") and name != "run_extend"]


@contextlib.asynccontextmanager
async def line_at(url: str, order: Any = "due") -> AsyncIterator[Line]:
    clock = ManualClock()
    store = Store(url, prefix=f"t{secrets.token_hex(4)}:", clock=clock)
    await store.open()
    try:
        yield Line(store, await store.open_queue(Queue("line", order, partitions=1)), clock)
    finally:
        await store.close()


async def until_answered(attempt: Callable[[], Awaitable[Any]]) -> Any:
    """What the caller of a worker's call does. No pause: the server is there."""
    while True:
        with contextlib.suppress(StoreUnavailable):
            return await attempt()


# Calls of a program: the store repeats them by itself.


@pytest.mark.parametrize("when", CUTS)
@pytest.mark.parametrize(("name", "order"), in_each_order(CHANGES))
async def test_a_programs_call_is_made_once(valkey: Server, proxy: Proxy, name: str, order: str, when: str):
    async with line_at(valkey.url, order) as line:
        args = await CHANGES[name](line)
        expected = await line.store.change(name, line.queue, 0, *args)
        state = comparable(await line.dump())
    async with line_at(proxy.url, order) as line:
        args = await CHANGES[name](line)
        proxy.cut(when, name, order)
        assert await line.store.change(name, line.queue, 0, *args) == expected
        assert proxy.cuts == 1
        assert comparable(await line.dump()) == state


# Calls of a worker: whoever made them repeats them.


async def _claim(line: Line, runs: Runs, members: tuple[str, ...] = ()) -> ClaimReply:
    async def attempt() -> ClaimReply:
        [answer] = await runs.claim([ClaimRequest(line.queue, 0, 10, members)], FOR_EVER)
        if isinstance(answer, StoreUnavailable):
            raise answer
        assert isinstance(answer, ClaimReply)
        return answer

    return await until_answered(attempt)


async def _worker_call(line: Line, name: str, args: list[Any]) -> Any:
    if name.startswith("run_claim"):
        return await _claim(line, line.runs, ("a",) if name == "run_claim_ids" else ())
    call = line.queue.call(name, 0, f"{line.runs.owner}:x", 99, args)
    return await until_answered(lambda: line.store.call(call))


@pytest.mark.parametrize("when", CUTS)
@pytest.mark.parametrize(("name", "order"), in_each_order(WORKERS_OWN))
async def test_a_workers_call_that_is_repeated_is_made_once(
    valkey: Server, proxy: Proxy, name: str, order: str, when: str
):
    async with line_at(valkey.url, order) as line:
        expected = await _worker_call(line, name, await CHANGES[name](line))
        state = comparable(await line.dump())
    async with line_at(proxy.url, order) as line:
        args = await CHANGES[name](line)
        proxy.cut(when, name, order)
        assert await _worker_call(line, name, args) == expected
        assert proxy.cuts == 1
        assert comparable(await line.dump()) == state


@pytest.mark.parametrize("when", CUTS)
async def test_claims_from_several_partitions_in_one_round_trip(proxy: Proxy, when: str):
    async with line_at(proxy.url) as line:
        wide = await line.store.open_queue(Queue("wide", partitions=4))
        wishes = [ClaimRequest(wide, partition, 100) for partition in range(4)]
        await line.runs.claim(wishes, FOR_EVER)
        for n in range(40):
            await line.jobs.put(wide, PutItem(f"{n}", record(), line.now))
        proxy.cut(when, "run_claim")
        lost = await line.runs.claim(wishes, FOR_EVER)
        assert [type(answer) for answer in lost] == [StoreUnavailable] * 4
        claims = [claim for answer in await line.runs.claim(wishes, FOR_EVER) for claim in answer.claims]
        assert sorted(int(claim.member) for claim in claims) == list(range(40))
        for claim in claims:
            call = line.runs.settle("finish", wide, claim.partition, [finish_item(claim, 0, SUCCEEDED)])
            assert (await line.store.call(call))[1] == []
        assert sum((await line.jobs.count(wide)).values()) == 0


@pytest.mark.parametrize("when", CUTS)
async def test_a_claim_that_was_not_answered_is_made_with_the_cap_of_the_next(proxy: Proxy, when: str):
    async with line_at(proxy.url) as line:
        for n in range(5):
            await line.put(f"{n}")
        proxy.cut(when, "run_claim")
        [lost] = await line.runs.claim([ClaimRequest(line.queue, 0, 9, max_active=3)], FOR_EVER)
        assert isinstance(lost, StoreUnavailable)
        [answer] = await line.runs.claim([ClaimRequest(line.queue, 0, 9, max_active=1)], FOR_EVER)
        # What was made before its reply was lost cannot be unmade.
        assert len(answer.claims) == (3 if when == "after" else 1)


@pytest.mark.parametrize("when", CUTS)
async def test_a_recovery_that_is_started_over_counts_once(proxy: Proxy, when: str):
    async with line_at(proxy.url) as line:
        for n in range(5):
            await line.put(f"{n}")
        await line.claim()
        await line.recover("nobody")
        proxy.cut(when, "run_recover")
        await until_answered(line.recover)
        assert proxy.cuts == 1
        assert [(await line.job(f"{n}")).recoveries for n in range(5)] == [1] * 5
        assert (await line.meta())["recovered"] == 5


async def test_a_claim_that_was_recovered_while_its_reply_was_lost_is_not_given_again(proxy: Proxy):
    async with line_at(proxy.url) as line:
        await line.put("a")
        await line.claim(members=["b"])
        await line.release(await line.take("a"))
        proxy.cut("after", "run_claim_ids")
        [lost] = await line.runs.claim([ClaimRequest(line.queue, 0, 1, ["a"])], FOR_EVER)
        assert isinstance(lost, StoreUnavailable)
        assert await line.stage("a") == "working"
        assert await line.recover() == 1
        taken = await line.take("a", line.other)
        assert (await _claim(line, line.runs, ("a",))).claims == []
        assert await line.finish(taken, runs=line.other) == []


@pytest.mark.parametrize("when", CUTS)
@pytest.mark.parametrize("name", ["queue_declare", "partition_open"])
async def test_a_queue_is_opened_once(proxy: Proxy, name: str, when: str):
    async with line_at(proxy.url) as line:
        proxy.cut(when, name)
        opened = await line.store.open_queue(Queue("other", partitions=2))
        assert proxy.cuts == 1
        metas = [await line.store.client.hget(keys["meta"], "epoch") for keys in opened.keys]
        assert metas == opened.epochs
