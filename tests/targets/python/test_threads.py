"""Plain `def` handlers: in threads, which nothing can stop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.support.captured_logs import capture_logs
from tests.support.waiting import eventually
from tocsin import ClaimLost, Retry, Run
from tocsin.engine.deadline_sweep import EXTENSION_S
from tocsin.testing import run_until_idle


class Door:
    """Threads wait before it until the test opens it."""

    def __init__(self) -> None:
        self.before = 0
        self.behind = 0
        self._lock = threading.Lock()
        self._open = threading.Event()

    def pass_through(self) -> None:
        with self._lock:
            self.before += 1
        assert self._open.wait(20), "the test never opened the door"
        with self._lock:
            self.behind += 1

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def door():
    made = Door()
    yield made
    made.open()


async def test_a_plain_function_runs_in_a_thread_and_its_result_comes_back(tocsin_app):
    @tocsin_app.job
    def render(path, *, size=1):
        return {"path": path, "size": size, "thread": threading.current_thread() is not threading.main_thread()}

    handle = await tocsin_app.enqueue(render, "a.png", size=3, id="r")
    await run_until_idle(tocsin_app)
    assert await handle.result() == {"path": "a.png", "size": 3, "thread": True}


async def test_a_hundred_sleeping_threads_run_at_once(tocsin_app, make_worker, door):
    @tocsin_app.job
    def sleeps():
        door.pass_through()

    await tocsin_app.enqueue_many(sleeps, [() for _ in range(150)])
    worker = await make_worker(start=True, concurrency=100)
    await eventually(lambda: door.before == 100, "a hundred are inside")
    assert worker.stats().running == 100
    door.open()
    await eventually(lambda: door.behind == 150, "all have run")


async def test_threads_are_used_again(tocsin_app):
    seen = set()

    @tocsin_app.job
    def job():
        seen.add(threading.current_thread().name)

    for _ in range(30):
        await tocsin_app.enqueue(job)
    assert await run_until_idle(tocsin_app, concurrency=1) == 30
    assert len(seen) <= 2


async def test_an_exception_in_a_thread_fails_its_run_and_its_retry_follows(tocsin_app, tocsin_clock):
    attempts = []

    @tocsin_app.job(retry=Retry(2, "1s"))
    def fails(run: Run):
        attempts.append(run.attempt)
        if run.attempt < 3:
            raise ValueError("not yet")

    await tocsin_app.enqueue(fails, id="f")
    for _ in range(3):
        await run_until_idle(tocsin_app)
        tocsin_clock.advance("2s")
    assert attempts == [1, 2, 3]


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt(), StopIteration(), GeneratorExit(), asyncio.CancelledError(), BaseException()],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_a_thread_raises_fails_its_run_and_nothing_else(tocsin_app, make_worker, error):
    @tocsin_app.job
    def raises():
        raise error

    @tocsin_app.job
    def after():
        return "still here"

    bad = await tocsin_app.enqueue(raises)
    await make_worker(start=True, concurrency=1)

    async def dead() -> bool:
        return await bad.status() == "failed"

    await eventually(dead, "the run has failed", within=5)
    good = await tocsin_app.enqueue(after, id="good")
    assert await good.result("5s") == "still here"


async def test_a_thread_past_its_timeout_is_told_keeps_its_permit_and_keeps_its_claim(
    tocsin_app, tocsin_clock, make_worker, door
):
    runs = []

    @tocsin_app.job(timeout="30s")
    def stuck(run: Run):
        runs.append(run)
        door.pass_through()
        return "late"

    @tocsin_app.job
    def other():
        return "other"

    handle = await tocsin_app.enqueue(stuck, id="stuck")
    with capture_logs() as logs:
        worker = await make_worker(start=True, concurrency=1, beat_s=0.05)
        await eventually(lambda: door.before == 1, "it runs")
        assert not runs[0].cancelled
        waiting = await tocsin_app.enqueue(other, id="other")

        tocsin_clock.advance("31s")
        await eventually(lambda: runs[0].cancelled, "it was told")
        await eventually(lambda: worker.stats().stuck == 1, "the worker shows it as stuck")
    assert [entry["run"] for entry in logs if "cannot be stopped" in entry["event"]] == [runs[0].id]
    assert worker.about().stuck == 1
    assert await waiting.status() == "waiting"

    queue = worker.served["default"].queue
    key = queue.keys[queue.partition_of("stuck")]["working"]

    async def deadline() -> float:
        return await tocsin_app.store.client.zscore(key, "stuck") - tocsin_clock.ms

    for _ in range(3):

        async def extended() -> bool:
            return await deadline() > EXTENSION_S * 1000 / 2 - 1

        await eventually(extended, "its deadline in Redis moves on")
        tocsin_clock.advance(EXTENSION_S / 2)

    door.open()
    assert await handle.result("10s") == "late"
    assert await waiting.result("10s") == "other"
    await worker.sweep.step()
    assert worker.stats().stuck == 0


async def test_a_thread_that_looks_at_cancelled_ends_and_is_tried_again(tocsin_app, tocsin_clock, make_worker):
    attempts, begun = [], threading.Event()

    @tocsin_app.job(timeout="30s", retry=Retry(1, 0))
    def polite(run: Run):
        attempts.append(run.attempt)
        begun.set()
        if run.attempt == 2:
            return "done"
        while not run.cancelled:
            threading.Event().wait(0.002)
        raise TimeoutError("was told to stop")

    handle = await tocsin_app.enqueue(polite, id="polite")
    worker = await make_worker(start=True, beat_s=0.05)
    await eventually(begun.is_set, "it runs")
    tocsin_clock.advance("31s")
    await eventually(lambda: worker.stats().ran >= 1, "the first attempt has ended")
    assert await handle.result("10s") == "done"
    assert attempts == [1, 2]


async def test_a_thread_can_extend_its_run(tocsin_app, tocsin_clock, make_worker, door):
    deadlines = []

    @tocsin_app.job(timeout="30s")
    def long(run: Run):
        deadlines.append(run.deadline)
        run.extend("10m")
        deadlines.append(run.deadline)
        door.pass_through()
        return run.cancelled

    handle = await tocsin_app.enqueue(long, id="long")
    worker = await make_worker(start=True)
    await eventually(lambda: door.before == 1, "it runs, extended")
    assert (deadlines[1] - deadlines[0]).total_seconds() == 570
    tocsin_clock.advance("9m")
    await worker.sweep.step()
    assert worker.stats().stuck == 0
    door.open()
    assert await handle.result("10s") is False


async def test_a_thread_whose_claim_is_lost_is_told_when_it_extends(tocsin_app, make_worker, door):
    told = []

    @tocsin_app.job
    def lost(run: Run):
        door.pass_through()
        try:
            run.extend("1m")
        except ClaimLost as error:
            told.append(error.run_id)

    handle = await tocsin_app.enqueue(lost)
    worker = await make_worker(start=True, concurrency=1)
    await eventually(lambda: door.before == 1, "it runs")
    queue = worker.served["default"].queue
    for partition in range(queue.partitions):
        await worker.parts.incarnation.runs.recover(queue, partition, worker.name)
    door.open()
    await eventually(lambda: told, "it was told")
    assert told[0].startswith(f"{handle.id}@")


async def test_a_stuck_thread_does_not_keep_a_worker_from_stopping(tocsin_app, make_worker, door, monkeypatch):
    monkeypatch.setattr("tocsin.worker.worker.CANCEL_S", 0.05)

    @tocsin_app.job
    def stuck():
        door.pass_through()

    handle = await tocsin_app.enqueue(stuck, id="stuck")
    worker = await make_worker(start=True)
    await eventually(lambda: door.before == 1, "it runs")
    await asyncio.wait_for(worker.stop(grace=0), 10)
    job = await tocsin_app.get(handle.id)
    assert (job.stage, job.attempt, job.recoveries) == ("waiting", 1, 0)
