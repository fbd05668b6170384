"""Rows of `tocsin bench` for agents: registration, many due at once, an idle fleet, upkeep over a million entries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from tocsin.app import Tocsin
from tocsin.bench.measure import Measure, commands_sent
from tocsin.config import Config
from tocsin.engine.handlers import Handler
from tocsin.model.queue import AGENTS_QUEUE
from tocsin.model.trigger import Every
from tocsin.worker import Worker
from tocsin.worker.settings import settings_of

REGISTERED = 1000
RUSH = 500
FLEET = 10


class AgentBench:
    """Rows like those of `Bench` in engine.py."""

    ROWS = ("registration", "rush", "idle_fleet", "upkeep")
    CONFIG = Config()

    def __init__(self, app: Tocsin, scale: float) -> None:
        self._app = app
        self._scale = scale

    async def registration(self) -> list[Measure]:
        app = self._app
        declare(app, REGISTERED)
        began = time.perf_counter()
        await app.register_agents()
        took = time.perf_counter() - began
        return [Measure(f"{REGISTERED} agents registered in", took, "s", 1, at_least=False)]

    async def rush(self) -> list[Measure]:
        app = self._app
        started, go_on = [0], asyncio.Event()

        async def agent() -> None:
            started[0] += 1
            await go_on.wait()

        declare(app, RUSH, agent)
        await app.register_agents()
        worker = await app.worker(queues=[AGENTS_QUEUE], concurrency=RUSH)
        began = time.perf_counter()
        await worker.start()
        while started[0] < RUSH:
            await asyncio.sleep(0.001)
        took = time.perf_counter() - began
        go_on.set()
        await worker.stop(grace=5)
        return [Measure(f"{RUSH} due agents started in", took, "s", 0.5, at_least=False)]

    async def idle_fleet(self) -> list[Measure]:
        app = self._app
        declare(app, 20)
        workers = [await app.worker() for _ in range(FLEET)]
        for worker in workers:
            await worker.start()
        await asyncio.sleep(2)
        seconds = max(2.0, 6.0 * self._scale)
        sent = await commands_sent(app.store, seconds)
        await asyncio.gather(*(worker.stop(grace=1) for worker in workers))
        return [Measure(f"{FLEET} idle workers: commands", sent, "/s", 100, at_least=False)]

    async def upkeep(self) -> list[Measure]:
        """The longest time that the event loop stood still while upkeep went over all entries."""
        app = self._app
        n = max(10_000, int(1_000_000 * self._scale))
        [first, *_] = declare(app, REGISTERED)
        rows = ((f"entry-{number}", Every("1d"), ()) for number in range(n))
        await app.schedule_many(first, rows, queue=AGENTS_QUEUE, jitter="1d")
        settings = settings_of(app.config)
        worker = await app.worker(queues=[AGENTS_QUEUE], settings=replace(settings, enabled=False))
        await worker.start()
        await asyncio.sleep(1)
        stall = await _longest_stall(lambda: _upkeep(worker))
        await worker.stop(grace=1)
        return [Measure(f"upkeep over {n} entries: longest stall of the loop", stall * 1000, "ms", 50, at_least=False)]


async def _upkeep(worker: Worker) -> None:
    assert worker.reconciler is not None
    assert worker.parts.upkeep.orphan_cleaner is not None
    assert worker.parts.upkeep.elector is not None
    await worker.parts.upkeep.elector.step()
    worker.reconciler.start_over()
    await worker.reconciler.step()
    await worker.telemetry.check.step()
    await worker.parts.upkeep.orphan_cleaner.step()


async def _longest_stall(work: Callable[[], Awaitable[None]]) -> float:
    longest, running = 0.0, True

    async def tick() -> None:
        nonlocal longest
        last = time.perf_counter()
        while running:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            longest, last = max(longest, now - last - 0.001), now

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.01)
    await work()
    running = False
    await ticking
    return longest


def declare(app: Tocsin, count: int, fn: Callable[[], Awaitable[None]] | None = None) -> list[Handler]:
    async def nothing() -> None:
        pass

    def named(number: int) -> Handler:
        async def agent() -> None:
            await (fn or nothing)()

        return app.agent(every="1h", name=f"agent-{number}")(agent)

    return [named(number) for number in range(count)]
