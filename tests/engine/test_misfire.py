"""A worker that comes late: what it runs of what it missed, and what is told of the rest. The interval is 10 s."""

from __future__ import annotations

import pytest

from tests.support.schedule_bench import QUEUE, ScheduleBench


@pytest.mark.parametrize("overlap", ["skip", "buffer_one"])
async def test_coalesce_runs_one_for_all_that_are_due(ticking: ScheduleBench, overlap: str):
    await ticking.schedule(overlap=overlap)
    await ticking.work(45)
    await ticking.end()
    await ticking.work()
    assert ticking.started == [10]
    assert await ticking.told() == [(20, 45, "coalesced"), (10, 10, "succeeded")]
    assert await ticking.next_due() == 50


async def test_skip_runs_none_and_waits_for_the_next_to_come(ticking: ScheduleBench):
    await ticking.schedule(misfire="skip")
    await ticking.work(45)
    assert ticking.started == []
    assert await ticking.told() == [(10, 50, "misfire")]
    await ticking.work(5)
    assert ticking.started == [50]


async def test_skip_with_a_grace_runs_what_is_within_it(ticking: ScheduleBench):
    await ticking.schedule(misfire="skip", grace="3s")
    await ticking.work(13)
    assert ticking.started == [10]
    await ticking.end()
    await ticking.work(10.001)
    assert ticking.started == [10]
    assert await ticking.told() == [(10, 10, "succeeded"), (20, 30, "misfire")]


async def test_all_runs_each_that_is_owed_one_after_the_other(ticking: ScheduleBench):
    await ticking.schedule(misfire="all")
    await ticking.work(45)
    for due in (10, 20, 30, 40):
        assert ticking.started[-1] == due
        await ticking.end()
        await ticking.work()
    assert ticking.most == 1
    assert await ticking.told() == [(due, due, "succeeded") for due in (10, 20, 30, 40)]


async def test_all_is_owed_within_catch_up_only(ticking: ScheduleBench):
    await ticking.schedule(misfire="all", catch_up="20s")
    await ticking.work(45)
    assert ticking.started == [30]
    await ticking.end()
    await ticking.work()
    await ticking.end()
    assert await ticking.told() == [(10, 30, "misfire"), (30, 30, "succeeded"), (40, 40, "succeeded")]


async def test_all_with_runs_of_their_own_starts_them_together(ticking: ScheduleBench):
    await ticking.schedule(misfire="all", overlap="allow", catch_up="20s")
    await ticking.work(45)
    assert ticking.started == [30, 40]
    assert ticking.most == 2
    assert await ticking.next_due() == 50
    await ticking.end()
    await ticking.end()
    assert sorted(await ticking.told()) == [(10, 30, "misfire"), (30, 30, "succeeded"), (40, 40, "succeeded")]


@pytest.mark.parametrize("overlap", ["buffer_one", "buffer_all"])
async def test_in_a_buffer_only_an_explicit_grace_makes_a_misfire(ticking: ScheduleBench, overlap: str):
    await ticking.schedule(misfire="skip", overlap=overlap)
    await ticking.work(45)
    assert ticking.started == [10]


@pytest.mark.parametrize("overlap", ["buffer_one", "buffer_all", "allow", "cancel_other"])
async def test_a_grace_that_is_over_skips_under_each_overlap(ticking: ScheduleBench, overlap: str):
    await ticking.schedule(misfire="skip", overlap=overlap, grace="3s")
    await ticking.work(45)
    assert ticking.started == []
    assert await ticking.told() == [(10, 50, "misfire")]


async def test_a_retry_is_not_late(ticking: ScheduleBench):
    """It was begun in time."""
    from tocsin import Retry

    await ticking.schedule(misfire="skip", retry=Retry(1, "15s"))
    await ticking.work(10)
    await ticking.end(how="fail")
    await ticking.work(15)
    assert ticking.started == [10, 10]
    await ticking.end()
    assert await ticking.told() == [(20, 25, "coalesced"), (10, 10, "succeeded")]


async def test_a_failure_that_is_waited_out_tells_what_passes_meanwhile(ticking: ScheduleBench):
    await ticking.schedule()
    await ticking.app.update("j", error_interval="25s")
    await ticking.work(10)
    await ticking.end(how="fail")
    due = await ticking.next_due()
    assert 10 + 25 * 0.9 <= due <= 10 + 25 * 1.1
    assert await ticking.told() == [(20, due, "backoff"), (10, 10, "failed")]


async def test_the_end_of_a_schedule_leaves_no_tick_untold(ticking: ScheduleBench):
    from datetime import timedelta

    await ticking.schedule(ends=ticking.clock.now + timedelta(seconds=30))
    await ticking.work(15)
    ticking.clock.advance("60s")
    await ticking.end()
    assert await ticking.next_due() is None
    assert await ticking.told() == [(20, 75, "overlap"), (10, 10, "succeeded")]


async def test_what_the_queues_cap_holds_back_is_told_as_capped(ticking: ScheduleBench):
    """Another job has the one slot from second 5 on, the schedule is due at 10, 20 and 30, and starts at 35."""
    await ticking.app.queue_update(QUEUE, max_active=1)
    await ticking.schedule(10)
    await ticking.app.enqueue(ticking.handler, id="other")
    await ticking.work(5)
    await ticking.work(7)
    await ticking.work(23)
    assert ticking.started == [0.0]
    [other] = ticking.running.values()
    other.set_result("well")
    await ticking.write()
    await ticking.work()
    assert ticking.started == [0.0, 10.0]
    await ticking.end(10)
    assert await ticking.told() == [(20, 35, "capped"), (10, 10, "succeeded")]
    assert await ticking.next_due() == 40
