"""Runs due jobs pass by pass, without loops and without waiting for time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from tocsin.app import Tocsin
from tocsin.worker import Worker


async def run_until_idle(app: Tocsin, *, queues: Iterable[str] | None = None, concurrency: int = 100) -> int:
    """Work until no job is due at the app's time and none is running. Returns how many runs ended."""
    worker = await app.worker(queues=queues, concurrency=concurrency)
    try:
        while True:
            before = worker.fetcher.claimed, worker.parts.upkeep.outbox_carrier.carried
            await _run_due(worker, app)
            await _carry_everything(worker)
            if (worker.fetcher.claimed, worker.parts.upkeep.outbox_carrier.carried) == before:
                return worker.pool.ran
    finally:
        await worker.stop(grace=0)


async def _run_due(worker: Worker, app: Tocsin) -> None:
    """Ask every partition once, a few at a time if permits are few, and wait until the claimed runs have ended."""
    for served in worker.served.values():
        served.forget_dues()
    while any(min(served.next_due) <= app.store.clock.server_ms() for served in worker.served.values()):
        # Renew the lease each time: a handler may have moved the clock beyond it.
        await asyncio.to_thread(worker.heart.beat)
        await worker.fetcher.step()
        await _until_written(worker)


async def _carry_everything(worker: Worker) -> None:
    while await worker.parts.upkeep.outbox_carrier.step() == 0:
        pass


async def _until_written(worker: Worker) -> None:
    while worker.pool.busy or not worker.finisher.idle():
        await worker.finisher.step()
        if worker.pool.busy:
            await asyncio.sleep(0.001)
