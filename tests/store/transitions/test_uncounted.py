"""Successes that a record does not count yet (uncounted_due.lua): no way out of the line loses or doubles one."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable

import pytest

from tests.support.blocked_jobs import block
from tests.support.one_queue import Line
from tocsin.model.outcome import EDIT, FAILED, REPLACE, SKIPPED, UPDATE
from tocsin.model.record import decode_header
from tocsin.store.transitions.settle import on_time_item

EVERY = 5


async def run(line: Line, times: int) -> None:
    for _ in range(times):
        claim = await line.take("a")
        await line.finish(claim, claim.due + EVERY * 1000)
        line.clock.advance(f"{EVERY}s")


async def counts(line: Line) -> tuple[int, int, int]:
    job = await line.job("a")
    return job.succeeded, job.failed, job.attempts


async def in_record(line: Line) -> int:
    return decode_header(await line.store.client.hget(line.keys["jobs"], "a")).succeeded


async def test_a_record_is_written_seldom_and_never_more_than_fifteen_behind(line: Line):
    await line.put("a", every=EVERY)
    seen = [0]
    for times in range(1, 101):
        await run(line, 1)
        assert await counts(line) == (times, 0, times)
        seen.append(await in_record(line))
        assert times - 15 <= seen[-1] <= times
    assert 7 <= len(set(seen)) <= 15
    assert seen[-1] > 80


async def test_schedules_that_began_together_are_not_all_written_together(line: Line):
    names = [f"{n:02}" for n in range(40)]
    await line.put_all(names, every=EVERY)
    written = []
    for _ in range(20):
        for claim in await line.claim():
            await line.finish(claim, claim.due + EVERY * 1000)
        records = await line.store.client.hmget(line.keys["jobs"], names)
        written.append(sum(decode_header(record).succeeded for record in records))
        line.clock.advance(f"{EVERY}s")
    assert max(after - before for before, after in itertools.pairwise(written)) < 40 * 16 / 2


async def test_what_is_due_is_given_out_in_its_own_millisecond_and_not_before(line: Line):
    await line.put("a", every=EVERY)
    claim = await line.take("a")
    await line.finish(claim, claim.due + 5000)
    line.clock.advance("4999ms")
    answer = await line.ask()
    assert (answer.claims, answer.next_due) == ([], claim.due + 5000)
    line.clock.advance("1ms")
    [again] = await line.claim()
    assert (again.due, again.attempt) == (claim.due + 5000, 1)


async def paused(line: Line) -> None:
    await line.pause("a")
    assert await line.store.client.zscore(line.keys["paused"], "a") == line.now
    assert (await line.job("a")).succeeded == 3
    await line.resume("a")


async def paused_and_resumed_at_another_time(line: Line) -> None:
    await line.pause("a")
    await line.resume("a", due=line.now + 60_000)
    line.clock.advance("60s")


async def paused_in_its_run(line: Line) -> None:
    claim = await line.take("a")
    await line.pause("a")
    await line.release(claim)
    assert await line.stage("a") == "paused"
    await line.resume("a")


async def edited(line: Line) -> None:
    await line.put("a", every=EVERY, args=(7,), mode=EDIT)


async def edited_while_paused(line: Line) -> None:
    await line.pause("a")
    await line.put("a", every=EVERY, args=(7,), mode=UPDATE)
    await line.resume("a")


async def replaced(line: Line) -> None:
    await line.put("a", every=EVERY, args=(7,), mode=REPLACE)


async def replaced_while_paused(line: Line) -> None:
    await line.pause("a")
    await line.put("a", every=EVERY, args=(7,), mode=REPLACE)
    await line.resume("a")


async def replaced_in_its_run(line: Line) -> None:
    claim = await line.take("a")
    await line.put("a", every=EVERY, args=(7,), mode=REPLACE)
    await line.release(claim)


async def edited_in_its_run(line: Line) -> None:
    claim = await line.take("a")
    await line.put("a", every=EVERY, args=(7,), mode=EDIT)
    await line.release(claim)


async def released(line: Line) -> None:
    await line.release(await line.take("a"))


async def recovered(line: Line) -> None:
    await line.take("a")
    await line.recover()


async def planned(line: Line) -> None:
    claim = await line.take("a")
    await line.plan(claim, claim.due + 5000)
    await line.delete(f"a\x1f{claim.due}")
    line.clock.advance("5s")


async def parked_for_others(line: Line) -> None:
    stranger = line.worker("worker-3.1", "something.else")
    assert await line.claim(stranger) == []
    assert await line.stage("a") == "parked"


async def parked_and_edited(line: Line) -> None:
    await line.park(await line.take("a"))
    await line.put("a", every=EVERY, args=(7,), mode=EDIT)


async def parked_and_unparked(line: Line) -> None:
    await line.park(await line.take("a"))
    await line.unpark("a")


async def blocked(line: Line) -> None:
    await block(line, "a", mode=REPLACE, every=EVERY)
    assert (await line.job("a")).succeeded == 3
    await line.put("a", every=EVERY, mode=REPLACE)


WAYS = [
    paused,
    paused_and_resumed_at_another_time,
    paused_in_its_run,
    edited,
    edited_while_paused,
    replaced,
    replaced_while_paused,
    replaced_in_its_run,
    edited_in_its_run,
    released,
    recovered,
    planned,
    parked_for_others,
    parked_and_edited,
    parked_and_unparked,
    blocked,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_nothing_that_happens_to_a_schedule_loses_a_success(line: Line, way: Callable[[Line], Awaitable[None]]):
    await line.put("a", every=EVERY)
    await run(line, 3)
    await way(line)
    assert await counts(line) == (3, 0, 3)
    await run(line, 14)
    assert await counts(line) == (17, 0, 17)


@pytest.mark.parametrize("mark", ["pause", "replace"])
async def test_a_run_that_was_marked_counts_what_was_not_counted_yet_once(line: Line, mark: str):
    await line.put("a", every=EVERY)
    await run(line, 3)
    claim = await line.take("a")
    await (line.pause("a") if mark == "pause" else line.put("a", every=EVERY, args=(7,), mode=REPLACE))
    await line.finish(claim, claim.due + 5000)
    assert (await counts(line), await in_record(line)) == ((4, 0, 4), 4)


async def test_another_end_counts_what_was_not_counted_yet(line: Line):
    await line.put("a", every=EVERY)
    await run(line, 3)
    claim = await line.take("a")
    await line.finish(claim, claim.due + 5000, FAILED, error=b"\x91\xa3bad")
    assert (await counts(line), await in_record(line)) == ((3, 1, 4), 3)
    line.clock.advance("5s")
    await run(line, 2)
    claim = await line.take("a")
    await line.finish(claim, claim.due + 5000, SKIPPED)
    assert (await counts(line), await in_record(line)) == ((5, 1, 6), 5)


async def test_a_retry_keeps_what_was_not_counted_yet(line: Line):
    await line.put("a", every=EVERY)
    await run(line, 3)
    await line.retry(await line.take("a"), delay=1000)
    assert await counts(line) == (3, 0, 4)
    line.clock.advance("1s")
    await run(line, 1)
    assert await counts(line) == (4, 0, 5)


async def test_a_dead_schedule_has_counted_all(line: Line):
    await line.put("a", every=EVERY)
    await run(line, 3)
    await line.bury(await line.take("a"))
    assert (await counts(line), await in_record(line)) == ((3, 1, 4), 3)
    await line.revive("a")
    assert await counts(line) == (3, 1, 4)


async def test_a_run_of_its_own_counts_for_its_job_beside_what_was_not_counted_yet(line: Line):
    await line.put("a", every=EVERY)
    await run(line, 3)
    [due] = await line.fire("a")
    line.clock.advance("1ms")
    await line.finish(await line.take(f"a\x1f{due}"))
    assert await counts(line) == (4, 0, 4)
    await run(line, 13)
    assert await counts(line) == (17, 0, 17)


async def test_one_batch_holds_jobs_that_have_run_more_and_less_often(line: Line):
    await line.put("a", every=EVERY)
    await run(line, 15)
    await line.put_all(["b", "c"], every=EVERY)
    claims = {claim.member: claim for claim in await line.claim()}
    await line.finish(claims["b"], claims["b"].due + 5000)
    line.clock.advance("5s")
    claims |= {claim.member: claim for claim in await line.claim()}
    assert await line.settle("finish", *(on_time_item(claims[name], line.now + 5000) for name in "abc")) == []
    assert await counts(line) == (16, 0, 16)
    assert [(await line.job(name)).succeeded for name in "bc"] == [2, 1]
    assert {await line.stage(name) for name in "abc"} == {"waiting"}
