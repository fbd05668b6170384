"""Nobody goes before those who wait by naming a time that is over, and no time is put that cannot be shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from tocsin import Cron, Every, InvalidArgument, InvalidTrigger, Once
from tocsin.testing import run_until_idle

LONG_AGO = datetime(1990, 1, 1, tzinfo=UTC)
YEAR_10000 = datetime(9999, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=-12)))
YEAR_0 = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=12)))


@pytest.fixture
def ran():
    return []


@pytest.fixture
def job(tocsin_app, ran):
    tocsin_app.queue("due", partitions=1)
    tocsin_app.queue("aged", order="priority", aging="30s")
    tocsin_app.queue("strict", order="priority")
    tocsin_app.queue("fair", order="fair")

    @tocsin_app.job(name="job")
    async def job(x):
        ran.append(x)

    return job


async def enqueue(app, job, queue):
    await app.enqueue(job, "back", queue=queue, at=LONG_AGO)


async def enqueue_many(app, job, queue):
    await app.enqueue_many(job, [("back",)], queue=queue, at=LONG_AGO)


async def replace(app, job, queue):
    await app.enqueue(job, "front", queue=queue, id="b", delay="1h")
    await app.enqueue(job, "back", queue=queue, id="b", at=LONG_AGO, if_exists="replace")


async def postpone(app, job, queue):
    await app.enqueue(job, "back", queue=queue, id="b", delay="1h")
    await app.enqueue(job, "back", queue=queue, id="b", at=LONG_AGO, if_exists="postpone")


async def once(app, job, queue):
    await app.schedule(job, Once(LONG_AGO), "back", queue=queue, id="b")


async def once_of_many(app, job, queue):
    await app.schedule_many(job, [("b", Once(LONG_AGO), ("back",))], queue=queue)


@pytest.mark.parametrize("put", [enqueue, enqueue_many, replace, postpone, once, once_of_many])
@pytest.mark.parametrize("queue", ["due", "aged", "strict", "fair"])
async def test_a_backdated_job_stands_behind_those_that_wait(tocsin_app, tocsin_clock, job, ran, queue, put):
    for n in range(3):
        await tocsin_app.enqueue(job, n, queue=queue)
        tocsin_clock.advance("1ms")
    await put(tocsin_app, job, queue)
    tocsin_clock.advance("1ms")
    await tocsin_app.enqueue(job, "last", queue=queue)
    await run_until_idle(tocsin_app, concurrency=1)
    assert ran == [0, 1, 2, "back", "last"]


async def test_a_backdated_job_of_low_priority_does_not_age_before_it_is_put(tocsin_app, job, ran):
    await tocsin_app.enqueue(job, "high", queue="aged", priority="high")
    await tocsin_app.enqueue(job, "back", queue="aged", priority="background", at=LONG_AGO)
    await run_until_idle(tocsin_app, concurrency=1)
    assert ran == ["high", "back"]


async def test_a_backdated_job_that_waits_for_another_is_due_when_that_has_ended(tocsin_app, tocsin_clock, job, ran):
    await tocsin_app.enqueue(job, "first", queue="due", id="first")
    await tocsin_app.enqueue(job, "back", queue="due", at=LONG_AGO, after=["first"])
    tocsin_clock.advance("1ms")
    await tocsin_app.enqueue(job, "second", queue="due")
    await run_until_idle(tocsin_app, concurrency=1)
    assert ran == ["first", "second", "back"]


async def test_a_backdated_put_that_is_repeated_changes_nothing(tocsin_app, tocsin_clock, job, ran):
    handle = await tocsin_app.enqueue(job, 1, queue="due", id="b", at=LONG_AGO)
    due = (await tocsin_app.get("b")).due
    tocsin_clock.advance("1m")
    assert not (await tocsin_app.enqueue(job, 1, queue="due", id="b", at=LONG_AGO)).new
    assert handle.new
    assert (await tocsin_app.get("b")).due == due
    await run_until_idle(tocsin_app)
    assert not (await tocsin_app.enqueue(job, 1, queue="due", id="b", at=LONG_AGO)).new
    assert ran == [1]


async def test_runs_of_a_backfill_keep_the_times_that_they_are_for(tocsin_app, tocsin_clock, job):
    await tocsin_app.schedule(job, Every("1h", anchor=LONG_AGO), 1, queue="due", id="s")
    begin = tocsin_clock.now - timedelta(hours=3)
    await tocsin_app.backfill("s", begin, tocsin_clock.now)
    waiting = [found.due async for found in tocsin_app.jobs(queue="due")]
    assert len([due for due in waiting if due < tocsin_clock.now]) >= 3


@pytest.mark.parametrize("when", [YEAR_10000, YEAR_0])
@pytest.mark.parametrize(
    "put",
    [
        lambda app, job, when: app.enqueue(job, 1, at=when),
        lambda app, job, when: app.enqueue_many(job, [(1,)], at=when),
        lambda app, job, when: app.schedule(job, Cron("0 9 * * *"), 1, id="s", starts=when),
        lambda app, job, when: app.schedule(job, Cron("0 9 * * *"), 1, id="s", ends=when),
        lambda app, job, when: app.schedule(job, Once(when), 1, id="s"),
        lambda app, job, when: app.schedule(job, Every("1h", anchor=when), 1, id="s"),
        lambda app, job, when: app.schedule_many(job, [("s", Every("1h"), (1,))], starts=when),
    ],
)
async def test_a_time_that_cannot_be_shown_is_refused(tocsin_app, job, put, when):
    with pytest.raises(InvalidArgument, match="within the years 1 to 9999 in UTC"):
        await put(tocsin_app, job, when)


async def test_the_last_moment_that_can_be_shown_is_kept_and_not_run_early(tocsin_app, job):
    last = datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)
    await tocsin_app.enqueue(job, 1, id="far", at=last)
    assert (await tocsin_app.get("far")).due == last
    await run_until_idle(tocsin_app)
    assert (await tocsin_app.get("far")).stage == "waiting"


@pytest.mark.parametrize("starts", [datetime(2300, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)])
async def test_a_schedule_that_would_begin_in_another_century_is_refused(tocsin_app, job, starts):
    with pytest.raises(InvalidTrigger, match="in more than 100 years"):
        await tocsin_app.schedule(job, Every("1h"), 1, id="s", starts=starts)
    with pytest.raises(InvalidTrigger, match="in more than 100 years"):
        await tocsin_app.schedule(job, Every("72000d"), 1, id="s")


async def test_a_delay_leads_to_a_time_that_can_be_shown(tocsin_app, job):
    with pytest.raises(InvalidArgument, match="between 0 and 1000 years"):
        await tocsin_app.enqueue(job, 1, delay=timedelta(days=3_000_000))
    await tocsin_app.enqueue(job, 1, id="far", delay=timedelta(days=366_000))
    assert (await tocsin_app.get("far")).due.year > 2900
