"""Run what is due, pass by pass, without loops and without waiting for time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from tocsin.app import Tocsin
from tocsin.worker import Settings, Worker


async def run_until_idle(app: Tocsin, *, queues: Iterable[str] | None = None, concurrency: int = 100) -> int:
    """Be a worker until nothing is due at the app's time and nothing is running. How many runs ended."""
    worker = await app.worker(queues=queues, settings=Settings(concurrency=concurrency))
    await asyncio.to_thread(worker.heart.beat)
    try:
        while True:
            for lane in worker.lanes.values():
                lane.forget_dues()
            before = worker.fetcher.claimed
            await worker.fetcher.step()
            if worker.fetcher.claimed == before and worker.finisher.idle() and not worker.pool.busy:
                return worker.pool.ran
            await _until_written(worker)
    finally:
        await worker.stop(grace=0)


async def _until_written(worker: Worker) -> None:
    while worker.pool.busy or not worker.finisher.idle():
        await worker.finisher.step()
        if worker.pool.busy:
            await asyncio.sleep(0.001)
