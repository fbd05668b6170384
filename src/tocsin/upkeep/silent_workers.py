"""Whether workers are alive, for readers that look only once.

A beat leaves the server's time, so a worker that beat a moment ago is alive. One that is late may be dead, or the
server's clock was set: so we listen for a while whether its counter moves.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum

from tocsin.model.clock import monotonic
from tocsin.model.durations import Millis
from tocsin.store.transitions.fleet import Fleet, WorkerRecord

PAUSE_S = 0.1
# Long enough for one beat, a little late.
PATIENCE_S = 2.5
# A worker beats every 2 s. Later than this it is listened for; at the second limit it has missed two beats; at the
# third the other workers declare it dead.
LATE_MS: Millis = 2500
MISSING_MS: Millis = 5000
DEAD_MS: Millis = 8000


class WorkerPulse(StrEnum):
    """How a worker stands by its last beat. Unknown: its version leaves no time, and nobody listened."""

    LIVE = "live"
    MISSING = "missing"
    DEAD = "dead"
    UNKNOWN = "unknown"


def pulse_of(worker: WorkerRecord, silent: set[str] | None = None) -> WorkerPulse:
    """`silent`: the workers that were listened for and not heard; None if nobody listened."""
    if worker.age is None:
        return (
            WorkerPulse.UNKNOWN if silent is None else WorkerPulse.MISSING if worker.id in silent else WorkerPulse.LIVE
        )
    if worker.age < MISSING_MS or (silent is not None and worker.id not in silent):
        return WorkerPulse.LIVE
    return WorkerPulse.DEAD if worker.age >= DEAD_MS else WorkerPulse.MISSING


async def listen(fleet: Fleet, patience_s: float) -> tuple[list[WorkerRecord], set[str]]:
    """All workers, and the silent ones: late, and not heard while we listened. Takes no time if all beat lately."""
    first = {worker.id: worker.counter for worker in await fleet.workers()}
    give_up = monotonic() + patience_s
    while True:
        workers = await fleet.workers()
        # One that joined meanwhile has beaten.
        silent = {worker.id for worker in workers if _is_late(worker) and first.get(worker.id) == worker.counter}
        if not silent or monotonic() >= give_up:
            return workers, silent
        await asyncio.sleep(PAUSE_S)


def _is_late(worker: WorkerRecord) -> bool:
    return worker.age is None or worker.age > LATE_MS
