"""What is told of ticks that a call moves a job past without a run of their own."""

from __future__ import annotations

import pytest

from tests.support.one_queue import Line
from tests.support.planned_runs import claimed, extra
from tocsin.model.outcome import EDIT, REPLACE, SUCCEEDED
from tocsin.model.skipped_ticks import SkippedTicks, SkipReason
from tocsin.store.transitions.settle import finish_item


async def test_ticks_that_a_finish_passes_are_told_in_its_event(line: Line):
    claim = await claimed(line)
    ranges = [
        SkippedTicks(claim.due + 5000, claim.due + 9000, SkipReason.COALESCED),
        SkippedTicks(claim.due + 10_000, line.now, SkipReason.OVERLAP),
    ]
    line.clock.advance("20s")
    ranges[1] = SkippedTicks(claim.due + 10_000, claim.due + 20_000, SkipReason.OVERLAP)
    await line.finish(claim, claim.due + 20_000, skips=ranges)
    assert await line.decisions() == [
        ("a", claim.due + 5000, claim.due + 9000, "coalesced"),
        ("a", claim.due + 10_000, claim.due + 20_000, "overlap"),
        ("a", claim.due, claim.due + 1, "succeeded"),
    ]


async def test_an_event_without_any_has_no_room_for_them(line: Line):
    claim = await claimed(line)
    await line.finish(claim, claim.due + 5000)
    assert all(b"skips" not in event for event in await line.events())


async def test_items_with_results_and_ranges_and_without_go_in_one_call(line: Line):
    for member in "abcd":
        await line.put(member, every=5, keep=60)
    claims = {claim.member: claim for claim in await line.claim()}
    due = line.now + 5000
    skips = [SkippedTicks(due, due + 1, SkipReason.MISFIRE)]
    items = [
        finish_item(claims["a"], due, SUCCEEDED),
        finish_item(claims["b"], due + 1, SUCCEEDED, skips=skips),
        finish_item(claims["c"], due + 2, SUCCEEDED, 60, b"", b"\x91\xa3bad", skips),
        finish_item(claims["d"], 0, SUCCEEDED, 60, b"\x07"),
    ]
    assert await line.settle("finish", *items) == []
    assert [await line.not_before(member) for member in "abcd"] == [due, due + 1, due + 2, None]
    assert (await line.job("c")).failure.error == "bad"
    assert await line.outcome("d") == "succeeded"
    told = [decision for decision in await line.decisions() if decision[3] == "misfire"]
    assert told == [(member, due, due + 1, "misfire") for member in "bc"]


async def test_a_lost_claim_tells_nothing(line: Line):
    claim = await claimed(line)
    await line.recover()
    await line.finish(claim, claim.due + 5000, skips=[SkippedTicks(claim.due + 1, claim.due + 2, SkipReason.OVERLAP)])
    assert await line.decisions() == []


async def test_a_pause_longer_than_the_interval_skips_what_passed(line: Line):
    await line.put("a", 5000, every=5)
    due = line.now + 5000
    await line.pause("a")
    line.clock.advance("13s")
    await line.resume("a", due=due + 10_000)
    assert await line.decisions() == [("a", due, due + 10_000, "paused")]


async def test_a_pause_shorter_than_the_interval_skips_nothing(line: Line):
    await line.put("a", 5000, every=5)
    due = line.now + 5000
    await line.pause("a")
    line.clock.advance("3s")
    await line.resume("a", due=due)
    assert await line.decisions() == []
    assert await line.not_before("a") == due


async def test_a_resumed_retry_that_starts_over_has_one_decision(line: Line):
    claim = await claimed(line)
    await line.retry(claim)
    await line.pause("a")
    line.clock.advance("7s")
    await line.resume("a", due=claim.due + 10_000)
    assert await line.decisions() == [("a", claim.due, claim.due + 10_000, "paused")]


@pytest.mark.parametrize("mode", [EDIT, REPLACE])
async def test_a_new_trigger_drops_what_was_owed(line: Line, mode: int):
    await line.put("a", 5000, every=5)
    due = line.now + 5000
    line.clock.advance("12s")
    await line.put("a", 7000, mode=mode, every=7)
    assert await line.not_before("a") == line.now + 7000
    assert await line.decisions() == [("a", due, line.now + 1, "edited")]


async def test_a_new_trigger_of_what_is_not_due_drops_nothing(line: Line):
    await line.put("a", 5000, every=5)
    await line.put("a", 7000, mode=EDIT, every=7)
    await line.put("b")
    await line.put("b", 7000, mode=REPLACE)
    assert await line.decisions() == []


async def test_a_new_trigger_of_a_paused_job_drops_what_was_owed(line: Line):
    await line.put("a", 5000, every=5)
    due = line.now + 5000
    await line.pause("a")
    line.clock.advance("12s")
    await line.put("a", 7000, mode=EDIT, every=7)
    await line.resume("a")
    assert await line.not_before("a") == line.now + 7000
    assert await line.decisions() == [("a", due, line.now + 1, "edited")]


async def test_a_new_trigger_during_a_run_ends_the_old_cadence(line: Line):
    """A long run, whose worker would run the two that passed one after the other; the edit came after both."""
    claim = await claimed(line)
    line.clock.advance("12s")
    await line.put("a", 7000, mode=EDIT, every=7)
    begun = line.now + 7000
    line.clock.advance("1s")
    await line.finish(claim, claim.due + 5000)
    assert await line.not_before("a") == begun
    assert await line.decisions() == [
        ("a", claim.due + 5000, line.now + 1, "edited"),
        ("a", claim.due, claim.due + 1, "succeeded"),
    ]


async def test_a_second_new_trigger_during_a_run_drops_what_the_first_owed(line: Line):
    claim = await claimed(line)
    await line.put("a", 2000, mode=EDIT, every=2)
    begun = line.now + 2000
    line.clock.advance("3s")
    await line.put("a", 7000, mode=EDIT, every=7)
    assert await line.decisions() == [("a", begun, line.now + 1, "edited")]
    edited = line.now
    line.clock.advance("3s")
    await line.finish(claim, claim.due + 5000)
    assert await line.not_before("a") == edited + 7000
    assert [told for told in await line.decisions() if told[3] == "edited"] == [("a", begun, edited + 1, "edited")]


async def test_each_edit_of_a_run_ends_what_the_one_before_it_planned(line: Line):
    """Ticks at 5 and 10 of the first cadence, at 12 and 13 of the second, from 31 on of the third."""
    claim, begun = await claimed(line), line.now
    line.clock.advance("11s")
    await line.put("a", 1000, mode=EDIT, every=1)
    line.clock.advance("2s")
    await line.put("a", 20_000, mode=EDIT, every=20)
    line.clock.advance("2s")
    await line.finish(claim, claim.due + 5000)
    told = [(first - begun, until - begun) for _, first, until, why in await line.decisions() if why == "edited"]
    assert told == [(12_000, 13_001), (5000, 12_000)]


async def test_what_a_worker_skipped_beyond_an_edit_was_never_planned(line: Line):
    claim = await claimed(line)
    await line.put("a", 7000, mode=EDIT, every=7)
    begun = line.now + 7000
    line.clock.advance("12s")
    skips = [SkippedTicks(claim.due + 5000, claim.due + 15_000, SkipReason.OVERLAP)]
    await line.finish(claim, claim.due + 15_000, skips=skips)
    assert await line.not_before("a") == begun
    assert (await line.decisions())[0] == ("a", claim.due + 5000, begun, "overlap")


@pytest.mark.parametrize("end", ["retry", "release", "recover", "park"])
async def test_a_run_that_an_edit_gives_up_is_told(line: Line, end: str):
    claim = await claimed(line)
    line.clock.advance("6s")
    await line.put("a", 7000, mode=EDIT, every=7)
    edited = line.now
    await (line.recover() if end == "recover" else getattr(line, end)(claim))
    assert await line.not_before("a") == edited + 7000
    assert await line.decisions() == [("a", claim.due, edited + 1, "edited")]


async def test_an_extra_run_that_is_cancelled_before_it_starts_is_told(line: Line):
    claim = await claimed(line)
    await line.plan(claim, claim.due + 5000)
    assert await line.cancel(extra(claim), claim.due) == 1
    assert await line.decisions() == [("a", claim.due, claim.due + 1, "cancelled")]


async def test_an_extra_run_that_is_cancelled_and_fails_is_told_once(line: Line):
    claim = await claimed(line)
    await line.plan(claim, claim.due + 5000)
    run = await line.take(extra(claim))
    await line.cancel(extra(claim))
    await line.retry(run)
    assert await line.stage(extra(claim)) is None
    assert await line.decisions() == [("a", claim.due, claim.due + 1, "cancelled")]


async def test_one_shots_have_no_ticks(line: Line):
    await line.put("a")
    assert await line.cancel("a") == 1
    await line.put("b")
    claim = await line.take("b")
    await line.put("b", 5000, mode=EDIT)
    await line.release(claim)
    assert await line.decisions() == []
