"""Stopping: no more claims, time to end, then a handover at the due time."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading

import pytest

from tests.support.captured_logs import capture_logs
from tests.support.waiting import Gate, eventually
from tocsin import Every, Run
from tocsin.store.transitions.fleet import Fleet


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def job(tocsin_app, gate):
    @tocsin_app.job(name="job")
    async def job(n=0):
        await gate.enter(n)
        return n

    return job


async def test_a_stopping_worker_claims_nothing_more_and_lets_runs_end(tocsin_app, job, gate, make_worker):
    running = await tocsin_app.enqueue(job, 1, id="running")
    worker = await make_worker(start=True)
    await eventually(lambda: gate.inside, "it runs")
    stopping = asyncio.create_task(worker.stop(grace=30))
    await worker.quiet()
    late = await tocsin_app.enqueue(job, 2, id="late")
    gate.open()
    await asyncio.wait_for(stopping, 10)
    assert await running.status() == "succeeded"
    assert await late.status() == "waiting"


async def test_what_does_not_end_in_time_is_cancelled_and_handed_over_at_its_due_time(
    tocsin_app, tocsin_clock, job, gate, make_worker
):
    due = tocsin_clock.now
    await tocsin_app.enqueue(job, 1, id="once")
    await tocsin_app.schedule(job, Every("1h"), 2, id="hourly", starts=due)
    worker = await make_worker(start=True)
    await eventually(lambda: len(gate.inside) == 2, "both run")
    tocsin_clock.advance("1s")
    with capture_logs() as logs:
        await asyncio.wait_for(worker.stop(grace=0), 10)
    assert gate.inside == []
    # Their cancellation ended them, not the end of the worker.
    assert [entry for entry in logs if "does not end" in entry["event"]] == []
    for job_id in ("once", "hourly"):
        found = await tocsin_app.get(job_id)
        assert (found.stage, found.due, found.attempt, found.recoveries) == ("waiting", due, 1, 0)
        assert found.not_before_ms == found.due_ms


async def test_what_was_handed_over_is_taken_at_once_by_another_worker(tocsin_app, other_app, job, gate, make_worker):
    ran = []

    @other_app.job(name="job")
    async def again(n=0):
        ran.append(n)

    await tocsin_app.enqueue(job, 1)
    first = await make_worker(start=True)
    await eventually(lambda: gate.inside, "it runs")
    await make_worker(other_app, start=True, poll_s=600.0)
    await asyncio.wait_for(first.stop(grace=0), 10)
    await eventually(lambda: ran == [1], "another worker has it")


async def test_a_hurried_worker_does_not_wait_for_the_grace_period(tocsin_app, job, gate, make_worker):
    handle = await tocsin_app.enqueue(job, 1)
    worker = await make_worker(start=True)
    await eventually(lambda: gate.inside, "it runs")
    hurry = asyncio.Event()
    stopping = asyncio.create_task(worker.stop(grace=600, hurry=hurry))
    hurry.set()
    await asyncio.wait_for(stopping, 10)
    assert await handle.status() == "waiting"


async def test_a_stopped_worker_has_left_the_fleet(tocsin_app, job, make_worker):
    worker = await make_worker(start=True)
    fleet = Fleet(tocsin_app.store)
    [seen] = await fleet.workers()
    assert (seen.id, seen.about.queues) == (worker.name, ["default"])
    assert "job" in seen.about.handlers
    await worker.stop()
    assert await fleet.workers() == []


async def test_what_was_fetched_ahead_goes_back_at_once(tocsin_app, job, gate, make_worker):
    worker = await make_worker(concurrency=1)
    job.mean = 0.001
    worker.served["default"].handlers.add(job)
    await tocsin_app.enqueue_many(job, [(n,) for n in range(20)])
    await worker.fetcher.step()
    await eventually(lambda: gate.inside, "one runs")
    assert worker.pool.waiting > 0
    await worker.quiet()
    await worker.finisher.step()
    stages = [job.stage async for job in tocsin_app.jobs()]
    assert sorted(stages) == ["waiting"] * 19 + ["working"]


async def test_a_handler_that_turns_its_interruption_into_another_error_has_not_failed(tocsin_app, make_worker):
    inside, leave = asyncio.Event(), threading.Event()

    @tocsin_app.job
    async def on_loop():
        inside.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise RuntimeError("interrupted") from None

    @tocsin_app.job
    def in_thread(run: Run):
        while not run.cancelled:
            leave.wait(0.002)
        raise RuntimeError("interrupted")

    await tocsin_app.enqueue(on_loop, id="loop")
    await tocsin_app.enqueue(in_thread, id="thread")
    worker = await make_worker(start=True)
    await eventually(lambda: worker.stats().running == 2, "both run")
    await inside.wait()
    await asyncio.wait_for(worker.stop(grace=0), 10)
    for job_id in ("loop", "thread"):
        found = await tocsin_app.get(job_id)
        assert (found.stage, found.attempt, found.failed) == ("waiting", 1, 0)


async def test_a_handler_that_ignores_its_cancellation_leaves_no_error_in_the_log(tocsin_app, make_worker):
    unretrieved = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unretrieved.append(context["message"]))

    @tocsin_app.job
    async def stubborn():
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

    await tocsin_app.enqueue(stubborn)
    worker = await make_worker(start=True)
    await eventually(lambda: worker.stats().running == 1, "it runs")
    assert await worker.stop(0, cancel_s=0) == 1
    gc.collect()
    assert unretrieved == []
