"""Passes over runs that are past their deadline: each stops the right run, and ends with its budget."""

from __future__ import annotations

import asyncio
import threading

from tests.support.deadline_sweeps import ALWAYS, THRESHOLD_S, claim, look, write_down
from tests.support.stepping_clock import SteppingClock
from tests.support.waiting import eventually
from tocsin import Retry, Run
from tocsin.engine.deadline_sweep import AGAIN_S


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


async def test_a_pass_over_zombies_ends_with_its_budget_and_the_next_goes_on(
    tocsin_app, tocsin_clock, patient, stubborn
):
    inside = stubborn(swallows=ALWAYS)

    @tocsin_app.job(timeout="30s")
    async def never_listens(run: Run):
        await inside.stay(run.job_id)

    for n in range(5):
        await tocsin_app.enqueue(never_listens, id=f"{n}")
    worker = await patient(clock=SteppingClock(tocsin_clock), budget_s=2.0)
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
