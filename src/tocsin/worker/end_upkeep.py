"""End upkeep: when a worker stops, passes of upkeep that are under way get time to end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from tocsin.engine.loop import Part
from tocsin.telemetry.logs import get_logger
from tocsin.worker.settings import StopTimes, WorkerSettings

log = get_logger("tocsin.worker")


async def end_upkeep(
    settings: WorkerSettings, parts: Mapping[str, Part], tasks: Mapping[str, asyncio.Task[None]]
) -> None:
    """Let passes under way end by themselves for a while, then cancel them and wait another while. The stop of their
    loops is set already. `parts` and `tasks`: by the names of the parts."""
    times = {"reconcile": settings.reconcile_ending, "replan": settings.reconcile_ending}
    if settings.zombies is not None:
        times["sweep"] = settings.zombies.ending
    if settings.cleanup is not None:
        times |= dict.fromkeys(("elect", "orphans", "unregistered"), settings.cleanup.ending)
    for name in times.keys() & parts.keys():
        # So that a loop at rest notices the stop.
        parts[name].wake.set()
    running = [(tasks[name], each) for name, each in times.items() if name in tasks]
    await asyncio.gather(*(_end_gently(task, each) for task, each in running))


async def _end_gently(task: asyncio.Task[None], times: StopTimes) -> None:
    await asyncio.wait([task], timeout=times.await_s)
    if not task.done():
        log.warning("a pass does not end, cancelling it", part=task.get_name())
        task.cancel()
        await asyncio.wait([task], timeout=times.force_s)
