"""Claiming: what is due, in order, within bounds; the rest is left, or parked for workers that know it."""

from __future__ import annotations

import pytest

from tests.support.one_queue import Line
from tests.support.records import HANDLER, STRANGE, record
from tocsin.model.msgpack import decode
from tocsin.model.outcome import EDIT
from tocsin.model.record import handler_digest
from tocsin.store.transitions.jobs import PutItem

MIB = 1024 * 1024


def names(claims) -> list[str]:
    return [claim.member for claim in claims]


async def test_nothing_is_claimed_before_it_is_due(line: Line):
    await line.put("a", 100)
    line.clock.advance("99ms")
    answer = await line.ask()
    assert (answer.claims, answer.next_due) == ([], line.now + 1)
    line.clock.advance("1ms")
    assert names(await line.claim()) == ["a"]


async def test_runs_are_claimed_in_the_order_of_time_and_id(line: Line):
    for member, due in [("z", 10), ("m", 30), ("b", 20), ("a", 20), ("c", 20)]:
        await line.put(member, due)
    line.clock.advance("50ms")
    assert names(await line.claim()) == ["z", "a", "b", "c", "m"]


async def test_a_claim_takes_no_more_than_its_limit_and_says_when_the_next_is_due(line: Line):
    for n in range(4):
        await line.put(f"{n}", n)
    line.clock.advance("1s")
    answer = await line.ask(limit=3)
    assert names(answer.claims) == ["0", "1", "2"]
    assert answer.next_due == line.now - 997
    assert names(await line.claim(limit=3)) == ["3"]
    assert (await line.ask()).next_due == -1


async def test_no_call_takes_more_than_a_thousand(line: Line):
    for first in (0, 1000):
        await line.jobs.put_many(line.queue, [PutItem(f"{first + n:04}", record(), line.now) for n in range(600)])
    args = [line.runs.owner, 10**15, b"", 0, 1000, "1", 5000]
    assert len(decode((await line.raw("run_claim", args))[3])) == 1000


async def test_a_claim_says_all_about_its_run(line: Line):
    await line.put("a", timeout=7000)
    await line.retry(await line.take("a"), delay=0)
    [claim] = await line.claim(line.other)
    assert (claim.queue, claim.partition, claim.job_id) == ("line", 0, "a")
    assert (claim.due, claim.attempt, claim.recoveries, claim.cancelled) == (line.now, 2, 0, False)
    assert claim.deadline == line.now + 7000
    assert claim.run_id == f"a@{line.now}"
    entry = await line.entry("a")
    assert (entry.token, entry.owner) == (claim.token, line.other.owner)
    assert await line.store.client.zscore(line.keys["working"], "a") == claim.deadline


async def test_a_worker_may_set_the_timeout_of_what_it_claims(line: Line):
    await line.put("a", timeout=7000)
    [claim] = await line.claim(timeout=500)
    assert claim.deadline == line.now + 500
    assert await line.store.client.zscore(line.keys["working"], "a") == line.now + 500


async def test_nothing_is_claimed_twice(line: Line):
    await line.put("a")
    assert names(await line.claim()) == ["a"]
    assert await line.claim(line.other) == []
    assert await line.claim(line.other, members=["a"]) == []


async def test_a_worker_whose_lease_is_over_gets_nothing(line: Line):
    await line.put("a")
    before = await line.dump()
    answer = await line.ask(lease=line.now - 1)
    assert (answer.lease_over, answer.claims) == (True, [])
    assert (await line.ask(lease=line.now - 1, members=["a"])).lease_over
    assert await line.dump() == before
    assert names(await line.claim(lease=line.now)) == ["a"]


async def test_tokens_grow_also_when_the_clock_goes_back(line: Line):
    tokens = []
    for _ in range(3):
        await line.put("a")
        claim = await line.take("a")
        tokens.append(claim.token)
        await line.release(claim)
        await line.delete("a")
        line.clock.move_to(line.clock.now.replace(year=line.clock.now.year - 1))
    assert tokens == sorted(set(tokens))


class TestNamed:
    async def test_only_the_named_ones_that_are_due_are_claimed(self, line: Line):
        for member, due in [("a", 0), ("b", 0), ("c", 500), ("d", 900)]:
            await line.put(member, due)
        answer = await line.ask(members=["d", "c", "a", "none"])
        assert names(answer.claims) == ["a"]
        assert answer.next_due == line.now + 500
        assert await line.stage("b") == "waiting"

    async def test_one_named_twice_is_claimed_once(self, line: Line):
        await line.put("a")
        assert names(await line.claim(members=["a", "a"])) == ["a"]

    async def test_a_parked_one_is_claimed_by_a_worker_that_knows_it(self, line: Line):
        await line.put("a", handler=STRANGE)
        assert (await line.ask(members=["a"])).parked == 1
        assert await line.claim(members=["a"]) == []
        assert names(await line.claim(line.worker("w3", STRANGE), members=["a"])) == ["a"]


class TestUnknownHandler:
    async def test_it_is_parked_at_its_due_time(self, line: Line):
        await line.put("a", 100, handler=STRANGE)
        await line.put("b", 100)
        assert (await line.ask()).parked == 0
        assert await line.stage("a") == "waiting"
        line.clock.advance("300ms")
        answer = await line.ask()
        assert (names(answer.claims), answer.parked) == (["b"], 1)
        assert await line.stage("a") == "parked"
        assert (await line.job("a")).due_ms == line.now - 200

    async def test_it_is_claimed_straight_from_parked_by_a_worker_that_knows_it(self, line: Line):
        await line.put("a", handler=STRANGE)
        await line.retry(await line.take("a", line.worker("w3", STRANGE)), delay=0, runs=line.worker("w3", STRANGE))
        due = line.now
        await line.ask()
        assert await line.stage("a") == "parked"
        line.clock.advance("5s")
        [claim] = await line.claim(line.worker("w4", HANDLER, STRANGE))
        assert (claim.member, claim.due, claim.attempt) == ("a", due, 2)
        assert await line.stage("a") == "working"

    async def test_a_worker_that_does_not_know_it_leaves_it_there(self, line: Line):
        await line.put("a", handler=STRANGE)
        await line.ask()
        before = (await line.meta())["seq"]
        answer = await line.ask(line.other)
        assert (answer.claims, answer.parked) == ([], 0)
        assert (await line.meta())["seq"] == before

    async def test_a_worker_that_takes_anything_knows_all(self, line: Line):
        anything = type(line.runs)(line.store, "w3")
        await line.put("a", handler=STRANGE)
        assert names(await line.claim(anything)) == ["a"]

    async def test_many_of_them_do_not_block_the_others(self, line: Line):
        strange = [PutItem(f"{n:03}", record(handler=STRANGE), line.now) for n in range(100)]
        await line.jobs.put_many(line.queue, strange)
        await line.put("z")
        taken = []
        for _ in range(20):
            taken += names(await line.claim(limit=10))
        assert taken == ["z"]
        assert (await line.jobs.count(line.queue))["parked"] == 100


class TestUnreadable:
    @pytest.mark.parametrize("junk", [b"", b"junk", b"\x02" + b"\0" * 60], ids=["empty", "short", "schema"])
    async def test_it_is_parked_and_does_not_stop_the_others(self, line: Line, junk: bytes):
        await line.put("a")
        await line.put("b")
        await line.spoil("a", junk)
        answer = await line.ask()
        assert (names(answer.claims), answer.parked) == (["b"], 1)
        assert await line.stage("a") == "parked"
        assert await line.claim() == []
        assert await line.claim(type(line.runs)(line.store, "w3")) == []

    async def test_it_is_tried_again_when_it_is_unparked(self, line: Line):
        await line.put("a")
        good = await line.store.client.hget(line.keys["jobs"], "a")
        await line.spoil("a", b"junk")
        await line.ask()
        assert await line.unpark("a")
        assert (await line.ask()).parked == 1
        await line.spoil("a", good)
        assert await line.unpark("a")
        assert names(await line.claim()) == ["a"]

    async def test_one_that_a_worker_could_not_read_stays_parked_for_a_second_or_until_it_is_unparked(self, line: Line):
        await line.put("a")
        await line.retry(await line.take("a"), delay=0)
        due = line.now
        await line.park(await line.take("a"))
        line.clock.advance("999ms")
        assert await line.stage("a") == "parked"
        assert (await line.job("a")).failure.error == "odd"
        assert await line.claim(line.other) == []
        assert await line.claim(line.other, members=["a"]) == []
        assert await line.unpark("a")
        assert not await line.unpark("a")
        assert (await line.job("a")).failure is None
        again = await line.take("a", line.other)
        assert (again.due, again.attempt) == (due, 2)

    @pytest.mark.parametrize("members", [(), ("a",)], ids=["in line", "by id"])
    async def test_one_that_a_worker_could_not_read_is_taken_by_another_a_second_later(self, line: Line, members):
        await line.put("a")
        await line.park(await line.take("a"))
        line.clock.advance("1s")
        assert names(await line.claim(line.other, members=members)) == ["a"]

    async def test_one_that_nobody_could_read_is_kept_for_those_who_know_its_handler(self, line: Line):
        await line.put("a")
        await line.park(await line.take("a"))
        line.clock.advance("1s")
        assert await line.claim(line.worker("w3", STRANGE)) == []
        assert await line.store.client.zscore(line.keys["parked"], "a") == handler_digest(HANDLER)
        assert names(await line.claim(line.other)) == ["a"]

    async def test_one_that_was_unparked_counts_as_readable_again(self, line: Line):
        await line.put("a")
        await line.park(await line.take("a"))
        await line.unpark("a")
        assert (await line.ask(line.worker("w3", STRANGE))).parked == 1
        assert names(await line.claim(line.other)) == ["a"]

    async def test_a_member_without_a_record_is_parked(self, line: Line):
        await line.store.client.zadd(line.keys["waiting"], {b"\xff\xfe": line.now})
        await line.put("b")
        answer = await line.ask()
        assert (names(answer.claims), answer.parked) == (["b"], 1)
        assert await line.store.client.zscore(line.keys["parked"], b"\xff\xfe") == line.now + 1000
        assert await line.claim(line.other) == []


class TestPausedQueue:
    async def test_nothing_is_claimed_from_it_and_what_runs_goes_on(self, line: Line):
        await line.put("a")
        await line.put("b")
        claim = await line.take("a")
        assert await line.jobs.pause_queue(line.queue, True)
        assert not await line.jobs.pause_queue(line.queue, True)
        answer = await line.ask()
        assert (answer.claims, answer.next_due) == ([], -1)
        assert await line.claim(members=["b"]) == []
        assert await line.stage("b") == "waiting"
        assert await line.finish(claim) == []
        assert await line.jobs.pause_queue(line.queue, False)
        assert names(await line.claim()) == ["b"]

    async def test_a_repeated_claim_still_gets_what_was_claimed_before_the_pause(self, line: Line):
        await line.put("a")
        args = [line.runs.owner, 10**15, b"", 0, 1000, "1", 10]
        first = await line.raw("run_claim", args, seq=1)
        await line.jobs.pause_queue(line.queue, True)
        assert (await line.raw("run_claim", args, seq=1))[:6] == first[:6]
        assert decode((await line.raw("run_claim", args, seq=2))[3]) == []
        await line.jobs.pause_queue(line.queue, False)
        await line.put("b")
        assert await line.raw("run_claim", args, seq=1) == [-2]


class TestBytes:
    async def test_large_records_come_a_few_at_a_time(self, line: Line):
        await line.jobs.put_many(
            line.queue, [PutItem(f"{n:02}", record(args=("x" * 500_000,)), line.now) for n in range(20)]
        )
        sizes, taken = [], []
        while claims := await line.claim():
            sizes.append(sum(len(claim.record) for claim in claims))
            taken += names(claims)
        assert taken == [f"{n:02}" for n in range(20)]
        assert 2 * MIB < max(sizes) <= 8 * MIB

    async def test_also_if_they_became_large_during_a_run(self, line: Line):
        for n in range(20):
            await line.put(f"{n:02}")
        for claim in await line.claim():
            await line.put(claim.member, mode=EDIT, args=("x" * 500_000,))
            await line.release(claim)
        claims = await line.claim()
        assert sum(len(claim.record) for claim in claims) <= 8 * MIB


class TestRepeated:
    async def test_the_same_call_gets_only_what_is_still_held(self, line: Line):
        await line.put("a")
        await line.put("b")
        args = [line.runs.owner, 10**15, b"", 0, 1000, "1", 10]
        first = await line.raw("run_claim", args, seq=1)
        assert decode(first[3]) == ["a", "b"]
        await line.recover(line.runs.owner)
        [claim] = await line.claim(line.other, members=["b"])
        await line.put("c")
        again = await line.raw("run_claim", args, seq=1)
        assert [*again[1:3], decode(again[3])] == [*first[1:3], []]
        assert (await line.entry("b")).token == claim.token
        assert await line.stage("c") == "waiting"

    async def test_the_same_call_says_again_that_something_was_parked(self, line: Line):
        await line.put("a", handler=STRANGE)
        args = [line.runs.owner, 10**15, b"\0\0\0\1", 0, 1000, "1", 10]
        first = await line.raw("run_claim", args, seq=1)
        assert first[7] == 1
        assert await line.raw("run_claim", args, seq=1) == first


class TestGarbage:
    """What somebody else wrote into our keys never stops another job."""

    async def test_an_id_that_is_no_text_is_given_out_as_it_is(self, line: Line):
        odd = b"\xff" * 40
        await line.put("a")
        await line.store.client.hset(line.keys["jobs"], odd, record())
        await line.store.client.zadd(line.keys["waiting"], {odd: line.now})
        assert [claim.key for claim in await line.claim()] == [b"a", odd]

    async def test_a_claim_that_cannot_be_read_is_passed_over_and_its_job_runs(self, line: Line):
        await line.put("a")
        await line.put("b")
        await line.store.client.hset(line.queue.keys[0]["claims"], "a", b"garbage")
        assert sorted(names(await line.claim())) == ["a", "b"]

    @pytest.mark.parametrize("score", [-5, 0, 0.5])
    async def test_a_score_before_all_time_is_due(self, line: Line, score: float):
        await line.put("a")
        await line.store.client.zadd(line.queue.keys[0]["waiting"], {"a": score})
        [claim] = await line.claim()
        assert claim.due == 0

    async def test_a_member_without_a_record_is_parked_and_a_put_of_it_starts_anew(self, line: Line):
        await line.store.client.zadd(line.queue.keys[0]["waiting"], {"a": 5})
        assert await line.claim() == []
        assert await line.store.client.zrange(line.queue.keys[0]["parked"], 0, -1) == [b"a"]
        await line.put("a")
        assert await line.store.client.zcard(line.queue.keys[0]["parked"]) == 0
        assert names(await line.claim()) == ["a"]


class TestNothingToClaim:
    """Idle workers poll."""

    async def test_a_claim_that_finds_nothing_writes_nothing(self, line: Line):
        before = await line.dump()
        assert await line.claim() == []
        assert await line.dump() == before
        await line.raw("queue_pause", ["1"])
        before = await line.dump()
        assert await line.claim() == []
        assert await line.dump() == before

    async def test_one_whose_answer_was_lost_leaves_its_seq_behind_when_it_is_repeated(self, line: Line):
        """The first copy may still sit in a dead connection: what it finds later, nobody would hear of."""
        args = [line.runs.owner, 10**15, b"", 0, 1000]
        assert decode((await line.raw("run_claim", [*args, "1", 10], session="s", seq=1))[3]) == []
        await line.put("a", 0)
        assert decode((await line.raw("run_claim", [*args, "", 10], session="s", seq=1))[3]) == []
        assert await line.stage("a") == "waiting"
