"""Occurrences with runs of their own, and what is told of ticks that have none."""

from __future__ import annotations

import pytest
from line import Line

from tocsin.model.run import Claim
from tocsin.model.tick import Skip, Why
from tocsin.store.jobs import EDIT, REPLACE
from tocsin.store.runs import CANCELLED, SUCCEEDED, finish_item

SOLE = "a\x1f0"


async def claimed(line: Line) -> Claim:
    """A job of 5 s that is due now and claimed, to be planned."""
    await line.put("a", every=5)
    return await line.take("a")


def extra(claim: Claim) -> str:
    return f"a\x1f{claim.due}"


async def test_a_planned_occurrence_is_a_run_of_its_own_and_the_job_waits_for_its_next(line: Line):
    claim = await claimed(line)
    assert await line.plan(claim, claim.due + 5000) == [[], []]
    assert await line.stage("a") == "waiting"
    assert await line.not_before("a") == claim.due + 5000
    assert await line.entry("a") is None
    run = await line.take(extra(claim), line.other)
    assert (run.run_id, run.due, run.attempt) == (claim.run_id, claim.due, 1)
    assert not (await line.job(extra(claim))).recurring
    await line.finish(run, runs=line.other)
    job = await line.job("a")
    assert (job.succeeded, job.attempts) == (1, 1)
    assert await line.decisions() == [("a", claim.due, claim.due + 1, "succeeded")]


async def test_several_occurrences_of_a_job_run_side_by_side(line: Line):
    claim = await claimed(line)
    await line.plan(claim, claim.due + 5000)
    first = await line.take(extra(claim))
    line.clock.advance("5s")
    again = await line.take("a")
    await line.plan(again, again.due + 5000)
    second = await line.take(extra(again))
    assert (await line.jobs.count(line.queue))["working"] == 2
    assert (first.due, second.due) == (claim.due, claim.due + 5000)


async def test_the_last_occurrence_of_a_schedule_runs_although_the_job_has_ended(line: Line):
    claim = await claimed(line)
    await line.plan(claim, 0)
    assert await line.stage("a") is None
    run = await line.take(extra(claim))
    await line.finish(run)
    assert await line.stage(extra(claim)) is None


async def test_a_lost_claim_plans_nothing(line: Line):
    claim = await claimed(line)
    await line.recover()
    before = await line.dump()
    assert await line.plan(claim, claim.due + 5000) == [[b"a"], []]
    assert await line.stage(extra(claim)) is None
    assert await line.stage("a") == "waiting"
    after = await line.dump()
    assert [after[key] for key in after if key.endswith(("jobs{line:0}", "waiting{line:0}"))] == [
        before[key] for key in before if key.endswith(("jobs{line:0}", "waiting{line:0}"))
    ]


async def test_an_occurrence_that_was_fired_already_is_not_there_twice(line: Line):
    claim = await claimed(line)
    await line.release(claim)
    await line.pause("a")
    assert await line.fire("a", claim.due) == [claim.due]
    await line.resume("a")
    again = await line.take("a")
    fired = await line.take(extra(claim), line.other)
    await line.plan(again, claim.due + 5000)
    assert await line.finish(fired, runs=line.other) == []
    assert await line.stage(extra(claim)) is None


async def test_fires_at_the_time_of_a_run_that_replaces_others_are_runs_of_their_own(line: Line):
    claim = await claimed(line)
    await line.plan(claim, claim.due + 5000, alone=True)
    assert await line.fire("a") == [claim.due + 1]
    assert await line.fire("a", claim.due) == []


class TestIntents:
    """What was asked for while the job was claimed goes before the plan: the occurrence has not begun."""

    async def test_a_removed_job_has_no_run_left(self, line: Line):
        claim = await claimed(line)
        await line.delete("a")
        await line.plan(claim, claim.due + 5000)
        assert await line.stage("a") is None
        assert await line.stage(extra(claim)) is None

    async def test_a_paused_job_keeps_its_occurrence(self, line: Line):
        claim = await claimed(line)
        await line.pause("a")
        await line.plan(claim, claim.due + 5000, skips=[Skip(claim.due + 1, claim.due + 2, Why.COALESCED)])
        assert await line.stage("a") == "paused"
        assert await line.stage(extra(claim)) is None
        assert (await line.job("a")).due_ms == claim.due
        assert await line.decisions() == []

    async def test_an_edit_that_leaves_the_due_time_alone_is_in_the_run(self, line: Line):
        claim = await claimed(line)
        await line.put("a", mode=EDIT, every=5, args=("new",))
        await line.plan(claim, claim.due + 5000)
        assert (await line.job("a")).args == ("new",)
        assert (await line.job(extra(claim))).args == ("new",)
        assert await line.not_before("a") == claim.due + 5000

    async def test_a_new_trigger_counts_from_the_edit_and_nothing_fires(self, line: Line):
        claim = await claimed(line)
        line.clock.advance("1s")
        await line.put("a", 7000, mode=EDIT, every=7)
        await line.plan(claim, claim.due + 5000)
        assert await line.stage(extra(claim)) is None
        assert await line.not_before("a") == line.now + 7000
        assert await line.decisions() == [("a", claim.due, line.now + 1, "edited")]

    async def test_a_cancelled_occurrence_is_passed(self, line: Line):
        claim = await claimed(line)
        assert await line.cancel("a", claim.due) == 2
        await line.plan(claim, claim.due + 5000)
        assert await line.stage(extra(claim)) is None
        assert await line.not_before("a") == claim.due + 5000
        assert await line.decisions() == [("a", claim.due, claim.due + 1, "cancelled")]


class TestAlone:
    """At most one such run of a job, under one name."""

    async def running(self, line: Line) -> Claim:
        """The first occurrence runs, with worker 2; the job is due again 5 s later."""
        claim = await claimed(line)
        await line.plan(claim, claim.due + 5000, alone=True)
        run = await line.take(SOLE, line.other)
        assert run.run_id == claim.run_id
        line.clock.advance("5s")
        return run

    async def replace(self, line: Line) -> Claim:
        again = await line.take("a")
        await line.plan(again, again.due + 5000, alone=True)
        return again

    async def test_one_that_waits_is_replaced_and_its_tick_skipped(self, line: Line):
        claim = await claimed(line)
        await line.plan(claim, claim.due + 5000, alone=True)
        line.clock.advance("5s")
        again = await line.take("a")
        assert await line.plan(again, again.due + 5000, alone=True) == [[], []]
        run = await line.take(SOLE)
        assert run.run_id == again.run_id
        assert await line.decisions() == [("a", claim.due, claim.due + 1, "overlap")]

    @pytest.mark.parametrize("stage", ["paused", "parked", "dead", "retry"])
    async def test_one_that_stands_aside_is_replaced(self, line: Line, stage: str):
        run = await self.running(line)
        if stage == "paused":
            await line.release(run, runs=line.other)
            await line.pause(SOLE)
        else:
            await {"parked": line.park, "dead": line.bury, "retry": line.retry}[stage](run, runs=line.other)
        again = await self.replace(line)
        assert await line.stage(SOLE) == "waiting"
        fresh = await line.take(SOLE)
        assert (fresh.due, fresh.attempt, fresh.recoveries) == (again.due, 1, 0)
        assert (await line.job(SOLE)).failure is None
        told = ("a", run.due, run.due + 1, "dead" if stage == "dead" else "overlap")
        assert await line.decisions() == [told]

    async def test_one_that_works_is_cancelled_and_its_owner_is_to_be_told(self, line: Line):
        run = await self.running(line)
        again = await line.take("a")
        told = [SOLE.encode(), line.other.owner.encode(), run.token]
        assert await line.plan(again, again.due + 5000, alone=True) == [[], told]
        assert await line.stage(SOLE) == "working"

    @pytest.mark.parametrize("outcome", [CANCELLED, SUCCEEDED])
    async def test_the_new_one_is_put_when_the_old_one_ends(self, line: Line, outcome: int):
        run = await self.running(line)
        again = await self.replace(line)
        assert await line.finish(run, outcome=outcome, runs=line.other) == []
        fresh = await line.take(SOLE)
        assert (fresh.run_id, fresh.cancelled, fresh.attempt) == (again.run_id, False, 1)
        assert (await line.job("a")).attempts == 1
        [ended] = await line.decisions()
        assert ended[:3] == ("a", run.due, run.due + 1)

    @pytest.mark.parametrize("end", ["retry", "release", "park", "recover"])
    async def test_an_old_one_that_has_not_ended_is_given_up(self, line: Line, end: str):
        run = await self.running(line)
        again = await self.replace(line)
        if end == "recover":
            await line.recover(line.other.owner)
        else:
            await getattr(line, end)(run, runs=line.other)
        fresh = await line.take(SOLE)
        assert (fresh.due, fresh.attempt, fresh.recoveries, fresh.cancelled) == (again.due, 1, 0, False)
        assert await line.decisions() == [("a", run.due, run.due + 1, "cancelled")]

    async def test_one_that_has_failed_for_good_makes_room_too(self, line: Line):
        run = await self.running(line)
        again = await self.replace(line)
        await line.bury(run, runs=line.other)
        assert (await line.take(SOLE)).due == again.due
        assert await line.decisions() == [("a", run.due, run.due + 1, "dead")]

    async def test_only_the_last_of_those_that_wait_for_its_end_is_run(self, line: Line):
        run = await self.running(line)
        missed = await self.replace(line)
        line.clock.advance("5s")
        again = await self.replace(line)
        await line.finish(run, outcome=CANCELLED, runs=line.other)
        assert (await line.take(SOLE)).due == again.due
        skipped, ended = await line.decisions()
        assert skipped == ("a", missed.due, missed.due + 1, "overlap")
        assert ended == ("a", run.due, run.due + 1, "cancelled")

    async def test_a_removed_one_is_followed_by_the_next(self, line: Line):
        run = await self.running(line)
        await line.delete(SOLE)
        again = await self.replace(line)
        await line.finish(run, runs=line.other)
        assert (await line.take(SOLE)).due == again.due


class TestSkips:
    async def test_ticks_that_a_finish_passes_are_told_in_its_event(self, line: Line):
        claim = await claimed(line)
        ranges = [
            Skip(claim.due + 5000, claim.due + 9000, Why.COALESCED),
            Skip(claim.due + 10_000, line.now, Why.OVERLAP),
        ]
        line.clock.advance("20s")
        ranges[1] = Skip(claim.due + 10_000, claim.due + 20_000, Why.OVERLAP)
        await line.finish(claim, claim.due + 20_000, skips=ranges)
        assert await line.decisions() == [
            ("a", claim.due + 5000, claim.due + 9000, "coalesced"),
            ("a", claim.due + 10_000, claim.due + 20_000, "overlap"),
            ("a", claim.due, claim.due + 1, "succeeded"),
        ]

    async def test_an_event_without_any_has_no_room_for_them(self, line: Line):
        claim = await claimed(line)
        await line.finish(claim, claim.due + 5000)
        assert all(b"skips" not in event for event in await line.events())

    async def test_items_with_results_and_ranges_and_without_go_in_one_call(self, line: Line):
        for member in "abcd":
            await line.put(member, every=5, keep=60)
        claims = {claim.member: claim for claim in await line.claim()}
        due = line.now + 5000
        skips = [Skip(due, due + 1, Why.MISFIRE)]
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

    async def test_a_lost_claim_tells_nothing(self, line: Line):
        claim = await claimed(line)
        await line.recover()
        await line.finish(claim, claim.due + 5000, skips=[Skip(claim.due + 1, claim.due + 2, Why.OVERLAP)])
        assert await line.decisions() == []

    async def test_a_pause_longer_than_the_interval_skips_what_passed(self, line: Line):
        await line.put("a", 5000, every=5)
        due = line.now + 5000
        await line.pause("a")
        line.clock.advance("13s")
        await line.resume("a", due=due + 10_000)
        assert await line.decisions() == [("a", due, due + 10_000, "paused")]

    async def test_a_pause_shorter_than_the_interval_skips_nothing(self, line: Line):
        await line.put("a", 5000, every=5)
        due = line.now + 5000
        await line.pause("a")
        line.clock.advance("3s")
        await line.resume("a", due=due)
        assert await line.decisions() == []
        assert await line.not_before("a") == due

    async def test_a_resumed_retry_that_starts_over_has_one_decision(self, line: Line):
        claim = await claimed(line)
        await line.retry(claim)
        await line.pause("a")
        line.clock.advance("7s")
        await line.resume("a", due=claim.due + 10_000)
        assert await line.decisions() == [("a", claim.due, claim.due + 10_000, "paused")]

    @pytest.mark.parametrize("mode", [EDIT, REPLACE])
    async def test_a_new_trigger_drops_what_was_owed(self, line: Line, mode: int):
        await line.put("a", 5000, every=5)
        due = line.now + 5000
        line.clock.advance("12s")
        await line.put("a", 7000, mode=mode, every=7)
        assert await line.not_before("a") == line.now + 7000
        assert await line.decisions() == [("a", due, line.now + 1, "edited")]

    async def test_a_new_trigger_of_what_is_not_due_drops_nothing(self, line: Line):
        await line.put("a", 5000, every=5)
        await line.put("a", 7000, mode=EDIT, every=7)
        await line.put("b")
        await line.put("b", 7000, mode=REPLACE)
        assert await line.decisions() == []

    async def test_a_new_trigger_of_a_paused_job_drops_what_was_owed(self, line: Line):
        await line.put("a", 5000, every=5)
        due = line.now + 5000
        await line.pause("a")
        line.clock.advance("12s")
        await line.put("a", 7000, mode=EDIT, every=7)
        await line.resume("a")
        assert await line.not_before("a") == line.now + 7000
        assert await line.decisions() == [("a", due, line.now + 1, "edited")]

    async def test_a_new_trigger_during_a_run_ends_the_old_cadence(self, line: Line):
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

    async def test_a_second_new_trigger_during_a_run_drops_what_the_first_owed(self, line: Line):
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

    async def test_each_edit_of_a_run_ends_what_the_one_before_it_planned(self, line: Line):
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

    async def test_what_a_worker_skipped_beyond_an_edit_was_never_planned(self, line: Line):
        claim = await claimed(line)
        await line.put("a", 7000, mode=EDIT, every=7)
        begun = line.now + 7000
        line.clock.advance("12s")
        skips = [Skip(claim.due + 5000, claim.due + 15_000, Why.OVERLAP)]
        await line.finish(claim, claim.due + 15_000, skips=skips)
        assert await line.not_before("a") == begun
        assert (await line.decisions())[0] == ("a", claim.due + 5000, begun, "overlap")

    @pytest.mark.parametrize("end", ["retry", "release", "recover", "park"])
    async def test_a_run_that_an_edit_gives_up_is_told(self, line: Line, end: str):
        claim = await claimed(line)
        line.clock.advance("6s")
        await line.put("a", 7000, mode=EDIT, every=7)
        edited = line.now
        await (line.recover() if end == "recover" else getattr(line, end)(claim))
        assert await line.not_before("a") == edited + 7000
        assert await line.decisions() == [("a", claim.due, edited + 1, "edited")]

    async def test_an_extra_run_that_is_cancelled_before_it_starts_is_told(self, line: Line):
        claim = await claimed(line)
        await line.plan(claim, claim.due + 5000)
        assert await line.cancel(extra(claim), claim.due) == 1
        assert await line.decisions() == [("a", claim.due, claim.due + 1, "cancelled")]

    async def test_an_extra_run_that_is_cancelled_and_fails_is_told_once(self, line: Line):
        claim = await claimed(line)
        await line.plan(claim, claim.due + 5000)
        run = await line.take(extra(claim))
        await line.cancel(extra(claim))
        await line.retry(run)
        assert await line.stage(extra(claim)) is None
        assert await line.decisions() == [("a", claim.due, claim.due + 1, "cancelled")]

    async def test_one_shots_have_no_ticks(self, line: Line):
        await line.put("a")
        assert await line.cancel("a") == 1
        await line.put("b")
        claim = await line.take("b")
        await line.put("b", 5000, mode=EDIT)
        await line.release(claim)
        assert await line.decisions() == []
