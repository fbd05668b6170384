"""Putting jobs: new ones, and what each mode does to one that is there, in each stage."""

from __future__ import annotations

import pytest

from tests.support.one_queue import Line
from tests.support.records import packed, record
from tocsin.model.outcome import (
    CHANGED,
    CONFLICT,
    EDIT,
    IGNORE,
    MISSING,
    NEW,
    POSTPONE,
    REMEMBERED,
    REPLACE,
    UNCHANGED,
    UPDATE,
)
from tocsin.model.run import Claim
from tocsin.store.transitions.jobs import PutItem

STAGES = ("waiting", "working", "paused", "parked", "dead")
IDLE_STAGES = ("paused", "parked", "dead")


async def bring(line: Line, stage: str, **about: object) -> Claim | None:
    """A job "a" in that stage, in its second attempt; its due time is now."""
    await line.put("a", **about)
    await line.retry(await line.take("a"), delay=0)
    if stage == "waiting":
        return None
    if stage == "paused":
        await line.pause("a")
        return None
    claim = await line.take("a")
    if stage == "parked":
        await line.park(claim)
    if stage == "dead":
        await line.bury(claim)
    return claim


async def test_a_new_job_waits_until_it_is_due(line: Line):
    assert await line.put("a", 500) == NEW
    job = await line.job("a")
    assert (job.stage, job.due_ms, job.not_before_ms, job.attempt) == ("waiting", line.now + 500, line.now + 500, 1)
    assert (await line.meta())["put"] == 1


async def test_a_put_says_when_the_bell_must_ring(line: Line):
    async def head(member: str, due: int) -> int:
        return (await line.jobs.put(line.queue, PutItem(member, record(), line.now + due)))[1]

    assert await head("first", 500) == line.now + 500
    assert await head("later", 900) == -1
    assert await head("earlier", 300) == line.now + 300
    assert await head("now", 0) == line.now


@pytest.mark.parametrize("stage", STAGES)
async def test_ignore_changes_nothing(line: Line, stage: str):
    await bring(line, stage)
    before = await line.dump()
    assert await line.put("a", 9000, mode=IGNORE, args=(2,)) == UNCHANGED
    after = await line.dump()
    for key in ("jobs", "claims", "events", *STAGES):
        name = f"{key}:line{{line:0}}"
        assert after.get(name) == before.get(name), key


@pytest.mark.parametrize("mode", [REPLACE, POSTPONE])
@pytest.mark.parametrize("stage", ["waiting", "parked", "dead"])
async def test_replace_and_postpone_begin_anew_at_the_new_time(line: Line, stage: str, mode: int):
    await bring(line, stage)
    assert await line.put("a", 9000, mode=mode, args=(2,)) == CHANGED
    assert await line.stage("a") == "waiting"
    assert await line.entry("a") is None
    job = await line.job("a")
    assert (job.due_ms, job.attempt, job.args, job.failure) == (line.now + 9000, 1, (2,), None)


@pytest.mark.parametrize("mode", [REPLACE, POSTPONE])
async def test_a_paused_job_that_is_replaced_stays_paused_with_its_new_time(line: Line, mode: int):
    await bring(line, "paused")
    assert await line.put("a", 9000, mode=mode, args=(2,)) == CHANGED
    job = await line.job("a")
    assert (await line.stage("a"), job.due_ms, job.attempt, job.args) == ("paused", line.now + 9000, 1, (2,))
    await line.resume("a")
    assert await line.not_before("a") == line.now + 9000


@pytest.mark.parametrize("mode", [REPLACE, POSTPONE])
async def test_replacing_a_working_job_waits_for_its_run(line: Line, mode: int):
    claim = await bring(line, "working")
    assert await line.put("a", 9000, mode=mode, args=(2,)) == CHANGED
    assert await line.stage("a") == "working"
    assert (await line.job("a")).args == (2,)
    await line.finish(claim)
    job = await line.job("a")
    assert (await line.stage("a"), job.due_ms, job.attempt, job.args) == ("waiting", line.now + 9000, 1, (2,))


@pytest.mark.parametrize("stage", STAGES)
async def test_updating_with_the_same_definition_changes_nothing(line: Line, stage: str):
    await bring(line, stage, every=5)
    before = await line.job("a")
    assert await line.put("a", 9000, mode=UPDATE, every=5) == UNCHANGED
    assert await line.job("a") == before


@pytest.mark.parametrize("stage", STAGES)
async def test_an_update_with_the_same_trigger_keeps_the_due_time(line: Line, stage: str):
    claim = await bring(line, stage, every=5)
    due = (await line.job("a")).due_ms
    line.clock.advance("1s")
    assert await line.put("a", 9000, mode=UPDATE, every=5, args=(2,)) == CHANGED
    job = await line.job("a")
    assert (job.due_ms, job.args) == (due, (2,))
    if stage == "working":
        await line.finish(claim, next_due=due + 5000)
        assert (await line.job("a")).args == (2,)
        assert await line.not_before("a") == due + 5000


@pytest.mark.parametrize("stage", STAGES)
async def test_an_update_with_another_trigger_counts_from_now(line: Line, stage: str):
    claim = await bring(line, stage, every=5)
    line.clock.advance("1s")
    assert await line.put("a", 9000, mode=UPDATE, every=9) == CHANGED
    if stage == "working":
        await line.finish(claim, next_due=claim.due + 5000)
    job = await line.job("a")
    assert (job.due_ms, job.attempt, job.trigger.interval) == (line.now + 9000, 1, 9.0)
    assert await line.stage("a") == ("paused" if stage == "paused" else "waiting")


@pytest.mark.parametrize("stage", ["waiting", "paused"])
async def test_an_edit_leaves_place_due_and_attempt_alone(line: Line, stage: str):
    await bring(line, stage)
    before = await line.job("a")
    line.clock.advance("1s")
    assert await line.put("a", mode=EDIT, args=(2,)) == CHANGED
    job = await line.job("a")
    assert job.args == (2,)
    assert (job.stage, job.due_ms, job.attempt) == (stage, before.due_ms, 2)
    assert job.not_before_ms == before.not_before_ms


async def test_an_edit_of_a_dead_job_does_not_wake_it(line: Line):
    await bring(line, "dead")
    assert await line.put("a", mode=EDIT, args=(2,)) == CHANGED
    assert await line.stage("a") == "dead"
    assert await line.revive("a")
    assert (await line.take("a")).due == (await line.job("a")).due_ms
    assert (await line.job("a")).args == (2,)


async def test_an_edit_of_a_parked_job_puts_it_back_in_line(line: Line):
    await bring(line, "parked")
    due = (await line.job("a")).due_ms
    line.clock.advance("1s")
    assert await line.put("a", mode=EDIT, args=(2,)) == CHANGED
    assert (await line.stage("a"), await line.not_before("a")) == ("waiting", due)


async def test_an_edit_with_a_time_moves_it(line: Line):
    await bring(line, "waiting")
    assert await line.put("a", 7000, mode=EDIT) == CHANGED
    job = await line.job("a")
    assert (job.due_ms, job.attempt) == (line.now + 7000, 1)


@pytest.mark.parametrize("mode", [REPLACE, UPDATE, EDIT])
@pytest.mark.parametrize("stage", STAGES)
async def test_a_put_that_expects_another_version_changes_nothing(line: Line, stage: str, mode: int):
    await bring(line, stage, every=5)
    before = await line.job("a")
    assert await line.put("a", 1, mode=mode, expected=before.version + 1, args=(2,), every=5) == CONFLICT
    assert await line.job("a") == before
    assert await line.put("a", 1, mode=mode, expected=before.version, args=(2,), every=5) == CHANGED
    assert (await line.job("a")).version > before.version


async def test_of_two_edits_that_read_the_same_version_one_is_told_to_read_again(line: Line):
    await bring(line, "working")
    version = (await line.job("a")).version
    assert await line.put("a", mode=EDIT, expected=version, args=(2,)) == CHANGED
    assert await line.put("a", mode=EDIT, expected=version, args=(3,)) == CONFLICT
    assert (await line.job("a")).args == (2,)


async def test_there_is_nothing_to_edit_where_there_is_no_job(line: Line):
    assert await line.put("a", mode=EDIT) == MISSING
    assert await line.stage("a") is None


@pytest.mark.parametrize("stage", IDLE_STAGES)
async def test_counters_survive_a_put(line: Line, stage: str):
    await bring(line, stage, every=5)
    counted = (await line.job("a")).attempts
    assert counted >= 1
    await line.put("a", mode=REPLACE, every=7)
    assert (await line.job("a")).attempts == counted


async def test_versions_grow_with_each_put(line: Line):
    await line.put("a", every=5)
    first = (await line.job("a")).version
    await line.put("b")
    await line.put("a", mode=REPLACE, every=6)
    assert (await line.job("a")).version > (await line.job("b")).version > first


async def test_a_batch_answers_for_each_job(line: Line):
    await line.put("old")
    await line.put("done", keep=60)
    await line.finish(await line.take("done"), keep=60)
    puts = [
        PutItem("old", record(args=(1,)), line.now, mode=REPLACE),
        PutItem("new", record(), line.now + 5),
        PutItem("old2", record(), line.now, mode=EDIT),
        PutItem("done", record(), line.now),
    ]
    assert await line.jobs.put_many(line.queue, puts) == (bytes([CHANGED, NEW, MISSING, REMEMBERED]), line.now)
    assert (await line.meta())["put"] == 3


async def test_a_thousand_jobs_are_one_call(line: Line):
    puts = [PutItem(f"{n:04}", record(), line.now + n) for n in range(1000)]
    codes, _ = await line.jobs.put_many(line.queue, puts)
    assert codes == bytes([NEW]) * 1000
    assert len(await line.events()) == 1
    assert (await line.jobs.count(line.queue))["waiting"] == 1000


async def test_a_job_that_ended_is_remembered_and_not_put_again(line: Line):
    await line.put("a", keep=60)
    await line.finish(await line.take("a"), keep=60)
    assert await line.put("a", mode=IGNORE) == REMEMBERED
    assert await line.stage("a") is None
    line.clock.advance("60s")
    assert await line.put("a", mode=IGNORE) == NEW


@pytest.mark.parametrize("mode", [REPLACE, POSTPONE, UPDATE])
async def test_only_ignore_heeds_what_is_remembered(line: Line, mode: int):
    await line.put("a", keep=60)
    await line.finish(await line.take("a"), keep=60)
    assert await line.put("a", mode=mode) == NEW
    assert await line.outcome("a") is None
    assert await line.stage("a") == "waiting"


async def test_a_put_over_garbage_heals_it(line: Line):
    await line.put("a")
    await line.spoil("a", b"junk")
    assert await line.put("a", 100, mode=REPLACE) == CHANGED
    assert (await line.job("a")).name == "tests.handler"
    assert await line.not_before("a") == line.now + 100


async def test_a_record_that_lost_its_stage_is_put_back_in_line(line: Line):
    await line.put("a")
    await line.store.client.delete(line.keys["waiting"])
    assert await line.put("a", 100, mode=UPDATE) == CHANGED
    assert await line.stage("a") == "waiting"


async def test_a_due_time_at_the_epoch_is_a_time_like_any_other(line: Line):
    await line.put("a")
    claim = await line.take("a")
    await line.raw("job_put", [packed("a", record(), 0, mode=REPLACE)])
    await line.finish(claim)
    assert await line.stage("a") == "waiting"
