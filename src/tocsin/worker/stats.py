"""The statistics of a worker: for the program around it, and for the fleet, which reads them with each heartbeat."""

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
    from tocsin.worker.worker import Worker


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
    # What has gone wrong for three cycles in a row.
    signals: tuple[str, ...]
    acquisition_breaker: BreakerStatus
    redis_breaker: BreakerStatus
    zombies: int
    orphans: int
    leading: bool


def stats(worker: Worker) -> Stats:
    parts, elector = worker.parts, worker.parts.upkeep.elector
    return Stats(
        worker=worker.name,
        claimed=worker.fetcher.claimed,
        ran=worker.pool.ran,
        running=worker.running,
        backlog=worker.pool.waiting,
        unwritten=worker.finisher.outcomes.count,
        lost=worker.finisher.lost,
        recovered=parts.upkeep.reaper.recovered,
        stuck=worker.sweep.stuck,
        health=worker.telemetry.health(),
        signals=tuple(worker.telemetry.check.signals),
        acquisition_breaker=parts.acquisition_breaker.status(),
        redis_breaker=parts.redis_breaker.status(),
        zombies=worker.sweep.zombies,
        orphans=orphans_cleaned(worker).total(),
        leading=elector is not None and elector.leading(),
    )


def orphans_cleaned(worker: Worker) -> Counter[str]:
    """By kind, since the start: what the leader's cleanup found, and what the reaper brought back before it."""
    upkeep = worker.parts.upkeep
    reaper, cleaned = upkeep.reaper, upkeep.orphan_cleaner.cleaned if upkeep.orphan_cleaner else Counter[str]()
    overdue = reaper.recovered - reaper.from_dead + cleaned["recovered"]
    stray, unregistered = cleaned.total() - cleaned["recovered"], upkeep.unregistered_agents
    parked = unregistered.parked if unregistered else 0
    return Counter(dead_worker=reaper.from_dead, overdue=overdue, stray=stray, unregistered=parked)


def about(worker: Worker, host: str, started: Millis, state: str) -> WorkerInfo:
    """Called on the heartbeat's thread."""
    announcer = worker.parts.upkeep.announcer
    health = worker.telemetry.health()
    return WorkerInfo(
        host=host,
        pid=os.getpid(),
        started=started,
        queues=sorted(worker.served),
        handlers=worker.catalog.names(),
        concurrency=worker.settings.concurrency,
        running=worker.running,
        finished=worker.pool.ran,
        stuck=worker.sweep.stuck,
        state=state if worker.settings.enabled else "disabled",
        health=str(health.state),
        reasons=list(health.reasons),
        signals=[str(signal) for signal in worker.telemetry.check.signals],
        breakers=worker.telemetry.open_breakers(),
        agents=announcer.stored_set if announcer else None,
    )
