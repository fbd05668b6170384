"""The audit of sessions, workers and late runs, and while jobs move."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.audit_bench import Bench
from tests.support.servers import Server
from tocsin import Every, Retry, Tocsin
from tocsin.inspection.doctor import Doctor, is_stale
from tocsin.inspection.inspector import Inspector
from tocsin.model.queue import AGENTS_QUEUE, Queue
from tocsin.store.store import Store
from tocsin.store.transitions.claims import Runs
from tocsin.store.transitions.fleet import Fleet, WorkerInfo
from tocsin.store.transitions.jobs import Jobs
from tocsin.store.views.audit import AuditReader, Session
from tocsin.testing import ManualClock

GONE = "host:1:abc123.1:claim"
ABOUT = WorkerInfo(host="host", pid=1, started=0, queues=["line"], handlers=[], concurrency=1)


async def test_the_sessions_of_a_worker_that_is_gone_are_dropped(bench: Bench, clock: ManualClock) -> None:
    await bench.put("a")
    old, fresh = clock.ms - 61_000, clock.ms - 1000
    for name, at in {GONE: old, "host:2:abc124.1:claim": fresh, "program:1": old}.items():
        await bench.redis.hset(bench.keys["sessions"], name, (7).to_bytes(8, "big") + at.to_bytes(8, "big") + b"\xc0")
    assert await bench.kinds(repair=True) == {"stale-session": (1, 1)}
    left = {name.decode() for name in await bench.redis.hkeys(bench.keys["sessions"])}
    assert GONE not in left
    assert {"host:2:abc124.1:claim", "program:1"} < left


async def test_a_session_that_has_called_since_it_was_looked_at_stays(bench: Bench) -> None:
    await bench.redis.hset(bench.keys["sessions"], GONE, bytes(7) + b"\x02" + bytes(8) + b"\xc0")
    seen = Session(GONE.encode(), bytes(7) + b"\x01" + bytes(8), 0)
    assert await AuditReader(bench.store).forget(bench.queue, 0, [seen]) == 0
    assert await bench.redis.hexists(bench.keys["sessions"], GONE)


@pytest.mark.parametrize(
    ("name", "age", "alive", "stale"),
    [
        (GONE, 61_000, set(), True),
        (GONE, 59_000, set(), False),
        (GONE, 10**9, {"host:1:abc123.1"}, False),
        ("abcdef0123:4", 25 * 3_600_000, set(), False),
        ("abcdef0123:4", 27 * 3_600_000, set(), True),
    ],
)
def test_when_a_session_is_stale(name: str, age: int, alive: set[str], stale: bool) -> None:
    assert is_stale(Session(name.encode(), b"", 10**12 - age), alive, 10**12) is stale


async def test_a_silent_worker_and_an_unfinished_burial_are_told(bench: Bench, clock: ManualClock) -> None:
    import msgspec

    fleet = bench.store.keys.fleet()
    await bench.redis.hset(fleet["workers"], "w1", msgspec.msgpack.encode(ABOUT))
    await bench.redis.hset(fleet["beats"], "w1", 4)
    await bench.redis.zadd(fleet["buried"], {"w0": clock.ms - 61_000, "w2": clock.ms})
    report = await bench.audit()
    told = {found.kind: found.examples for found in report.findings}
    assert told["silent-worker"] == ["w1"]
    assert told["buried"] == ["w0"]
    assert not report.wrong


async def test_a_queue_that_has_outgrown_its_partitions_is_told_with_the_command(bench: Bench, monkeypatch) -> None:
    for number in range(6):
        await bench.put(f"j{number}", 1000)
    assert await bench.kinds() == {}
    monkeypatch.setattr("tocsin.model.queue.OUTGROWN", 6)
    monkeypatch.setattr("tocsin.model.queue.ROOMY", 2)
    [found] = [each for each in (await bench.audit()).findings if each.kind == "outgrown"]
    assert (found.level, found.where) == ("note", bench.queue.name)
    assert f"`tocsin queues repartition {bench.queue.name} 4`" in found.examples[0]


async def test_runs_long_past_their_deadline_are_told(bench: Bench, clock: ManualClock) -> None:
    await bench.put("a", timeout=1000)
    await bench.take("a")
    clock.advance("2m")
    assert await bench.kinds() == {}
    clock.advance("2s")
    assert await bench.kinds() == {"overdue": (1, 0)}


async def test_runs_of_agents_may_be_past_their_deadline_until_they_are_orphans(
    store: Store, jobs: Jobs, runs: Runs, make_put: Any, clock: ManualClock
) -> None:
    agents = Bench(store, await store.open_queue(Queue(AGENTS_QUEUE, partitions=1)), jobs, runs, make_put)
    await agents.put("a", timeout=1000, every=10)
    await agents.take("a")
    clock.advance("15m")
    assert await agents.kinds() == {}
    clock.advance("3m")
    assert await agents.kinds() == {"overdue": (1, 0)}


# Under load


@pytest.fixture
async def busy(valkey: Server) -> AsyncIterator[Tocsin]:
    """An app with a worker that claims, retries, buries and finishes as fast as it can."""
    app = Tocsin(valkey.url, prefix=f"t{secrets.token_hex(4)}:")
    app.queue("load", partitions=2)

    @app.job(queue="load", name="tests.work", retry=Retry(1, "1ms"))
    async def work(n: int) -> None:
        if n % 5 == 0:
            raise ValueError(n)

    stop = asyncio.Event()

    async def feed() -> None:
        for turn in itertools.count():
            # The same ids again and again, or there would be more and more to look at.
            ids = [f"{turn % 5}.{n}" for n in range(200)]
            await app.enqueue_many(work, [(n,) for n in range(200)], ids=ids, keep="1s", if_exists="replace")
            await app.schedule(work, Every("10ms"), 1, id=f"often {turn % 50}")
            await app.pause(f"often {(turn + 7) % 50}")
            await app.remove(f"often {(turn + 17) % 50}")
            if stop.is_set():
                return

    async with app:
        feeding = asyncio.create_task(feed())
        working = asyncio.create_task(app.work(queues=["load"], grace=0))
        yield app
        stop.set()
        await feeding
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working


async def test_jobs_that_move_while_they_are_looked_at_are_not_reported(busy: Tocsin) -> None:
    inspector = Inspector(busy.store)
    for repair in (False, True) * 6:
        report = await Doctor(AuditReader(busy.store), Fleet(busy.store), repair=repair, patience_s=0).run()
        noticed = {found.kind for found in report.findings} - {"no-aof", "dead", "silent-worker", "bell"}
        assert noticed == set()
    [queue] = await inspector.queues()
    assert queue.counters["succeeded"] > 1000
    assert queue.counters["retried"] > 200
    assert queue.counters["buried"] > 100
