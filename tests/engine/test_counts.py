"""Execution counts of a job: occurrences that succeeded or failed, and the attempts that it took."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import pytest

from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.waiting import eventually, run_dry
from tocsin import Cron, Every, Retry, Tocsin
from tocsin.engine.handlers import Handler
from tocsin.model.errors import StoreError
from tocsin.store.embedded.server import EmbeddedServer
from tocsin.testing import ManualClock, run_until_idle
from tocsin.worker import Worker

MakeWorker = Callable[..., Awaitable[Worker]]


class Task:
    """What the job does: succeeds, unless it is told to fail so often."""

    def __init__(self) -> None:
        self.failures = 0
        self.stays = False
        self.ran: list[str] = []

    def declare(self, app: Tocsin) -> Handler:
        app.queue("line", partitions=1)

        @app.job(name="task", queue="line")
        async def task(run) -> None:  # type: ignore[no-untyped-def]
            self.ran.append(f"{run.id} {run.attempt}")
            if self.stays:
                await asyncio.Event().wait()
            if self.failures:
                self.failures -= 1
                raise ValueError("not yet")

        return task


@pytest.fixture
def task() -> Task:
    return Task()


async def counts(app: Tocsin, job_id: str = "j") -> tuple[int, int, int]:
    job = await app.get(job_id)
    assert job is not None
    return job.succeeded, job.failed, job.attempts


async def tick(app: Tocsin, clock: ManualClock, times: int = 1) -> None:
    for _ in range(times):
        clock.advance("1m")
        await run_until_idle(app)


async def execute(worker: Worker) -> None:
    """Claim and run, and write nothing down."""
    await worker.fetcher.step()
    while worker.pool.busy:
        await asyncio.sleep(0)


async def write(worker: Worker) -> None:
    while not worker.finisher.idle():
        await worker.finisher.step()


async def recover(worker: Worker, dead: Worker) -> None:
    for served in worker.served.values():
        for partition in range(served.queue.partitions):
            await worker.parts.incarnation.runs.recover(served.queue, partition, dead.name)
        served.forget_dues()


# Once per occurrence


@pytest.fixture
async def proxy(valkey: Server) -> AsyncIterator[Proxy]:
    async with Proxy(valkey) as proxy:
        yield proxy


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("script", ["run_finish", "run_retry"])
@pytest.mark.one_server(reason="the proxy stands before one server")
async def test_an_end_counts_once_when_the_call_that_tells_of_it_is_repeated(
    proxy: Proxy, clock: ManualClock, make_worker: MakeWorker, task: Task, script: str, when: str
) -> None:
    async with Tocsin(proxy.url, prefix=f"counts-{secrets.token_hex(4)}:", clock=clock) as app:
        await app.schedule(task.declare(app), Every("1m"), id="j", retry=Retry(1, "1s"))
        task.failures = int(script == "run_retry")
        worker = await make_worker(app)
        clock.advance("1m")
        await asyncio.to_thread(worker.heart.beat)
        await execute(worker)
        proxy.cut(when, script)
        while not worker.finisher.idle():
            with contextlib.suppress(StoreError):
                await worker.finisher.step()
        assert proxy.cuts == 1
        assert await counts(app) == ((0, 0, 1) if script == "run_retry" else (1, 0, 1))
        clock.advance("1s")
        worker.served["line"].forget_dues()
        await run_dry(worker)
        assert await counts(app) == ((1, 0, 2) if script == "run_retry" else (1, 0, 1))


@pytest.mark.parametrize("ending", ["succeeds", "fails", "is retried"])
async def test_an_occurrence_counts_once_although_two_workers_executed_it(
    tocsin_app: Tocsin, tocsin_clock: ManualClock, make_worker: MakeWorker, task: Task, ending: str
) -> None:
    """The first dies after it has done its work and before it said so; should it live after all, its word comes late.
    What it tried is not counted: nobody knows how that ended, and its run goes on as the same attempt."""
    await tocsin_app.schedule(task.declare(tocsin_app), Every("1m"), id="j", retry=Retry(1, "1s"))
    tocsin_clock.advance("1m")
    first, second = await make_worker(), await make_worker()
    task.failures = {"succeeds": 0, "is retried": 1, "fails": 0}[ending]
    await execute(first)
    if ending == "fails":
        await tocsin_app.update("j", retry=None)
        task.failures = 1
    await recover(second, first)
    await run_dry(second)
    expected = {"succeeds": (1, 0, 1), "is retried": (1, 0, 1), "fails": (0, 1, 1)}[ending]
    assert await counts(tocsin_app) == expected
    assert len(task.ran) == 2
    assert len(set(task.ran)) == 1
    await write(first)
    assert first.finisher.lost == 1
    assert await counts(tocsin_app) == expected
    await tick(tocsin_app, tocsin_clock)
    assert await counts(tocsin_app) == (expected[0] + 1, expected[1], expected[2] + 1)


# Failures and attempts


async def test_retries_are_attempts_and_only_the_last_one_decides(
    tocsin_app: Tocsin, tocsin_clock: ManualClock, task: Task
) -> None:
    await tocsin_app.schedule(task.declare(tocsin_app), Every("1m"), id="j", retry=Retry(2, 0))
    for failures, expected in [(2, (1, 0, 3)), (3, (1, 1, 6)), (0, (2, 1, 7)), (1, (3, 1, 9))]:
        task.failures = failures
        await tick(tocsin_app, tocsin_clock)
        assert await counts(tocsin_app) == expected


async def test_what_is_handed_back_skipped_or_cancelled_is_no_success_and_no_failure(
    tocsin_app: Tocsin, tocsin_clock: ManualClock, make_worker: MakeWorker, task: Task
) -> None:
    """A run that was cancelled was an attempt; one that never began was not."""
    await tocsin_app.schedule(task.declare(tocsin_app), Every("1m"), id="j", misfire="skip")
    tocsin_clock.advance("5m30s")
    await run_until_idle(tocsin_app)
    assert await counts(tocsin_app) == (0, 0, 0)
    tocsin_clock.advance("30s")
    worker = await make_worker()
    await worker.fetcher.step()
    for unit in worker.pool.take_unstarted(math.inf):
        worker.finisher.release(unit)
    await write(worker)
    assert await counts(tocsin_app) == (0, 0, 0)
    task.stays = True
    worker.served["line"].forget_dues()
    await worker.fetcher.step()
    await eventually(lambda: task.ran, "it runs")
    for runner, _ in worker.pool.running():
        runner.stop("cancelled")
    while worker.pool.busy:
        await asyncio.sleep(0)
    await write(worker)
    assert await counts(tocsin_app) == (0, 0, 1)


async def test_a_dead_one_shot_has_its_counts_and_goes_on_with_them_in_another_life(
    tocsin_app: Tocsin, task: Task
) -> None:
    task.failures = 5
    await tocsin_app.enqueue(task.declare(tocsin_app), id="j", retry=Retry(1, 0))
    await run_until_idle(tocsin_app)
    assert await counts(tocsin_app) == (0, 1, 2)
    await tocsin_app.retry_dead("j")
    await run_until_idle(tocsin_app)
    assert await counts(tocsin_app) == (0, 2, 4)


# Extra runs


async def test_extra_runs_count_for_their_job(tocsin_app: Tocsin, tocsin_clock: ManualClock, task: Task) -> None:
    await tocsin_app.schedule(task.declare(tocsin_app), Cron("* * * * *"), id="j", retry=Retry(1, 0))
    await tocsin_app.fire("j")
    await run_until_idle(tocsin_app)
    assert await counts(tocsin_app) == (1, 0, 1)
    # One that is retried, and one that is out of retries.
    task.failures = 1
    await tocsin_app.fire("j")
    await run_until_idle(tocsin_app)
    assert await counts(tocsin_app) == (2, 0, 3)
    task.failures = 2
    await tocsin_app.fire("j")
    await run_until_idle(tocsin_app)
    assert await counts(tocsin_app) == (2, 1, 5)
    until = tocsin_clock.now
    assert await tocsin_app.backfill("j", until - timedelta(minutes=10), until) == 10
    task.failures = 3
    await run_until_idle(tocsin_app)
    # Three of them failed first and then succeeded.
    assert await counts(tocsin_app) == (12, 1, 18)
    assert len(task.ran) == 18


async def test_an_overlapping_run_counts_for_its_job(tocsin_app: Tocsin, tocsin_clock: ManualClock, task: Task) -> None:
    await tocsin_app.schedule(task.declare(tocsin_app), Every("1m"), id="j", overlap="allow", retry=Retry(1, 0))
    task.failures = 3
    await tick(tocsin_app, tocsin_clock, times=3)
    assert await counts(tocsin_app) == (2, 1, 5)


async def test_extra_runs_of_a_job_that_is_gone_count_for_nobody(
    tocsin_app: Tocsin, tocsin_clock: ManualClock, task: Task
) -> None:
    await tocsin_app.schedule(task.declare(tocsin_app), Every("1h"), id="j", retry=Retry(1, 0))
    await tocsin_app.fire("j")
    await tocsin_app.remove("j")
    task.failures = 2
    await run_until_idle(tocsin_app)
    assert await tocsin_app.get("j") is None


# What counts survive


async def test_counts_survive_changes_pauses_another_number_of_partitions_and_another_program(
    tocsin_app: Tocsin, tocsin_server: EmbeddedServer, tocsin_clock: ManualClock, task: Task
) -> None:
    handler = task.declare(tocsin_app)
    await tocsin_app.schedule(handler, Every("1m"), id="j", retry=Retry(1, 0))
    task.failures = 1
    await tick(tocsin_app, tocsin_clock, times=2)
    assert await counts(tocsin_app) == (2, 0, 3)
    await tocsin_app.update("j", retry=None, timeout="7s")
    await tocsin_app.schedule(handler, Every("1m"), id="j", timeout="9s")
    await tocsin_app.schedule(handler, Every("2m"), id="j")
    await tocsin_app.schedule(handler, Every("1m"), id="j", if_exists="replace")
    assert await counts(tocsin_app) == (2, 0, 3)
    await tocsin_app.pause("j")
    await tocsin_app.resume("j")
    await tocsin_app.repartition_queue("line", 5)
    assert await counts(tocsin_app) == (2, 0, 3)
    async with Tocsin(tocsin_server.url, prefix=tocsin_app.store.keys.prefix, clock=tocsin_clock) as again:
        task.declare(again)
        await tick(again, tocsin_clock)
        assert await counts(again) == (3, 0, 4)


async def test_what_is_changed_during_a_run_counts_that_run(
    tocsin_app: Tocsin, tocsin_clock: ManualClock, make_worker: MakeWorker, task: Task
) -> None:
    await tocsin_app.schedule(task.declare(tocsin_app), Every("1m"), id="j", retry=Retry(1, 0))
    for change, failures, expected in [
        (lambda: tocsin_app.update("j", timeout="7s"), 0, (1, 0, 1)),
        (lambda: tocsin_app.update("j", trigger=Every("90s")), 0, (2, 0, 2)),
        (lambda: tocsin_app.update("j", trigger=Every("60s")), 1, (2, 0, 3)),
        (lambda: tocsin_app.pause("j"), 0, (3, 0, 4)),
    ]:
        tocsin_clock.advance("2m")
        task.failures = failures
        worker = await make_worker()
        await execute(worker)
        await change()
        await write(worker)
        assert await counts(tocsin_app) == expected
