"""`schedule`: a recurring job, its cadence, and what the same call again does."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tocsin import Every, InvalidArgument, InvalidTrigger, Once, Retry, Run
from tocsin.testing import run_until_idle
from tocsin.triggers.recurrence import phase


async def due_in(app, clock, job_id="j") -> float:
    """Seconds from now until the job is due."""
    return ((await app.get(job_id)).due_ms - clock.ms) / 1000


async def run_after(app, clock, wait) -> int:
    clock.advance(wait)
    return await run_until_idle(app)


async def test_a_schedule_runs_each_interval_counted_from_its_due_time(tocsin_app, tocsin_clock, note, runs):
    handle = await tocsin_app.schedule(note, Every("1m"), "tick", id="j")
    assert handle.new
    begun = tocsin_clock.now
    assert await run_until_idle(tocsin_app) == 0
    for _ in range(3):
        # A second late each time: the cadence does not drift.
        assert await run_after(tocsin_app, tocsin_clock, "61s") == 1
        tocsin_clock.move_to(tocsin_clock.now - timedelta(seconds=1))
    assert [run.due - begun for run in runs] == [timedelta(minutes=n) for n in (1, 2, 3)]
    assert len({run.idempotency_key for run in runs}) == 3
    job = await tocsin_app.get("j")
    assert (job.succeeded, job.failed, job.attempts, job.recurring) == (3, 0, 3, True)


async def test_without_an_id_a_schedule_has_its_handlers_name(tocsin_app, note):
    assert (await tocsin_app.schedule(note, Every("1m"))).id == "note"


async def test_missed_occurrences_become_one_run_by_default(tocsin_app, tocsin_clock, note, runs):
    await tocsin_app.schedule(note, Every("1m"), id="j")
    begun = tocsin_clock.now
    assert await run_after(tocsin_app, tocsin_clock, "5m30s") == 1
    assert runs[0].due == begun + timedelta(minutes=1)
    assert await due_in(tocsin_app, tocsin_clock) == 30


async def test_missed_occurrences_are_skipped_where_that_is_wanted(tocsin_app, tocsin_clock, note):
    await tocsin_app.schedule(note, Every("1m"), id="j", misfire="skip")
    assert await run_after(tocsin_app, tocsin_clock, "5m30s") == 0
    assert await due_in(tocsin_app, tocsin_clock) == 30
    assert (await tocsin_app.get("j")).attempts == 0
    assert await run_after(tocsin_app, tocsin_clock, "30s") == 1


async def test_a_run_later_than_its_grace_is_skipped(tocsin_app, tocsin_clock, note):
    await tocsin_app.schedule(note, Every("1m"), id="j", misfire="skip", grace="5s")
    assert await run_after(tocsin_app, tocsin_clock, "65s") == 1
    assert await run_after(tocsin_app, tocsin_clock, "60.001s") == 0


async def test_every_missed_occurrence_runs_where_that_is_wanted(tocsin_app, tocsin_clock, note, runs):
    await tocsin_app.schedule(note, Every("1m"), id="j", misfire="all")
    begun = tocsin_clock.now
    assert await run_after(tocsin_app, tocsin_clock, "5m30s") == 5
    assert [(run.due - begun).total_seconds() for run in runs] == [60, 120, 180, 240, 300]


async def test_what_is_older_than_catch_up_is_not_owed(tocsin_app, tocsin_clock, note, runs):
    await tocsin_app.schedule(note, Every("1m"), id="j", misfire="all", catch_up="2m")
    begun = tocsin_clock.now
    assert await run_after(tocsin_app, tocsin_clock, "5m30s") == 2
    assert [(run.due - begun).total_seconds() for run in runs] == [240, 300]


async def test_a_schedule_begins_at_its_start_and_ends_at_its_end(tocsin_app, tocsin_clock, note, runs):
    starts = tocsin_clock.now + timedelta(minutes=10)
    await tocsin_app.schedule(note, Every("1m"), id="j", starts=starts, ends=starts + timedelta(minutes=2))
    assert await due_in(tocsin_app, tocsin_clock) == 600
    tocsin_clock.move_to(starts)
    for _ in range(5):
        await run_until_idle(tocsin_app)
        tocsin_clock.advance("1m")
    assert [(run.due - starts).total_seconds() for run in runs] == [0, 60, 120]
    assert await tocsin_app.get("j") is None


async def test_a_start_in_the_past_gives_the_cadence_and_fires_nothing(tocsin_app, tocsin_clock, note):
    await tocsin_app.schedule(note, Every("1m"), id="j", starts=tocsin_clock.now - timedelta(seconds=610))
    assert await due_in(tocsin_app, tocsin_clock) == 50


async def test_jitter_moves_a_schedule_by_a_part_of_it_that_stays_the_same(tocsin_app, tocsin_clock, note):
    await tocsin_app.schedule(note, Every("1m"), id="j", jitter="30s")
    assert await due_in(tocsin_app, tocsin_clock) == 60 + phase("j", 30) / 1000
    tocsin_clock.advance("2m")
    await run_until_idle(tocsin_app)
    assert await due_in(tocsin_app, tocsin_clock) == phase("j", 30) / 1000


async def test_a_failed_run_waits_for_its_next_time_and_counts(tocsin_app, tocsin_clock, note):
    await tocsin_app.schedule(note, Every("1m"), id="j", fail="x")
    await run_after(tocsin_app, tocsin_clock, "1m")
    job = await tocsin_app.get("j")
    assert (job.stage, job.failed, job.succeeded, job.attempts) == ("waiting", 1, 0, 1)
    assert job.failure.error == "ValueError: x"
    assert await due_in(tocsin_app, tocsin_clock) == 60


async def test_a_success_makes_the_last_error_an_old_one(tocsin_app, tocsin_clock):
    bad = True

    @tocsin_app.job
    async def flaky():
        if bad:
            raise ValueError("x")

    async def fail() -> None:
        nonlocal bad
        bad = True
        await run_after(tocsin_app, tocsin_clock, "1m")
        assert (await tocsin_app.get("j")).failure.error == "ValueError: x"
        bad = False

    await tocsin_app.schedule(flaky, Every("1m"), id="j")
    await fail()
    await run_after(tocsin_app, tocsin_clock, "1m")
    assert (await tocsin_app.get("j")).failure is None
    # Also where more is told of the run than that it succeeded: here, the ticks that it stands for.
    await fail()
    await run_after(tocsin_app, tocsin_clock, "5m")
    assert (await tocsin_app.get("j")).failure is None
    await fail()
    await tocsin_app.fire("j")
    assert await run_until_idle(tocsin_app) == 1
    job = await tocsin_app.get("j")
    assert (job.failure, job.failed) == (None, 3)


@pytest.mark.agents
async def test_an_agent_that_succeeds_again_has_no_error(tocsin_app, tocsin_clock):
    bad = True

    @tocsin_app.agent(every="1m", error_interval="10s", name="a")
    async def agent():
        if bad:
            raise ValueError("x")

    await run_until_idle(tocsin_app)
    assert (await tocsin_app.get("a")).failure.error == "ValueError: x"
    bad = False
    # With the jitter of its error interval.
    await run_after(tocsin_app, tocsin_clock, "11s")
    job = await tocsin_app.get("a")
    assert (job.failure, job.succeeded, job.failed) == (None, 1, 1)


async def test_retries_of_a_recurring_run_keep_its_due_time_and_then_the_cadence(tocsin_app, tocsin_clock):
    seen = []

    @tocsin_app.job(retry=Retry(2, "10s"))
    async def flaky(run: Run):
        seen.append((run.attempt, run.due))
        raise ValueError

    await tocsin_app.schedule(flaky, Every("1m"), id="j")
    due = tocsin_clock.now + timedelta(minutes=1)
    for wait in ("60s", "10s", "20s"):
        assert await run_after(tocsin_app, tocsin_clock, wait) == 1
    assert seen == [(1, due), (2, due), (3, due)]
    assert await due_in(tocsin_app, tocsin_clock) == 30
    assert (await tocsin_app.get("j")).attempt == 1


async def test_the_same_definition_again_changes_nothing(tocsin_app, tocsin_clock, note):
    async def define():
        return await tocsin_app.schedule(note, Every("1m"), "a", id="j", tenant="t", misfire="all", retry=Retry(1, 2))

    assert (await define()).new
    before = await tocsin_app.get("j")
    tocsin_clock.advance("30s")
    assert not (await define()).new
    assert await tocsin_app.get("j") == before


@pytest.mark.parametrize(
    "change",
    [
        {"timeout": "9s"},
        {"tenant": "other"},
        {"retry": Retry(9, 9)},
        {"misfire": "all"},
        {"grace": "5s"},
        {"criticality": 5},
        {"fail": "other arguments"},
    ],
    ids=str,
)
async def test_a_changed_definition_keeps_its_due_time_if_the_trigger_is_the_same(
    tocsin_app, tocsin_clock, note, change
):
    await tocsin_app.schedule(note, Every("1m"), id="j")
    before = await tocsin_app.get("j")
    tocsin_clock.advance("30s")
    handle = await tocsin_app.schedule(note, Every("1m"), id="j", **change)
    after = await tocsin_app.get("j")
    assert not handle.new
    assert after.due == before.due
    assert after.version > before.version
    assert (after.spec, after.header.timeout, after.tenant) != (before.spec, before.header.timeout, before.tenant)


async def test_a_changed_trigger_counts_from_now_and_fires_nothing(tocsin_app, tocsin_clock, note):
    await tocsin_app.schedule(note, Every("1m"), id="j")
    tocsin_clock.advance("5m")
    await tocsin_app.schedule(note, Every("1h"), id="j")
    assert await run_until_idle(tocsin_app) == 0
    assert await due_in(tocsin_app, tocsin_clock) == 3600


async def test_a_changed_definition_keeps_the_counts(tocsin_app, tocsin_clock, note):
    await tocsin_app.schedule(note, Every("1m"), id="j")
    await run_after(tocsin_app, tocsin_clock, "1m")
    await tocsin_app.schedule(note, Every("2m"), id="j")
    assert (await tocsin_app.get("j")).succeeded == 1


@pytest.mark.parametrize(
    ("if_exists", "due", "what"), [("ignore", 30, "old"), ("replace", 60, "new"), ("update", 30, "new")]
)
async def test_if_exists_says_what_becomes_of_a_schedule_that_is_there(
    tocsin_app, tocsin_clock, note, if_exists, due, what
):
    await tocsin_app.schedule(note, Every("1m"), "old", id="j")
    tocsin_clock.advance("30s")
    await tocsin_app.schedule(note, Every("1m"), "new", id="j", if_exists=if_exists)
    assert (await tocsin_app.get("j")).args == (what,)
    assert await due_in(tocsin_app, tocsin_clock) == due


async def test_a_schedule_that_is_overdue_stays_overdue_when_it_is_declared_again(tocsin_app, tocsin_clock, note):
    """A program that restarts declares its schedules again: what was missed while it was down is not forgotten."""
    await tocsin_app.schedule(note, Every("1m"), id="j")
    tocsin_clock.advance("5m30s")
    await tocsin_app.schedule(note, Every("1m"), id="j")
    assert await run_until_idle(tocsin_app) == 1


async def test_once_runs_once_at_its_moment(tocsin_app, tocsin_clock, note, runs):
    at = tocsin_clock.now + timedelta(hours=1)
    handle = await tocsin_app.schedule(note, Once(at), id="j")
    assert handle.new
    assert await run_until_idle(tocsin_app) == 0
    assert await run_after(tocsin_app, tocsin_clock, "1h") == 1
    assert runs[0].due == at
    assert await tocsin_app.get("j") is None
    assert await handle.status() == "succeeded"


async def test_once_at_another_moment_moves(tocsin_app, tocsin_clock, note):
    await tocsin_app.schedule(note, Once(tocsin_clock.now + timedelta(hours=1)), id="j")
    await tocsin_app.schedule(note, Once(tocsin_clock.now + timedelta(hours=2)), id="j")
    assert await due_in(tocsin_app, tocsin_clock) == 7200


async def test_once_that_has_run_does_not_run_again_when_it_is_declared_again(tocsin_app, tocsin_clock, note):
    async def define(at=tocsin_clock.now + timedelta(hours=1)):
        return await tocsin_app.schedule(note, Once(at), id="j")

    await define()
    assert await run_after(tocsin_app, tocsin_clock, "1h") == 1
    assert not (await define()).new
    assert await run_until_idle(tocsin_app) == 0
    assert (await define(tocsin_clock.now + timedelta(hours=1))).new


@pytest.mark.parametrize("trigger", [60, "1m", None, timedelta(minutes=1), Every])
async def test_a_trigger_is_a_trigger(tocsin_app, note, trigger):
    with pytest.raises(InvalidTrigger, match=r"Every\(\.\.\.\)"):
        await tocsin_app.schedule(note, trigger)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"misfire": "coalesc"}, "did you mean 'coalesce'"),
        ({"overlap": "sometimes"}, "overlap"),
        ({"if_exists": "postpone"}, "there are: ignore, replace, update"),
        ({"grace": -1}, "grace must be"),
        ({"catch_up": "soon"}, "catch_up must be"),
        ({"jitter": -1}, "jitter must be"),
        ({"priority": "high"}, "leave priority out"),
    ],
    ids=str,
)
async def test_an_option_that_cannot_be_is_refused(tocsin_app, note, options, why):
    with pytest.raises(InvalidArgument, match=why):
        await tocsin_app.schedule(note, Every("1m"), **options)


async def test_a_schedule_that_would_never_run_is_refused(tocsin_app, tocsin_clock, note):
    now = tocsin_clock.now
    with pytest.raises(InvalidTrigger, match="never run"):
        await tocsin_app.schedule(note, Every("1m"), ends=now + timedelta(seconds=59))
    with pytest.raises(InvalidTrigger, match="`ends` is before `starts`"):
        await tocsin_app.schedule(note, Every("1m"), starts=now, ends=now - timedelta(seconds=1))
