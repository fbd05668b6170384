"""`cancel` and `Handle`: status, result and withdrawal of a job."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tests.support.waiting import Gate, eventually
from tocsin import Every, InvalidArgument, ResultTimeout, Retry, Run, RunCancelled, RunFailed, UnknownJob
from tocsin.testing import run_until_idle
from tocsin.worker import WorkerSettings


@pytest.fixture
async def worker(tocsin_app):
    """A worker whose loops run until the test ends; start it once the handlers are declared."""
    made = []

    async def start():
        worker = await tocsin_app.worker(settings=WorkerSettings(concurrency=10))
        made.append(worker)
        await worker.start()
        return worker

    yield start
    for each in made:
        await each.kill()


async def test_the_status_of_a_handle_follows_its_job(tocsin_app, tocsin_clock, note):
    handle = await tocsin_app.enqueue(note, id="j", delay="1m")
    assert await handle.status() == "waiting"
    await tocsin_app.pause("j")
    assert await handle.status() == "paused"
    await tocsin_app.resume("j")
    tocsin_clock.advance("1m")
    await run_until_idle(tocsin_app)
    assert await handle.status() == "succeeded"
    assert repr(handle) == "<Handle 'j' new>"


async def test_a_handle_of_a_job_that_nobody_remembers_is_unknown(tocsin_app, note):
    handle = await tocsin_app.enqueue(note, keep=0)
    await run_until_idle(tocsin_app)
    assert await handle.status() == "unknown"
    with pytest.raises(UnknownJob):
        await handle.result()


async def test_the_result_is_waited_for(tocsin_app, worker):
    gate = Gate()

    @tocsin_app.job
    async def slow():
        await gate.enter()
        return "done"

    handle = await tocsin_app.enqueue(slow, keep="1m")
    waiting = asyncio.create_task(handle.result("10s"))
    await worker()
    await eventually(lambda: gate.inside, "it runs")
    assert not waiting.done()
    gate.open()
    assert await waiting == "done"


async def test_a_result_that_does_not_come_in_time_is_a_timeout(tocsin_app, note):
    handle = await tocsin_app.enqueue(note, id="j", delay="1h")
    with pytest.raises(ResultTimeout, match="has not ended within"):
        await handle.result("20ms")
    with pytest.raises(TimeoutError):
        await handle.result(0)


async def test_the_result_of_a_failed_job_is_its_error(tocsin_app, note):
    handle = await tocsin_app.enqueue(note, id="j", fail="bad")
    await run_until_idle(tocsin_app)
    with pytest.raises(RunFailed, match="ValueError: bad"):
        await handle.result()


async def test_a_waiting_job_is_withdrawn(tocsin_app, tocsin_clock, note, ran):
    handle = await tocsin_app.enqueue(note, id="j", delay="1m")
    assert await handle.cancel()
    assert not await handle.cancel()
    tocsin_clock.advance("1h")
    assert await run_until_idle(tocsin_app) == 0
    assert await handle.status() == "cancelled"
    with pytest.raises(RunCancelled, match="was cancelled"):
        await handle.result()
    assert not (await tocsin_app.enqueue(note, id="j")).new


async def test_a_waiting_job_is_cancelled_by_its_run_id(tocsin_app, tocsin_clock, note):
    await tocsin_app.enqueue(note, id="j", delay="1m")
    due = tocsin_clock.ms + 60_000
    assert not await tocsin_app.cancel(f"j@{due + 1}")
    assert not await tocsin_app.cancel(f"k@{due}")
    assert await tocsin_app.cancel(f"j@{due}")
    assert await tocsin_app.get("j") is None


@pytest.mark.parametrize("run_id", ["j", "", "j@soon", "@1"])
async def test_what_is_no_run_id_is_refused(tocsin_app, run_id):
    with pytest.raises(InvalidArgument):
        await tocsin_app.cancel(run_id)


async def test_a_retry_that_waits_is_cancelled_by_the_run_id_of_its_first_attempt(tocsin_app, tocsin_clock, note, ran):
    await tocsin_app.enqueue(note, id="j", fail="x", retry=Retry(3, "1m"))
    due = tocsin_clock.ms
    await run_until_idle(tocsin_app)
    assert await tocsin_app.cancel(f"j@{due}")
    tocsin_clock.advance("1h")
    assert await run_until_idle(tocsin_app) == 0
    assert len(ran) == 1


async def test_a_running_job_is_stopped_at_once_and_not_tried_again(tocsin_app, worker):
    seen = []

    @tocsin_app.job(retry=Retry(5, 0))
    async def long(run: Run):
        seen.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(run.cancelled)

    handle = await tocsin_app.enqueue(long, id="j")
    running = await worker()
    await eventually(lambda: seen, "it runs")
    assert await handle.status() == "working"
    assert await handle.cancel()
    with pytest.raises(RunCancelled):
        await handle.result("10s")
    assert seen == ["begun", True]
    assert running.stats().running == 0


async def test_a_running_thread_is_told(tocsin_app, worker):
    seen = []

    @tocsin_app.job
    def long(run: Run):
        seen.append("begun")
        while not run.cancelled:
            pass
        return "ended by itself"

    handle = await tocsin_app.enqueue(long, id="j")
    await worker()
    await eventually(lambda: seen, "it runs")
    assert await handle.cancel()
    assert await handle.result("10s") == "ended by itself"


async def test_a_cancelled_run_of_a_schedule_waits_for_its_next_time(tocsin_app, tocsin_clock, worker):
    begun = []

    @tocsin_app.job
    async def long():
        begun.append(1)
        await asyncio.Event().wait()

    await tocsin_app.schedule(long, Every("1m"), id="j", starts=tocsin_clock.now)
    due = tocsin_clock.now
    await worker()
    await eventually(lambda: begun, "it runs")
    assert await tocsin_app.cancel(f"j@{tocsin_clock.ms}")

    async def waits() -> bool:
        return (await tocsin_app.get("j")).stage == "waiting"

    await eventually(waits, "it waits again")
    job = await tocsin_app.get("j")
    assert (job.due, job.failed, job.succeeded) == (due + timedelta(minutes=1), 0, 0)


async def test_a_waiting_schedule_has_no_run_to_cancel(tocsin_app, note):
    handle = await tocsin_app.schedule(note, Every("1m"), id="j")
    assert not await handle.cancel()
    assert await handle.status() == "waiting"


async def test_a_fired_run_is_cancelled_and_its_job_stays(tocsin_app, note):
    await tocsin_app.schedule(note, Every("1m"), id="j")
    fired = await tocsin_app.fire("j")
    assert await tocsin_app.cancel(fired.id)
    assert await run_until_idle(tocsin_app) == 0
    assert (await tocsin_app.get("j")).stage == "waiting"


@pytest.mark.parametrize("timeout", [-1, "soon", True])
async def test_the_timeout_of_a_result_is_a_duration(tocsin_app, note, timeout):
    handle = await tocsin_app.enqueue(note, id="j")
    with pytest.raises(InvalidArgument, match="timeout must be"):
        await handle.result(timeout)
