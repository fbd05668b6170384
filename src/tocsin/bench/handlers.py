"""Rows of `tocsin bench` for handlers: a worker's memory does not grow with its runs, and the cost of failing runs."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from tocsin.app import Tocsin
from tocsin.bench.measure import PAYLOAD, Measure, own_cpu, until
from tocsin.config import Config
from tocsin.engine.failure_reports import FailureReports
from tocsin.engine.handlers import Handler
from tocsin.engine.outcome import EndedRun
from tocsin.model.durations import Millis
from tocsin.model.run import Run
from tocsin.telemetry import log_output
from tocsin.worker import Worker, WorkerSettings
from tocsin.worker.frozen_objects import freeze_loaded_objects

MIB = 1024 * 1024


class HandlerBench:
    """Rows like those of `Bench` in engine.py."""

    ROWS = ("memory_of_handlers", "failing")
    CONFIG = Config()

    def __init__(self, app: Tocsin, scale: float) -> None:
        self._app = app
        self._scale = scale

    async def memory_of_handlers(self) -> list[Measure]:
        """By how much the process grows over `n` runs of each kind, after a tenth as many to warm up."""
        n = max(20_000, int(200_000 * self._scale))
        return [
            Measure(f"{n} runs of {kind}: memory", await self._growth(handler, n), "MiB", 10, at_least=False)
            for kind, handler in self._kinds().items()
        ]

    def _kinds(self) -> dict[str, Handler]:
        app = self._app

        @app.job(name="bench.plain")
        async def plain(payload: str) -> None:
            pass

        @app.job(name="bench.with_run")
        async def with_run(payload: str, run: Run) -> None:
            pass

        @app.job(name="bench.batch", batch=100)
        async def batch(runs: list[Run]) -> None:
            pass

        @app.job(name="bench.thread")
        def thread(payload: str, run: Run) -> None:
            pass

        return {
            "a plain handler": plain,
            "one that takes its run": with_run,
            "one that takes batches": batch,
            "one in threads": thread,
        }

    async def _growth(self, handler: Handler, n: int) -> float:
        await self._app.enqueue_many(handler, ((PAYLOAD,) for _ in range(n + n // 10)))
        async with self._worker() as worker:
            await until(lambda: worker.pool.ran >= n // 10)
            gc.collect()
            before = _resident()
            await until(lambda: worker.pool.ran >= n + n // 10 and worker.finisher.idle())
            gc.collect()
            return (_resident() - before) / MIB

    async def failing(self) -> list[Measure]:
        """With and without reports in turns, by processor time, so that other load on the machine does not count."""
        rounds, n = 5, max(1000, int(10_000 * self._scale))

        @self._app.job(name="bench.failing")
        async def failing(payload: str) -> None:
            raise ValueError("as it should")

        took, cpu = {True: 0.0, False: 0.0}, {True: 0.0, False: 0.0}
        with _log_thrown_away():
            for turn in range(2 * rounds):
                reported = turn % 2 == 0
                seconds, used = await self._failing(failing, n, reported)
                took[reported] += seconds
                cpu[reported] += used
        return [
            Measure("failing runs", rounds * n / took[True], "runs/s"),
            Measure("  against the same without logging and counting", cpu[False] / cpu[True], "", 0.9),
        ]

    async def _failing(self, handler: Handler, n: int, reported: bool) -> tuple[float, float]:
        """Seconds, and seconds of processor time of this process."""
        await self._app.enqueue_many(handler, ((PAYLOAD,) for _ in range(n)))
        async with self._worker() as worker:
            if not reported:
                clock = self._app.store.clock
                worker.finisher.failures = _NoReports(worker.parts.incarnation, "", clock, worker.tally)
            began, used = time.perf_counter(), own_cpu()
            await until(lambda: worker.pool.ran >= n and worker.finisher.idle())
            return time.perf_counter() - began, own_cpu() - used

    # Helpers

    @asynccontextmanager
    async def _worker(self) -> AsyncIterator[Worker]:
        worker = await self._app.worker(queues=["default"], settings=WorkerSettings())
        await worker.start()
        freeze_loaded_objects()
        try:
            yield worker
        finally:
            await worker.stop(grace=5)


class _NoReports(FailureReports):
    def report(self, ended: EndedRun, verb: str, due: Millis, now: Millis) -> None:
        """Neither log nor count."""


def _resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def _log_thrown_away() -> Iterator[None]:
    """Log at the level of workers, as to a file, but into /dev/null."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        log_output.set_up("info", nowhere)
        try:
            yield
        finally:
            log_output.set_up("warning")
