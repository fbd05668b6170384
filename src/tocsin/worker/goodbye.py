"""Goodbye: the last calls of a worker, so that the others go on without waiting for its heartbeat to be missed."""

from __future__ import annotations

from tocsin.worker.build import WorkerParts

# A leader that leaves asks this many workers to lead.
MOST_ASKED = 5


async def say_goodbye(parts: WorkerParts) -> None:
    """Ring for the work that is left, give up leading, leave the fleet."""
    elector, runs, name = parts.upkeep.elector, parts.incarnation.runs, parts.incarnation.name
    for queue in parts.queues:
        for partition in range(queue.partitions):
            parts.ringer.ring(queue, partition)
    await parts.ringer.quiet()
    if elector is not None and await elector.leave():
        await _ask_others_to_lead(parts)
    if not parts.finisher.idle() or runs.unanswered:
        # Something is still claimed under this name, or may be: others bring it back once this heartbeat is silent.
        return
    await parts.fleet.leave(name)
    for queue in parts.queues:
        await runs.forget_sessions(queue)


async def _ask_others_to_lead(parts: WorkerParts) -> None:
    """A few are enough: the first one that hears of it leads."""
    others = [worker for worker in await parts.fleet.workers() if worker.id != parts.incarnation.name]
    others.sort(key=lambda worker: (worker.about.state != "running", worker.age or 0))
    for worker in others[:MOST_ASKED]:
        await parts.fleet.post(worker.id, {"elect": True})
