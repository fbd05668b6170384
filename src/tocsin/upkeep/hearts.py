"""Whether workers are alive, for those who look only once: a heart that beats moves its counter."""

from __future__ import annotations

import asyncio

from tocsin.model.clock import monotonic
from tocsin.store.fleet import Fleet, Worker

PAUSE_S = 0.1


async def listen(fleet: Fleet, patience_s: float) -> tuple[list[Worker], set[str]]:
    """All workers, and those that were not heard; it takes no longer than the last one needs to beat."""
    first = {worker.id: worker.counter for worker in await fleet.workers()}
    give_up = monotonic() + patience_s
    while True:
        workers = await fleet.workers()
        # One that joined meanwhile has beaten.
        silent = {worker.id for worker in workers if first.get(worker.id) == worker.counter}
        if not silent or monotonic() >= give_up:
            return workers, silent
        await asyncio.sleep(PAUSE_S)
