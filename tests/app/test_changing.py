"""`remove`, `pause` and `resume`: in each stage, and while a run is under way."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tests.support.waiting import Gate, eventually
from tocsin import Every, Retry
from tocsin.testing import run_until_idle


@pytest.fixture
async def held(tocsin_app):
    """A handler whose runs wait at a gate, and a worker that runs what is due until then."""
    gate, working = Gate(), []

    @tocsin_app.job(name="held")
    async def held(what=None, *, fail=False):
        await gate.enter(what)
        if fail:
            raise ValueError("asked to")
        return what

    async def work() -> None:
        working.append(asyncio.create_task(run_until_idle(tocsin_app)))
        await eventually(lambda: gate.inside, "it runs")

    async def end() -> None:
        gate.open()
        await asyncio.gather(*working)

    held.work, held.end, held.gate = work, end, gate
    yield held
    await end()


async def stage(app, job_id="j") -> str | None:
    job = await app.get(job_id)
    return None if job is None else job.stage.value


@pytest.fixture
def put_in(tocsin_app, stranger, note):
    """Puts a job `j` into a stage."""

    async def put(name: str) -> None:
        delay, fail = "1h" if name == "waiting" else 0, "x" if name == "dead" else None
        await tocsin_app.enqueue(note, "x", id="j", delay=delay, fail=fail)
        if name == "paused":
            await tocsin_app.pause("j")
        elif name == "dead":
            await run_until_idle(tocsin_app)
        elif name == "parked":
            await run_until_idle(stranger)
        assert await stage(tocsin_app) == name

    return put


STAGES = ["waiting", "paused", "parked", "dead"]


@pytest.mark.parametrize("name", STAGES)
async def test_a_removed_job_is_gone(tocsin_app, tocsin_clock, put_in, ran, name):
    await put_in(name)
    before = len(ran)
    assert await tocsin_app.remove("j")
    assert await tocsin_app.get("j") is None
    assert not await tocsin_app.remove("j")
    tocsin_clock.advance("2h")
    assert await run_until_idle(tocsin_app) == 0
    assert len(ran) == before
    assert [job async for job in tocsin_app.jobs()] == []


async def test_what_is_not_there_cannot_be_changed(tocsin_app):
    assert not await tocsin_app.remove("nobody")
    assert not await tocsin_app.pause("nobody")
    assert not await tocsin_app.resume("nobody")
    assert not await tocsin_app.update("nobody", tenant="t")


async def test_a_removed_job_can_be_put_again(tocsin_app, note, ran):
    await tocsin_app.enqueue(note, 1, id="j", delay="1h")
    await tocsin_app.remove("j")
    assert (await tocsin_app.enqueue(note, 2, id="j")).new
    await run_until_idle(tocsin_app)
    assert ran == [2]


async def test_a_job_that_is_removed_while_it_runs_ends_its_run_and_is_gone(tocsin_app, tocsin_clock, held):
    await tocsin_app.schedule(held, Every("1m"), "x", id="j")
    tocsin_clock.advance("1m")
    await held.work()
    assert await tocsin_app.remove("j")
    assert not await tocsin_app.remove("j")
    await held.end()
    assert held.gate.passed == 1
    assert await tocsin_app.get("j") is None


async def test_a_job_that_is_removed_while_it_fails_is_not_tried_again(tocsin_app, held):
    await tocsin_app.enqueue(held, "x", fail=True, id="j", retry=Retry(5, 0))
    await held.work()
    await tocsin_app.remove("j")
    await held.end()
    assert held.gate.passed == 1
    assert await tocsin_app.get("j") is None


async def test_a_paused_one_shot_waits_and_keeps_its_due_time_when_it_is_resumed(tocsin_app, tocsin_clock, note, runs):
    due = tocsin_clock.now + timedelta(minutes=1)
    await tocsin_app.enqueue(note, id="j", at=due)
    assert await tocsin_app.pause("j")
    assert await tocsin_app.pause("j")
    job = await tocsin_app.get("j")
    assert (job.stage, job.due) == ("paused", due)
    tocsin_clock.advance("1h")
    assert await run_until_idle(tocsin_app) == 0
    assert await tocsin_app.resume("j")
    assert await run_until_idle(tocsin_app) == 1
    assert runs[0].due == due


@pytest.mark.parametrize("misfire", ["coalesce", "skip", "all"])
async def test_a_resumed_schedule_waits_for_its_next_time_and_fires_nothing_at_once(
    tocsin_app, tocsin_clock, note, misfire
):
    await tocsin_app.schedule(note, Every("1m"), id="j", misfire=misfire)
    await tocsin_app.pause("j")
    tocsin_clock.advance("10m30s")
    assert await tocsin_app.resume("j")
    assert await run_until_idle(tocsin_app) == 0
    job = await tocsin_app.get("j")
    assert (job.stage, job.due_ms - tocsin_clock.ms) == ("waiting", 30_000)


async def test_a_resumed_schedule_that_is_not_due_yet_keeps_its_due_time(tocsin_app, tocsin_clock, note):
    await tocsin_app.schedule(note, Every("1m"), id="j")
    due = (await tocsin_app.get("j")).due
    tocsin_clock.advance("10s")
    await tocsin_app.pause("j")
    tocsin_clock.advance("10s")
    await tocsin_app.resume("j")
    assert (await tocsin_app.get("j")).due == due


@pytest.mark.parametrize(("misfire", "replayed"), [("coalesce", 1), ("all", 10)])
async def test_a_schedule_that_is_resumed_with_replay_runs_what_it_missed(
    tocsin_app, tocsin_clock, note, runs, misfire, replayed
):
    await tocsin_app.schedule(note, Every("1m"), id="j", misfire=misfire)
    due = (await tocsin_app.get("j")).due
    await tocsin_app.pause("j")
    tocsin_clock.advance("10m30s")
    assert await tocsin_app.resume("j", replay=True)
    assert await run_until_idle(tocsin_app) == replayed
    assert runs[0].due == due


async def test_a_schedule_whose_end_passed_while_it_was_paused_fires_nothing_when_it_is_resumed(
    tocsin_app, tocsin_clock, note
):
    await tocsin_app.schedule(note, Every("1m"), id="j", ends=tocsin_clock.now + timedelta(minutes=2))
    await tocsin_app.pause("j")
    tocsin_clock.advance("10m")
    await tocsin_app.resume("j")
    assert await run_until_idle(tocsin_app) == 0


async def test_what_was_not_paused_is_left_alone_by_resume(tocsin_app, tocsin_clock, note):
    await tocsin_app.schedule(note, Every("1m"), id="j")
    before = await tocsin_app.get("j")
    tocsin_clock.advance("5m")
    assert await tocsin_app.resume("j")
    assert await tocsin_app.get("j") == before


async def test_a_job_that_is_paused_while_it_runs_ends_its_run_first(tocsin_app, tocsin_clock, held):
    await tocsin_app.schedule(held, Every("1m"), "x", id="j")
    tocsin_clock.advance("1m")
    await held.work()
    assert await tocsin_app.pause("j")
    assert await stage(tocsin_app) == "working"
    await held.end()
    job = await tocsin_app.get("j")
    assert (job.stage, job.succeeded) == ("paused", 1)
    assert job.due_ms == tocsin_clock.ms + 60_000


async def test_a_pause_during_a_run_can_be_taken_back(tocsin_app, tocsin_clock, held):
    await tocsin_app.schedule(held, Every("1m"), "x", id="j")
    tocsin_clock.advance("1m")
    await held.work()
    await tocsin_app.pause("j")
    await tocsin_app.resume("j")
    await held.end()
    assert await stage(tocsin_app) == "waiting"


async def test_a_one_shot_that_is_paused_while_it_fails_keeps_its_attempts(tocsin_app, tocsin_clock, held):
    await tocsin_app.enqueue(held, "x", fail=True, id="j", retry=Retry(5, "1s"))
    await held.work()
    await tocsin_app.pause("j")
    await held.end()
    job = await tocsin_app.get("j")
    assert (job.stage, job.attempt) == ("paused", 2)
    await tocsin_app.resume("j")
    tocsin_clock.advance("1s")
    assert await run_until_idle(tocsin_app) == 1
    assert (await tocsin_app.get("j")).attempt == 3


async def test_a_dead_job_cannot_be_paused_and_stays_dead(tocsin_app, put_in):
    await put_in("dead")
    assert await tocsin_app.pause("j")
    assert await stage(tocsin_app) == "dead"


async def test_a_parked_job_can_be_paused(tocsin_app, put_in):
    await put_in("parked")
    assert await tocsin_app.pause("j")
    assert await run_until_idle(tocsin_app) == 0
    await tocsin_app.resume("j")
    assert await run_until_idle(tocsin_app) == 1


async def test_a_paused_queue_gives_nothing_until_it_is_resumed(tocsin_app, note, ran):
    await tocsin_app.enqueue(note, 1)
    assert await tocsin_app.pause_queue("default")
    assert not await tocsin_app.pause_queue("default")
    assert await run_until_idle(tocsin_app) == 0
    assert await tocsin_app.resume_queue("default")
    assert not await tocsin_app.resume_queue("default")
    assert await run_until_idle(tocsin_app) == 1
    assert not await tocsin_app.pause_queue("no-such-queue")
