"""Ending claims: finish, retry, release; what is counted, what is remembered, what is refused."""

from __future__ import annotations

import pytest

from tests.support.one_queue import Line
from tocsin.model.outcome import CANCELLED, EDIT, FAILED, SKIPPED, SUCCEEDED
from tocsin.store.transitions.settle import bury_or_park_item, finish_item, on_time_item, release_item, retry_item

VERBS = ("finish", "retry", "release", "bury", "park")


async def test_a_finished_one_shot_leaves_nothing(line: Line):
    await line.put("a")
    await line.retry(await line.take("a"), delay=0)
    assert await line.finish(await line.take("a")) == []
    assert await line.stage("a") is None
    left = {key.partition(":")[0] for key in await line.dump()}
    assert left == {"meta", "sessions", "events", "queues{tocsin}"}


async def test_a_recurring_job_waits_for_its_next_time_and_counts(line: Line):
    await line.put("a", every=5)
    outcomes = [SUCCEEDED, FAILED, SKIPPED, CANCELLED, SUCCEEDED]
    for outcome in outcomes:
        claim = await line.take("a")
        await line.finish(claim, claim.due + 5000, outcome)
        assert await line.not_before("a") == claim.due + 5000
        assert await line.entry("a") is None
        line.clock.advance("5s")
    job = await line.job("a")
    assert (job.succeeded, job.failed, job.attempts) == (2, 1, 4)
    meta = await line.meta()
    assert [meta[name] for name in ("succeeded", "failed", "skipped", "cancelled")] == [2, 1, 1, 1]


async def test_the_last_failure_of_a_recurring_job_is_kept_until_it_succeeds(line: Line):
    await line.put("a", every=5)
    claim = await line.take("a")
    await line.finish(claim, claim.due + 5000, FAILED, error=b"\x91\xa3bad")
    for outcome in (SKIPPED, CANCELLED):
        line.clock.advance("5s")
        claim = await line.take("a")
        await line.finish(claim, claim.due + 5000, outcome)
        assert (await line.job("a")).failure.error == "bad"
    line.clock.advance("5s")
    claim = await line.take("a")
    await line.finish(claim, claim.due + 5000)
    assert (await line.job("a")).failure is None


async def test_a_recurring_job_without_another_time_ends(line: Line):
    await line.put("a", every=5)
    claim = await line.take("a")
    await line.finish(claim, 0)
    assert await line.stage("a") is None


async def test_a_recurring_job_whose_record_has_vanished_is_set_aside(line: Line):
    await line.put("a", every=5)
    claim = await line.take("a")
    await line.store.client.hdel(line.keys["jobs"], "a")
    await line.finish(claim, claim.due + 5000)
    line.clock.advance("5s")
    assert await line.claim() == []
    assert await line.store.client.zcard(line.keys["waiting"]) == 0
    assert await line.store.client.zscore(line.keys["parked"], "a") == line.now + 1000


async def test_a_failed_recurring_job_whose_record_has_vanished_ends(line: Line):
    await line.put("a", every=5)
    claim = await line.take("a")
    await line.store.client.hdel(line.keys["jobs"], "a")
    await line.finish(claim, claim.due + 5000, FAILED)
    assert await line.store.client.zcard(line.keys["waiting"]) == 0
    assert await line.entry("a") is None


async def test_finish_says_who_is_first_in_line(line: Line):
    await line.put("a", every=5)
    await line.put("b", 2000)
    claim = await line.take("a")
    item = finish_item(claim, claim.due + 5000, SUCCEEDED)
    assert (await line.store.call(line.runs.settle("finish", line.queue, 0, [item])))[1:] == [[], line.now + 2000, 0]


@pytest.mark.parametrize("member", ["a", "é" * 200], ids=["short", "long"])
async def test_a_success_of_which_nothing_is_told_has_the_item_of_any_other(line: Line, member: str):
    await line.put(member, every=5)
    claim = await line.take(member)
    assert on_time_item(claim, claim.due + 5000) == finish_item(claim, claim.due + 5000, SUCCEEDED)


@pytest.mark.parametrize("queue", ["due", "priority", "fair"], indirect=True)
@pytest.mark.parametrize("verb", [*VERBS, "plan"])
async def test_a_call_that_finds_none_of_its_claims_writes_nothing(line: Line, verb: str):
    await line.put("a", every=5 if verb == "plan" else None)
    lost = await line.take("a")
    await line.recover()
    before = await line.dump()
    assert await getattr(line, verb)(lost) == ([[b"a"], []] if verb == "plan" else ["a"])
    assert await line.dump() == before


async def test_a_batch_is_one_event_and_says_which_claims_were_lost(line: Line):
    for member in "abc":
        await line.put(member)
    claims = await line.claim()
    await line.release(claims[1])
    told = len(await line.events())
    assert await line.settle("finish", *(finish_item(claim, 0, SUCCEEDED) for claim in claims)) == ["b"]
    assert [await line.stage(member) for member in "abc"] == [None, "waiting", None]
    assert len(await line.events()) == told + 1


@pytest.mark.parametrize("verb", VERBS)
class TestLostClaim:
    async def lost(self, line: Line, verb: str, claim, runs=None) -> list[str]:
        return await getattr(line, verb)(claim, runs=runs)

    async def unmoved(self, line: Line) -> dict[str, object]:
        """All but what every call leaves: its number, its answer and its event."""
        found = await line.dump()
        return {key: found[key] for key in found if key.partition(":")[0] not in ("meta", "sessions", "events")}

    async def test_an_old_token_changes_nothing(self, line: Line, verb: str):
        await line.put("a", keep=60)
        old = await line.take("a")
        await line.recover()
        new = await line.take("a")
        assert new.token > old.token
        before = await self.unmoved(line)
        assert await self.lost(line, verb, old) == ["a"]
        assert await self.unmoved(line) == before
        assert await line.finish(new) == []

    async def test_the_token_of_another_worker_changes_nothing(self, line: Line, verb: str):
        await line.put("a", keep=60)
        claim = await line.take("a")
        before = await self.unmoved(line)
        assert await self.lost(line, verb, claim, line.other) == ["a"]
        assert await self.unmoved(line) == before

    async def test_what_was_let_go_cannot_be_settled(self, line: Line, verb: str):
        await line.put("a", keep=60)
        claim = await line.take("a")
        await line.retry(claim)
        before = await self.unmoved(line)
        assert await self.lost(line, verb, claim) == ["a"]
        assert await self.unmoved(line) == before

    async def test_what_is_no_more_does_not_come_back(self, line: Line, verb: str):
        await line.put("a")
        claim = await line.take("a")
        await line.finish(claim)
        before = await self.unmoved(line)
        assert await self.lost(line, verb, claim) == ["a"]
        assert await self.unmoved(line) == before


@pytest.mark.parametrize("edited", [False, True], ids=["", "edited"])
@pytest.mark.parametrize("verb", [*VERBS, "recover"])
async def test_a_record_that_became_garbage_during_its_run_stops_nobody(line: Line, verb: str, edited: bool):
    for member in "ab":
        await line.put(member, every=5)
    claims = await line.claim()
    if edited:
        await line.put("a", mode=EDIT, every=5, args=(2,))
    await line.spoil("a", b"junk")
    items = {
        "finish": lambda claim: finish_item(claim, claim.due + 5000, SUCCEEDED),
        "retry": lambda claim: retry_item(claim, 1000, b"bad"),
        "release": release_item,
    }
    if verb == "recover":
        assert await line.recover() == 2
    else:
        make = items.get(verb, lambda claim: bury_or_park_item(claim, b"bad"))
        assert await line.settle(verb, *map(make, claims)) == []
    stage = {"bury": "dead", "park": "parked"}.get(verb, "waiting")
    assert await line.stage("b") == stage
    assert await line.stage("a") == ("waiting" if edited and verb == "park" else stage)
    assert (await line.job("a")).name == ("tests.handler" if edited else "?")


class TestRetry:
    async def test_it_waits_for_its_backoff_and_keeps_its_due(self, line: Line):
        await line.put("a", every=60)
        due = line.now
        for attempt in (1, 2, 3):
            claim = await line.take("a")
            assert (claim.due, claim.attempt) == (due, attempt)
            await line.retry(claim, delay=700)
            assert await line.not_before("a") == line.now + 700
            job = await line.job("a")
            assert (job.due_ms, job.attempt, job.attempts) == (due, attempt + 1, attempt)
            assert (job.succeeded, job.failed, job.failure.error) == (0, 0, "bad")
            line.clock.advance("699ms")
            assert await line.claim() == []
            line.clock.advance("1ms")
        assert (await line.meta())["retried"] == 3

    async def test_the_next_occurrence_is_a_first_attempt_again(self, line: Line):
        await line.put("a", every=5)
        await line.retry(await line.take("a"), delay=0)
        claim = await line.take("a")
        await line.finish(claim, claim.due + 5000)
        line.clock.advance("5s")
        assert (await line.take("a")).attempt == 1


class TestRelease:
    async def test_it_counts_nothing_and_goes_back_to_its_due_time(self, line: Line):
        await line.put("a")
        due = line.now
        line.clock.advance("5s")
        await line.release(await line.take("a"))
        assert await line.not_before("a") == due
        assert await line.entry("a") is None
        again = await line.take("a")
        assert (again.due, again.attempt, again.recoveries) == (due, 1, 0)
        assert (await line.job("a")).attempts == 0

    async def test_it_keeps_what_was_counted_before(self, line: Line):
        await line.put("a")
        due = line.now
        await line.retry(await line.take("a"), delay=500)
        line.clock.advance("500ms")
        await line.recover(overdue=0)
        await line.take("a")
        await line.recover()
        await line.release(await line.take("a"))
        again = await line.take("a")
        assert (again.due, again.attempt, again.recoveries) == (due, 2, 1)

    async def test_a_released_job_does_not_lose_its_place_in_line(self, line: Line):
        await line.put("a")
        line.clock.advance("1s")
        await line.put("b")
        claims = await line.claim()
        await line.settle("release", *map(release_item, claims))
        assert [claim.member for claim in await line.claim()] == ["a", "b"]


async def test_of_a_batch_only_those_that_succeeded_lose_their_last_failure(line: Line):
    names = ["failed", "skipped", "cancelled", "succeeded"]
    for name in names:
        await line.put(name, every=5)
    claims = {claim.member: claim for claim in await line.claim()}
    bad = [finish_item(claims[name], claims[name].due + 5000, FAILED, error=b"\x91\xa3bad") for name in names]
    await line.settle("finish", *bad)
    line.clock.advance("5s")
    claims = {claim.member: claim for claim in await line.claim()}
    outcomes = dict(zip(names, (FAILED, SKIPPED, CANCELLED, SUCCEEDED), strict=True))
    items = [finish_item(claims[name], claims[name].due + 5000, outcomes[name]) for name in names]
    await line.settle("finish", *items)
    jobs = [await line.job(name) for name in names]
    assert [job.failure is None for job in jobs] == [False, False, False, True]
    # All of one outcome are told by one number.
    line.clock.advance("5s")
    items = [finish_item(claim, claim.due + 5000, SKIPPED) for claim in await line.claim()]
    await line.settle("finish", *items)
    jobs = [await line.job(name) for name in names]
    assert [job.failure is None for job in jobs] == [False, False, False, True]
