"""A worker in numbers: for the program that has it, and for the fleet, which reads them with each beat."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct

from tocsin.model.durations import Millis
from tocsin.resilience.breaker import BreakerStatus
from tocsin.store.transitions.fleet import WorkerInfo
from tocsin.upkeep.health import Health

if TYPE_CHECKING:
    from tocsin.worker.build import WorkerParts


class Stats(Struct, frozen=True):
    """What a worker has done so far, and what it is doing."""

    worker: str
    claimed: int
    ran: int
    running: int
    backlog: int
    unwritten: int
    lost: int
    recovered: int
    stuck: int
    health: Health
    # What has gone wrong slowly, for three cycles in a row.
    signals: tuple[str, ...]
    acquisition_breaker: BreakerStatus
    redis_breaker: BreakerStatus
    zombies: int
    orphans: int
    leading: bool


def stats(worker: WorkerParts) -> Stats:
    return Stats(
        worker=worker.name,
        claimed=worker.fetcher.claimed,
        ran=worker.pool.ran,
        running=worker.running,
        backlog=worker.pool.waiting,
        unwritten=worker.finisher.unwritten.count,
        lost=worker.finisher.lost,
        recovered=worker.reaper.recovered,
        stuck=worker.sweep.stuck,
        health=worker.vitals.health(),
        signals=tuple(worker.vitals.check.signals),
        acquisition_breaker=worker.acquisition_breaker.status(),
        redis_breaker=worker.redis_breaker.status(),
        zombies=worker.sweep.zombies,
        orphans=orphans_cleaned(worker).total(),
        leading=worker.election is not None and worker.election.leading(),
    )


def orphans_cleaned(worker: WorkerParts) -> Counter[str]:
    """By kind, since the start: what the leader's cleanup found, and what the reaper brought back before it."""
    reaper, cleaned = worker.reaper, worker.orphans.cleaned if worker.orphans else Counter[str]()
    overdue = reaper.recovered - reaper.from_dead + cleaned["recovered"]
    stray, unregistered = cleaned.total() - cleaned["recovered"], worker.unregistered
    nobodys = unregistered.parked if unregistered else 0
    return Counter(dead_worker=reaper.from_dead, overdue=overdue, stray=stray, unregistered=nobodys)


def about(worker: WorkerParts, host: str, started: Millis, state: str) -> WorkerInfo:
    """On the heart's thread."""
    health = worker.vitals.health()
    return WorkerInfo(
        host=host,
        pid=os.getpid(),
        started=started,
        queues=sorted(worker.lanes),
        handlers=worker.catalog.names(),
        concurrency=worker.settings.concurrency,
        running=worker.running,
        finished=worker.pool.ran,
        stuck=worker.sweep.stuck,
        state=state if worker.settings.enabled else "disabled",
        health=str(health.state),
        reasons=list(health.reasons),
        signals=[str(signal) for signal in worker.vitals.check.signals],
        breakers=worker.vitals.open_breakers(),
        agents=worker.announcer.stored_set if worker.announcer else None,
    )
