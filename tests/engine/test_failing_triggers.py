"""A schedule whose next time cannot be worked out is parked with the reason, and takes no other along."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.support.captured_logs import capture_logs
from tests.support.waiting import run_dry
from tocsin import Every, Retry, Rrule, Run
from tocsin.model import msgpack
from tocsin.model.errors import TriggerFailed
from tocsin.model.job import Policy, Spec
from tocsin.model.record import body_of

NOON = datetime(2026, 3, 27, 12, 0, tzinfo=UTC)
# Each 86 399 seconds, so a second earlier each day: it fits twice, and then for 236 years not at all.
RARE = Rrule(
    "FREQ=SECONDLY;INTERVAL=86399;BYHOUR=12;BYMINUTE=0;BYSECOND=30,31",
    start=datetime(2026, 3, 26, 12, 0, 31, tzinfo=UTC),
)
REASON = "was not found in reasonable time"


@pytest.fixture(autouse=True)
def _noon(tocsin_clock):
    """Half a minute before its last time."""
    tocsin_clock.move_to(NOON)


@pytest.fixture
def seen():
    return []


@pytest.fixture
def see(tocsin_app, seen):
    tocsin_app.queue("default", partitions=1)

    @tocsin_app.job(name="see")
    async def see(x="rare"):
        seen.append(x)
        if x == "fails":
            raise ValueError("as it was told")

    return see


@pytest.fixture
def step(tocsin_clock, make_worker):
    """Let time pass, and run what is due then."""
    workers = []

    async def step(by: str) -> None:
        if not workers:
            workers.append(await make_worker(concurrency=100))
        tocsin_clock.advance(by)
        workers[0].served["default"].forget_dues()
        await run_dry(workers[0])

    return step


async def end_run(app, see, step, *args, **options) -> None:
    """Run it at its last time, with others around it."""
    await app.schedule(see, Every("30s"), "before", id="a")
    await app.schedule(see, RARE, *args, id="m", **options)
    await app.schedule(see, Every("30s"), "behind", id="z")
    await step("30s")


async def test_a_run_counts_as_it_ended_and_its_job_is_parked_with_the_reason(tocsin_app, see, seen, step):
    with capture_logs("tocsin.failures") as lines:
        await end_run(tocsin_app, see, step)
    assert sorted(seen) == ["before", "behind", "rare"]
    job = await tocsin_app.get("m")
    assert (job.stage, job.succeeded, job.failed, job.attempts) == ("parked", 1, 0, 1)
    assert REASON in job.failure.error
    assert RARE.text in job.failure.error
    assert [(run.job_id, run.outcome) async for run in tocsin_app.runs("m")] == [("m", "succeeded")]
    [line] = lines
    assert (line["event"], line["log_level"], line["job"], REASON in line["error"]) == (
        "job is parked",
        "warning",
        "m",
        True,
    )
    assert [(await tocsin_app.get(other)).stage for other in "az"] == ["waiting", "waiting"]
    await step("30s")
    assert sorted(seen) == ["before", "before", "behind", "behind", "rare"]


async def test_why_says_what_is_wrong_and_what_to_do(tocsin_app, see, step):
    await end_run(tocsin_app, see, step)
    answer = await tocsin_app.why("m")
    assert answer.kinds == ["unplanned"]
    assert REASON in str(answer)
    assert "its last run has ended" in str(answer)
    assert "app.update('m', trigger=...)" in str(answer)


async def test_it_is_not_run_again_however_often_it_is_tried(tocsin_app, see, seen, step):
    await end_run(tocsin_app, see, step)
    await step("59m")
    assert (await tocsin_app.get("m")).stage == "parked"
    for _ in range(3):
        await step("61m")
    assert await tocsin_app.unpark("m")
    await step("1s")
    assert seen.count("rare") == 1
    job = await tocsin_app.get("m")
    assert (job.stage, job.succeeded, job.attempts, REASON in job.failure.error) == ("parked", 1, 1, True)
    assert [run.outcome async for run in tocsin_app.runs("m")] == ["succeeded"]


async def test_it_goes_on_by_itself_when_a_worker_can_work_out_its_next_time(tocsin_app, tocsin_clock, see, seen, step):
    await end_run(tocsin_app, see, step)
    # As a newer version, or a newer zone database, would read the same record.
    await overwrite_trigger(tocsin_app, "m", Every("24h", anchor=NOON))
    await step("61m")
    job = await tocsin_app.get("m")
    assert (job.stage, job.due, job.attempt, job.failure) == ("waiting", NOON.replace(day=28), 1, None)
    assert (seen.count("rare"), job.succeeded) == (1, 1)
    tocsin_clock.move_to(NOON.replace(day=28))
    await step("1s")
    assert (seen.count("rare"), (await tocsin_app.get("m")).succeeded) == (2, 2)
    assert [run.outcome async for run in tocsin_app.runs("m")] == ["succeeded", "succeeded"]


async def test_one_that_has_no_time_left_ends(tocsin_app, see, step):
    await end_run(tocsin_app, see, step)
    await overwrite_trigger(tocsin_app, "m", Rrule("FREQ=DAILY;COUNT=1", start=NOON))
    await step("61m")
    assert await tocsin_app.get("m") is None


async def test_another_trigger_sets_it_going_at_once(tocsin_app, see, seen, step):
    await end_run(tocsin_app, see, step)
    assert await tocsin_app.update("m", trigger=Every("10s"))
    job = await tocsin_app.get("m")
    assert (job.stage, job.attempt, job.failure) == ("waiting", 1, None)
    await step("10s")
    assert seen.count("rare") == 2


async def test_another_change_leaves_it_parked(tocsin_app, see, seen, step):
    await end_run(tocsin_app, see, step)
    assert await tocsin_app.update("m", args=("changed",))
    await step("1s")
    job = await tocsin_app.get("m")
    assert (job.stage, job.args, seen.count("rare"), seen.count("changed")) == ("parked", ("changed",), 1, 0)


async def test_it_can_be_paused_resumed_and_removed(tocsin_app, tocsin_clock, see, seen, step):
    await end_run(tocsin_app, see, step)
    assert await tocsin_app.pause("m")
    tocsin_clock.advance("1s")
    with pytest.raises(TriggerFailed, match=REASON):
        await tocsin_app.resume("m")
    assert (await tocsin_app.get("m")).stage == "paused"
    assert await tocsin_app.resume("m", replay=True)
    await step("1s")
    assert ((await tocsin_app.get("m")).stage, seen.count("rare")) == ("parked", 1)
    assert await tocsin_app.remove("m")
    assert await tocsin_app.get("m") is None


@pytest.mark.parametrize(
    ("change", "stage"),
    [
        (lambda app: app.pause("m"), "paused"),
        (lambda app: app.remove("m"), None),
        (lambda app: app.update("m", args=("changed",)), "parked"),
        (lambda app: app.update("m", trigger=Every("1h")), "waiting"),
    ],
    ids=["pause", "remove", "arguments", "trigger"],
)
async def test_what_was_asked_for_during_its_last_run_is_done(tocsin_app, step, change, stage):
    ran = []

    @tocsin_app.job(name="asks")
    async def asks(x="rare"):
        ran.append(x)
        assert await change(tocsin_app)

    tocsin_app.queue("default", partitions=1)
    await tocsin_app.schedule(asks, RARE, id="m")
    await step("30s")
    job = await tocsin_app.get("m")
    assert (None if job is None else str(job.stage)) == stage
    assert ran == ["rare"]
    if job is not None:
        assert job.succeeded == 1
    await step("30m")
    assert ran == ["rare"]


async def test_a_run_that_failed_is_told_with_both_reasons(tocsin_app, see, step):
    followed = []

    @tocsin_app.on_failure
    def followed_by(run: Run, error, follows):
        followed.append((run.job_id, str(error), follows.kind, str(follows)))

    with capture_logs("tocsin.failures") as lines:
        await end_run(tocsin_app, see, step, "fails", retry=Retry(0, "1s"))
    job = await tocsin_app.get("m")
    assert (job.stage, job.succeeded, job.failed, job.attempts) == ("parked", 0, 1, 1)
    assert REASON in job.failure.error
    assert job.failure.error.endswith("its last run failed: ValueError: as it was told")
    assert followed == [("m", "as it was told", "parked", "parked")]
    assert [line["event"] for line in lines] == ["job is parked", "run failed"]


async def test_retries_come_first(tocsin_app, see, seen, step):
    await end_run(tocsin_app, see, step, "fails", retry=Retry(1, "1s"))
    assert (await tocsin_app.get("m")).stage == "waiting"
    await step("1s")
    assert (seen.count("fails"), (await tocsin_app.get("m")).stage) == (2, "parked")


@pytest.mark.parametrize("options", [{"misfire": "skip"}, {"overlap": "allow"}, {"overlap": "cancel_other"}])
async def test_one_that_must_be_planned_before_its_run_is_parked_without_a_run(tocsin_app, see, seen, step, options):
    await end_run(tocsin_app, see, step, **options)
    assert sorted(seen) == ["before", "behind"]
    job = await tocsin_app.get("m")
    assert (job.stage, job.attempts, REASON in job.failure.error) == ("parked", 0, True)
    answer = await tocsin_app.why("m")
    assert (answer.kinds, "its run was not started" in str(answer)) == (["unplanned"], True)
    await step("50m")
    assert (await tocsin_app.get("m")).stage == "parked"


async def test_its_coming_runs_cannot_be_told(tocsin_app, tocsin_clock, see):
    await tocsin_app.schedule(see, RARE, id="m")
    assert await tocsin_app.next_runs("m", 1) == [NOON.replace(second=30)]
    with pytest.raises(TriggerFailed, match=REASON):
        await tocsin_app.next_runs("m")
    tocsin_clock.advance("1m")
    with pytest.raises(TriggerFailed, match=REASON):
        await tocsin_app.backfill("m", NOON, NOON.replace(year=2027))


async def overwrite_trigger(app, job_id: str, trigger) -> None:
    """In its record, where no put has seen it."""
    queue = await app.store.find_queue("default")
    key = queue.keys[queue.partition_of(job_id)]["jobs"]
    record = await app.store.client.hget(key, job_id)
    header = record[: len(record) - len(body_of(record))]
    spec = Spec("see", trigger=trigger, policy=Policy())
    await app.store.client.hset(key, job_id, header + msgpack.encode(spec))
