"""While a job is working nobody moves it: what was asked for is obeyed by whatever ends the claim."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.support.one_queue import Line
from tocsin.model.outcome import CANCELLED, CHANGED, EDIT, IGNORE, MISSING, REPLACE, UPDATE
from tocsin.model.run import Claim
from tocsin.store.transitions.settle import finish_item

End = Callable[[Line, Claim], Awaitable[object]]


async def _finish(line: Line, claim: Claim) -> object:
    return await line.finish(claim, next_due=claim.due + 5000 if claim.record[1] else 0)


ENDS: dict[str, End] = {
    "finish": _finish,
    "retry": Line.retry,
    "release": Line.release,
    "recover": lambda line, _: line.recover(),
    "bury": Line.bury,
    "park": Line.park,
}
# Those after which the run goes on.
UNFINISHED = ("retry", "release", "recover", "park")
KINDS = {"recurring": 5.0, "one-shot": None}

each_end = pytest.mark.parametrize("end", ENDS)
each_kind = pytest.mark.parametrize("kind", KINDS)


async def working(line: Line, kind: str = "one-shot") -> Claim:
    await line.put("a", every=KINDS[kind])
    return await line.take("a")


@each_end
@each_kind
async def test_a_job_removed_during_its_run_does_not_come_back(line: Line, end: str, kind: str):
    claim = await working(line, kind)
    assert await line.delete("a")
    assert await line.stage("a") == "working"
    await ENDS[end](line, claim)
    assert await line.stage("a") is None
    assert await line.entry("a") is None
    line.clock.advance("1h")
    assert await line.claim(line.other) == []
    assert await line.outcome("a") is None


async def test_a_job_that_is_being_removed_is_as_good_as_gone(line: Line):
    claim = await working(line, "recurring")
    assert await line.delete("a")
    assert not await line.delete("a")
    assert await line.pause("a") == 0
    assert await line.put("a", mode=EDIT) == MISSING
    await line.finish(claim, next_due=claim.due + 5000)
    assert await line.stage("a") is None


async def test_a_job_that_is_being_removed_cannot_be_fired(line: Line):
    await working(line, "recurring")
    await line.delete("a")
    assert (await line.raw("job_fire", ["a", b"\x91\x00"]))[1] == 0
    assert (await line.jobs.count(line.queue))["waiting"] == 0


@each_end
@each_kind
async def test_a_job_paused_during_its_run_is_paused_when_the_claim_ends(line: Line, end: str, kind: str):
    claim = await working(line, kind)
    assert await line.pause("a") == 2
    assert await line.stage("a") == "working"
    await ENDS[end](line, claim)
    expected = "paused"
    if kind == "one-shot" and end == "finish":
        expected = None
    elif end == "bury":
        expected = "dead"
    assert await line.stage("a") == expected
    line.clock.advance("1h")
    assert await line.claim(line.other) == []


@pytest.mark.parametrize("end", UNFINISHED)
async def test_a_run_paused_before_its_end_goes_on_where_it_was(line: Line, end: str):
    claim = await working(line)
    await line.pause("a")
    await ENDS[end](line, claim)
    assert (await line.resume("a")) == 1
    if end == "retry":
        assert await line.claim(line.other) == []
        line.clock.advance("1m")
    again = await line.take("a", line.other)
    assert again.due == claim.due
    assert again.attempt == (2 if end == "retry" else 1)
    assert again.recoveries == (1 if end == "recover" else 0)


async def test_a_recurring_job_paused_during_its_run_resumes_at_its_next_time(line: Line):
    claim = await working(line, "recurring")
    await line.pause("a")
    await line.finish(claim, next_due=claim.due + 5000)
    assert (await line.job("a")).due_ms == claim.due + 5000
    await line.resume("a")
    assert await line.not_before("a") == claim.due + 5000


async def test_a_pause_that_is_taken_back_during_the_run_never_happened(line: Line):
    claim = await working(line, "recurring")
    await line.pause("a")
    assert await line.resume("a") == 2
    assert await line.resume("a") == 3
    await line.finish(claim, next_due=claim.due + 5000)
    assert await line.stage("a") == "waiting"


@each_end
@pytest.mark.parametrize("mode", [IGNORE, REPLACE, UPDATE])
async def test_a_job_put_again_after_its_removal_is_a_new_one(line: Line, end: str, mode: int):
    claim = await working(line, "recurring")
    await line.delete("a")
    assert await line.put("a", 9000, every=5, args=(2,), mode=mode) == CHANGED
    await ENDS[end](line, claim)
    job = await line.job("a")
    assert await line.stage("a") == "waiting"
    assert (job.due_ms, job.attempt, job.recoveries, job.args) == (line.now + 9000, 1, 0, (2,))


async def test_a_job_put_again_after_its_removal_is_not_paused_because_the_old_one_was(line: Line):
    claim = await working(line, "recurring")
    await line.pause("a")
    await line.delete("a")
    await line.put("a", 9000, every=5)
    await line.finish(claim, next_due=claim.due + 5000)
    assert await line.stage("a") == "waiting"


async def test_a_job_removed_after_it_was_put_again_is_gone(line: Line):
    claim = await working(line, "recurring")
    await line.delete("a")
    await line.put("a", every=5)
    await line.pause("a")
    assert await line.delete("a")
    await line.finish(claim, next_due=claim.due + 5000)
    assert await line.stage("a") is None


@each_end
async def test_a_job_replaced_during_its_run_starts_over(line: Line, end: str):
    claim = await working(line)
    assert await line.put("a", 9000, mode=REPLACE, args=(2,)) == CHANGED
    await ENDS[end](line, claim)
    job = await line.job("a")
    assert await line.stage("a") == "waiting"
    assert (job.due_ms, job.attempt, job.args) == (line.now + 9000, 1, (2,))
    assert await line.entry("a") is None


@each_end
async def test_a_job_replaced_and_paused_during_its_run_is_paused_with_its_new_time(line: Line, end: str):
    claim = await working(line)
    await line.put("a", 9000, mode=REPLACE, args=(2,))
    await line.pause("a")
    await ENDS[end](line, claim)
    job = await line.job("a")
    assert (await line.stage("a"), job.due_ms, job.attempt, job.args) == ("paused", line.now + 9000, 1, (2,))


@pytest.mark.parametrize("end", [*UNFINISHED, "bury"])
async def test_an_edit_during_the_run_stays_with_a_job_that_goes_on(line: Line, end: str):
    claim = await working(line)
    assert await line.put("a", mode=EDIT, args=(2,)) == CHANGED
    await ENDS[end](line, claim)
    job = await line.job("a")
    assert (job.args, job.due_ms) == ((2,), claim.due)
    assert job.attempt == (2 if end == "retry" else 1)


async def test_a_job_edited_while_a_worker_could_not_read_it_is_tried_again(line: Line):
    claim = await working(line)
    await line.put("a", mode=EDIT, args=(2,))
    await line.park(claim)
    assert await line.stage("a") == "waiting"
    assert (await line.take("a", line.other)).due == claim.due


async def test_an_edit_during_the_last_run_of_a_one_shot_does_not_fire_it_again(line: Line):
    claim = await working(line)
    await line.put("a", mode=EDIT, args=(2,))
    await line.finish(claim)
    assert await line.stage("a") is None


async def test_an_edit_during_the_run_of_a_recurring_job_keeps_its_cadence(line: Line):
    claim = await working(line, "recurring")
    await line.put("a", mode=EDIT, every=5, args=(2,))
    await line.finish(claim, next_due=claim.due + 5000)
    job = await line.job("a")
    assert (job.args, job.due_ms, job.succeeded) == ((2,), claim.due + 5000, 1)


async def test_the_last_of_two_updates_during_a_run_counts(line: Line):
    claim = await working(line, "recurring")
    assert await line.put("a", mode=UPDATE, every=5, args=(2,)) == CHANGED
    assert await line.put("a", mode=UPDATE, every=5, args=(3,)) == CHANGED
    await line.finish(claim, next_due=claim.due + 5000)
    job = await line.job("a")
    assert (job.args, job.due_ms) == ((3,), claim.due + 5000)


async def test_an_update_during_a_run_does_not_undo_the_new_time_of_the_one_before(line: Line):
    claim = await working(line, "recurring")
    await line.put("a", 9000, mode=UPDATE, every=9)
    await line.put("a", 4000, mode=UPDATE, every=9, args=(2,))
    await line.finish(claim, next_due=claim.due + 5000)
    job = await line.job("a")
    assert (job.args, job.due_ms) == ((2,), line.now + 9000)


async def test_counters_of_a_run_are_kept_by_a_job_that_was_put_meanwhile(line: Line):
    claim = await working(line, "recurring")
    await line.put("a", 9000, mode=REPLACE, every=9)
    await line.finish(claim, next_due=claim.due + 5000)
    job = await line.job("a")
    assert (job.succeeded, job.attempts) == (1, 1)


async def test_a_cancel_asks_the_worker_and_moves_nothing(line: Line):
    claim = await working(line)
    answer = await line.jobs.cancel(line.queue, "a")
    assert answer == (2, line.runs.owner, claim.token)
    assert await line.stage("a") == "working"


@pytest.mark.parametrize("end", ["retry", "bury"])
async def test_a_cancelled_one_shot_ends_instead_of_a_retry_or_a_burial(line: Line, end: str):
    await line.put("a", keep=60)
    claim = await line.take("a")
    await line.cancel("a")
    await ENDS[end](line, claim)
    assert await line.stage("a") is None
    assert await line.outcome("a") == "cancelled"


@pytest.mark.parametrize("end", ["release", "recover"])
async def test_the_next_worker_learns_of_a_cancel(line: Line, end: str):
    claim = await working(line)
    assert not claim.cancelled
    await line.cancel("a")
    await ENDS[end](line, claim)
    assert (await line.take("a", line.other)).cancelled


async def test_a_cancelled_run_of_a_recurring_job_comes_back_at_once_to_be_planned(line: Line):
    claim = await working(line, "recurring")
    await line.cancel("a")
    await line.retry(claim, delay=60_000)
    again = await line.take("a", line.other)
    assert again.cancelled
    await line.finish(again, next_due=again.due + 5000, outcome=CANCELLED, runs=line.other)
    line.clock.advance("5s")
    assert not (await line.take("a")).cancelled


async def test_a_cancel_of_another_run_of_the_job_is_not_meant_for_this_one(line: Line):
    claim = await working(line, "recurring")
    assert await line.cancel("a", claim.due - 5000) == 0
    assert await line.cancel("a", claim.due) == 2


async def test_a_cancel_does_not_outlive_a_put(line: Line):
    claim = await working(line)
    await line.cancel("a")
    await line.put("a", mode=REPLACE)
    await line.retry(claim)
    assert not (await line.take("a")).cancelled


@pytest.mark.parametrize("first", ["job", "extra"])
async def test_a_job_removed_during_its_run_stays_away_when_its_extra_run_ends_with_it(line: Line, first: str):
    claim = await working(line, "recurring")
    await line.fire("a", line.now - 1)
    [extra] = await line.claim()
    await line.delete("a")
    items = [finish_item(claim, claim.due + 5000, 1), finish_item(extra, 0, 1)]
    await line.settle("finish", *(items if first == "job" else items[::-1]))
    assert await line.stage("a") is None
    assert await line.store.client.hlen(line.keys["jobs"]) == 0
    assert await line.put("a") == 1


@pytest.mark.parametrize("first", ["job", "extra"])
async def test_a_job_put_during_its_run_stays_so_when_its_extra_run_ends_with_it(line: Line, first: str):
    claim = await working(line, "recurring")
    await line.fire("a", line.now - 1)
    [extra] = await line.claim()
    await line.put("a", 9000, mode=REPLACE, every=9, args=(2,))
    items = [finish_item(claim, claim.due + 5000, 1), finish_item(extra, 0, 1)]
    await line.settle("finish", *(items if first == "job" else items[::-1]))
    job = await line.job("a")
    assert (job.args, job.due_ms, job.succeeded, job.attempts) == ((2,), line.now + 9000, 2, 2)
