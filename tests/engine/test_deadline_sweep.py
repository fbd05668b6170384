"""Zombies: runs that go on although they were told to stop at their deadline."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path

from tests.support.captured_logs import capture_logs
from tests.support.deadline_sweeps import ALWAYS, THRESHOLD_S, claim, look, recover, write_down
from tests.support.waiting import eventually, run_dry
from tocsin import Retry, Run
from tocsin.engine.deadline_sweep import ENDING_S, EXTENSION_S
from tocsin.upkeep.reaper import OVERDUE_S
from tocsin.upkeep.zombie_thresholds import ZombieThresholds, threshold_for


async def test_a_run_that_swallowed_its_cancellation_is_told_again_at_deadline_plus_threshold(
    tocsin_app, tocsin_clock, patient, stubborn
):
    inside = stubborn(swallows=1)

    @tocsin_app.job(timeout="30s", retry=Retry(1, "1h"))
    async def swallows_once():
        await inside.stay()

    handle = await tocsin_app.enqueue(swallows_once)
    worker = await patient()
    await claim(worker)
    await eventually(lambda: inside.told, "it runs")

    tocsin_clock.advance("30s")
    await look(worker)
    await look(worker)
    assert inside.told == {"": 1}
    tocsin_clock.advance(THRESHOLD_S - 0.1)
    await look(worker)
    assert inside.told == {"": 1}
    assert (worker.sweep.zombies, worker.pool.busy) == (0, 1)

    tocsin_clock.advance("100ms")
    with capture_logs() as logs:
        await look(worker)
    assert inside.told == {"": 2}
    assert (worker.sweep.zombies, worker.pool.busy) == (1, 0)
    assert [entry["past_s"] for entry in logs if "told again" in entry["event"]] == [THRESHOLD_S]
    # It is the first to say what became of it.
    assert await recover(worker) == 0
    await write_down(worker)
    job = await tocsin_app.get(handle.id)
    assert (job.stage, job.attempt, job.recoveries) == ("waiting", 2, 0)
    assert "timed out" in job.failure.error


async def test_a_zombie_is_told_every_interval_counted_once_and_refused_when_others_have_its_run(
    tocsin_app, tocsin_clock, patient, stubborn, make_worker
):
    inside, starts = stubborn(swallows=ALWAYS), []

    @tocsin_app.job(timeout="30s")
    async def never_listens():
        starts.append(1)
        if len(starts) == 2:
            return "second"
        await inside.stay()
        return "first"

    handle = await tocsin_app.enqueue(never_listens, id="n")
    worker = await patient(interval_s=120.0)
    other = await make_worker()
    await claim(worker)
    await eventually(lambda: inside.told, "it runs")

    tocsin_clock.advance("30s")
    for _ in range(3):
        await look(worker)
    assert inside.told == {"": 1}
    with capture_logs() as logs:
        tocsin_clock.advance(THRESHOLD_S)
        for told in (2, 3, 4):
            await look(worker)
            await look(worker)
            assert inside.told == {"": told}
            tocsin_clock.advance("119.9s")
            await look(worker)
            assert inside.told == {"": told}
            tocsin_clock.advance("100ms")
    assert worker.sweep.zombies == 1
    assert len([entry for entry in logs if "told again" in entry["event"]]) == 1

    assert await recover(other) == 1
    await run_dry(other)
    assert await handle.result() == "second"
    assert worker.pool.busy == 1
    inside.let_go()
    await eventually(lambda: worker.pool.busy == 0, "its permit is free")
    await write_down(worker)
    assert worker.finisher.lost == 1
    assert await handle.result() == "second"
    await look(worker)
    assert worker.sweep.zombies == 1


async def test_a_run_is_told_once_before_it_can_be_a_zombie(tocsin_app, tocsin_clock, patient, stubborn):
    """The first look may come late: the loop was busy, or the machine asleep."""
    inside = stubborn(swallows=1)

    @tocsin_app.job(timeout="30s")
    async def swallows_once():
        await inside.stay()

    await tocsin_app.enqueue(swallows_once)
    worker = await patient()
    await claim(worker)
    await eventually(lambda: inside.told, "it runs")
    tocsin_clock.advance("10m")
    await look(worker)
    assert (inside.told, worker.sweep.zombies) == ({"": 1}, 0)
    await look(worker)
    assert (inside.told, worker.sweep.zombies) == ({"": 2}, 1)


async def test_without_zombie_cleanup_a_run_is_told_once_and_recovered_as_ever(
    tocsin_app, tocsin_clock, patient, stubborn
):
    inside = stubborn(swallows=1)

    @tocsin_app.job(timeout="30s")
    async def swallows_once():
        await inside.stay()

    await tocsin_app.enqueue(swallows_once)
    worker = await patient(None)
    await claim(worker)
    await eventually(lambda: inside.told, "it runs")
    tocsin_clock.advance("30s")
    await look(worker)
    await look(worker)
    tocsin_clock.advance(OVERDUE_S)
    assert await recover(worker) == 1
    for _ in range(10):
        tocsin_clock.advance("1h")
        await look(worker)
    assert inside.told == {"": 1}
    assert (worker.sweep.zombies, worker.sweep.stuck, worker.pool.busy) == (0, 0, 1)
    inside.let_go()


async def test_exceptional_jobs_have_their_own_time_to_end_and_keep_their_claim_for_it(
    tocsin_app, tocsin_clock, patient, stubborn
):
    inside = stubborn(swallows=ALWAYS)

    @tocsin_app.job(timeout="30s")
    async def never_listens(run: Run):
        await inside.stay(run.job_id)

    rules = ZombieThresholds.of(30_000, "aws/.*", 3_600_000)
    for job_id in ("aws/slow", "quick"):
        await tocsin_app.enqueue(never_listens, id=job_id)
    worker = await patient(lambda member: threshold_for(member, rules) / 1000, interval_s=1e6)
    await claim(worker, 2)
    await eventually(lambda: len(inside.told) == 2, "both run")

    async def told_by(seconds_past_deadline: float) -> list[int]:
        tocsin_clock.move_to(deadline)
        tocsin_clock.advance(seconds_past_deadline)
        await look(worker)
        return [inside.told["aws/slow"], inside.told["quick"]]

    tocsin_clock.advance("30s")
    deadline = tocsin_clock.now
    assert await told_by(0) == [1, 1]
    await look(worker)
    assert await told_by(30) == [1, 2]
    tocsin_clock.advance(ENDING_S)
    assert await recover(worker) == 1
    assert (await tocsin_app.get("quick")).stage == "waiting"
    for past in range(60, 3600, 20):
        assert await told_by(past) == [1, 2]
        assert await recover(worker) == 0
    assert worker.sweep.zombies == 1

    assert await told_by(3600) == [2, 2]
    assert worker.sweep.zombies == 2
    assert await recover(worker) == 0
    # A zombie's claim is not kept any longer.
    assert await told_by(3600 + ENDING_S) == [2, 2]
    assert await recover(worker) == 1
    inside.let_go()


async def test_an_exceptional_run_that_ends_in_its_time_has_its_outcome(tocsin_app, tocsin_clock, patient, stubborn):
    inside = stubborn(swallows=1)

    @tocsin_app.job(timeout="30s")
    async def cleans_up_slowly():
        await inside.stay()
        return "cleaned up"

    handle = await tocsin_app.enqueue(cleans_up_slowly, id="kept")
    worker = await patient(lambda member: 3600.0)
    await claim(worker)
    await eventually(lambda: inside.told, "it runs")
    tocsin_clock.advance("30s")
    for _ in range(20):
        await look(worker)
        tocsin_clock.advance(EXTENSION_S / 2)
    assert await recover(worker) == 0
    inside.let_go()
    await eventually(lambda: worker.pool.busy == 0, "it has ended")
    await write_down(worker)
    assert await handle.result() == "cleaned up"


async def test_a_batch_is_a_zombie_when_its_most_patient_member_is(tocsin_app, tocsin_clock, patient, stubborn):
    inside = stubborn(swallows=1)

    @tocsin_app.job(timeout="30s", batch=5)
    async def together(runs: list[Run]):
        await inside.stay(f"{len(runs)} runs")

    for job_id in ("a", "slow", "z"):
        await tocsin_app.enqueue(together, id=job_id)
    worker = await patient(lambda member: 100.0 if member == "slow" else 10.0, concurrency=100)
    await claim(worker)
    await eventually(lambda: inside.told, "they run")
    tocsin_clock.advance("30s")
    await look(worker)
    for _ in range(3):
        await look(worker)
        tocsin_clock.advance("33s")
    await look(worker)
    assert inside.told == {"3 runs": 1}
    assert await recover(worker) == 0
    tocsin_clock.advance("1s")
    await look(worker)
    assert inside.told == {"3 runs": 2}
    assert worker.sweep.zombies == 1


async def test_a_run_that_extends_itself_after_it_was_told_is_no_zombie(tocsin_app, tocsin_clock, patient):
    extended, over, told = asyncio.Event(), asyncio.Event(), []

    @tocsin_app.job(timeout="30s")
    async def asks_for_more(run: Run):
        try:
            await over.wait()
        except asyncio.CancelledError:
            await run.extend("10m")
            extended.set()
        try:
            await over.wait()
        except asyncio.CancelledError:
            told.append(tocsin_clock.monotonic())
            raise

    await tocsin_app.enqueue(asks_for_more)
    worker = await patient()
    await claim(worker)
    await eventually(lambda: list(worker.pool.running()), "it runs")
    tocsin_clock.advance("30s")
    await look(worker)
    await extended.wait()
    await look(worker)
    tocsin_clock.advance("10m")
    await look(worker)
    assert told == []
    await look(worker)
    tocsin_clock.advance(THRESHOLD_S)
    await look(worker)
    assert told == [30 + 600 + THRESHOLD_S]


async def test_a_thread_past_the_threshold_stays_stuck_and_keeps_its_claim(tocsin_app, tocsin_clock, patient):
    door, begun = threading.Event(), threading.Event()

    @tocsin_app.job(timeout="30s")
    def stuck():
        begun.set()
        assert door.wait(20)
        return "late"

    handle = await tocsin_app.enqueue(stuck, id="kept")
    worker = await patient()
    await claim(worker)
    try:
        await eventually(begun.is_set, "it runs")
        tocsin_clock.advance("30s")
        for _ in range(6):
            await look(worker)
            await look(worker)
            assert await recover(worker) == 0
            assert (worker.sweep.stuck, worker.sweep.zombies, worker.pool.busy) == (1, 0, 1)
            tocsin_clock.advance(EXTENSION_S / 2)
    finally:
        door.set()
    await eventually(lambda: worker.pool.busy == 0, "it has ended")
    await write_down(worker)
    assert await handle.result() == "late"
    await look(worker)
    assert worker.sweep.stuck == 0


def ignores_sigterm(folder):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(folder, f"{os.getpid()}").touch()
    threading.Event().wait()


async def test_a_process_that_ignores_its_end_is_killed_long_before_it_could_be_a_zombie(
    tocsin_app, tocsin_clock, patient, tmp_path
):
    job = tocsin_app.job(executor="process", timeout="30s")(ignores_sigterm)
    await tocsin_app.enqueue(job, str(tmp_path))
    worker = await patient()
    await claim(worker)
    [file] = await eventually(lambda: list(tmp_path.iterdir()), "it runs", within=60)
    tocsin_clock.advance("30s")
    await look(worker)
    await eventually(lambda: worker.pool.busy == 0, "its permit is free")

    def gone() -> bool:
        try:
            os.kill(int(file.name), 0)
        except ProcessLookupError:
            return True
        return False

    await eventually(gone, "its process is gone", within=20)
    tocsin_clock.advance(THRESHOLD_S)
    await look(worker)
    assert worker.sweep.zombies == 0
