"""Rows of `tocsin bench` for requests: rate, delay, memory, and the effect of a host that hangs."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from array import array
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tocsin.app import Tocsin
from tocsin.bench.measure import Measure, own_cpu, percentile, until
from tocsin.config import Config
from tocsin.config.schema import HttpGroup as Settings
from tocsin.engine.work_item import WorkItem
from tocsin.model.durations import moment
from tocsin.model.http import Http
from tocsin.model.target import HTTP
from tocsin.model.trigger import Every
from tocsin.worker import Worker

ROUNDS = 5
# Long enough that one per cent of the requests that are due in a turn are more than a dozen.
TURN_S = 4.0
# Schedules to the healthy hosts, and the interval of each.
OTHERS, OTHERS_EVERY_S = 120, 0.4
# Schedules to a host that hangs: more than a worker has permits. Within a turn their requests hang, time out and are
# sent again.
HANGING, HANGING_EVERY_S, HANGING_TIMEOUT_S = 150, 0.2, 2.0
CHUNK = 5000


class TargetBench:
    """Rows like those of `Bench` in engine.py, with hosts that answer and hosts that do not."""

    ROWS = ("requests", "requests_at_once", "requests_memory", "requests_beside_one_that_hangs")
    CONFIG = Config(http=Settings(allow=("127.0.0.0/8",)))

    def __init__(self, app: Tocsin, scale: float) -> None:
        self._app = app
        self._scale = scale
        self._rounds = max(2, round(ROUNDS * scale))

    def _n(self, full: int) -> int:
        return max(1000, int(full * self._scale))

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[tuple[Tocsin, _Hosts, Worker]]:
        async with _hosts(2, self._rounds) as hosts:
            worker = await self._app.worker(queues=["default"])
            await worker.start()
            try:
                yield self._app, hosts, worker
            finally:
                await worker.stop(grace=5)

    async def requests(self) -> list[Measure]:
        n = self._n(30_000)
        async with self._working() as (app, hosts, worker):
            await app.enqueue_many(Http, hosts.requests(n))
            # Leave out the first requests, which load modules and open connections.
            await until(lambda: worker.pool.ran >= n // 10)
            ran, began, cpu = worker.pool.ran, time.perf_counter(), own_cpu()
            await until(lambda: worker.pool.ran >= n and worker.finisher.idle())
            rate, cpu = (n - ran) / (time.perf_counter() - began), own_cpu() - cpu
        return [
            Measure("requests from one worker to a local server", rate, "runs/s", 3000),
            Measure("  the worker's CPU per request", cpu / (n - ran) * 1e6, "us"),
        ]

    async def requests_at_once(self) -> list[Measure]:
        n = self._n(10_000)
        async with self._working() as (app, hosts, worker):
            due = int(app.store.clock.server_ms()) + 2000
            await app.enqueue_many(Http, hosts.requests(n), at=moment(due))
            await until(lambda: worker.pool.ran >= n)
            took = (app.store.clock.server_ms() - due) / 1000
        return [Measure(f"{n} requests due at once: all delivered after", took, "s", 6 * n / 10_000, at_least=False)]

    async def requests_memory(self) -> list[Measure]:
        """By how much the process has grown since the first tenth of the requests."""
        n = self._n(200_000)
        async with self._working() as (app, hosts, worker):
            put, first = 0, 0.0
            while worker.pool.ran < n:
                if put < n and put - worker.pool.ran < CHUNK:
                    put += await app.enqueue_many(Http, hosts.requests(min(CHUNK, n - put)))
                if not first and worker.pool.ran >= n // 10:
                    first = _memory()
                await asyncio.sleep(0.01)
            grown = _memory() - first
        return [Measure(f"memory over {n} requests: growth", grown, "MiB", 20, at_least=False)]

    async def requests_beside_one_that_hangs(self) -> list[Measure]:
        """Time from due to answered of requests to healthy hosts, in turns without and beside a host that hangs."""
        async with self._working() as (app, hosts, worker):
            rows = ((f"other-{i}", Every(OTHERS_EVERY_S), request) for i, request in enumerate(hosts.requests(OTHERS)))
            await app.schedule_many(Http, rows, jitter=OTHERS_EVERY_S)
            took = _Took(worker, app)
            await asyncio.sleep(2 * OTHERS_EVERY_S)
            alone, beside = [], []
            for silent in hosts.silent:
                alone.append(await took.turn())
                # Use another host in each round, because the worker remembers hosts that hang.
                target = Http.post(f"http://127.0.0.1:{silent}/", timeout=HANGING_TIMEOUT_S)
                names = [f"hanging-{silent}-{i}" for i in range(HANGING)]
                rows = ((name, Every(HANGING_EVERY_S), target) for name in names)
                await app.schedule_many(Http, rows, jitter=HANGING_EVERY_S)
                await asyncio.sleep(2 * HANGING_EVERY_S)
                beside.append(await took.turn())
                await asyncio.gather(*map(app.remove, names))
                await took.settled()
        # The median over the turns, because one hiccup of the machine spoils the p99 of its turn.
        without = [percentile(took.of(turn), 99) for turn in alone]
        times = [percentile(took.of(turn), 99) / p99 for turn, p99 in zip(beside, without, strict=True)]
        return [
            Measure("requests, from due to answered, p99", statistics.median(without), "ms"),
            Measure("  beside a host that hangs against without", statistics.median(times), "", 1.2, at_least=False),
        ]


class _Hosts:
    def __init__(self, good: list[int], silent: list[int]) -> None:
        self.silent = silent
        self._requests = [Http.post(f"http://127.0.0.1:{port}/hook", json={"due": "{run.due}"}) for port in good]

    def requests(self, n: int) -> Iterator[Http]:
        """`n` requests, to each of the good hosts in turn."""
        return (self._requests[number % len(self._requests)] for number in range(n))


@asynccontextmanager
async def _hosts(good: int, silent: int) -> AsyncIterator[_Hosts]:
    words = [sys.executable, "-m", "tocsin.bench.responder", str(good), str(silent)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    ports = [int(port) for port in (await process.stdout.readline()).split()]
    try:
        yield _Hosts(ports[:good], ports[good:])
    finally:
        process.stdin.close()
        await process.wait()


class _Took:
    """Records the milliseconds from due to answered of every request that was answered."""

    def __init__(self, worker: Worker, app: Tocsin) -> None:
        self._clock = app.store.clock
        # A flat list of pairs: the due time, and the milliseconds from then to the answer.
        self._found = array("d")
        self._inside = 0
        handler = worker.catalog.get(HTTP)
        assert handler is not None
        self._deliver = handler.deliver
        handler.deliver = self._timed

    async def _timed(self, unit: WorkItem) -> Any:
        self._inside += 1
        try:
            answer = await self._deliver(unit)
        finally:
            self._inside -= 1
        self._found.extend((unit.claim.due, self._clock.server_ms() - unit.claim.due))
        return answer

    async def turn(self) -> tuple[float, float]:
        """Let TURN_S pass. Returns its begin and end on the server's clock."""
        began = self._clock.server_ms()
        await asyncio.sleep(TURN_S)
        return began, self._clock.server_ms()

    async def settled(self) -> None:
        """Wait until the hanging requests have ended. The others are quick, so at some moment no request is running."""
        await until(lambda: not self._inside, 0.0005)

    def of(self, turn: tuple[float, float]) -> list[float]:
        """Milliseconds of the requests that were due within the turn, whenever they were answered."""
        began, ended = turn
        found = zip(self._found[::2], self._found[1::2], strict=True)
        return [took for due, took in found if began <= due < ended]


def _memory() -> float:
    """MiB of memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
