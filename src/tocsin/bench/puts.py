"""Rows of `tocsin bench` for many callers that put at the same time, as the handlers of a web server do."""

from __future__ import annotations

import asyncio
import time
from array import array

from tocsin.app import Tocsin
from tocsin.bench.measure import PAYLOAD, Measure, percentile
from tocsin.config import Config
from tocsin.engine.handlers import Handler

# As many puts at once as a busy web server has clients.
AT_ONCE = 1000
CALLERS = 200


class PutBench:
    """Rows like those of `Bench` in engine.py."""

    ROWS = ("concurrent_puts", "callers")
    CONFIG = Config()

    def __init__(self, app: Tocsin, scale: float) -> None:
        self._app = app
        self._scale = scale

        @app.job(name="bench.nothing")
        async def nothing(payload: str) -> None:
            pass

        self._nothing: Handler = nothing

    async def concurrent_puts(self) -> list[Measure]:
        """Puts one by one and at once in turns, so that a machine that gets quicker or slower changes both alike."""
        rounds, alone, most = self._n(100_000) // AT_ONCE, 50, self._n(100_000)
        await self._put()
        seconds_alone = seconds_together = 0.0
        for _ in range(rounds):
            began = time.perf_counter()
            for _ in range(alone):
                await self._put()
            seconds_alone += time.perf_counter() - began
            began = time.perf_counter()
            await asyncio.gather(*(self._put() for _ in range(AT_ONCE)))
            seconds_together += time.perf_counter() - began
        rate, one_by_one = rounds * AT_ONCE / seconds_together, rounds * alone / seconds_alone
        began = time.perf_counter()
        answers = await asyncio.gather(*(self._put() for _ in range(most)), return_exceptions=True)
        at_once = most / (time.perf_counter() - began)
        errors = sum(isinstance(answer, BaseException) for answer in answers)
        return [
            Measure(f"puts, {AT_ONCE} at once", rate, "jobs/s", 40_000),
            Measure("  against one by one", rate / one_by_one, "", 8),
            Measure(f"puts, {most} at once", at_once, "jobs/s"),
            Measure("  errors", errors, "", 0, at_least=False),
        ]

    async def callers(self) -> list[Measure]:
        """CALLERS tasks, each of which puts one job after the other."""
        await self._put()
        waits, stop = array("d"), time.perf_counter() + 3 * max(self._scale, 0.3)

        async def call() -> None:
            while (began := time.perf_counter()) < stop:
                await self._put()
                waits.append((time.perf_counter() - began) * 1000)

        await asyncio.gather(*(call() for _ in range(CALLERS)))
        median, late = percentile(list(waits), 50), percentile(list(waits), 99)
        return [
            Measure(f"{CALLERS} callers: a put takes, p50", median, "ms"),
            Measure("  p99 against p50", late / median, "", 5, at_least=False),
        ]

    async def _put(self) -> None:
        # With a delay, because a job that is due now would also wake workers.
        await self._app.enqueue(self._nothing, PAYLOAD, delay=3600)

    def _n(self, full: int) -> int:
        return max(1000, int(full * self._scale))
