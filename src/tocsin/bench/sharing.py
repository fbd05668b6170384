"""Rows of `tocsin bench` for queues that share a worker: many queues, idle queues, and a queue beside a backlog."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tocsin.app import Tocsin
from tocsin.bench.measure import Measure, commands_sent, own_cpu, percentile
from tocsin.config import Config
from tocsin.worker import Worker, WorkerSettings

QUEUES = 300
OFFERED = 1000
SECONDS = 12.0
IDLE_S = 6.0
BULK_S = 0.01
OTHER_EVERY_S = 0.02


class SharingBench:
    """Rows like those of `Bench` in engine.py: one worker and queues, all with default settings."""

    ROWS = ("many_queues", "idle_queues", "beside_a_backlog")
    CONFIG = Config()

    def __init__(self, app: Tocsin, scale: float) -> None:
        self._app = app
        self._seconds = max(3.0, SECONDS * scale)

    async def many_queues(self) -> list[Measure]:
        """Time from enqueue to start of jobs that come one by one, each in another queue than the job before."""
        names = self._declare(QUEUES)
        waits: dict[str, list[float]] = {name: [] for name in names}

        @self._app.job(name="bench.stamp")
        async def stamp(name: str, put: float) -> None:
            waits[name].append((time.perf_counter() - put) * 1000)

        async with self._worker():
            for name in names:
                await self._app.enqueue(stamp, name, time.perf_counter(), queue=name)
            await asyncio.sleep(1)
            for each in waits.values():
                each.clear()
            began, sent, cpu = time.perf_counter(), 0, own_cpu()
            while (passed := time.perf_counter() - began) < self._seconds:
                # Every queue gets as many jobs as the others, so that their percentiles can be compared.
                due = [names[number * 7 % QUEUES] for number in range(sent, int(passed * OFFERED))]
                now = time.perf_counter()
                await asyncio.gather(*(self._app.enqueue(stamp, name, now, queue=name, keep=0) for name in due))
                sent += len(due)
                await asyncio.sleep(0.002)
            took, cpu = time.perf_counter() - began, own_cpu() - cpu
            while sum(map(len, waits.values())) < sent:
                await asyncio.sleep(0.01)
        each = [percentile(values, 99) for values in waits.values() if values]
        everything = [wait for values in waits.values() for wait in values]
        what, p99 = f"{QUEUES} queues, {sent / took:.0f} jobs/s: from enqueue to start, p99", percentile(everything, 99)
        return [
            Measure(what, p99, "ms", 100, at_least=False),
            Measure("  the p99 of the worst queue against the median queue's", max(each) / statistics.median(each), "",
                    2, at_least=False),
            Measure("  CPU of the process that puts and runs them", 100 * cpu / took, "%"),
        ]  # fmt: skip

    async def idle_queues(self) -> list[Measure]:
        """An idle worker of one queue writes only heartbeats; an idle worker of many queues should write no more."""
        async with self._worker(["default"]):
            alone = await self._changes(IDLE_S)
        async with self._worker(self._declare(QUEUES)):
            # Wait until the worker has looked at every queue once.
            await asyncio.sleep(2)
            cpu = own_cpu()
            changes = await self._changes(IDLE_S)
            cpu = own_cpu() - cpu
            commands = await commands_sent(self._app.store, IDLE_S)
        return [
            Measure(f"idle worker with {QUEUES} queues: commands", commands, "/s", 60, at_least=False),
            Measure("  CPU", 100 * cpu / IDLE_S, "%", 2, at_least=False),
            Measure("  changes written beyond those of a worker with one", max(0.0, changes - alone), "/s", 0.5,
                    at_least=False),
        ]  # fmt: skip

    async def beside_a_backlog(self) -> list[Measure]:
        """Time from enqueue to start in a queue beside one with more jobs than the worker gets through."""
        bulk_queue, other_queue = self._declare(2)
        waits: list[float] = []

        @self._app.job(name="bench.bulk", queue=bulk_queue)
        async def bulk() -> None:
            await asyncio.sleep(BULK_S)

        @self._app.job(name="bench.other", queue=other_queue)
        async def other(put: float) -> None:
            waits.append((time.perf_counter() - put) * 1000)

        backlog = int(2 * self._seconds * WorkerSettings().concurrency / BULK_S)
        await self._app.enqueue_many(bulk, (() for _ in range(backlog)))
        async with self._worker([bulk_queue, other_queue]) as worker:
            await asyncio.sleep(1)
            ran, began, sent = worker.pool.ran, time.perf_counter(), 0
            while time.perf_counter() - began < self._seconds:
                await self._app.enqueue(other, time.perf_counter())
                sent += 1
                await asyncio.sleep(OTHER_EVERY_S)
            rate = (worker.pool.ran - ran - sent) / (time.perf_counter() - began)
            while len(waits) < sent:
                await asyncio.sleep(0.01)
        return [
            Measure("beside a backlog of 10 ms handlers: from enqueue to start, p99", percentile(waits, 99), "ms", 100,
                    at_least=False),
            Measure("  the backlog meanwhile", rate, "runs/s"),
        ]  # fmt: skip

    def _declare(self, count: int) -> list[str]:
        return [self._app.queue(f"queue-{number:03d}").name for number in range(count)]

    async def _changes(self, seconds: float) -> float:
        """Changes per second to the data of the server."""
        client = self._app.store.client
        before = (await client.info("persistence"))["rdb_changes_since_last_save"]
        await asyncio.sleep(seconds)
        return float((await client.info("persistence"))["rdb_changes_since_last_save"] - before) / seconds

    @asynccontextmanager
    async def _worker(self, queues: list[str] | None = None) -> AsyncIterator[Worker]:
        worker = await self._app.worker(queues=queues, settings=WorkerSettings())
        await worker.start()
        try:
            yield worker
        finally:
            await worker.stop(grace=0)
