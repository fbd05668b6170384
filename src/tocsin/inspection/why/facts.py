"""The facts that an answer is made of, at one moment."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from tocsin.model.durations import Millis
from tocsin.model.job import Job, Stage
from tocsin.store.transitions.dependencies import DependencyWait
from tocsin.store.transitions.fleet import WorkerRecord
from tocsin.store.transitions.host_outages import HostOutage
from tocsin.store.views.blocked_jobs import UnheardEnd
from tocsin.store.views.position import Position


class SeenWorkers(Struct, frozen=True):
    """All workers, and those of them whose hearts stood still; None if nobody listened."""

    workers: list[WorkerRecord]
    silent: set[str] | None = None

    def is_alive(self, worker: WorkerRecord) -> bool:
        return self.silent is None or worker.id not in self.silent


class Facts(Struct, frozen=True):
    """What is known of a job that exists."""

    job: Job
    order: str
    partition: int
    partitions: int
    position: Position
    fleet: SeenWorkers
    now: Millis
    # Of a blocked job; and of what it waits for, what nothing will tell it of.
    wait: DependencyWait | None = None
    unheard: Sequence[UnheardEnd] = ()
    # Of the host that it is delivered to.
    outage: HostOutage | None = None

    @property
    def is_readable(self) -> bool:
        return self.job.is_readable

    @property
    def not_before(self) -> Millis:
        """When it may start."""
        return self.job.due_ms if self.job.not_before_ms is None else self.job.not_before_ms

    @property
    def hearts_matter(self) -> bool:
        """Whether it is, or should be, in somebody's hands."""
        stage = self.job.stage
        if stage is Stage.WAITING:
            return self.not_before <= self.now
        return stage in (Stage.READY, Stage.WORKING, Stage.PARKED)
