"""Failed attempts: what is logged and counted, and the hook of the program."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.support.failure_logs import failures
from tests.support.waiting import eventually, run_dry
from tocsin import Every, Retry, Run, Subprocess
from tocsin.engine.failure_reports import IN_FULL
from tocsin.model.queue import Queue
from tocsin.model.run import MAX_RECOVERIES
from tocsin.store.transitions.claims import ClaimRequest, Runs
from tocsin.targets.external import TargetPermissions
from tocsin.testing import run_until_idle


async def test_a_failed_attempt_is_a_warning_with_what_follows_and_a_dead_job_is_an_error(
    tocsin_app, tocsin_clock, make_worker, logs
):
    @tocsin_app.job(name="mail.send", retry=Retry(retries=1, interval="3s"))
    async def send(to):
        raise LookupError("no such user")

    await tocsin_app.enqueue(send, "ada", id="welcome")
    worker = await make_worker()
    due = tocsin_clock.ms
    await run_dry(worker)
    [line] = failures(logs)
    trace = line.pop("exception")
    assert line == {
        "event": "run failed", "log_level": "warning", "logger": "tocsin.failures", "job": "welcome",
        "run": f"welcome@{due}", "queue": "default", "handler": "mail.send", "attempt": 1, "worker": worker.name,
        "error": "LookupError: no such user", "follows": "attempt 2 of 2 in 3 s",
    }  # fmt: skip
    assert 'raise LookupError("no such user")' in trace
    assert trace.endswith("LookupError: no such user\n")
    tocsin_clock.advance("3s")
    worker.served["default"].forget_dues()
    await run_dry(worker)
    [_, line] = failures(logs)
    assert (line["event"], line["log_level"], line["attempt"], line["follows"]) == (
        "run failed, its job is dead", "error", 2, "dead",
    )  # fmt: skip


async def test_a_recurring_job_that_fails_says_when_it_runs_next(tocsin_app, tocsin_clock, logs):
    @tocsin_app.job
    async def fails():
        raise LookupError

    await tocsin_app.schedule(fails, Every("1h"))
    tocsin_clock.advance("1h")
    await run_until_idle(tocsin_app)
    [line] = failures(logs)
    assert line["follows"].startswith("next run at ")


async def test_a_run_that_times_out_is_logged(tocsin_app, tocsin_clock, make_worker, logs):
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
    [line] = failures(logs)
    assert (line["log_level"], line["error"]) == ("error", "timed out 1.0 s past its deadline")


async def test_a_job_that_kills_its_workers_is_logged_when_it_is_buried(tocsin_app, make_worker, logs):
    tocsin_app.queue("line", partitions=1)

    @tocsin_app.job(queue="line")
    async def deadly():
        raise AssertionError("is not executed")

    await tocsin_app.enqueue(deadly)
    queue = await tocsin_app.store.open_queue(Queue("line", partitions=1))
    other = Runs(tocsin_app.store, "other.1")
    for number in range(MAX_RECOVERIES):
        doomed = Runs(tocsin_app.store, f"doomed.{number}")
        [answer] = await doomed.claim([ClaimRequest(queue, 0, 1)], lease=1e15)
        assert len(answer.claims) == 1
        assert await other.recover(queue, 0, f"doomed.{number}") == 1
    await run_dry(await make_worker(queues=["line"]))
    [line] = failures(logs)
    assert (line["log_level"], line["follows"]) == ("error", "dead")
    assert line["error"].startswith(f"recovered {MAX_RECOVERIES} times")


async def test_each_handler_has_a_few_lines_in_full_each_second_and_then_one_with_the_number(
    tocsin_app, tocsin_clock, make_worker, logs
):
    @tocsin_app.job(name="noisy")
    async def noisy(n):
        raise LookupError(n)

    @tocsin_app.job(name="rare", retry=Retry(retries=1, interval="1h"))
    async def rare():
        raise LookupError("rare")

    worker = await make_worker()
    await tocsin_app.enqueue_many(noisy, ([n] for n in range(1000)))
    await tocsin_app.enqueue(rare)
    await run_dry(worker)
    await worker.parts.failures.step()
    found = [line["handler"] for line in failures(logs)]
    assert sorted(found) == ["noisy"] * IN_FULL + ["rare"]
    tocsin_clock.advance("1s")
    await worker.parts.failures.step()
    line = failures(logs)[-1]
    assert (line["event"], line["log_level"], line["handler"]) == ("more runs failed", "error", "noisy")
    assert (line["failed"], line["dead"]) == (1000 - IN_FULL, 1000 - IN_FULL)
    # The next second begins anew.
    await tocsin_app.enqueue(noisy, 1)
    worker.served["default"].forget_dues()
    await run_dry(worker)
    assert failures(logs)[-1]["error"] == "LookupError: 1"


async def after_a_second(worker, clock, logs, text: str) -> list[dict]:
    """Lines with this text, after the pass that writes the numbers."""
    clock.advance("1s")
    await worker.parts.failures.step()
    return [line for line in logs if text in line["event"]]


async def test_runs_that_cannot_be_started_are_a_few_lines_and_then_one_with_the_number(
    tocsin_app, tocsin_clock, make_worker, logs, monkeypatch
):
    @tocsin_app.job(name="threaded")
    def threaded():
        raise AssertionError("is not executed")

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    await tocsin_app.enqueue_many(threaded, ([] for _ in range(40)))
    worker = await make_worker()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    await worker.fetcher.step()
    await eventually(lambda: worker.pool.not_started == 40, "all go back")
    monkeypatch.undo()
    *told, more = await after_a_second(worker, tocsin_clock, logs, "could not be started")
    assert len(told) == IN_FULL
    assert {line["error"] for line in told} == {"no thread could be started: can't start new thread"}
    assert (more["log_level"], more["handler"], more["count"]) == ("warning", "threaded", 40 - IN_FULL)


async def test_programs_that_cannot_be_started_are_a_few_lines_and_then_one_with_the_number(
    tocsin_app, tocsin_clock, make_worker, logs, monkeypatch
):
    async def refuse(*args, **options):
        raise OSError("Resource temporarily unavailable")

    for _ in range(20):
        await tocsin_app.enqueue(Subprocess(["/bin/true"]))
    worker = await make_worker(reach=TargetPermissions(programs={"/bin/true": ()}))
    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    await worker.fetcher.step()
    await eventually(lambda: not worker.pool.busy, "all go back")
    *told, more = await after_a_second(worker, tocsin_clock, logs, "could not be started")
    assert (len(told), more["count"]) == (IN_FULL, 20 - IN_FULL)


async def test_lost_claims_are_a_few_lines_and_then_one_with_the_number(tocsin_app, tocsin_clock, make_worker, logs):
    @tocsin_app.job
    async def job():
        pass

    await tocsin_app.enqueue_many(job, ([] for _ in range(40)))
    worker = await make_worker()
    await worker.fetcher.step()
    await eventually(lambda: not worker.pool.busy, "all have ended")
    queue = worker.served["default"].queue
    assert await Runs(tocsin_app.store, "other.1").recover(queue, 0, worker.name) == 40
    while not worker.finisher.idle():
        await worker.finisher.step()
    *told, more = await after_a_second(worker, tocsin_clock, logs, "lost")
    assert (len(told), worker.finisher.lost) == (IN_FULL, 40)
    assert (more["event"], more["count"]) == ("more claims lost", 40 - IN_FULL)


async def test_the_last_number_is_logged_when_the_worker_stops(tocsin_app, make_worker, logs):
    @tocsin_app.job
    async def noisy():
        raise LookupError

    await tocsin_app.enqueue_many(noisy, ([] for _ in range(IN_FULL + 3)))
    worker = await make_worker(start=True)
    await eventually(lambda: worker.pool.ran == IN_FULL + 3 and worker.finisher.idle(), "all have failed")
    await worker.stop()
    assert failures(logs)[-1]["failed"] == 3


@pytest.mark.parametrize("batch", [None, 10])
async def test_arguments_and_local_variables_stand_in_no_line(tocsin_app, logs, caplog, batch):
    def fail(data):
        local = data[::-1]
        raise LookupError(len(local))

    if batch:

        @tocsin_app.job(batch=batch)
        async def job(runs):
            return [fail(run.args[0]) for run in runs]

        @tocsin_app.job(batch=batch, name="wrong")
        async def wrong(runs):
            return [run.args[0] for run in runs] * 2
    else:

        @tocsin_app.job
        async def job(data):
            fail(data)

        @tocsin_app.job(name="wrong")
        def wrong(data):
            fail(data)

    for handler in (job, wrong):
        await tocsin_app.enqueue(handler, "open-sesame")
    await run_until_idle(tocsin_app)
    assert len(failures(logs)) == 2
    assert "Traceback" in caplog.text
    for secret in ("open-sesame", "emases-nepo"):
        assert secret not in caplog.text
        assert secret not in repr(logs)


async def test_the_text_of_an_error_is_bounded_and_cannot_write_to_the_terminal(tocsin_app, logs, caplog):
    @tocsin_app.job
    async def fails():
        raise LookupError("\x1b]0;owned\x07" + "x" * 100_000)

    await tocsin_app.enqueue(fails)
    await run_until_idle(tocsin_app)
    [line] = failures(logs)
    assert len(repr(line)) < 10_000
    assert "\x1b" not in caplog.text


async def test_runs_are_counted_by_handler(tocsin_app, tocsin_clock, make_worker):
    @tocsin_app.job(name="ok")
    async def ok():
        pass

    @tocsin_app.job(name="flaky", retry=Retry(retries=1, interval="3s"))
    async def flaky(run: Run):
        raise LookupError

    @tocsin_app.job(name="batch", batch=10)
    async def batch(runs):
        return [LookupError() if run.args[0] else None for run in runs]

    worker = await make_worker()
    for _ in range(3):
        await tocsin_app.enqueue(ok)
    await tocsin_app.enqueue(flaky)
    for n in range(5):
        await tocsin_app.enqueue(batch, n % 2)
    await run_dry(worker)
    tocsin_clock.advance("3s")
    worker.served["default"].forget_dues()
    await run_dry(worker)
    counted = worker.tally.handlers
    found = {name: (t.succeeded, t.failed, t.retried, t.dead) for name, t in counted.items() if t.duration.drain()}
    assert found == {"ok": (3, 0, 0, 0), "flaky": (0, 2, 1, 1), "batch": (3, 2, 0, 2)}
