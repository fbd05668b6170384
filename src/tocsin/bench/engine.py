"""Rows of `tocsin bench` for one queue: throughput, latency and cost.

One embedded server, one process that both enqueues and works, a handler that does nothing, 200-byte payloads. Absolute
numbers depend on the machine; compare machines by the ratios within one run.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from array import array
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

from tocsin.app import Tocsin, job_options
from tocsin.bench.measure import PAYLOAD, Measure, commands_sent, own_cpu, percentile, until
from tocsin.config import Config
from tocsin.engine.handlers import Handler
from tocsin.engine.outcome_queue import MOST_UNWRITTEN
from tocsin.engine.work_item import WorkItem
from tocsin.model import msgpack
from tocsin.model.clock import Clock
from tocsin.model.durations import moment
from tocsin.model.outcome import SUCCEEDED
from tocsin.model.queue import Queue
from tocsin.model.trigger import Every
from tocsin.store.scripts.script import script
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.claims import ClaimReply, ClaimRequest, Runs
from tocsin.store.transitions.settle import finish_item
from tocsin.worker import Worker, WorkerSettings
from tocsin.worker.frozen_objects import freeze_loaded_objects

SMALL_PAYLOAD = "x" * 95


class Bench:
    """The method named like a row measures it, on an empty server and with a new app."""

    # In an order in which no row disturbs the next.
    ROWS = (
        "drain",
        "one_by_one",
        "burst",
        "idle_latency",
        "steady",
        "idle_worker",
        "recurring",
        "memory",
        "cpu_by_size",
    )
    CONFIG = Config()

    def __init__(self, app: Tocsin, scale: float) -> None:
        self._app = app
        self._scale = scale
        # For each run, monotonic ms at its start minus its due time. An array of numbers, because the collection of
        # many objects would be measured too.
        self.starts = array("d")
        self._started = 0.0

        app.queue("bare")
        # A queue for very many jobs needs more partitions (docs/operate/sizing.md).
        app.queue("large", partitions=16)

        @app.job(name="bench.nothing")
        async def nothing(payload: str) -> None:
            pass

        self._nothing: Handler = nothing

    @property
    def _store(self) -> Store:
        return self._app.store

    def _n(self, full: int) -> int:
        return max(1000, int(full * self._scale))

    # Throughput

    async def drain(self) -> list[Measure]:
        n = self._n(200_000)
        bare = await self._bare(n)
        began = time.perf_counter()
        await self._app.enqueue_many(self._nothing, ((PAYLOAD,) for _ in range(n)))
        put = n / (time.perf_counter() - began)
        async with self._worker() as worker:
            began = time.perf_counter()
            most, finisher = 0, worker.finisher
            while worker.pool.ran < n or not finisher.idle():
                most = max(most, finisher.outcomes.count)
                await asyncio.sleep(0.002)
            drained = n / (time.perf_counter() - began)
        return [
            Measure("bulk put", put, "jobs/s", 80_000),
            Measure("drain, counted when written down", drained, "runs/s", 80_000),
            Measure("  executed and not written down, at most", most, "runs", MOST_UNWRITTEN, at_least=False),
            Measure("the same scripts called bare", bare, "runs/s"),
            Measure("drain against bare", drained / bare, "", 0.45),
        ]

    async def _bare(self, n: int) -> float:
        """Claim and finish in batches of 1000 without a worker around them."""
        queue = await self._store.open_queue(Queue("bare"))
        await self._app.enqueue_many(self._nothing, ((PAYLOAD,) for _ in range(n)), queue="bare")
        runs = Runs(self._store, "bare.1")
        began, done = time.perf_counter(), 0
        while done < n:
            for partition in range(queue.partitions):
                [answer] = await runs.claim([ClaimRequest(queue, partition, 1000)], lease=1e15)
                assert isinstance(answer, ClaimReply)
                if answer.claims:
                    items = [finish_item(claim, 0, SUCCEEDED) for claim in answer.claims]
                    await self._store.call(runs.settle("finish", queue, partition, items))
                    done += len(items)
        return n / (time.perf_counter() - began)

    async def one_by_one(self) -> list[Measure]:
        """Measures both in turns, so that a machine that gets quicker or slower changes both alike."""
        rounds, n = 20, self._n(10_000) // 20
        bare = puts = 0.0
        for turn in range(rounds):
            bare += await self._bare_calls(turn * n, n)
            began = time.perf_counter()
            for _ in range(n):
                await self._app.enqueue(self._nothing, PAYLOAD, delay=3600)
            puts += time.perf_counter() - began
        return [
            Measure("put one by one, awaited", rounds * n / puts, "jobs/s"),
            Measure("put one by one against a bare EVALSHA", bare / puts, "", 0.7),
        ]

    async def _bare_calls(self, first: int, n: int) -> float:
        """Seconds for `n` calls of the script of a put with the same arguments, straight through redis-py."""
        queue = await self._store.open_queue(Queue("bare"))
        put, keys = script("job_put"), queue.keys_of(script("job_put"), 0)
        record = msgpack.text(job_options.define_job(self._nothing, (PAYLOAD,), {}).record(keep=0, recurring=False))
        began = time.perf_counter()
        for number in range(first, first + n):
            parts = [msgpack.text(b"bare-%d" % number), msgpack.integer(3_600_000), b"\x01", b"\x00", b"\x00", record]
            args = [queue.epochs[0], "", "bare", number + 1, msgpack.array(6, parts)]
            await self._store.client.evalsha(put.sha, len(keys), *keys, *args)  # type: ignore[arg-type]
        return time.perf_counter() - began

    async def recurring(self) -> list[Measure]:
        """100 000 schedules, spread evenly, whose interval makes a little more than 60 000 runs a second due."""
        n, offered, seconds = self._n(100_000), 61_000 * min(1.0, self._scale * 4), 10
        interval = Every(n / offered)
        rows = ((f"schedule-{number:023d}", interval, (PAYLOAD,)) for number in range(n))
        await self._app.schedule_many(self._nothing, rows, jitter=interval.interval)
        async with self._worker() as worker:
            # First let the worker catch up with the runs that fell due while the schedules were added.
            await asyncio.sleep(2 * interval.interval + 2)
            before, self.starts, began = worker.pool.ran, array("d"), time.perf_counter()
            marks, processor = [0], _processor()
            for _ in range(seconds):
                await asyncio.sleep(1)
                marks.append(len(self.starts))
            rate = (worker.pool.ran - before) / (time.perf_counter() - began)
            late, stolen = self._lateness(), _stolen(processor, _processor())
        # A machine that stalls now and then spoils the p99 of the whole, but not that of the median second.
        each = [percentile(late[first:to], 99) for first, to in itertools.pairwise(marks) if to > first]
        return [
            Measure(f"recurring, {n} schedules", rate, "runs/s", 60_000 * min(1.0, self._scale * 4)),
            Measure("  lateness p99", percentile(late, 99), "ms", 20, at_least=False),
            Measure("  lateness p99 in the median second", percentile(each, 50), "ms", 20, at_least=False),
            Measure("  taken from this machine by its host meanwhile", stolen, "% of the time"),
        ]

    # Latency

    async def burst(self) -> list[Measure]:
        n = self._n(10_000)
        async with self._worker(warm=True):
            server_now = self._store.clock.server_ms()
            due = int(server_now) + 1500
            await self._app.enqueue_many(self._nothing, ((PAYLOAD,) for _ in range(n)), at=moment(due))
            self.starts = array("d")
            await until(lambda: len(self.starts) >= n)
            last = max(self._lateness()) / 1000
        return [Measure(f"{n} due at once: the last starts after", last, "s", 0.2, at_least=False)]

    async def idle_latency(self) -> list[Measure]:
        async with self._worker(warm=True):
            waits = []
            for _ in range(300):
                await asyncio.sleep(0.01)
                self.starts = array("d")
                began = time.monotonic()
                await self._app.enqueue(self._nothing, PAYLOAD)
                await until(lambda: bool(self.starts), 0.0002)
                waits.append((self._started - began) * 1000)
        return [Measure("idle: from enqueue to start, p99", percentile(waits, 99), "ms", 5, at_least=False)]

    async def steady(self) -> list[Measure]:
        async with self._worker(warm=True):
            self.starts = array("d")
            for _ in range(500):
                await self._app.enqueue(self._nothing, PAYLOAD, delay=0.5)
                await asyncio.sleep(0.01)
            await until(lambda: len(self.starts) >= 500)
            late = self._lateness()
        return [Measure("at 100 runs/s: lateness p99", percentile(late, 99), "ms", 5, at_least=False)]

    async def idle_worker(self) -> list[Measure]:
        async with self._worker(warm=True):
            await asyncio.sleep(1)
            seconds = 10.0
            cpu = own_cpu()
            await asyncio.sleep(seconds)
            cpu = own_cpu() - cpu
            commands = await commands_sent(self._store, seconds)
        return [
            Measure("idle worker: CPU", 100 * cpu / seconds, "%", 1, at_least=False),
            Measure("idle worker: commands", commands, "/s", 10, at_least=False),
        ]

    # Cost

    async def memory(self) -> list[Measure]:
        n = self._n(200_000)
        before = await self._info("memory", "used_memory")
        rows = ((f"schedule-{number:023d}", Every("1h"), (SMALL_PAYLOAD,)) for number in range(n))
        await self._app.schedule_many(self._nothing, rows)
        used = await self._info("memory", "used_memory") - before
        return [Measure("memory per schedule", used / n, "bytes", 420, at_least=False)]

    async def cpu_by_size(self) -> list[Measure]:
        """The server's CPU per run of the same scripts, with few and with many schedules in the queue."""
        few, many = self._n(10_000), self._n(1_000_000)
        small = await self._cpu_per_run(few, few)
        await self._store.client.execute_command("FLUSHALL", "SYNC")
        await self._store.reopen(await self._large())
        large = await self._cpu_per_run(many, few)
        return [
            Measure(f"server CPU per run, {few} schedules", small, "us"),
            Measure(f"server CPU per run, {many} schedules", large, "us"),
            Measure("  the one against the other", large / small, "", 2, at_least=False),
        ]

    async def _cpu_per_run(self, schedules: int, wanted: int) -> float:
        rows = ((f"schedule-{number:023d}", Every("1h"), (PAYLOAD,)) for number in range(schedules))
        await self._app.schedule_many(self._nothing, rows, jitter="1h", queue="large")
        # On this later clock all schedules are due at once, and the scripts claim them in the order of their due times.
        self._store.clock, real = _Later(self._store.clock, 2 * 3_600_000), self._store.clock
        try:
            return await self._claim_and_finish(wanted)
        finally:
            self._store.clock = real

    async def _large(self) -> OpenQueue:
        return await self._store.open_queue(Queue("large", partitions=16))

    async def _claim_and_finish(self, wanted: int) -> float:
        queue = await self._large()
        runs = Runs(self._store, "cpu.1")
        began, done, partition = await self._server_cpu(), 0, 0
        while done < wanted:
            partition = (partition + 1) % queue.partitions
            [answer] = await runs.claim([ClaimRequest(queue, partition, 100)], lease=1e15)
            assert isinstance(answer, ClaimReply)
            items = [finish_item(claim, answer.now + 3_600_000, SUCCEEDED) for claim in answer.claims]
            await self._store.call(runs.settle("finish", queue, partition, items))
            done += len(items)
        return (await self._server_cpu() - began) / done * 1e6

    # Helpers

    @asynccontextmanager
    async def _worker(self, warm: bool = False) -> AsyncIterator[Worker]:
        worker = await self._app.worker(queues=["default"], settings=WorkerSettings())
        handler = worker.catalog.get(self._nothing.name)
        assert handler is not None
        deliver = handler.deliver

        def timed(unit: WorkItem) -> Awaitable[Any]:
            self._started = time.monotonic()
            self.starts.append(self._started * 1000 - unit.claim.due)
            return deliver(unit)

        self.starts = array("d")
        handler.deliver = timed
        await worker.start()
        freeze_loaded_objects()
        if warm:
            await self._app.enqueue_many(self._nothing, ((PAYLOAD,) for _ in range(1000)))
            await until(lambda: worker.pool.ran >= 1000 and worker.finisher.idle())
            await asyncio.sleep(0.1)
        try:
            yield worker
        finally:
            await worker.stop(grace=5)

    def _lateness(self) -> list[float]:
        """Milliseconds from due to start, on the server's clock."""
        offset = self._store.clock.server_ms() - time.monotonic() * 1000
        return [start + offset for start in self.starts]

    async def _info(self, section: str, field: str) -> float:
        return float((await self._store.client.info(section))[field])

    async def _server_cpu(self) -> float:
        return await self._info("cpu", "used_cpu_user") + await self._info("cpu", "used_cpu_sys")


class _Later:
    """The server's clock, `by_ms` ahead."""

    def __init__(self, clock: Clock, by_ms: int) -> None:
        self._clock = clock
        self._by_ms = by_ms

    def override(self) -> int | None:
        return int(self._clock.server_ms()) + self._by_ms

    def server_ms(self) -> float:
        return self._clock.server_ms() + self._by_ms

    def observe(self, server_ms: float, sent: float, received: float) -> None:
        """Ignored: scripts got their time from this clock, so their answers only repeat it."""

    def monotonic(self) -> float:
        return self._clock.monotonic()


def _processor() -> list[int]:
    """Ticks that the processors have spent so far, by kind of work; empty on systems without /proc/stat."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            return [int(ticks) for ticks in file.readline().split()[1:9]]
    except OSError:
        return []


def _stolen(before: list[int], after: list[int]) -> float:
    """Per cent of the time in which this virtual machine wanted to run but its host did not let it."""
    spent = [now - then for then, now in zip(before, after, strict=True)]
    return 100 * spent[-1] / max(sum(spent), 1) if spent else 0.0
