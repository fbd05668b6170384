"""What is logged of jobs that are parked."""

from __future__ import annotations

from tests.support.failure_logs import failures
from tests.support.waiting import run_dry


async def test_a_parked_job_says_which_handler_is_missing_once_a_minute(tocsin_app, other_app, make_worker, logs):
    @other_app.job(name="reports.build")
    async def build():
        pass

    @tocsin_app.job
    async def known():
        pass

    for n in range(3):
        await other_app.enqueue(build, id=f"report-{n}")
    worker = await make_worker()
    for _ in range(2):
        await run_dry(worker)
        await worker.parts.parked_notifier.step()
        await other_app.enqueue(build)
        worker.served["default"].forget_dues()
    [line] = [line for line in logs if line["logger"] == "tocsin.parked"]
    assert (line["event"], line["log_level"]) == ("jobs are parked: no worker has their handler", "warning")
    assert (line["handler"], line["queue"], line["worker"]) == ("reports.build", "default", worker.name)
    assert line["job"].startswith("report-")


async def test_a_job_that_is_parked_for_a_worker_of_the_fleet_is_no_warning(tocsin_app, other_app, make_worker, logs):
    @other_app.job(name="reports.build")
    async def build():
        pass

    await other_app.enqueue(build)
    await make_worker(other_app)
    worker = await make_worker()
    await run_dry(worker)
    await worker.parts.parked_notifier.step()
    [line] = [line for line in logs if line["logger"] == "tocsin.parked"]
    assert line["log_level"] == "info"


async def test_a_record_that_cannot_be_read_is_logged_when_it_is_parked(tocsin_app, make_worker, logs):
    @tocsin_app.job
    async def job():
        pass

    await tocsin_app.enqueue(job, id="garbled")
    worker = await make_worker()
    [queue] = worker.queues
    keys = queue.keys[queue.partition_of("garbled")]
    record = await tocsin_app.store.client.hget(keys["jobs"], "garbled")
    await tocsin_app.store.client.hset(keys["jobs"], "garbled", record[:-8] + b"\xff" * 8)
    await run_dry(worker)
    [line] = failures(logs)
    assert (line["event"], line["log_level"], line["job"]) == ("job is parked", "warning", "garbled")
