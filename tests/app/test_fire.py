"""`fire` and `backfill`: extra runs, without touching the cadence."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tocsin import Every, InvalidArgument, Retry, Run, TocsinError, UnknownJob
from tocsin.testing import run_until_idle


async def test_a_fired_job_runs_now_and_its_cadence_stays(tocsin_app, tocsin_clock, note, runs):
    await tocsin_app.schedule(note, Every("1h"), "x", id="j")
    due = (await tocsin_app.get("j")).due
    fired = await tocsin_app.fire("j")
    assert isinstance(fired, Run)
    assert (fired.job_id, fired.id) == ("j", f"j@{tocsin_clock.ms}")
    assert await run_until_idle(tocsin_app) == 1
    assert (runs[0].id, runs[0].idempotency_key, runs[0].args) == (fired.id, fired.idempotency_key, ("x",))
    job = await tocsin_app.get("j")
    assert (job.due, job.succeeded, job.stage) == (due, 1, "waiting")


async def test_a_fired_run_that_is_not_here_cannot_be_extended(tocsin_app, note):
    await tocsin_app.schedule(note, Every("1h"), id="j")
    fired = await tocsin_app.fire("j")
    with pytest.raises(TocsinError, match="only its handler can extend it"):
        fired.extend("1m")


async def test_five_fires_in_one_millisecond_are_five_runs(tocsin_app, tocsin_clock, note, runs):
    await tocsin_app.schedule(note, Every("1h"), id="j")
    fired = {(await tocsin_app.fire("j")).id for _ in range(5)}
    tocsin_clock.advance("1s")
    assert await run_until_idle(tocsin_app) == 5
    assert {run.id for run in runs} == fired


async def test_the_thousandth_fire_in_one_millisecond_costs_about_as_much_as_the_first(tocsin_app, tocsin_clock, note):
    await tocsin_app.schedule(note, Every("1h"), id="j")
    client = tocsin_app.store.client

    async def looks() -> int:
        return (await client.info("commandstats")).get("cmdstat_hexists", {"calls": 0})["calls"]

    fired = [(await tocsin_app.fire("j")).due for _ in range(1000)]
    before = await looks()
    fired.append((await tocsin_app.fire("j")).due)
    assert await looks() - before < 50
    assert fired == [tocsin_clock.now + timedelta(milliseconds=n) for n in range(1001)]


async def test_a_paused_job_can_be_fired_and_stays_paused(tocsin_app, note):
    await tocsin_app.schedule(note, Every("1h"), id="j")
    await tocsin_app.pause("j")
    await tocsin_app.fire("j")
    assert await run_until_idle(tocsin_app) == 1
    assert (await tocsin_app.get("j")).stage == "paused"


async def test_a_waiting_one_shot_can_be_fired_too(tocsin_app, tocsin_clock, note, ran):
    await tocsin_app.enqueue(note, "x", id="j", delay="1h")
    await tocsin_app.fire("j")
    assert await run_until_idle(tocsin_app) == 1
    tocsin_clock.advance("1h")
    assert await run_until_idle(tocsin_app) == 1
    assert ran == ["x", "x"]


async def test_a_fire_at_the_very_moment_the_job_is_due_is_a_run_of_its_own(tocsin_app, tocsin_clock, note, runs):
    """Two runs with one id would be one for every receiver that looks at the idempotency key."""
    await tocsin_app.schedule(note, Every("1m"), id="j")
    tocsin_clock.advance("1m")
    fired = await tocsin_app.fire("j")
    tocsin_clock.advance("1s")
    assert await run_until_idle(tocsin_app) == 2
    assert len({run.id for run in runs}) == 2
    assert fired.id in {run.id for run in runs}


async def test_a_fired_run_that_fails_is_tried_again_and_then_dead_on_its_own(tocsin_app, tocsin_clock, note, ran):
    await tocsin_app.schedule(note, Every("1h"), "x", id="j", fail="bad", retry=Retry(1, "1s"))
    fired = await tocsin_app.fire("j")
    await run_until_idle(tocsin_app)
    tocsin_clock.advance("1s")
    await run_until_idle(tocsin_app)
    assert ran == ["x", "x"]
    assert (await tocsin_app.get("j")).stage == "waiting"
    [dead] = [job async for job in tocsin_app.dead()]
    assert dead.failure.error == "ValueError: bad"
    assert f"j@{dead.due_ms}" == fired.id


@pytest.mark.parametrize("call", ["retry_dead", "drop_dead", "get", "remove"])
async def test_an_extra_run_that_is_dead_can_be_named_as_the_list_names_it(tocsin_app, note, ran, call):
    await tocsin_app.schedule(note, Every("1h"), id="j", fail="bad")
    await tocsin_app.fire("j")
    await run_until_idle(tocsin_app)
    [dead] = [job async for job in tocsin_app.dead()]
    assert await getattr(tocsin_app, call)(dead.id)
    if call == "retry_dead":
        assert await run_until_idle(tocsin_app) == 1
    assert len([job async for job in tocsin_app.dead()]) == (1 if call in ("retry_dead", "get") else 0)
    assert (await tocsin_app.get("j")).stage == "waiting"


async def test_nobody_cannot_be_fired(tocsin_app):
    with pytest.raises(UnknownJob, match="nobody"):
        await tocsin_app.fire("nobody")
    now = tocsin_app.store.clock.now
    with pytest.raises(UnknownJob):
        await tocsin_app.backfill("nobody", now, now)


async def test_backfill_runs_each_occurrence_of_a_span_on_the_cadence(tocsin_app, tocsin_clock, note, runs):
    await tocsin_app.schedule(note, Every("1m"), "x", id="j")
    due = (await tocsin_app.get("j")).due
    start = due - timedelta(minutes=10)
    assert await tocsin_app.backfill("j", start, start + timedelta(minutes=5)) == 5
    assert await run_until_idle(tocsin_app) == 5
    assert sorted(run.due for run in runs) == [start + timedelta(minutes=n) for n in range(5)]
    assert all(run.id == f"j@{int(run.due.timestamp() * 1000)}" for run in runs)
    job = await tocsin_app.get("j")
    assert (job.due, job.succeeded) == (due, 5)


async def test_the_same_backfill_again_adds_nothing_while_it_waits(tocsin_app, note):
    await tocsin_app.schedule(note, Every("1m"), id="j")
    due = (await tocsin_app.get("j")).due
    span = (due - timedelta(minutes=5), due)
    assert await tocsin_app.backfill("j", *span) == 5
    assert await tocsin_app.backfill("j", *span) == 0
    assert await run_until_idle(tocsin_app) == 5


async def test_backfill_can_be_limited(tocsin_app, note, runs):
    await tocsin_app.schedule(note, Every("1m"), id="j")
    due = (await tocsin_app.get("j")).due
    assert await tocsin_app.backfill("j", due - timedelta(hours=1), due, limit=3) == 3
    await run_until_idle(tocsin_app)
    assert sorted(run.due for run in runs) == [due - timedelta(minutes=60 - n) for n in range(3)]


async def test_backfill_takes_more_than_fits_into_one_call(tocsin_app, note):
    await tocsin_app.schedule(note, Every("1s"), id="j")
    due = (await tocsin_app.get("j")).due
    assert await tocsin_app.backfill("j", due - timedelta(seconds=2500), due) == 2500


async def test_backfill_leaves_alone_what_the_schedule_will_run_itself(tocsin_app, tocsin_clock, note, runs):
    """Missed occurrences are past; a future one would run twice, under one run id."""
    await tocsin_app.schedule(note, Every("1m"), id="j")
    begun = tocsin_clock.now
    tocsin_clock.advance("30s")
    await tocsin_app.backfill("j", begun - timedelta(minutes=2), begun + timedelta(minutes=10))
    for _ in range(10):
        await run_until_idle(tocsin_app)
        tocsin_clock.advance("1m")
    ids = [run.id for run in runs]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("misfire", ["coalesce", "skip", "all"])
async def test_backfill_of_an_overdue_schedule_runs_nothing_twice(tocsin_app, tocsin_clock, note, runs, misfire):
    await tocsin_app.schedule(note, Every("1m"), id="j", misfire=misfire)
    begun = tocsin_clock.now
    tocsin_clock.advance("5m30s")
    await tocsin_app.backfill("j", begun - timedelta(minutes=2), tocsin_clock.now)
    await run_until_idle(tocsin_app)
    # The first belongs to the schedule itself, which finds it too late where it may skip.
    own = [] if misfire == "skip" else [1]
    minutes = [(run.due - begun).total_seconds() / 60 for run in runs]
    assert sorted(minutes) == sorted([-2, -1, 0, *own, 2, 3, 4, 5])


async def test_backfill_of_a_paused_schedule_runs_what_it_missed(tocsin_app, tocsin_clock, note, runs):
    await tocsin_app.schedule(note, Every("1m"), id="j")
    begun = tocsin_clock.now
    await tocsin_app.pause("j")
    tocsin_clock.advance("3m30s")
    assert await tocsin_app.backfill("j", begun, tocsin_clock.now) == 4
    await run_until_idle(tocsin_app)
    assert sorted((run.due - begun).total_seconds() / 60 for run in runs) == [0, 1, 2, 3]


async def test_a_backfill_of_more_than_anybody_means_is_refused_unless_it_is_limited(tocsin_app, tocsin_clock, note):
    await tocsin_app.schedule(note, Every("1ms"), id="j")
    span = (tocsin_clock.now - timedelta(days=1), tocsin_clock.now)
    with pytest.raises(InvalidArgument, match="more than 100000 runs"):
        await tocsin_app.backfill("j", *span)
    assert await tocsin_app.backfill("j", *span, limit=10) == 10


@pytest.mark.parametrize(
    ("options", "why"),
    [({"overlap": "skip"}, "overlap"), *[({"limit": limit}, "limit must be") for limit in (-1, 0, "all", True)]],
    ids=str,
)
async def test_a_backfill_that_cannot_be_is_refused(tocsin_app, tocsin_clock, note, options, why):
    await tocsin_app.schedule(note, Every("1m"), id="j")
    with pytest.raises(InvalidArgument, match=why):
        await tocsin_app.backfill("j", tocsin_clock.now - timedelta(hours=1), tocsin_clock.now, **options)


async def test_backfill_needs_aware_times_in_order(tocsin_app, tocsin_clock, note):
    await tocsin_app.schedule(note, Every("1m"), id="j")
    now = tocsin_clock.now
    with pytest.raises(InvalidArgument, match="start must say its zone"):
        await tocsin_app.backfill("j", now.replace(tzinfo=None), now)
    with pytest.raises(InvalidArgument, match="end must say its zone"):
        await tocsin_app.backfill("j", now, now.replace(tzinfo=None))
    assert await tocsin_app.backfill("j", now, now - timedelta(hours=1)) == 0
