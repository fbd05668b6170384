"""Recovery and burial: runs of dead workers come back at their due time; dead jobs stay until somebody acts."""

from __future__ import annotations

import pytest

from tests.support.one_queue import Line
from tests.support.records import record
from tocsin.model.errors import ClaimLost
from tocsin.store.transitions.claims import ClaimRequest
from tocsin.store.transitions.jobs import PutItem


class TestByOwner:
    async def test_a_recovered_run_keeps_its_due_time_and_counts_the_recovery(self, line: Line):
        await line.put("a")
        due = line.now
        await line.retry(await line.take("a"), delay=500)
        for times in (1, 2, 3):
            line.clock.advance("1s")
            claim = await line.take("a")
            assert (claim.due, claim.attempt, claim.recoveries) == (due, 2, times - 1)
            assert await line.recover() == 1
            assert await line.not_before("a") == due
            job = await line.job("a")
            assert (job.attempt, job.recoveries, job.attempts, job.owner) == (2, times, 1, None)
        assert (await line.meta())["recovered"] == 3

    async def test_a_recovered_job_does_not_lose_its_place_in_line(self, line: Line):
        await line.put("a")
        line.clock.advance("1s")
        await line.put("b")
        await line.take("a")
        await line.recover()
        assert [claim.member for claim in await line.claim()] == ["a", "b"]

    async def test_what_is_held_back_stays_in_line_while_others_leave_it_on_both_sides(self, line: Line):
        await line.put("b")
        for _ in range(2):
            await line.take("b")
            await line.recover()
        await line.put_all(["a", "c"])
        for suspects, claimed in [(0, ["a", "c"]), (1, ["b"])]:
            [answer] = await line.runs.claim([ClaimRequest(line.queue, 0, 10, suspects=suspects)], 1e15)
            assert [claim.member for claim in answer.claims] == claimed
            assert await line.stage("b") == ("working" if suspects else "waiting")

    async def lose_twice(self, line: Line, count: int) -> None:
        """Runs whose workers died twice, first in line."""
        for first in range(0, count, 1000):
            puts = [PutItem(f"lost{n:04}", record(), line.now) for n in range(first, min(first + 1000, count))]
            await line.jobs.put_many(line.queue, puts)
        for _ in range(2):
            for _ in range(0, count, 1000):
                await line.claim()
            await line.recover()
        line.clock.advance("1s")

    async def ask(self, line: Line, limit: int, suspects: int = 0) -> tuple[list[str], int]:
        [answer] = await line.runs.claim([ClaimRequest(line.queue, 0, limit, suspects=suspects)], 1e15)
        return [claim.member for claim in answer.claims], answer.next_due  # type: ignore[union-attr]

    @pytest.mark.parametrize("lost", [120, 1000])
    async def test_a_thousand_held_back_at_its_head_do_not_stop_the_line_behind_them(self, line: Line, lost: int):
        await self.lose_twice(line, lost)
        await line.put_all([f"good{n:02}" for n in range(60)])
        assert (await self.ask(line, 20))[0] == [f"good{n:02}" for n in range(20)]
        assert (await self.ask(line, 20, 1))[0] == ["lost0000", *(f"good{n:02}" for n in range(20, 39))]
        assert (await self.ask(line, 50))[0] == [f"good{n:02}" for n in range(39, 60)]
        assert await line.jobs.count(line.queue, ["waiting", "working"]) == {"waiting": lost - 1, "working": 61}

    async def test_only_the_claims_of_that_worker_come_back(self, line: Line):
        for member in "abc":
            await line.put(member)
        await line.take("a")
        await line.take("b", line.other)
        await line.retry(await line.take("c"))
        assert await line.recover() == 1
        assert [await line.stage(member) for member in "abc"] == ["waiting", "working", "waiting"]
        assert (await line.job("c")).recoveries == 0

    async def test_it_walks_through_all_of_them(self, line: Line):
        for first in range(0, 3000, 1000):
            puts = [PutItem(f"{first + n:04}", record(), line.now) for n in range(1000)]
            await line.jobs.put_many(line.queue, puts)
        for n in range(3):
            assert len(await line.claim(line.runs if n else line.other)) == 1000
        assert await line.recover() == 2000
        assert await line.jobs.count(line.queue, ["waiting", "working"]) == {"waiting": 2000, "working": 1000}
        assert await line.recover() == 0

    async def test_a_page_is_bounded(self, line: Line):
        await line.jobs.put_many(line.queue, [PutItem(f"{n:04}", record(), line.now) for n in range(1000)])
        await line.claim()
        cursor, found, pages = b"0", set(), 0
        while pages == 0 or cursor != b"0":
            _, cursor, ids, _ = await line.raw("run_recover", [line.runs.owner, cursor, 0, 100])
            assert len(ids) < 400
            found.update(ids)
            pages += 1
        assert pages > 2
        assert len(found) == 1000

    async def test_garbage_among_the_claims_holds_up_no_other(self, line: Line):
        await line.put_all([f"{n}" for n in range(10)])
        assert len(await line.claim()) == 10
        for garbage in (b"", b"garbage", b"x" * 30, b"\xff" * 24):
            await line.store.client.hset(line.keys["claims"], b"of nobody " + garbage, garbage)
        await line.store.client.hset(line.keys["claims"], "0", b"garbage")
        assert await line.recover() == 9
        assert await line.stage("0") == "working"
        assert (await line.job("0")).owner is None
        line.clock.advance("1h")
        assert await line.recover("") == 1
        assert await line.stage("0") == "waiting"

    async def test_a_counter_at_its_end_does_not_start_over(self, line: Line):
        await line.put("a")
        await line.take("a")
        raw = bytearray(await line.store.client.hget(line.keys["claims"], "a"))
        raw[20:22] = b"\xff\xff"
        await line.store.client.hset(line.keys["claims"], "a", bytes(raw))
        await line.recover()
        assert (await line.job("a")).recoveries == 65535


class TestByDeadline:
    async def test_only_what_is_overdue_comes_back(self, line: Line):
        await line.put("a", timeout=1000)
        await line.put("b", timeout=2000)
        await line.put("c", timeout=1000)
        await line.take("a")
        await line.take("b", line.other)
        line.clock.advance("1ms")
        await line.take("c", line.other)
        line.clock.advance("1499ms")
        assert await line.recover("", overdue=501) == 0
        assert await line.recover("", overdue=500) == 1
        assert [await line.stage(member) for member in "abc"] == ["waiting", "working", "working"]
        assert (await line.job("a")).recoveries == 1

    async def test_more_than_a_page_of_them(self, line: Line):
        for first in (0, 1000):
            puts = [PutItem(f"{first + n:04}", record(timeout=1), line.now) for n in range(1000)]
            await line.jobs.put_many(line.queue, puts)
            await line.claim()
        line.clock.advance("1s")
        assert await line.recover("") == 2000

    async def test_what_was_extended_is_not_overdue(self, line: Line):
        await line.put("a", timeout=1000)
        claim = await line.take("a")
        line.clock.advance("900ms")
        assert await line.runs.extend(line.queue, claim, 1000) == line.now + 1000
        line.clock.advance("900ms")
        assert await line.recover("") == 0
        line.clock.advance("100ms")
        assert await line.recover("") == 1


class TestExtend:
    async def test_a_lost_claim_cannot_be_extended(self, line: Line):
        await line.put("a")
        old = await line.take("a")
        await line.recover()
        new = await line.take("a", line.other)
        for runs, claim in [(line.runs, old), (line.runs, new), (line.other, old)]:
            with pytest.raises(ClaimLost):
                await runs.extend(line.queue, claim, 1000)
        assert await line.store.client.zscore(line.keys["working"], "a") == new.deadline

    async def test_what_nobody_holds_cannot_be_extended(self, line: Line):
        await line.put("a")
        await line.retry(await line.take("a"))
        assert await line.raw("run_extend", ["", "a", 0, 1000]) == [1, 0]
        assert await line.stage("a") == "waiting"


class TestDead:
    async def test_a_buried_job_stays_with_its_error_and_its_run(self, line: Line):
        await line.put("a")
        due = line.now
        await line.retry(await line.take("a"), delay=0)
        line.clock.advance("1s")
        await line.bury(await line.take("a"))
        assert await line.store.client.zscore(line.keys["dead"], "a") == line.now
        job = await line.job("a")
        assert (job.due_ms, job.attempt, job.failed, job.attempts) == (due, 2, 1, 2)
        assert (job.failure.error, job.owner) == ("bad", None)
        assert (await line.meta())["buried"] == 1
        line.clock.advance("1d")
        assert await line.claim() == []

    async def test_a_dead_job_is_left_alone_by_pause_resume_and_unpark(self, line: Line):
        await line.put("a")
        await line.bury(await line.take("a"))
        assert await line.pause("a") == 3
        assert await line.resume("a") == 3
        assert not await line.unpark("a")
        assert await line.stage("a") == "dead"

    async def test_a_revived_job_is_the_same_run_now_with_all_its_attempts(self, line: Line):
        await line.put("a")
        due = line.now
        await line.retry(await line.take("a"), delay=0)
        await line.bury(await line.take("a"))
        line.clock.advance("1h")
        assert await line.revive("a")
        assert not await line.revive("a")
        assert await line.not_before("a") == line.now
        claim = await line.take("a")
        assert (claim.due, claim.attempt, claim.recoveries) == (due, 1, 0)

    async def test_only_dead_jobs_are_revived_or_dropped(self, line: Line):
        await line.put("a")
        assert not await line.revive("a")
        assert not await line.delete("a", only="dead")
        assert await line.stage("a") == "waiting"

    async def test_a_dropped_job_leaves_nothing(self, line: Line):
        await line.put("a")
        await line.bury(await line.take("a"))
        assert await line.delete("a", only="dead")
        assert await line.stage("a") is None
        left = {key.partition(":")[0] for key in await line.dump()}
        assert left == {"meta", "sessions", "events", "queues{tocsin}"}


class TestPaused:
    async def test_a_paused_job_is_not_claimed_and_keeps_its_run(self, line: Line):
        await line.put("a", 100)
        due = line.now + 100
        assert await line.pause("a") == 1
        assert await line.pause("a") == 3
        line.clock.advance("1s")
        assert await line.claim() == []
        assert await line.claim(members=["a"]) == []
        assert await line.resume("a") == 1
        assert await line.resume("a") == 3
        assert (await line.take("a")).due == due

    async def test_a_paused_retry_keeps_its_attempt(self, line: Line):
        await line.put("a")
        await line.retry(await line.take("a"), delay=500)
        await line.pause("a")
        line.clock.advance("1s")
        await line.resume("a")
        assert (await line.take("a")).attempt == 2

    async def test_a_retry_that_was_paused_still_waits_for_its_backoff(self, line: Line):
        await line.put("a")
        await line.retry(await line.take("a"), delay=60_000)
        await line.pause("a")
        await line.resume("a")
        assert await line.claim() == []

    async def test_a_job_resumed_at_another_time_begins_anew(self, line: Line):
        await line.put("a", every=5)
        await line.retry(await line.take("a"), delay=500)
        await line.pause("a")
        assert await line.resume("a", due=line.now + 9000) == 1
        job = await line.job("a")
        assert (job.due_ms, job.attempt, job.not_before_ms) == (line.now + 9000, 1, line.now + 9000)

    async def test_a_resume_that_read_an_older_version_is_told_so(self, line: Line):
        await line.put("a", every=5)
        await line.pause("a")
        version = (await line.job("a")).version
        assert await line.resume("a", expected=version + 1) == 4
        assert await line.stage("a") == "paused"
        assert await line.resume("a", expected=version) == 1

    async def test_a_parked_job_can_be_paused(self, line: Line):
        await line.put("a")
        await line.park(await line.take("a"))
        assert await line.pause("a") == 1
        assert await line.stage("a") == "paused"

    async def test_what_is_not_there_cannot_be_paused_resumed_or_removed(self, line: Line):
        assert await line.pause("a") == 0
        assert await line.resume("a") == 0
        assert not await line.delete("a")

    @pytest.mark.parametrize("stage", ["waiting", "paused", "parked", "dead"])
    async def test_a_job_that_is_not_working_is_removed_at_once(self, line: Line, stage: str):
        await line.put("a")
        if stage == "paused":
            await line.pause("a")
        if stage in ("parked", "dead"):
            await (line.park if stage == "parked" else line.bury)(await line.take("a"))
        assert await line.delete("a")
        assert await line.stage("a") is None
        assert await line.entry("a") is None
        assert await line.store.client.hlen(line.keys["errors"]) == 0


async def test_a_walk_looks_at_what_is_at_work_only(line: Line):
    """Paused and retried jobs have an entry in `claims` too, any number of them."""
    await line.put_all([f"{n:04}" for n in range(500)])
    for claim in await line.claim():
        await line.retry(claim, delay=60_000)
    await line.put("a")
    await line.take("a")
    assert await line.raw("run_recover", [line.runs.owner, "0", 0, 100]) == [1, b"0", [b"a"], line.now]
