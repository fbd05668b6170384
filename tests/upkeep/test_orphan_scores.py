"""Names without a job, and scores that are not ours: agents and runs come back, and nothing valid is lost."""

from __future__ import annotations

import math

import pytest

from tests.support.one_queue import Line
from tests.support.orphans import CENTURY, YEAR_2500, Cleaner, score, set_apart, zadd
from tests.support.records import record
from tocsin.model.outcome import EDIT
from tocsin.store.transitions.jobs import PutItem


@pytest.mark.parametrize(
    ("member", "numeric"),
    [
        ("4711", True),
        ("1900000000", True),
        ("0", True),
        ("4711a", False),
        ("-4711", False),
        ("47.11", False),
        (" 4711", False),
        ("٤٧", False),
        ("a\x1f1900000000000", False),
        (b"\xff\xfe", False),
    ],
)
@pytest.mark.parametrize("stage", ["waiting", "working"])
async def test_names_of_digits_are_a_kind_of_their_own(line: Line, stage: str, member: str | bytes, numeric: bool):
    await zadd(line, stage, member, line.now)
    kept = Cleaner(line.store, [line.queue], line.clock, remove_numeric_only=False)
    await kept.step()
    assert kept.done == ({} if numeric else {"no_record": 1})
    await zadd(line, stage, member, line.now)
    cleaner = Cleaner(line.store, [line.queue], line.clock)
    await cleaner.step()
    assert cleaner.done == {"numeric" if numeric else "no_record": 1}
    assert await line.store.client.zcard(line.keys[stage]) == 0


async def test_a_job_whose_id_is_digits_is_a_job(line: Line, cleaner: Cleaner):
    await line.put("4711", every=10)
    await zadd(line, "waiting", "4712", line.now)
    await cleaner.step()
    assert [claim.member for claim in await line.claim()] == ["4711"]
    assert cleaner.done == {"numeric": 1}


async def test_whoever_holds_a_run_without_a_record_may_end_it(line: Line, cleaner: Cleaner):
    await line.put("a")
    claim = await line.take("a")
    await line.store.client.hdel(line.keys["jobs"], "a")
    await cleaner.step()
    assert await line.finish(claim) == []
    assert await line.stage("a") is None


async def test_an_edit_that_waits_in_a_claim_is_a_record_too(line: Line, cleaner: Cleaner):
    await line.put("a", every=10)
    await line.take("a")
    await line.put("a", 1000, mode=EDIT, every=20)
    await line.store.client.hdel(line.keys["jobs"], "a")
    line.clock.advance("1h")
    await cleaner.step()
    assert await line.stage("a") == "waiting"


async def test_a_name_that_got_its_job_meanwhile_stays(line: Line, cleaner: Cleaner, after_look):
    await zadd(line, "waiting", "a", line.now)
    after_look(lambda: line.put("a", 5000, every=10))
    await cleaner.step()
    assert await score(line, "waiting", "a") == line.now + 5000
    assert cleaner.done == {}


# Scores that are not ours

ODD = [-math.inf, -1e18, -5.0, -1.0, 0.0, 1.0, 1_893_456_000.0, 9_999_999_999.0, 1.9e15, 1.9e18, math.inf]


@pytest.mark.parametrize("odd", [*ODD, 1_893_456_000_000.0 + 2 * CENTURY])
async def test_an_agent_with_such_a_score_is_due_now(line: Line, cleaner: Cleaner, odd: float):
    await line.put("a", 5000, every=10)
    await zadd(line, "waiting", "a", odd)
    line.clock.advance("1s")
    await cleaner.step()
    assert cleaner.done == {"score": 1}
    assert await score(line, "waiting", "a") == line.now
    assert (await line.take("a")).due == line.now


@pytest.mark.parametrize("odd", ODD)
async def test_a_run_that_was_tried_keeps_its_due_time_and_attempt(line: Line, cleaner: Cleaner, odd: float):
    await line.put("a", every=10)
    due = line.now
    await line.retry(await line.take("a"), delay=9000)
    await zadd(line, "waiting", "a", odd)
    line.clock.advance("1s")
    await cleaner.step()
    assert await score(line, "waiting", "a") == due
    again = await line.take("a")
    assert (again.due, again.attempt) == (due, 2)


@pytest.mark.parametrize("odd", ODD)
async def test_a_deadline_like_that_is_set_anew_for_who_holds_the_run(line: Line, cleaner: Cleaner, odd: float):
    await line.put("a", timeout=60_000)
    claim = await line.take("a")
    await zadd(line, "working", "a", odd)
    line.clock.advance("1s")
    await cleaner.step()
    assert cleaner.done == {"score": 1}
    assert await score(line, "working", "a") == line.now + 60_000
    assert await line.finish(claim) == []


async def test_a_deadline_that_nobody_holds_comes_back_when_it_is_over(line: Line, cleaner: Cleaner):
    await line.put("a", timeout=60_000)
    await line.take("a")
    await line.store.client.hdel(line.keys["claims"], "a")
    await zadd(line, "working", "a", math.inf)
    await cleaner.step()
    line.clock.advance("11m")
    await cleaner.step()
    assert await line.stage("a") == "waiting"


@pytest.mark.parametrize(
    ("far", "every", "runs_now"),
    [
        (YEAR_2500, None, False),
        (YEAR_2500, 10, True),
        (253_402_300_799_999, None, False),
        (253_402_300_800_000, None, True),
    ],
)
async def test_a_far_century_is_believed_of_single_runs_only(
    line: Line, cleaner: Cleaner, far: int, every: float | None, runs_now: bool
):
    await line.put("a", 5000, every=every)
    await zadd(line, "waiting", "a", far)
    await cleaner.step()
    assert await score(line, "waiting", "a") == (line.now if runs_now else far)


async def test_a_due_time_of_long_ago_that_was_claimed_keeps_its_run_id(line: Line, cleaner: Cleaner):
    await line.jobs.put(line.queue, PutItem("a", record(), 1000))
    await line.take("a")
    await line.recover()
    await cleaner.step()
    again = await line.take("a")
    assert (again.due, again.recoveries) == (1000, 1)
    assert cleaner.done == {}


async def test_a_due_time_in_a_claim_that_can_never_come_is_set_anew(line: Line, cleaner: Cleaner):
    await line.put("a", every=10)
    await line.retry(await line.take("a"))
    raw = bytearray(await line.store.client.hget(line.keys["claims"], "a"))
    raw[8:16] = b"\xff" * 8
    await line.store.client.hset(line.keys["claims"], "a", bytes(raw))
    await zadd(line, "waiting", "a", -1)
    await cleaner.step()
    again = await line.take("a")
    assert (again.due, again.attempt) == (line.now, 2)


async def test_a_suspect_stays_where_it_is(line: Line, cleaner: Cleaner):
    at = await set_apart(line, "a")
    await cleaner.step()
    assert (cleaner.done, await score(line, "waiting", "a")) == ({}, at)
    assert not (await line.store.change("audit_mend_score", line.queue, 0, b"\x91\xa1a"))[1].count(b"1")


@pytest.mark.parametrize("off_by", [1, 10**12, math.inf])
async def test_one_whose_score_is_not_that_of_its_run_gets_its_due_time(line: Line, cleaner: Cleaner, off_by: float):
    at, due = await set_apart(line, "a"), line.now
    await zadd(line, "waiting", "a", at - off_by)
    await cleaner.step()
    assert (cleaner.done, await score(line, "waiting", "a")) == ({"score": 1}, due)


async def test_a_job_that_is_no_suspect_gets_its_time_back(line: Line, cleaner: Cleaner):
    at = await set_apart(line, "a")
    await line.put("b")
    await zadd(line, "waiting", "b", at)
    await cleaner.step()
    assert await score(line, "waiting", "b") == line.now
    assert await line.names() == ["a", "b"]
