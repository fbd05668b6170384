"""Ending claims: finish, retry, release; what is counted, what is remembered, what is refused."""

from __future__ import annotations

import pytest
from line import Line

from tocsin.model.msgpack import encode
from tocsin.model.outcome import CANCELLED, EDIT, FAILED, NEW, REMEMBERED, REPLACE, SKIPPED, SUCCEEDED
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


class TestExtraRuns:
    async def test_firing_adds_a_run_and_leaves_the_cadence_alone(self, line: Line):
        await line.put("a", 5000, every=5, keep=60)
        assert await line.fire("a") == [line.now]
        assert await line.not_before("a") == line.now + 5000
        [extra] = await line.claim()
        assert (extra.job_id, extra.run_id, extra.member) == ("a", f"a@{line.now}", f"a\x1f{line.now}")
        job = await line.job(extra.member)
        assert (job.recurring, job.header.keep, job.attempts) == (False, 0, 0)

    async def test_two_fires_in_one_millisecond_are_two_runs(self, line: Line):
        await line.put("a", 5000, every=5)
        assert await line.fire("a") + await line.fire("a") == [line.now, line.now + 1]
        assert await line.fire("a", 0, 0) == [line.now + 2, line.now + 3]
        assert (await line.jobs.count(line.queue))["waiting"] == 5

    async def test_the_same_occurrence_is_added_once(self, line: Line):
        await line.put("a", 5000, every=5)
        past = [line.now - 10_000, line.now - 5000]
        assert await line.fire("a", *past) == past
        assert await line.fire("a", *past, line.now - 15_000, line.now - 15_000) == [line.now - 15_000]
        assert (await line.meta())["put"] == 4

    async def test_the_run_that_the_job_is_about_to_have_or_has_is_not_added(self, line: Line):
        await line.put("a", every=5)
        assert await line.fire("a", line.now, line.now - 5000) == [line.now - 5000]
        assert await line.fire("a") == [line.now + 1]
        await line.take("a")
        assert await line.fire("a", line.now, line.now - 10_000) == [line.now - 10_000]

    async def test_the_run_that_a_paused_job_would_have_had_can_be_added(self, line: Line):
        await line.put("a", every=5)
        await line.pause("a")
        assert await line.fire("a", line.now) == [line.now]

    async def test_its_end_counts_for_the_job(self, line: Line):
        await line.put("a", 5000, every=5)
        await line.fire("a", line.now, line.now - 1, line.now - 2)
        outcomes = [finish_item(claim, 0, n) for n, claim in enumerate(await line.claim())]
        await line.settle("finish", *outcomes)
        job = await line.job("a")
        assert (job.succeeded, job.failed, job.attempts) == (1, 1, 2)
        assert (job.due_ms, job.version) == (line.now + 5000, 1)

    async def test_it_and_the_job_may_end_in_one_batch(self, line: Line):
        await line.put("a", every=5)
        await line.fire("a", line.now - 1)
        extra, job = await line.claim()
        await line.settle("finish", finish_item(extra, 0, SUCCEEDED), finish_item(job, job.due + 5000, FAILED))
        counted = await line.job("a")
        assert (counted.succeeded, counted.failed, counted.attempts) == (1, 1, 2)

    @pytest.mark.parametrize("first", ["job", "extra"])
    async def test_a_one_shot_that_ends_with_its_extra_run_leaves_nothing(self, line: Line, first: str):
        await line.put("a")
        await line.fire("a", line.now - 1)
        items = [finish_item(claim, 0, SUCCEEDED) for claim in await line.claim()]
        await line.settle("finish", *(items if first == "extra" else items[::-1]))
        assert await line.stage("a") is None
        assert await line.put("a") == 1

    async def test_it_runs_also_if_the_job_has_been_removed(self, line: Line):
        await line.put("a", 5000, every=5)
        await line.fire("a")
        await line.delete("a")
        [extra] = await line.claim()
        assert await line.finish(extra) == []
        assert await line.stage("a") is None

    async def test_a_job_that_has_become_garbage_does_not_stop_its_extra_runs(self, line: Line):
        await line.put("a", 5000, every=5)
        await line.put("b")
        await line.fire("a")
        claims = await line.claim()
        await line.spoil("a", b"junk")
        assert await line.settle("finish", *(finish_item(claim, 0, SUCCEEDED) for claim in claims)) == []
        assert await line.store.client.hget(line.keys["jobs"], "a") == b"junk"

    async def test_no_job_no_extra_run(self, line: Line):
        assert (await line.raw("job_fire", ["a", b"\x91\x00"])) == [1, 0, [], -1]


class TestRemembering:
    async def test_outcome_and_result_are_remembered_for_as_long_as_asked(self, line: Line):
        await line.put("a", keep=60)
        await line.finish(await line.take("a"), keep=60, result=b"\x93\x01\x02\x03")
        kept = await line.jobs.outcome(line.queue, "a")
        assert (kept.name, kept.at, kept.result) == ("succeeded", line.now, [1, 2, 3])
        assert await line.store.client.zscore(line.keys["done"], "a") == line.now + 60_000

    async def test_what_is_past_its_time_is_forgotten_by_a_later_end(self, line: Line):
        for n in range(3):
            await line.put(f"{n}", keep=60)
            await line.finish(await line.take(f"{n}"), keep=60)
            line.clock.advance("20s")
        await line.put("a")
        await line.finish(await line.take("a"))
        assert [await line.outcome(f"{n}") for n in range(3)] == [None, "succeeded", "succeeded"]
        assert await line.store.client.zcard(line.keys["done"]) == 2

    async def test_forgetting_is_bounded(self, line: Line):
        client, keys = line.store.client, line.keys
        old = {f"{n}": line.now - 1 for n in range(1500)}
        await client.zadd(keys["done"], old)
        await client.hset(keys["results"], mapping=dict.fromkeys(old, b"\x01" + bytes(8)))
        await line.put("a")
        await line.finish(await line.take("a"))
        assert await client.zcard(keys["done"]) == await client.hlen(keys["results"]) == 500

    async def test_an_id_that_somebody_chose_is_remembered_for_all_of_its_time_however_many_there_are(self, line: Line):
        """They do not push each other out, nor outcomes of jobs that nobody named."""
        await _remember(line, [(f"{n}", line.now + 86_400_000) for n in range(100_003)])
        await line.put("a", keep=7200)
        await line.finish(await line.take("a"), keep=7200)
        await line.put("b", keep=7200)
        await line.finish(await line.take("b"), keep=7200)
        await line.put("unnamed", keep=600, unnamed=True)
        await line.finish(await line.take("unnamed"), keep=600, unnamed=True)
        assert await line.store.client.zcard(line.keys["done"]) == 100_006
        assert await line.put("a") == REMEMBERED
        assert await line.outcome("unnamed") == "succeeded"

    async def test_of_jobs_that_nobody_named_no_more_than_a_hundred_thousand_are_remembered(self, line: Line):
        """The oldest go first, also if they were to be kept for longest."""
        client, keys = line.store.client, line.keys
        await _remember(line, [(f"{n}", line.now + 86_400_000 - n) for n in range(100_003)], unnamed=True)
        await line.put("chosen", keep=60)
        await line.finish(await line.take("chosen"), keep=60)
        assert (await client.zcard(keys["done"]), await client.zcard(keys["unnamed"])) == (100_001, 100_000)
        await line.put("a", keep=60, unnamed=True)
        await line.finish(await line.take("a"), keep=60, unnamed=True)
        gone = [await client.zscore(keys["done"], f"{n}") is None for n in range(5)]
        assert gone == [True, True, True, True, False]
        assert [await line.outcome(member) for member in ("3", "4", "a", "chosen")] == [None, *["succeeded"] * 3]
        assert await client.zcard(keys["done"]) == await client.hlen(keys["results"]) == 100_001

    @pytest.mark.parametrize("unnamed", [True, False])
    async def test_a_batch_in_which_more_is_said_of_one_is_remembered_like_any_other(self, line: Line, unnamed: bool):
        """Where nothing but results is told, a shorter way is taken."""
        found = []
        for note in (b"", b"said"):
            await line.put_all(["a", "b"], keep=60, unnamed=unnamed)
            claims = {claim.member: claim for claim in await line.claim()}
            kept = finish_item(claims["a"], 0, SUCCEEDED, 60, b"\x07", unnamed=unnamed)
            other = finish_item(claims["b"], 0, SUCCEEDED, 60, note=note, unnamed=unnamed)
            assert await line.settle("finish", kept, other) == []
            client, keys = line.store.client, line.keys
            found.append([
                await client.zrange(keys["done"], 0, -1, withscores=True),
                await client.zrange(keys["unnamed"], 0, -1, withscores=True),
                await client.hgetall(keys["results"]),
                [await client.exists(keys[base]) for base in ("jobs", "claims", "working")],
            ])  # fmt: skip
            await client.delete(keys["done"], keys["unnamed"], keys["results"])
        assert found[0] == found[1]
        assert (len(found[0][0]), len(found[0][1])) == (2, 2 if unnamed else 0)

    async def test_cancelling_adds_no_more_than_finishing(self, line: Line):
        client, keys = line.store.client, line.keys
        await _remember(line, [(f"{n}", line.now + 86_400_000) for n in range(100_003)], unnamed=True)
        await client.zadd(keys["done"], {f"{n}": line.now - 1 for n in range(10)})
        await line.put("a", keep=60, unnamed=True)
        assert await line.cancel("a") == 1
        assert await client.zcard(keys["unnamed"]) == await client.zcard(keys["done"]) == 99_994
        assert (await line.outcome("0"), await line.outcome("a")) == (None, "cancelled")

    async def test_a_job_that_others_wait_for_is_not_crowded_out(self, line: Line):
        """They may still be on their way to ask how it ended."""
        await line.put("a", keep=60, unnamed=True)
        await line.raw("job_watch", [encode(["a", "line\0b\0life"])])
        await line.finish(await line.take("a"), keep=60, unnamed=True)
        assert await line.store.client.zcard(line.keys["unnamed"]) == 0
        assert await line.store.client.zscore(line.keys["done"], "a") == line.now + 3_600_000

    async def test_a_job_that_nobody_named_may_be_put_again_under_its_id_by_somebody_who_does(self, line: Line):
        await line.put("a", keep=60, unnamed=True)
        await line.finish(await line.take("a"), keep=60, unnamed=True)
        assert await line.put("a", keep=60) == REMEMBERED
        assert await line.put("a", keep=60, mode=REPLACE) == NEW
        assert await line.store.client.zcard(line.keys["unnamed"]) == 0
        await line.finish(await line.take("a"), keep=60)
        assert await line.store.client.zcard(line.keys["unnamed"]) == 0

    async def test_a_cancelled_one_shot_is_remembered_as_cancelled(self, line: Line):
        for member, stage in [("a", "waiting"), ("b", "paused"), ("c", "parked")]:
            await line.put(member, keep=60)
            if stage == "paused":
                await line.pause(member)
            if stage == "parked":
                await line.park(await line.take(member))
            assert await line.cancel(member) == 1
            assert (await line.stage(member), await line.outcome(member)) == (None, "cancelled")

    async def test_a_cancel_of_what_is_recurring_dead_or_gone_changes_nothing(self, line: Line):
        await line.put("a", every=5)
        await line.put("b")
        await line.bury(await line.take("b"))
        assert [await line.cancel(member) for member in "abc"] == [0, 0, 0]
        assert [await line.stage(member) for member in "abc"] == ["waiting", "dead", None]

    async def test_a_cancel_of_one_run_needs_its_due_time(self, line: Line):
        await line.put("a", 100)
        assert await line.cancel("a", line.now) == 0
        assert await line.cancel("a", line.now + 100) == 1


async def _remember(line: Line, until: list[tuple[str, int]], *, unnamed: bool = False) -> None:
    """As jobs leave it that have ended, one a millisecond, the last of them now."""
    client, keys = line.store.client, line.keys
    for first in range(0, len(until), 20_000):
        some = until[first : first + 20_000]
        await client.zadd(keys["done"], dict(some))
        await client.hset(keys["results"], mapping={member: b"\x01" + bytes(8) for member, _ in some})
        if unnamed:
            begin = line.now - len(until) + first
            await client.zadd(keys["unnamed"], {member: begin + n for n, (member, _) in enumerate(some)})


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
