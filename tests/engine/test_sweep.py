"""Zombies: runs that go on although they were told to stop at their deadline."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.waiting import eventually, run_dry
from logged import capture_logs
from tocsin import Retry, Run
from tocsin.engine.deadline_sweep import AGAIN_S, ENDING_S, EXTENSION_S, DeadlineSweep, OverrunLimits
from tocsin.store.transitions.claims import Deadlines
from tocsin.upkeep.reaper import OVERDUE_S
from tocsin.upkeep.zombie_thresholds import ZombieThresholds, threshold_for

THRESHOLD_S = 30.0
ALWAYS = math.inf


class Stubborn:
    """The inside of handlers that swallow so many cancellations and end by the next, or when they are let go."""

    def __init__(self, swallows: float) -> None:
        self.told: dict[str, int] = {}
        self._swallows = swallows
        self._over = asyncio.Event()

    async def stay(self, who: str = "") -> None:
        self.told[who] = 0
        while not self._over.is_set():
            try:
                await self._over.wait()
            except asyncio.CancelledError:
                self.told[who] += 1
                if self.told[who] > self._swallows:
                    raise

    def let_go(self) -> None:
        self._over.set()


@pytest.fixture
def stubborn():
    made = []

    def make(swallows: float) -> Stubborn:
        made.append(Stubborn(swallows))
        return made[-1]

    yield make
    for inside in made:
        inside.let_go()


@pytest.fixture
def patient(make_worker, tocsin_clock):
    """A worker that does nothing by itself, whose sweep knows zombies."""

    async def make(zombie_after=lambda member: THRESHOLD_S, *, wrap=lambda runs: runs, clock=tocsin_clock, **rules):
        worker = await make_worker(concurrency=rules.pop("concurrency", 10))
        patience = OverrunLimits(zombie_after, recovered_s=OVERDUE_S, **rules)
        incarnation = SimpleNamespace(runs=wrap(worker.parts.incarnation.runs))
        worker.sweep = DeadlineSweep(worker.pool, worker.finisher, incarnation, clock, patience)
        return worker

    return make


async def claim(worker, runs: int = 1) -> None:
    await asyncio.to_thread(worker.heart.beat)
    for served in worker.served.values():
        served.forget_dues()
    wanted = worker.fetcher.claimed + runs
    await eventually(lambda: _claimed(worker, wanted), "as many are claimed")


async def _claimed(worker, wanted: int) -> bool:
    await worker.fetcher.step()
    return worker.fetcher.claimed >= wanted


async def look(worker) -> None:
    """One pass, and what it told has arrived."""
    await worker.sweep.step()
    for _ in range(5):
        await asyncio.sleep(0)


async def write_down(worker) -> None:
    while not worker.finisher.idle():
        await worker.finisher.step()


async def recover(worker) -> int:
    """What the reaper brings back when it looks at deadlines."""
    brought = 0
    for served in worker.served.values():
        for partition in range(served.queue.partitions):
            brought += await worker.parts.incarnation.runs.recover(
                served.queue, partition, "", Deadlines(int(OVERDUE_S * 1000))
            )
    return brought


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


async def test_the_timer_of_a_run_never_touches_a_later_run_of_its_job(tocsin_app, tocsin_clock, patient):
    told, over, starts = [], asyncio.Event(), []

    @tocsin_app.job(timeout="30s", retry=Retry(1, 0))
    async def again(run: Run):
        starts.append(run.attempt)
        try:
            await over.wait()
        except asyncio.CancelledError:
            told.append(run.attempt)
            raise
        return run.cancelled

    handle = await tocsin_app.enqueue(again, id="kept")
    worker = await patient(lambda member: 10.0, concurrency=1)
    await claim(worker)
    await eventually(lambda: starts == [1], "the first attempt runs")
    tocsin_clock.advance("30s")
    await look(worker)
    assert told == [1]
    await write_down(worker)
    await claim(worker)
    await eventually(lambda: starts == [1, 2], "the second attempt runs, on the same runner")
    for _ in range(29):
        tocsin_clock.advance("1s")
        await look(worker)
    assert (told, worker.sweep.zombies) == ([1], 0)
    over.set()
    await eventually(lambda: worker.pool.busy == 0, "it has ended")
    await write_down(worker)
    assert await handle.result() is False


class Wrapped:
    """The runs of a worker, with something that happens before each extension."""

    def __init__(self, runs, before) -> None:
        self._runs = runs
        self._before = before

    async def extend(self, *args):
        await self._before()
        return await self._runs.extend(*args)


async def test_a_runner_that_goes_on_with_another_run_during_a_pass_is_not_stopped(tocsin_app, tocsin_clock, patient):
    """The pass waits for the server while it keeps the claim of a stuck thread."""
    door, over, begun, later, told = threading.Event(), asyncio.Event(), [], [], []

    @tocsin_app.job(timeout="10s")
    def stuck():
        begun.append("stuck")
        assert door.wait(20)

    @tocsin_app.job(timeout="30s")
    async def ends():
        begun.append("ends")
        await over.wait()

    @tocsin_app.job(timeout="30s")
    async def follows(run: Run):
        later.append(run)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.append(run.id)
            raise

    async def meanwhile() -> None:
        over.set()
        await eventually(lambda: worker.pool.busy == 1, "the other run has ended")
        await tocsin_app.enqueue(follows)
        await claim(worker)
        await eventually(lambda: later, "another has begun")

    await tocsin_app.enqueue(stuck)
    worker = await patient(wrap=lambda runs: Wrapped(runs, meanwhile), concurrency=2)
    await claim(worker)
    await tocsin_app.enqueue(ends)
    await claim(worker)
    await eventually(lambda: len(begun) == 2, "both run")
    tocsin_clock.advance("10s")
    await look(worker)
    tocsin_clock.advance("20s")
    try:
        await look(worker)
        assert len(later) == 1
        assert (told, later[0].cancelled) == ([], False)
    finally:
        door.set()


async def test_a_server_that_does_not_answer_keeps_no_other_run_from_its_deadline(
    tocsin_app, tocsin_clock, patient, stubborn, monkeypatch
):
    monkeypatch.setattr("tocsin.engine.deadline_sweep.CALL_S", 0.01)
    door, begun, tries, inside = threading.Event(), threading.Event(), [], stubborn(swallows=0)

    @tocsin_app.job(timeout="10s")
    def stuck():
        begun.set()
        assert door.wait(20)

    @tocsin_app.job(timeout="30s")
    async def listens():
        await inside.stay()

    async def no_answer() -> None:
        tries.append(tocsin_clock.monotonic())
        await asyncio.Event().wait()

    await tocsin_app.enqueue(stuck)
    await tocsin_app.enqueue(listens)
    worker = await patient(wrap=lambda runs: Wrapped(runs, no_answer))
    await claim(worker, 2)
    try:
        await eventually(lambda: begun.is_set() and inside.told, "both run")
        tocsin_clock.advance("10s")
        for _ in range(3):
            await asyncio.wait_for(look(worker), 2)
        assert tries == [10]
        tocsin_clock.advance(AGAIN_S)
        await look(worker)
        assert tries == [10, 10 + AGAIN_S]
        tocsin_clock.advance(20 - AGAIN_S)
        await look(worker)
        assert inside.told == {"": 1}
    finally:
        door.set()


class Ticking:
    """A clock on which a second passes with every look at it."""

    def __init__(self, clock) -> None:
        self._clock = clock

    def monotonic(self) -> float:
        self._clock.advance("1s")
        return self._clock.monotonic()


async def test_a_pass_over_zombies_ends_with_its_budget_and_the_next_goes_on(
    tocsin_app, tocsin_clock, patient, stubborn
):
    inside = stubborn(swallows=ALWAYS)

    @tocsin_app.job(timeout="30s")
    async def never_listens(run: Run):
        await inside.stay(run.job_id)

    for n in range(5):
        await tocsin_app.enqueue(never_listens, id=f"{n}")
    worker = await patient(clock=Ticking(tocsin_clock), budget_s=2.0)
    await claim(worker, 5)
    await eventually(lambda: len(inside.told) == 5, "all run")
    tocsin_clock.advance("30s")
    await look(worker)
    assert sorted(inside.told.values()) == [1, 1, 1, 1, 1]
    tocsin_clock.advance(THRESHOLD_S)
    for struck in (2, 4, 5, 5):
        await look(worker)
        assert worker.sweep.zombies == struck
        assert sum(inside.told.values()) == 5 + struck
    inside.let_go()
