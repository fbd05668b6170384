"""Occurrences with runs of their own, beside the job."""

from __future__ import annotations

import pytest

from tests.support.one_queue import Line
from tests.support.planned_runs import claimed, extra
from tocsin.model.outcome import CANCELLED, EDIT, SUCCEEDED
from tocsin.model.run import Claim
from tocsin.model.skipped_ticks import SkippedTicks, SkipReason

SOLE = "a\x1f0"


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
        await line.plan(
            claim, claim.due + 5000, skips=[SkippedTicks(claim.due + 1, claim.due + 2, SkipReason.COALESCED)]
        )
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
