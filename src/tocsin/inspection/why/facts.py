"""The facts about a job at one moment, from which its explanation is made."""

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
    """All workers, and the silent ones among them; None if nobody waited for their heartbeats."""

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
    # What a blocked job waits for, and the jobs among these whose end would not unblock it.
    wait: DependencyWait | None = None
    lost_waits: Sequence[UnheardEnd] = ()
    # The outage of the host that the job is delivered to.
    outage: HostOutage | None = None

    @property
    def is_readable(self) -> bool:
        return self.job.is_readable

    @property
    def not_before(self) -> Millis:
        """When the job may start."""
        return self.job.due_ms if self.job.not_before_ms is None else self.job.not_before_ms

    @property
    def needs_heartbeats(self) -> bool:
        """True if the explanation depends on which workers are alive, because one has or should have the job."""
        stage = self.job.stage
        if stage is Stage.WAITING:
            return self.not_before <= self.now
        return stage in (Stage.READY, Stage.WORKING, Stage.PARKED)
