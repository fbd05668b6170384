"""Programs that have a queue open while it gets other partitions find its jobs, and put theirs where they belong."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.crashes import DyingRepartition, Killed
from tests.support.many_partitions import wide
from tests.support.records import packed, record
from tests.support.servers import Server
from tocsin.model.errors import (
    InvalidConfig,
    QueueRepartitioned,
    QueueRepartitioning,
    StoreChanged,
    StoreUnavailable,
)
from tocsin.model.outcome import NEW, SUCCEEDED
from tocsin.model.queue import Queue
from tocsin.store import queue_directory
from tocsin.store.queue_entry import decode_entry
from tocsin.store.repartition import repartition
from tocsin.store.store import Store
from tocsin.store.transitions.claims import ClaimRequest
from tocsin.store.transitions.jobs import PutItem
from tocsin.store.transitions.settle import finish_item
from tocsin.testing import ManualClock


class TestWhoHasItOpen:
    """`store` repartitions, `other` is another process that had opened the queue before."""

    @pytest.fixture
    async def other(self, any_server: Server, store: Store, clock: ManualClock):
        opened = Store(any_server.url, prefix=store.keys.prefix, clock=clock)
        await opened.open()
        yield opened
        await opened.close()

    async def test_a_put_arrives_where_the_job_belongs(self, store, other, clock):
        line, its = await wide(store, clock), await wide(other, clock)
        await its.put("a")
        await repartition.repartition(store, "wide", 7)
        for n in range(20):
            await its.put(f"n{n}")
        assert its.queue.partitions == 7
        await store.reopen(line.queue)
        assert (await line.content()).keys() == {"a", *(f"n{n}" for n in range(20))}

    async def test_a_put_in_bulk_finds_its_partitions(self, store, other, clock):
        line, its = await wide(store, clock, partitions=1), await wide(other, clock, partitions=1)
        await repartition.repartition(store, "wide", 5)
        puts = [PutItem(f"n{n}", record(), 0) for n in range(30)]
        assert await its.jobs.put_many(its.queue, puts) == (bytes([NEW]) * 30, 0)
        await store.reopen(line.queue)
        assert len(await line.content()) == 30

    async def test_a_reader_finds_a_job_and_its_outcome(self, store, other, clock):
        line, its = await wide(store, clock), await wide(other, clock)
        await line.fill()
        await repartition.repartition(store, "wide", 9)
        for member in line.named("waiting"):
            assert (await its.jobs.get(its.queue, member)).stage == "waiting"
        for member in line.named("done"):
            assert (await its.jobs.outcome(its.queue, member)).result == 7
        assert await its.jobs.get(its.queue, "none") is None

    async def test_a_call_that_was_made_before_is_not_made_again(self, store, other, clock):
        """Its reply was lost, the job has run and gone, and the queue was repartitioned: the put is not repeated."""
        line, its = await wide(store, clock), await wide(other, clock)
        partition = its.queue.partition_of("a")
        items = packed("a", record(), 0, relative=True)
        call = its.queue.call("job_put", partition, "program:1", 5, [items])
        unmade = its.queue.call("job_put", partition, "program:1", 6, [items])
        first = await other.call(call)
        claim = (await line.claim())["a"]
        await line.settle("finish", claim, finish_item(claim, 0, SUCCEEDED))
        await repartition.repartition(store, "wide", 6)
        await repartition.repartition(store, "wide", 2)
        with pytest.raises(StoreChanged):
            await other.call(call)
        await other.reopen(its.queue)
        with pytest.raises(QueueRepartitioned):
            await other.call(call)
        assert await other.find_kept_answer(call) == first
        assert await other.find_kept_answer(unmade) is None

    async def test_a_claim_that_was_made_unseen_is_known(self, store, other, clock):
        line, its = await wide(store, clock), await wide(other, clock)
        await its.put("a")
        partition = its.queue.partition_of("a")
        runs = its.runs
        honest = other.call_all
        lost = StoreUnavailable("the reply was lost")

        async def unheard(calls):
            await honest(calls)
            return [lost for _ in calls]

        other.call_all = unheard
        assert await runs.claim([ClaimRequest(its.queue, partition, 10)], 1e15) == [lost]
        other.call_all = honest
        await repartition.repartition(store, "wide", 7)
        await other.reopen(its.queue)
        [call] = runs.unanswered_claims(its.queue)
        [(key, token)] = await runs.read_unseen_claims(call)
        assert runs.unanswered_claims(its.queue) == []
        assert not runs.unanswered
        await store.reopen(line.queue)
        entry = (await line.content())["a"]["claims"]
        assert (key, token) == (b"a", int.from_bytes(entry[:8], "big"))

    async def test_it_waits_while_the_queue_is_moving(self, store, other, clock, monkeypatch):
        line, its = await wide(store, clock), await wide(other, clock)
        mortal = DyingRepartition(monkeypatch)
        mortal.dies_at = 6
        with pytest.raises(Killed):
            await repartition.repartition(store, "wide", 7)
        monkeypatch.setattr(queue_directory, "REPARTITION_PATIENCE_S", 0.0)
        with pytest.raises(QueueRepartitioning, match=r"run `tocsin queues repartition wide 7` again"):
            await its.put("a")
        with pytest.raises(QueueRepartitioning):
            await its.jobs.get(its.queue, "a")
        with pytest.raises(QueueRepartitioning):
            await other.reopen(its.queue)
        assert await line.troubles() == ["moving: ['to 7 partitions']"]
        monkeypatch.setattr(queue_directory, "REPARTITION_PATIENCE_S", 10.0)
        mortal.dies_at = -1
        waiting = asyncio.create_task(its.put("a"))
        await repartition.repartition(store, "wide", 7)
        await waiting
        await store.reopen(line.queue)
        assert (await line.content()).keys() == {"a"}

    async def test_what_code_declares_gives_way_to_the_operator(self, store, other, clock):
        await wide(store, clock)
        with pytest.raises(InvalidConfig, match=r"or run `tocsin queues repartition wide 8`"):
            await other.open_queue(Queue("wide", partitions=8))
        await repartition.repartition(store, "wide", 7)
        assert (await other.open_queue(Queue("wide", partitions=8))).partitions == 7
        other.open_queues.clear()
        with pytest.raises(InvalidConfig, match="order"):
            await other.open_queue(Queue("wide", "fair", partitions=7))

    async def test_a_wiped_server_gets_the_queue_back_as_it_was(self, store, other, clock):
        await wide(store, clock)
        its = await wide(other, clock)
        await repartition.repartition(store, "wide", 7)
        await its.put("a")
        for key in await store.client.keys(f"{store.keys.prefix}*"):
            await store.client.delete(key)
        await its.put("b")
        raw = await store.client.hget(store.keys.fleet()["queues"], "wide")
        assert decode_entry(raw).partitions == 7
        fresh = await wide(store, clock)
        await store.queues.refresh_if_repartitioned(fresh.queue)
        assert fresh.queue.partitions == 7
