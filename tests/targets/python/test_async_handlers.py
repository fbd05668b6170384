"""`async def` handlers: timeouts, extension, cancellation, and what a handler may raise."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.waiting import Gate, eventually
from tocsin import ClaimLost, Retry, Run
from tocsin.model.errors import InvalidArgument
from tocsin.testing import run_until_idle


async def fails_with(app, handle) -> str:
    """The error of a dead job."""
    job = await app.get(handle.id)
    assert job is not None
    assert job.stage == "dead"
    return job.failure.error


async def until_dead(app, handle) -> str:
    async def dead() -> bool:
        return await handle.status() == "failed"

    await eventually(dead, "the job is dead")
    return await fails_with(app, handle)


async def test_a_run_past_its_timeout_is_cancelled_and_its_retry_follows(tocsin_app, tocsin_clock, make_worker):
    attempts, cancelled = [], []

    @tocsin_app.job(timeout="30s", retry=Retry(1, "10s"))
    async def hang_once(run: Run):
        attempts.append((run.id, run.attempt, run.idempotency_key))
        if run.attempt == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(run.cancelled)
                raise
        return "done"

    handle = await tocsin_app.enqueue(hang_once, id="slow")
    worker = await make_worker(start=True, beat_s=0.05)
    await eventually(lambda: len(attempts) == 1, "the first attempt runs")
    tocsin_clock.advance("29s")
    await worker.sweep.step()
    assert cancelled == []
    tocsin_clock.advance("1s")

    async def waits() -> bool:
        return await handle.status() == "waiting"

    await eventually(waits, "the retry waits")
    assert cancelled == [True]
    job = await tocsin_app.get("slow")
    assert "timed out" in job.failure.error
    assert job.attempt == 2
    assert (job.not_before_ms - tocsin_clock.ms) == 10_000

    tocsin_clock.advance("10s")
    worker.fetcher.wake.set()
    assert await handle.result("10s") == "done"
    assert len(attempts) == 2
    assert attempts[0][0] == attempts[1][0]
    assert attempts[0][2] == attempts[1][2]
    assert [attempt for _, attempt, _ in attempts] == [1, 2]


async def test_a_run_that_times_out_without_retries_is_dead(tocsin_app, tocsin_clock, make_worker):
    @tocsin_app.job(timeout="1s")
    async def hang():
        await asyncio.Event().wait()

    handle = await tocsin_app.enqueue(hang)
    worker = await make_worker(start=True)
    await eventually(lambda: worker.stats().running, "it runs")
    tocsin_clock.advance("2s")
    assert "timed out" in await until_dead(tocsin_app, handle)


async def test_a_runner_is_as_good_as_new_after_a_timeout(tocsin_app, tocsin_clock, make_worker):
    """A cancellation that is not taken back would break asyncio.timeout() in every later run."""
    seen = []

    @tocsin_app.job(timeout="1s")
    async def hang():
        await asyncio.Event().wait()

    @tocsin_app.job
    async def after():
        task = asyncio.current_task()
        seen.append(task.cancelling())
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            seen.append("timed out as it should")

    worker = await make_worker(start=True, concurrency=1)
    await tocsin_app.enqueue(hang)
    await eventually(lambda: worker.stats().running, "the first runs")
    tocsin_clock.advance("2s")
    await eventually(lambda: worker.stats().ran == 1, "the first was cancelled")
    await tocsin_app.enqueue(after)
    await eventually(lambda: len(seen) == 2, "the second has run")
    assert seen == [0, "timed out as it should"]


async def test_a_handler_that_swallows_its_cancellation_and_returns_has_succeeded(
    tocsin_app, tocsin_clock, make_worker
):
    later = []

    @tocsin_app.job(timeout="1s")
    async def stubborn():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "finished all the same"

    @tocsin_app.job
    async def after():
        later.append(asyncio.current_task().cancelling())

    handle = await tocsin_app.enqueue(stubborn, id="stubborn")
    worker = await make_worker(start=True, concurrency=1)
    await eventually(lambda: worker.stats().running, "it runs")
    tocsin_clock.advance("2s")
    assert await handle.result("10s") == "finished all the same"
    await tocsin_app.enqueue(after)
    await eventually(lambda: later == [0], "the next run is not cancelled")


async def test_a_handler_that_raises_something_else_when_cancelled_has_failed_with_that(
    tocsin_app, tocsin_clock, make_worker
):
    @tocsin_app.job(timeout="1s")
    async def cleanup_fails():
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("cannot clean up")

    handle = await tocsin_app.enqueue(cleanup_fails)
    worker = await make_worker(start=True)
    await eventually(lambda: worker.stats().running, "it runs")
    tocsin_clock.advance("2s")
    assert "cannot clean up" in await until_dead(tocsin_app, handle)


async def test_a_run_that_extends_itself_may_take_longer(tocsin_app, tocsin_clock, make_worker):
    gate, deadlines = Gate(), []

    @tocsin_app.job(timeout="30s")
    async def long(run: Run):
        deadlines.append(run.deadline)
        await run.extend("10m")
        deadlines.append(run.deadline)
        await gate.enter()
        return "done"

    handle = await tocsin_app.enqueue(long, id="long")
    worker = await make_worker(start=True)
    await eventually(lambda: gate.inside, "it runs, extended")
    assert (deadlines[1] - deadlines[0]).total_seconds() == 570
    tocsin_clock.advance("9m")
    await worker.sweep.step()
    gate.open()
    assert await handle.result("10s") == "done"


async def test_an_extension_ends_too(tocsin_app, tocsin_clock, make_worker):
    ready = asyncio.Event()

    @tocsin_app.job(timeout="10m")
    async def shortened(run: Run):
        await run.extend("5s")
        ready.set()
        await asyncio.Event().wait()

    handle = await tocsin_app.enqueue(shortened)
    await make_worker(start=True)
    await asyncio.wait_for(ready.wait(), 10)
    tocsin_clock.advance("6s")
    assert "timed out" in await until_dead(tocsin_app, handle)


async def test_a_run_that_another_worker_has_cannot_be_extended(tocsin_app, make_worker):
    told = []

    @tocsin_app.job
    async def lost(run: Run):
        queue = worker.served["default"].queue
        for partition in range(queue.partitions):
            await worker.parts.incarnation.runs.recover(queue, partition, worker.name)
        try:
            await run.extend("1m")
        except ClaimLost as error:
            told.append(error.run_id)

    worker = await make_worker(start=True, concurrency=1)
    handle = await tocsin_app.enqueue(lost)
    await eventually(lambda: told, "it was told")
    assert told[0].startswith(f"{handle.id}@")


@pytest.mark.parametrize("by", [-1, "soon", None])
async def test_an_extension_is_a_duration(tocsin_app, by):
    told = []

    @tocsin_app.job
    async def extends(run: Run):
        try:
            await run.extend(by)
        except InvalidArgument as error:
            told.append(str(error))

    await tocsin_app.enqueue(extends)
    await run_until_idle(tocsin_app)
    assert told
    assert "an extension must be" in told[0]


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), StopAsyncIteration(), StopIteration(), Exception()]
)
async def test_whatever_a_handler_raises_fails_its_run_and_nothing_else(tocsin_app, make_worker, error):
    @tocsin_app.job
    async def raises():
        raise error

    @tocsin_app.job
    async def after():
        return "still here"

    bad = await tocsin_app.enqueue(raises)
    await make_worker(start=True, concurrency=1)
    assert type(error).__name__ in await until_dead(tocsin_app, bad)
    good = await tocsin_app.enqueue(after, id="good")
    assert await good.result("10s") == "still here"


@pytest.mark.parametrize("how", ["raises", "awaits a cancelled task", "awaits a cancelled future"])
async def test_a_handler_that_meets_a_cancellation_of_its_own_fails_and_nothing_else(tocsin_app, make_worker, how):
    @tocsin_app.job
    async def cancelled():
        if how == "raises":
            raise asyncio.CancelledError
        if how == "awaits a cancelled task":
            task = asyncio.create_task(asyncio.Event().wait())
            task.cancel()
            await task
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    @tocsin_app.job
    async def after():
        return "still here"

    bad = await tocsin_app.enqueue(cancelled)
    await make_worker(start=True, concurrency=1)
    assert "Cancelled" in await until_dead(tocsin_app, bad)
    good = await tocsin_app.enqueue(after, id="good")
    assert await good.result("10s") == "still here"


async def test_an_error_that_cannot_be_printed_fails_its_run_too(tocsin_app):
    class Unprintable(Exception):
        def __str__(self):
            raise RuntimeError("not even this")

    @tocsin_app.job
    async def raises():
        raise Unprintable

    handle = await tocsin_app.enqueue(raises)
    await run_until_idle(tocsin_app)
    assert "Unprintable" in await fails_with(tocsin_app, handle)


async def test_errors_are_kept_with_their_traceback_and_are_bounded(tocsin_app):
    @tocsin_app.job
    async def raises():
        raise ValueError("x" * 100_000 + "\ud800")

    handle = await tocsin_app.enqueue(raises)
    await run_until_idle(tocsin_app)
    failure = (await tocsin_app.get(handle.id)).failure
    assert failure.error.startswith("ValueError: xxx")
    assert len(failure.error) == 1000
    assert 0 < len(failure.traceback) <= 4000


async def test_the_traceback_shows_where_it_happened(tocsin_app):
    @tocsin_app.job
    async def raises():
        raise ValueError("here")

    handle = await tocsin_app.enqueue(raises)
    await run_until_idle(tocsin_app)
    failure = (await tocsin_app.get(handle.id)).failure
    assert 'raise ValueError("here")' in failure.traceback
