"""Passes over orphans: they end with their budget or with the leader's term, and go on after trouble."""

from __future__ import annotations

import contextlib

import pytest

from tests.support.captured_logs import capture_logs
from tests.support.one_queue import Line
from tests.support.orphans import Cleaner, zadd
from tests.support.records import record
from tests.support.servers import Server, cluster
from tests.support.stepping_clock import SteppingClock
from tocsin.model.errors import StoreUnavailable
from tocsin.model.queue import Queue
from tocsin.store import calls
from tocsin.store.store import Store
from tocsin.store.transitions.jobs import PutItem
from tocsin.store.transitions.leadership import LeaderKey
from tocsin.store.views import strays as strays_module
from tocsin.testing import ManualClock
from tocsin.upkeep.elector import Elector


async def many(line: Line, count: int) -> None:
    for first in range(0, count, 1000):
        await line.store.client.zadd(line.keys["waiting"], {f"x{n}": line.now for n in range(first, first + 1000)})


@pytest.fixture
def small_pages(monkeypatch) -> None:
    monkeypatch.setattr(strays_module, "PAGE", 100)


@pytest.mark.usefixtures("small_pages")
async def test_a_pass_ends_with_its_budget_and_the_next_goes_on_there(line: Line):
    await many(line, 3000)
    cleaner = Cleaner(line.store, [line.queue], SteppingClock(), run_budget_ms=4000)
    done = []
    while sum(done) < 3000:
        before = cleaner.done.get("no_record", 0)
        assert await cleaner.step() == 300.0
        done.append(cleaner.done["no_record"] - before)
        assert 0 < done[-1] < 2000
    assert len(done) > 3
    assert sum(done) == 3000


@pytest.mark.usefixtures("small_pages")
async def test_without_a_budget_a_pass_goes_all_the_way(line: Line):
    await many(line, 3000)
    cleaner = Cleaner(line.store, [line.queue], SteppingClock(), run_budget_ms=0)
    await cleaner.step()
    assert cleaner.done == {"no_record": 3000}


@pytest.mark.usefixtures("small_pages")
async def test_a_small_budget_reaches_every_place_in_the_end(store: Store, clock: ManualClock):
    queues = [await store.open_queue(Queue(name, partitions=n)) for name, n in (("one", 3), ("other", 1))]
    for queue in queues:
        for keys in queue.keys:
            for stage in ("waiting", "working"):
                await store.client.zadd(keys[stage], {stage: clock.ms})
    cleaner = Cleaner(store, queues, SteppingClock(), run_budget_ms=1)
    for _ in range(8):
        await cleaner.step()
    assert cleaner.done == {"no_record": 8}


@pytest.mark.usefixtures("small_pages")
async def test_what_is_in_order_is_passed_by(line: Line):
    for first in range(0, 3000, 1000):
        await line.jobs.put_many(line.queue, [PutItem(f"{first + n}", record(), line.now) for n in range(1000)])
    await zadd(line, "working", "stray", line.now)
    cleaner = Cleaner(line.store, [line.queue], SteppingClock(), run_budget_ms=1)
    passes = 0
    while not cleaner.done:
        passes += 1
        assert passes < 60
        await cleaner.step()
    assert passes > 10


@pytest.mark.usefixtures("small_pages")
async def test_a_leader_whose_term_ends_stops_between_two_pages(line: Line):
    await many(line, 3000)
    cleaner = Cleaner(line.store, [line.queue], line.clock)
    cleaner.leading = lambda: cleaner.done.get("no_record", 0) < 200
    await cleaner.step()
    done = cleaner.done["no_record"]
    assert 200 <= done < 1000
    await cleaner.step()
    assert cleaner.done["no_record"] == done
    cleaner.leading = lambda: True
    await cleaner.step()
    await cleaner.step()
    assert cleaner.done == {"no_record": 3000}


async def test_a_leader_that_was_stopped_during_its_look_does_not_act_on_it(line: Line, after_look):
    """Its clock has gone on meanwhile, and another was elected."""
    here, there = ManualClock(), ManualClock()
    one = Elector(LeaderKey(line.store), lambda: "one", here, 120_000)
    two = Elector(LeaderKey(line.store), lambda: "two", there, 120_000)
    old, new = (Cleaner(line.store, [line.queue], line.clock) for _ in range(2))
    old.leading, new.leading = one.leading, two.leading
    await one.step()
    await zadd(line, "waiting", "a", line.now)

    async def stop_and_elect() -> None:
        if not two.leading():
            here.advance("3m")
            await line.store.client.delete(line.store.keys.leader())
            await two.step()

    after_look(stop_and_elect)
    await old.step()
    await one.step()
    await old.step()
    assert old.done == {}
    await new.step()
    assert new.done == {"no_record": 1}


# Trouble


async def test_with_the_server_away_the_next_pass_goes_on_where_this_one_ended(monkeypatch, clock: ManualClock):
    monkeypatch.setattr(calls, "PATIENCE_S", 0.0)
    with Server.valkey(aof=True) as server:
        store = Store(server.url, clock=clock)
        await store.open()
        try:
            line = Line(store, await store.open_queue(Queue("line", partitions=1)), clock)
            await zadd(line, "working", "a", line.now)
            cleaner = Cleaner(store, [line.queue], clock)
            server.kill()
            with pytest.raises(StoreUnavailable):
                await cleaner.step()
            server.start()
            with contextlib.suppress(StoreUnavailable):
                await cleaner.step()
            await cleaner.step()
            assert cleaner.done == {"no_record": 1}
        finally:
            await store.close()


async def test_a_broken_partition_keeps_no_other_from_being_cleaned(store: Store, clock: ManualClock):
    queue = await store.open_queue(Queue("three", partitions=3))
    for keys in queue.keys:
        await store.client.zadd(keys["waiting"], {"x": clock.ms})
    await store.client.delete(queue.keys[1]["waiting"])
    await store.client.set(queue.keys[1]["waiting"], "not a sorted set")
    cleaner = Cleaner(store, [queue], clock)
    with capture_logs() as logs:
        await cleaner.step()
    assert cleaner.done == {"no_record": 2}
    assert [(said["event"], said.get("partition")) for said in logs] == [
        ("cannot clean up", 1),
        ("orphans cleaned up", None),
    ]


async def test_a_server_that_was_emptied_is_cleaned_all_the_same(line: Line, cleaner: Cleaner):
    await line.store.client.delete(*line.keys.values())
    await zadd(line, "waiting", "a", line.now)
    await cleaner.step()
    assert cleaner.done == {"no_record": 1}


async def test_on_a_cluster_one_worker_is_elected_and_cleans_up_on_all_nodes(clock: ManualClock):
    with cluster() as nodes:
        store = Store(nodes.url, prefix="myapp:", hash_tag="ps", clock=clock)
        await store.open()
        try:
            queues = [await store.open_queue(Queue(name, partitions=p)) for name, p in (("agents", 1), ("wide", 6))]
            for queue in queues:
                for keys in queue.keys:
                    await store.client.zadd(keys["waiting"], {"4711": clock.ms, "x": clock.ms})
            elections = [Elector(LeaderKey(store), lambda n=n: n, clock, 120_000) for n in ("one", "two")]
            cleaners = [Cleaner(store, queues, clock) for _ in elections]
            for election, cleaner in zip(elections, cleaners, strict=True):
                await election.step()
                cleaner.leading = election.leading
                await cleaner.step()
            assert await store.client.get("myapp:cleanup-leader{ps}") == b"one"
            assert [cleaner.done for cleaner in cleaners] == [{"numeric": 7, "no_record": 7}, {}]
        finally:
            await store.close()
