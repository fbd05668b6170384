"""Passes of workers whose hearts beat by themselves."""

from __future__ import annotations

import asyncio

from tests.support.waiting import Gate, eventually
from tocsin.worker import Worker


async def claim(worker: Worker) -> None:
    """Ask everywhere, once, under a lease that holds although the clock was moved."""
    await eventually(lambda: worker.heart.lease.until > worker.clock.server_ms(), "a beat since the clock was moved")
    for served in worker.served.values():
        served.forget_dues()
    await worker.fetcher.step()


async def put_inside(worker: Worker, gate: Gate) -> None:
    """Let it claim, and wait until a run is inside its handler."""
    await claim(worker)
    await eventually(lambda: gate.inside, "a run inside its handler")


async def drain(worker: Worker) -> None:
    """Until it finds nothing more to claim, and all has been written down."""
    while True:
        claimed = worker.fetcher.claimed
        await claim(worker)
        while worker.pool.busy or not worker.finisher.idle():
            await asyncio.sleep(0)
            await worker.finisher.step()
        if worker.fetcher.claimed == claimed:
            return
