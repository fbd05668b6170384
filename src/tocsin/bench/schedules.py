"""Rows of `tocsin bench` for schedules: the time to find the next tick, and to add a million schedules in bulk."""

from __future__ import annotations

import statistics
import time
from datetime import UTC, datetime

from tocsin.app import Tocsin
from tocsin.bench.measure import Measure
from tocsin.config import Config
from tocsin.model.trigger import Cron
from tocsin.triggers.next_tick import next_after

COMMON = ("* * * * *", "*/5 * * * *", "0 * * * *", "30 2 * * *", "0 9 * * mon-fri", "0 0 1 * *", "0 12 * * 5L")
RARE = ("0 0 29 2 *", "0 0 31 12 sun#5", "0 0 1 1 *")
ZONE = "Europe/Paris"
BEGIN = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())


class ScheduleBench:
    """Rows like those of `Bench` in engine.py."""

    ROWS = ("next_times", "bulk_crons")
    CONFIG = Config()

    def __init__(self, app: Tocsin, scale: float) -> None:
        self._app = app
        self._scale = scale

    async def next_times(self) -> list[Measure]:
        return [
            Measure("next time of a common cron, median", _median(COMMON, 300), "us", 50, at_least=False),
            Measure("next time of a rare date, median", _median(RARE, 15), "us", 300, at_least=False),
        ]

    async def bulk_crons(self) -> list[Measure]:
        app = self._app
        n = max(10_000, int(1_000_000 * self._scale))

        @app.job(name="bench.scheduled")
        async def scheduled(number: int) -> None:
            pass

        rows = ((f"cron-{i}", Cron(f"{i % 60} {i // 60 % 24} * * *", tz=ZONE), (i,)) for i in range(n))
        began = time.perf_counter()
        await app.schedule_many(scheduled, rows, jitter="1m")
        took = time.perf_counter() - began
        return [Measure(f"{n} cron schedules added in", took, "s", 60 * n / 1_000_000, at_least=False)]


def _median(expressions: tuple[str, ...], ticks: int) -> float:
    """The median time of a search in microseconds.

    Each search starts at the tick before, so that no answer comes from a cache; the changes of the zone's clock in a
    year are cached after the first ones.
    """
    took = []
    for expression in expressions:
        cron, at = Cron(expression, tz=ZONE), BEGIN
        for _ in range(ticks):
            began = time.perf_counter()
            found = next_after(cron, at)
            took.append(time.perf_counter() - began)
            if found is None:
                break
            at = found
    return statistics.median(took) * 1e6
