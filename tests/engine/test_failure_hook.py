"""The program's hook for failed attempts."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.failure_logs import failures
from tests.support.waiting import eventually
from tocsin import DeliveryFailed, FollowUp, InvalidArgument, Retry, Run
from tocsin.engine.failure_reports import IN_FULL
from tocsin.testing import run_until_idle


async def test_the_hook_gets_the_run_the_error_and_what_follows(tocsin_app, tocsin_clock):
    seen = []

    @tocsin_app.on_failure
    def hook(run: Run, error: BaseException, follows: FollowUp):
        seen.append((run.job_id, run.attempt, run.args, error, follows))

    async def slow_hook(run, error, follows):
        await asyncio.sleep(0)
        seen.append(str(follows))

    assert tocsin_app.on_failure(slow_hook) is slow_hook
    raised = LookupError("no such user")

    @tocsin_app.job(retry=Retry(retries=2, interval="3s", factor=2))
    async def send(to):
        raise raised

    await tocsin_app.enqueue(send, "ada", id="welcome")
    await run_until_idle(tocsin_app)
    [(job, attempt, args, error, follows), text] = seen
    assert (job, attempt, args) == ("welcome", 1, ("ada",))
    assert error is raised
    assert (follows.kind, follows.delay, follows.attempt, follows.attempts) == ("retry", 3.0, 2, 3)
    assert text == "attempt 2 of 3 in 3 s"


async def test_the_hook_gets_timeouts_and_failed_deliveries_too(tocsin_app, tocsin_clock, make_worker):
    seen = []
    tocsin_app.on_failure(lambda run, error, follows: seen.append(error))

    @tocsin_app.job(timeout="5s")
    async def hangs():
        await asyncio.Event().wait()

    await tocsin_app.enqueue(hangs)
    worker = await make_worker()
    await worker.fetcher.step()
    await eventually(lambda: list(worker.pool.running()), "it runs")
    tocsin_clock.advance("6s")
    await worker.sweep.step()
    await eventually(lambda: worker.finisher.outcomes.ended, "it has ended")
    await worker.finisher.step()
    [error] = seen
    assert isinstance(error, TimeoutError)

    @tocsin_app.job(name="delivers")
    async def delivers():
        raise DeliveryFailed("refused", final=True)

    await tocsin_app.enqueue(delivers)
    await run_until_idle(tocsin_app)
    assert isinstance(seen[-1], DeliveryFailed)


@pytest.mark.parametrize("error", [OSError("no network"), SystemExit(1)])
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_hook_that_fails_harms_no_run_and_is_logged_a_few_times(tocsin_app, make_worker, logs, kind, error):
    if kind == "plain":

        @tocsin_app.on_failure
        def hook(run, _, follows):
            raise error
    else:

        @tocsin_app.on_failure
        async def hook(run, _, follows):
            raise error

    seen = []
    tocsin_app.on_failure(lambda run, error, follows: seen.append(run.job_id))

    @tocsin_app.job
    async def fails():
        raise LookupError

    await tocsin_app.enqueue_many(fails, ([] for _ in range(50)))
    worker = await make_worker(start=True)
    await eventually(lambda: worker.pool.ran == 50 and worker.finisher.idle(), "all have failed")
    await worker.stop()
    assert len(seen) == 50
    assert len([job async for job in tocsin_app.dead()]) == 50
    told = [line for line in failures(logs) if line["event"] == "failure hook failed"]
    assert len(told) == IN_FULL == len([line for line in failures(logs) if "job" in line])
    assert told[0]["exc_info"] is error


def test_a_hook_is_a_function(tocsin_app):
    with pytest.raises(InvalidArgument, match="a function of a run, an error"):
        tocsin_app.on_failure("sentry")
