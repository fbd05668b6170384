"""A job whose entry in `claims` is garbage can be handled like any other: nothing fails, and nothing else is harmed.

Nobody can read who holds such a run, so nobody can end it. It is believed to run until its deadline. Then recovery
brings it back, and what a person wished until then holds.
"""

from __future__ import annotations

import pytest

from tests.support.one_queue import Line
from tests.support.records import STRANGE, packed_block, record
from tocsin.model.errors import ClaimLost
from tocsin.model.outcome import CHANGED, EDIT, REPLACE
from tocsin.model.run import Claim

each_order = pytest.mark.parametrize("queue", ["due", "fair"], indirect=True)
garbled = pytest.mark.parametrize("garbage", [b"xxx", b"x" * 60, b"\xff" * 24], ids=len)
# What a person may do to a job, and what becomes of it in each stage: the answer, and where it stands then.
VERBS = ("pause", "resume", "cancel", "fire", "remove", "unpark", "put", "edit")
THEN = {
    "waiting": {"pause": "paused", "cancel": None, "remove": None},
    "paused": {"resume": "waiting", "cancel": None, "remove": None, "put": "paused", "edit": "paused"},
    "parked": {
        "pause": "paused",
        "unpark": "waiting",
        "cancel": None,
        "remove": None,
        "put": "waiting",
        "edit": "waiting",
    },
    "working": {},
    "dead": {"remove": None, "put": "waiting"},
}


async def spoil(line: Line, garbage: bytes) -> None:
    await line.store.client.hset(line.keys["claims"], "a", garbage)


async def stand(line: Line, stage: str) -> Claim | None:
    """A one-shot that stands there."""
    await line.put("a", 1000 if stage == "waiting" else 0, handler=STRANGE if stage == "parked" else "tests.handler")
    if stage == "paused":
        await line.pause("a")
    elif stage == "parked":
        await line.claim()
    elif stage in ("working", "dead"):
        claim = await line.take("a")
        if stage == "working":
            return claim
        await line.bury(claim)
    return None


async def do(line: Line, verb: str) -> object:
    if verb == "put":
        return await line.put("a", mode=REPLACE, args=("other",))
    if verb == "edit":
        return await line.put("a", mode=EDIT, args=("other",))
    return await getattr(line, "delete" if verb == "remove" else verb)("a")


async def stage_of(line: Line) -> str | None:
    stage = await line.stage("a")
    return "waiting" if stage == "ready" else stage


@garbled
@pytest.mark.parametrize("stage", THEN)
@pytest.mark.parametrize("verb", VERBS)
async def test_whatever_a_person_does_to_it_nothing_fails(line: Line, stage: str, verb: str, garbage: bytes):
    await stand(line, stage)
    await spoil(line, garbage)
    await do(line, verb)
    assert await stage_of(line) == THEN[stage].get(verb, stage)
    line.clock.advance("1h")
    await line.recover("")
    if await stage_of(line) == "waiting":
        assert "a" in await line.names(line.worker("worker-3.1", "tests.handler", STRANGE))


@each_order
@garbled
class TestAtWork:
    async def test_its_holder_has_lost_it(self, line: Line, garbage: bytes):
        claim = await stand(line, "working")
        assert claim is not None
        await line.put("b")
        other = await line.take("b")
        await spoil(line, garbage)
        with pytest.raises(ClaimLost):
            await line.runs.extend(line.queue, claim, 1000)
        for end in (line.finish, line.retry, line.release, line.bury, line.park):
            assert await end(claim) == ["a"]
        assert await line.stage("a") == "working"
        assert await line.finish_all([claim, other]) == ["a"]

    async def recovered(self, line: Line) -> str | None:
        assert await line.stage("a") == "working"
        line.clock.advance("1h")
        assert await line.recover("") == 1
        return await stage_of(line)

    async def test_a_pause_holds_when_it_is_recovered(self, line: Line, garbage: bytes):
        await stand(line, "working")
        await spoil(line, garbage)
        assert await line.pause("a") == 2
        assert await self.recovered(line) == "paused"

    async def test_a_pause_can_be_taken_back(self, line: Line, garbage: bytes):
        await stand(line, "working")
        await spoil(line, garbage)
        assert [await line.resume("a"), await line.pause("a"), await line.resume("a")] == [3, 2, 2]
        assert await self.recovered(line) == "waiting"

    async def test_a_removal_holds_when_it_is_recovered(self, line: Line, garbage: bytes):
        await stand(line, "working")
        await spoil(line, garbage)
        assert await line.delete("a")
        assert await self.recovered(line) is None

    async def test_a_cancellation_comes_back_with_it(self, line: Line, garbage: bytes):
        await stand(line, "working")
        await spoil(line, garbage)
        assert await line.jobs.cancel(line.queue, "a") == (2, "", 0)
        assert await self.recovered(line) == "waiting"
        assert (await line.take("a")).cancelled

    async def test_the_run_of_a_one_shot_is_cancelled_by_its_due_time_too(self, line: Line, garbage: bytes):
        due = line.now
        await stand(line, "working")
        await spoil(line, garbage)
        assert await line.cancel("a", due) == 2
        assert await self.recovered(line) == "waiting"
        claim = await line.take("a")
        assert (claim.due, claim.cancelled) == (due, True)

    async def test_of_a_schedule_nobody_knows_which_run_it_is(self, line: Line, garbage: bytes):
        await line.put("a", every=5)
        claim = await line.take("a")
        await spoil(line, garbage)
        assert await line.cancel("a", claim.due - 5000) == 0
        assert await line.cancel("a") == 2

    async def test_an_edit_holds_when_it_is_recovered(self, line: Line, garbage: bytes):
        await stand(line, "working")
        await spoil(line, garbage)
        assert await line.put("a", mode=EDIT, args=("other",)) == CHANGED
        assert await self.recovered(line) == "waiting"
        assert (await line.job("a")).spec.args == ("other",)


@garbled
async def test_a_parked_run_is_cancelled_by_its_due_time(line: Line, garbage: bytes):
    due = line.now
    await stand(line, "parked")
    await spoil(line, garbage)
    assert await line.cancel("a", due) == 1


@garbled
async def test_the_last_run_of_a_job_of_which_one_runs_at_a_time_is_replaced(line: Line, garbage: bytes):
    await line.put("a", every=5)
    await line.plan(await line.take("a"), line.now + 5000, alone=True)
    [first] = await line.claim()
    await line.store.client.hset(line.keys["claims"], first.key, garbage)
    line.clock.advance("5s")
    assert await line.plan(await line.take("a"), line.now + 60_000, alone=True) == [[], []]
    assert await line.stage(first.member) == "working"
    line.clock.advance("60s")
    await line.recover("")
    assert (await line.take(first.member)).due == line.now - 60_000


@garbled
async def test_a_blocked_job_can_be_paused_resumed_and_put_again(line: Line, garbage: bytes):
    await line.put("up", 60_000)
    await line.raw("dependency_block", [packed_block("a", record(), line.now, "life", f"{line.queue.name}\0up")])
    await spoil(line, garbage)
    assert await line.pause("a") == 2
    await spoil(line, garbage)
    assert await line.resume("a") == 2
    await spoil(line, garbage)
    item = packed_block("a", record(), line.now, "other", f"{line.queue.name}\0up", mode=REPLACE)
    assert (await line.raw("dependency_block", [item]))[1] == b"2"
    await spoil(line, garbage)
    assert await line.put("a", mode=REPLACE) == CHANGED
    assert await line.names() == ["a"]


@garbled
async def test_a_job_whose_entry_is_garbage_is_shown_without_it(line: Line, garbage: bytes):
    await stand(line, "working")
    await spoil(line, garbage)
    job = await line.job("a")
    assert (job.stage, job.owner, job.attempt, job.recoveries) == ("working", None, 1, 0)
