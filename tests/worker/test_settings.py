"""What a worker is told, and what it does then."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.support.captured_logs import capture_logs
from tests.support.waiting import eventually, run_dry
from tocsin.engine.claim_planner import Batching
from tocsin.engine.loop import repeat
from tocsin.worker.settings import StopTimes


async def test_a_worker_that_is_disabled_lives_and_claims_nothing(tocsin_app, make_worker):
    @tocsin_app.job
    async def job():
        raise AssertionError("must not run")

    await tocsin_app.enqueue(job, id="j")
    worker = await make_worker(start=True, enabled=False, beat_s=0.02, poll_s=0.02)
    await eventually(lambda: worker.stats().health.reasons, "its health was looked at")
    assert worker.about().state == "disabled"
    health = worker.stats().health
    assert str(health.state) == "HEALTHY"
    assert "redis.scheduler.enabled" in health.reasons[0]
    assert (await tocsin_app.get("j")).stage == "waiting"
    assert worker.stats().claimed == 0


async def calls_of(app, name: str) -> int:
    events = []
    for queue in app.store.open_queues.values():
        for keys in queue.keys:
            events += await app.store.client.xrange(keys["events"])
    return sum(fields[b"kind"] == name.encode() for _, fields in events)


@pytest.mark.parametrize(("size", "calls"), [(1, 12), (5, 3), (1000, 1)])
async def test_batches_have_the_size_that_was_asked_for(tocsin_app, make_worker, size, calls):
    tocsin_app.queue("line", partitions=1)

    @tocsin_app.job(queue="line")
    async def job():
        pass

    await tocsin_app.enqueue_many(job, [() for _ in range(12)])
    await run_dry(await make_worker(queues=["line"], batching=Batching(size)))
    assert await calls_of(tocsin_app, "claim") == calls
    assert await calls_of(tocsin_app, "finish") == calls


async def test_what_is_handed_over_at_a_stop_is_spread_if_asked_for(tocsin_app, tocsin_clock, make_worker):
    @tocsin_app.job
    async def job():
        await asyncio.sleep(3600)

    names = [f"j{n}" for n in range(40)]
    await tocsin_app.enqueue_many(job, [() for _ in names], ids=names)
    worker = await make_worker(start=True, shutdown_jitter_s=60.0)
    await eventually(lambda: worker.stats().running == 40, "all run")
    await worker.stop(grace=0)
    waits = [(await tocsin_app.get(name)).not_before_ms - tocsin_clock.ms for name in names]
    assert min(waits) >= 0
    assert max(waits) <= 60_000
    assert len({wait // 10_000 for wait in waits}) >= 3
    assert {(await tocsin_app.get(name)).due_ms for name in names} == {tocsin_clock.ms}


@pytest.mark.agents
async def test_what_was_claimed_and_not_started_is_spread_too(tocsin_app, tocsin_clock, make_worker):
    names = [f"a{n}" for n in range(40)]
    for name in names:

        @tocsin_app.agent(every="30s", name=name)
        async def agent():
            raise AssertionError("must not run")

    worker = await make_worker(start=True, shutdown_jitter_s=60.0)
    worker.pool.hold()
    await eventually(lambda: worker.pool.waiting >= 40, "all are claimed")
    await worker.stop(grace=0)
    waits = [(await tocsin_app.get(name)).not_before_ms - tocsin_clock.ms for name in names]
    assert (min(waits) >= 0, max(waits) <= 60_000) == (True, True)
    assert len({wait // 10_000 for wait in waits}) >= 3


async def test_a_run_for_which_there_is_no_thread_goes_back_at_its_due_time(
    tocsin_app, tocsin_clock, make_worker, monkeypatch
):
    ran = []

    @tocsin_app.job
    def job():
        ran.append(1)

    start = threading.Thread.start
    refused = [True]

    def start_unless_refused(thread: threading.Thread) -> None:
        if thread.name.startswith("tocsin thread") and refused.pop():
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_unless_refused)
    await tocsin_app.enqueue(job, id="j")
    worker = await make_worker()
    due = (await tocsin_app.get("j")).due_ms
    with capture_logs() as logs:
        await worker.fetcher.step()
        await eventually(lambda: not worker.pool.busy, "its permit is back")
    await worker.finisher.step()
    entry = await tocsin_app.get("j")
    assert (entry.stage, entry.due_ms, entry.attempt, ran) == ("waiting", due, 1, [])
    assert worker.pool.not_started == 1
    assert any("could not be started" in entry["event"] for entry in logs)
    refused.append(False)
    await run_dry(worker)
    assert ran == [1]


class Hanging:
    """A part whose first pass never ends."""

    name = "hanging"

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.passes = 0

    async def step(self) -> float:
        self.passes += 1
        if self.passes == 1:
            await asyncio.Event().wait()
        return 60.0


async def test_a_pass_that_hangs_is_cut_off_and_the_next_one_begins():
    part, stop = Hanging(), asyncio.Event()
    with capture_logs() as logs:
        task = asyncio.create_task(repeat(part, stop, longest=0.01))
        await eventually(lambda: part.passes == 2, "there is another pass")
    assert any("cut off" in entry["event"] for entry in logs)
    stop.set()
    part.wake.set()
    await task


@pytest.mark.parametrize(("await_s", "ended"), [(30.0, "by itself"), (0.0, "cancelled")])
@pytest.mark.agents
async def test_a_stop_lets_a_pass_of_upkeep_end_for_a_while(tocsin_app, make_worker, await_s, ended):
    @tocsin_app.agent(every="1h", name="a")
    async def agent():
        pass

    worker = await make_worker(start=True, reconcile_ending=StopTimes(await_s, 5.0))
    inside, how = asyncio.Event(), []
    stopping = worker._quiet

    async def slow_pass() -> float:
        inside.set()
        try:
            await stopping.wait()
            await (asyncio.sleep(0.02) if await_s else asyncio.Event().wait())
            how.append("by itself")
        except asyncio.CancelledError:
            how.append("cancelled")
            raise
        return 60.0

    worker.reconciler.step = slow_pass
    worker.reconciler.wake.set()
    await asyncio.wait_for(inside.wait(), 10)
    await worker.kill()
    assert how == [ended]
