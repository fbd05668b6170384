"""Says whether workers are alive, for readers that look only once.

A heartbeat stores the server's time, so a worker whose last heartbeat is recent is alive. A late worker may be dead, or
somebody set the server's clock. So we watch for a while whether its counter moves.
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
# A worker sends a heartbeat every 2 s. After the first limit we watch its counter; at the second it has missed two
# heartbeats; at the third the other workers declare it dead.
LATE_MS: Millis = 2500
MISSING_MS: Millis = 5000
DEAD_MS: Millis = 8000


class WorkerPulse(StrEnum):
    """What a worker's last heartbeat says. Unknown: its version stores no time, and its counter was not watched."""

    LIVE = "live"
    MISSING = "missing"
    DEAD = "dead"
    UNKNOWN = "unknown"


def pulse_of(worker: WorkerRecord, silent: set[str] | None = None) -> WorkerPulse:
    """`silent`: the workers whose counters were watched and did not move; None if nobody watched."""
    if worker.age is None:
        return (
            WorkerPulse.UNKNOWN if silent is None else WorkerPulse.MISSING if worker.id in silent else WorkerPulse.LIVE
        )
    if worker.age < MISSING_MS or (silent is not None and worker.id not in silent):
        return WorkerPulse.LIVE
    return WorkerPulse.DEAD if worker.age >= DEAD_MS else WorkerPulse.MISSING


async def find_silent(fleet: Fleet, patience_s: float) -> tuple[list[WorkerRecord], set[str]]:
    """Return all workers, and the silent ones: those that are late and whose counters do not move for `patience_s`.
    Returns at once if no worker is late."""
    first = {worker.id: worker.counter for worker in await fleet.workers()}
    give_up = monotonic() + patience_s
    while True:
        workers = await fleet.workers()
        # A worker that joined meanwhile has just sent a heartbeat.
        silent = {worker.id for worker in workers if _is_late(worker) and first.get(worker.id) == worker.counter}
        if not silent or monotonic() >= give_up:
            return workers, silent
        await asyncio.sleep(PAUSE_S)


def _is_late(worker: WorkerRecord) -> bool:
    return worker.age is None or worker.age > LATE_MS
