"""Ticks that pass while a run goes on. The interval is 10 s, the first tick at 10 s."""

from __future__ import annotations

import pytest

from tests.support.schedule_bench import JOB, QUEUE, ScheduleBench
from tocsin import Every, InvalidArgument, Retry
from tocsin.model.job import OVERLAPS

each_overlap = pytest.mark.parametrize("overlap", OVERLAPS)
APART = ("allow", "cancel_other")


async def test_skip_skips_them(ticking: ScheduleBench):
    await ticking.schedule()
    await ticking.work(10)
    await ticking.work(35)
    assert ticking.most == 1
    await ticking.end()
    assert await ticking.next_due() == 50
    assert await ticking.told() == [(20, 50, "overlap"), (10, 10, "succeeded")]


async def test_buffer_one_runs_the_first_of_them_right_after(ticking: ScheduleBench):
    await ticking.schedule(overlap="buffer_one")
    await ticking.work(10)
    await ticking.work(35)
    await ticking.end()
    await ticking.work()
    assert ticking.started == [10, 20]
    await ticking.end()
    assert await ticking.next_due() == 50
    assert await ticking.told() == [(10, 10, "succeeded"), (30, 45, "coalesced"), (20, 20, "succeeded")]


async def test_buffer_one_that_may_not_coalesce_skips_the_others(ticking: ScheduleBench):
    await ticking.schedule(overlap="buffer_one", misfire="skip")
    await ticking.work(10)
    await ticking.work(35)
    await ticking.end()
    await ticking.work()
    await ticking.end()
    assert await ticking.told() == [(10, 10, "succeeded"), (30, 50, "overlap"), (20, 20, "succeeded")]


async def test_buffer_all_runs_each_in_order(ticking: ScheduleBench):
    await ticking.schedule(overlap="buffer_all")
    await ticking.work(10)
    await ticking.work(35)
    for _ in range(4):
        await ticking.end()
        await ticking.work()
    assert ticking.started == [10, 20, 30, 40]
    assert ticking.most == 1
    assert await ticking.next_due() == 50
    assert await ticking.told() == [(due, due, "succeeded") for due in (10, 20, 30, 40)]


async def test_allow_runs_each_at_its_time(ticking: ScheduleBench):
    await ticking.schedule(overlap="allow")
    for _ in range(4):
        await ticking.work(10)
    assert ticking.started == [10, 20, 30, 40]
    assert ticking.most == 4
    await ticking.end(30)
    await ticking.end(10)
    assert await ticking.told() == [(30, 30, "succeeded"), (10, 10, "succeeded")]
    job = await ticking.app.get(JOB)
    assert (job.succeeded, job.stage) == (2, "waiting")


async def test_a_run_of_its_own_has_the_retries_of_its_job(ticking: ScheduleBench):
    await ticking.schedule(overlap="allow", retry=Retry(1, "5s"))
    await ticking.work(10)
    await ticking.end(how="fail")
    await ticking.work(5)
    assert ticking.started == [10, 10]
    await ticking.end()
    assert await ticking.told() == [(10, 10, "succeeded")]


async def test_cancel_other_stops_the_run_that_goes_on(ticking: ScheduleBench):
    await ticking.schedule(overlap="cancel_other")
    await ticking.work(10)
    await ticking.work(10)
    assert [run_id for run_id, _ in ticking.running] == [f"{JOB}@{ticking.begun + 10_000}"]
    await ticking.read_mail()
    assert not ticking.running
    await ticking.work()
    assert ticking.started == [10, 20]
    assert ticking.most == 1
    await ticking.end()
    assert await ticking.told() == [(10, 10, "cancelled"), (20, 20, "succeeded")]


async def test_cancel_other_with_a_run_that_ends_before_it_hears_of_it(ticking: ScheduleBench):
    await ticking.schedule(overlap="cancel_other")
    await ticking.work(10)
    await ticking.work(10)
    await ticking.end()
    await ticking.work()
    assert ticking.started == [10, 20]
    await ticking.end()
    assert await ticking.told() == [(10, 10, "succeeded"), (20, 20, "succeeded")]


async def test_cancel_other_with_a_run_that_does_not_stop_keeps_the_last_of_those_that_wait(ticking: ScheduleBench):
    await ticking.schedule(overlap="cancel_other")
    for _ in range(4):
        await ticking.work(10)
    await ticking.end()
    await ticking.work()
    assert ticking.started == [10, 40]
    await ticking.end()
    assert await ticking.told() == [
        (20, 20.001, "overlap"),
        (30, 30.001, "overlap"),
        (10, 10, "succeeded"),
        (40, 40, "succeeded"),
    ]


async def test_cancel_other_with_a_worker_that_died(ticking: ScheduleBench):
    await ticking.schedule(overlap="cancel_other")
    await ticking.work(10)
    await ticking.work(10)
    await ticking.lose_worker()
    await ticking.work()
    assert ticking.started == [10, 20]
    await ticking.end(10)
    await ticking.end(20)
    assert await ticking.told() == [(10, 10.001, "cancelled"), (20, 20, "succeeded")]


@pytest.mark.parametrize("overlap", APART)
async def test_a_run_of_its_own_is_cancelled_by_its_id(ticking: ScheduleBench, overlap: str):
    await ticking.schedule(overlap=overlap)
    await ticking.work(10)
    assert await ticking.app.cancel(f"{JOB}@{ticking.begun + 10_000}")
    await ticking.read_mail()
    assert await ticking.told() == [(10, 10, "cancelled")]
    assert not await ticking.app.cancel(f"{JOB}@{ticking.begun + 10_000}")


# Edits, pauses and removal during a run


@each_overlap
async def test_a_job_that_is_removed_during_a_run_does_not_come_back(ticking: ScheduleBench, overlap: str):
    await ticking.schedule(overlap=overlap)
    await ticking.work(10)
    assert await ticking.app.remove(JOB)
    await ticking.end()
    await ticking.work(60)
    assert ticking.started == [10]
    assert await ticking.app.get(JOB) is None
    assert [job async for job in ticking.app.jobs(queue=QUEUE)] == []


@each_overlap
async def test_a_job_that_is_removed_in_a_backlog_does_not_come_back(ticking: ScheduleBench, overlap: str):
    await ticking.schedule(overlap=overlap)
    await ticking.work(10)
    ticking.clock.advance("35s")
    assert await ticking.app.remove(JOB)
    await ticking.end()
    await ticking.work(60)
    assert ticking.started == [10]


@each_overlap
@pytest.mark.parametrize("pause", [3, 33])
async def test_a_pause_during_a_run_fires_nothing_at_its_end(ticking: ScheduleBench, overlap: str, pause: int):
    """Shorter or longer than the interval."""
    await ticking.schedule(overlap=overlap)
    await ticking.work(12)
    await ticking.app.pause(JOB)
    await ticking.end()
    await ticking.work(pause)
    assert ticking.started == [10]
    assert await ticking.app.resume(JOB)
    await ticking.work()
    assert ticking.started == [10]
    due = 20 if pause == 3 else 50
    assert await ticking.next_due() == due
    skipped = [] if pause == 3 else [(20, 50, "paused")]
    assert await ticking.told() == [(10, 10, "succeeded"), *skipped]
    await ticking.work(due - ticking.at(ticking.clock.ms))
    assert ticking.started == [10, due]


async def test_a_replayed_pause_is_a_misfire_like_another(ticking: ScheduleBench):
    await ticking.schedule(overlap="allow", misfire="all")
    await ticking.app.pause(JOB)
    await ticking.work(35)
    await ticking.app.resume(JOB, replay=True)
    await ticking.work()
    assert ticking.started == [10, 20, 30]


@each_overlap
async def test_an_edit_during_a_run_counts_from_now_and_fires_nothing(ticking: ScheduleBench, overlap: str):
    await ticking.schedule(overlap=overlap)
    await ticking.work(10)
    ticking.clock.advance("5s")
    assert await ticking.app.update(JOB, trigger=Every("1m"))
    await ticking.end()
    await ticking.work(50)
    assert ticking.started == [10]
    assert await ticking.next_due() == 75
    await ticking.work(10)
    assert ticking.started == [10, 75]


@each_overlap
async def test_an_edit_in_a_backlog_drops_it(ticking: ScheduleBench, overlap: str):
    await ticking.schedule(overlap=overlap, misfire="all")
    await ticking.work(10)
    ticking.clock.advance("35s")
    assert await ticking.app.update(JOB, trigger=Every("1m"))
    await ticking.end()
    await ticking.work()
    assert ticking.started == [10]
    assert await ticking.next_due() == 105
    why = "overlap" if overlap == "skip" else "edited"
    [(first, until, told)] = [each for each in await ticking.told() if each[0] != 10]
    assert (first, told) == (20, why)
    assert 40 < until <= 50


@each_overlap
async def test_a_changed_overlap_keeps_the_due_time(ticking: ScheduleBench, overlap: str):
    await ticking.schedule()
    await ticking.work(3)
    assert await ticking.app.update(JOB, overlap=overlap)
    assert (await ticking.app.get(JOB)).spec.rules.overlap == overlap
    assert await ticking.next_due() == 10
    await ticking.work(7)
    assert ticking.started == [10]


async def test_schedules_in_bulk_take_an_overlap(ticking: ScheduleBench):
    await ticking.app.schedule_many(ticking.handler, [("b", Every("1h"), ())], overlap="allow")
    assert (await ticking.app.get("b")).spec.rules.overlap == "allow"


@pytest.mark.agents
async def test_an_agent_runs_one_at_a_time(ticking: ScheduleBench):
    @ticking.app.agent(every="10s", name="agent")
    async def agent() -> None: ...

    await ticking.app.register_agents()
    with pytest.raises(InvalidArgument, match="an agent runs one at a time"):
        await ticking.app.update("agent", overlap="allow")


async def test_an_unknown_overlap_is_refused_by_name(ticking: ScheduleBench):
    with pytest.raises(InvalidArgument, match="did you mean 'buffer_all'"):
        await ticking.schedule(overlap="buffer_al")


async def test_a_decision_says_what_and_why_and_when(ticking: ScheduleBench):
    await ticking.schedule(misfire="skip")
    await ticking.work(45)
    [decision] = await ticking.decisions()
    assert (decision.what, decision.why, decision.queue, decision.at_ms) == (
        "skipped",
        "misfire",
        QUEUE,
        ticking.clock.ms,
    )
    assert (decision.until - decision.first).total_seconds() == 40
