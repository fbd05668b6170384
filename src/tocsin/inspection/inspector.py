"""Reads what operators may see: queues, workers and jobs. Changes and creates nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from tocsin.model.durations import Millis
from tocsin.model.errors import ConflictingJobs, UnknownJob
from tocsin.model.human_time import span
from tocsin.model.ids import check_job_id
from tocsin.model.job import PRIORITIES, Job, Stage
from tocsin.model.outcome import Outcome
from tocsin.model.queue import SETTINGS
from tocsin.store.formats import due_score_bound
from tocsin.store.keys import BANDS, COUNTERS, STAGE_KEYS
from tocsin.store.numbers import time_of, whole
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.dependencies import Outbox, Upstream
from tocsin.store.transitions.fleet import Fleet, WorkerInfo
from tocsin.store.transitions.queue_settings import shown
from tocsin.store.views import line
from tocsin.store.views.audit import AuditReader
from tocsin.store.views.jobs import JobReader, stage_counts
from tocsin.store.views.tenants import TenantReader, read_tenants
from tocsin.upkeep import silent_workers
from tocsin.upkeep.silent_workers import WorkerPulse

# How many tenants of a queue are shown.
TENANTS = 20


class QueueView(Struct, frozen=True):
    """A queue and how many jobs each of its stages has. `due` is how many could run now if there were no limits: those
    that are ready, and those that wait and whose time has come. `ready` is by priority, in queues whose order is not
    "due". `moving_to` is the number of partitions that the queue is being given, during which it stands still; None if
    it is not being repartitioned."""

    name: str
    order: str
    partitions: int
    paused: bool
    due: int
    stages: dict[str, int]
    ready: dict[str, int]
    done: int
    counters: dict[str, int]
    settings: dict[str, Any]
    moving_to: int | None = None


class QueueDetail(Struct, frozen=True):
    """A queue with the details that a list has no room for. Only queues of order fair have tenants."""

    queue: QueueView
    tenants: TenantReader | None


class WorkerView(Struct, frozen=True):
    """A worker: what it reported with its last heartbeat, and how long ago that was. Old versions store no time."""

    id: str
    pulse: WorkerPulse
    age: Millis | None
    about: WorkerInfo

    @property
    def alive(self) -> bool | None:
        """None if unknown."""
        return None if self.pulse is WorkerPulse.UNKNOWN else self.pulse is WorkerPulse.LIVE

    @property
    def state(self) -> str:
        """The state that the worker reports, but only while it is alive."""
        return self.about.state if self.alive is not False else self.pulse.value

    @property
    def health(self) -> str:
        return self.about.health if self.alive is not False else self.pulse.upper()

    @property
    def reasons(self) -> list[str]:
        """Why the worker is not healthy, with the signals of its watchdogs."""
        if self.alive is not False:
            return [*self.about.reasons, *self.about.signals]
        return ["no heartbeat" if self.age is None else f"no heartbeat for {span(self.age / 1000)}"]


class JobView(Struct, frozen=True):
    """A job, or the kept outcome of a job that has ended."""

    id: str
    queue: str
    job: Job | None
    deadline_ms: Millis | None
    outcome: Outcome | None
    # The jobs that a blocked job waits for.
    after: Sequence[Upstream] = ()
    # How many jobs are before a ready job in its band; in a fair queue only those of its tenant.
    ahead: int | None = None


class Inspector:
    """Reads queues, workers and jobs of one namespace."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reader = AuditReader(store)
        self._jobs = JobReader(store)
        self._fleet = Fleet(store)

    async def now(self) -> Millis:
        """The server's time."""
        return await self._reader.now()

    async def queues(self) -> list[QueueView]:
        now = await self.now()
        found, _ = await self._reader.queues()
        return list(await asyncio.gather(*(self._view(queue, now) for queue in found)))

    async def queue(self, name: str) -> QueueDetail:
        """Raises InvalidArgument for a queue that is not registered."""
        [found] = await self._reader.named(name)
        tenants = await read_tenants(self._store, found, TENANTS) if found.queue.order == "fair" else None
        return QueueDetail(await self._view(found, await self.now()), tenants)

    async def check_queue(self, name: str | None) -> None:
        """Raise InvalidArgument for a queue that is not registered."""
        if name is not None:
            await self._reader.named(name)

    async def workers(self, *, listen: bool = False) -> list[WorkerView]:
        """All workers that have not left and were not declared dead. With `listen` it waits up to one heartbeat for
        workers that are late."""
        if listen:
            workers, silent = await silent_workers.find_silent(self._fleet, silent_workers.PATIENCE_S)
        else:
            workers, silent = await self._fleet.workers(), None
        return [
            WorkerView(worker.shown, silent_workers.pulse_of(worker, silent), worker.age, worker.about)
            for worker in workers
        ]

    async def find(self, job_id: str, queue: str | None = None) -> JobView:
        """Raises UnknownJob, or ConflictingJobs if several queues have it."""
        check_job_id(job_id)
        queues = await self._reader.named(queue)
        found = [view for view in await asyncio.gather(*(self._job(q, job_id) for q in queues)) if view is not None]
        # A job that exists goes before the outcome of one that has ended.
        hits = [view for view in found if view.job is not None] or found
        if not hits:
            raise UnknownJob(job_id)
        if len(hits) > 1:
            raise ConflictingJobs(job_id, [view.queue for view in hits])
        return hits[0]

    async def _view(self, queue: OpenQueue, now: Millis) -> QueueView:
        async def ask(client: Any) -> Any:
            async with client.pipeline(transaction=False) as pipe:
                for keys in queue.keys:
                    pipe.zcount(keys["waiting"], "-inf", due_score_bound(now))
                    pipe.hgetall(keys["meta"])
                return await pipe.execute()

        counts = await stage_counts(self._store, queue, (*STAGE_KEYS, "done", *BANDS))
        found = await self._store.run_repeatable(ask)
        due, metas, bands = sum(found[::2]), found[1::2], [counts[band] for band in BANDS]
        return QueueView(
            name=queue.name,
            order=queue.queue.order,
            partitions=queue.partitions,
            paused=any(b"paused" in meta for meta in metas),
            due=due + sum(bands),
            stages={stage: counts[stage] for stage in STAGE_KEYS} | {"ready": sum(bands)},
            ready={} if queue.queue.order == "due" else dict(zip(PRIORITIES, bands, strict=True)),
            done=counts["done"],
            counters=_sum_counters(metas),
            settings=_settings(metas[0]),
            moving_to=None if queue.moving is None else queue.moving.to,
        )

    async def _job(self, queue: OpenQueue, job_id: str) -> JobView | None:
        job, outcome = await asyncio.gather(self._jobs.get(queue, job_id), self._jobs.outcome(queue, job_id))
        if job is None and outcome is None:
            return None
        deadline = None
        if job is not None and job.stage is Stage.WORKING:
            working = queue.keys[queue.partition_of(job_id)]["working"]
            deadline = await self._store.run_repeatable(lambda c: c.zscore(working, job_id))
        wait = ahead = None
        if job is not None and job.stage is Stage.BLOCKED:
            wait = await Outbox(self._store).wait_of(queue, job_id)
        if job is not None and job.stage is Stage.READY:
            ahead = await line.ahead(self._store, queue, job_id)
        after = [] if wait is None else wait.upstreams
        return JobView(job_id, queue.name, job, None if deadline is None else time_of(deadline), outcome, after, ahead)


def _settings(meta: dict[bytes, bytes]) -> dict[str, Any]:
    """The settings that have a value."""
    found = {name: meta.get(name.encode()) for name in SETTINGS}
    return shown({name: value.decode(errors="replace") for name, value in found.items() if value is not None})


def _sum_counters(metas: list[dict[bytes, bytes]]) -> dict[str, int]:
    found = {name: sum(whole(meta.get(name.encode())) for meta in metas) for name in COUNTERS}
    # A one-shot that failed for good counts as "buried", but its run failed too.
    found["failed"] += found["buried"]
    return found
