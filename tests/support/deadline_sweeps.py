"""Runs that do not end when they are cancelled, and the passes of a worker that looks after them."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace

import pytest

from tests.support.waiting import eventually
from tocsin.engine.deadline_sweep import DeadlineSweep, OverrunLimits
from tocsin.store.transitions.claims import Deadlines
from tocsin.upkeep.reaper import OVERDUE_S

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
