"""What an operator may see: queues, workers and jobs. Reads only, and creates nothing."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Struct

from tocsin.engine.heart import BEAT_S
from tocsin.model.durations import Millis
from tocsin.model.errors import ConflictingJobs, InvalidArgument, UnknownJob, nearest
from tocsin.model.ids import check_job_id
from tocsin.model.job import Job, Stage
from tocsin.store.fleet import About, Fleet
from tocsin.store.jobs import Jobs, Outcome
from tocsin.store.keys import STAGE_KEYS
from tocsin.store.store import OpenQueue, Store
from tocsin.store.survey import Survey
from tocsin.upkeep import hearts


class QueueView(Struct, frozen=True):
    """A queue and how many jobs stand where; `due` is how many of those waiting could run now. `moving_to` is how many
    partitions it is being given, and until then it stands still; None if nobody changes them."""

    name: str
    order: str
    partitions: int
    paused: bool
    due: int
    stages: dict[str, int]
    done: int
    counters: dict[str, int]
    moving_to: int | None = None


class WorkerView(Struct, frozen=True):
    """A worker; `alive` is None where nobody listened to its heart."""

    id: str
    alive: bool | None
    about: About


class JobView(Struct, frozen=True):
    """A job, or what is remembered of one that has ended."""

    id: str
    queue: str
    job: Job | None
    deadline_ms: Millis | None
    outcome: Outcome | None


class Inspector:
    """The operator's door to one namespace."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._survey = Survey(store)
        self._jobs = Jobs(store)
        self._fleet = Fleet(store)

    async def now(self) -> Millis:
        """The server's time."""
        return await self._survey.now()

    async def queues(self) -> list[QueueView]:
        now = await self.now()
        found, _ = await self._survey.queues()
        return list(await asyncio.gather(*(self._view(queue, now) for queue in found)))

    async def check_queue(self, name: str | None) -> None:
        """Raise InvalidArgument for a name that nobody registered."""
        if name is not None:
            await self._queues(name)

    async def workers(self, *, listen: bool = False) -> list[WorkerView]:
        """All that have not left or been buried. Listening to their hearts takes up to one beat."""
        workers, silent = await hearts.listen(self._fleet, BEAT_S + 0.5 if listen else 0)
        return [WorkerView(worker.id, worker.id not in silent if listen else None, worker.about) for worker in workers]

    async def find(self, job_id: str, queue: str | None = None) -> JobView:
        """Raises UnknownJob, or ConflictingJobs if several queues have it."""
        check_job_id(job_id)
        queues = await self._queues(queue)
        found = [view for view in await asyncio.gather(*(self._job(q, job_id) for q in queues)) if view is not None]
        # One that exists goes before one that is only remembered.
        hits = [view for view in found if view.job is not None] or found
        if not hits:
            raise UnknownJob(job_id)
        if len(hits) > 1:
            raise ConflictingJobs(job_id, [view.queue for view in hits])
        return hits[0]

    async def _queues(self, name: str | None) -> list[OpenQueue]:
        queues, _ = await self._survey.queues()
        wanted = [queue for queue in queues if name in (None, queue.name)]
        if name is not None and not wanted:
            known = [queue.name for queue in queues]
            hint = nearest(name, known) if known else "none is registered yet: start a worker, or enqueue a job"
            raise InvalidArgument(f"there is no queue {name!r}; {hint}")
        return wanted

    async def _view(self, queue: OpenQueue, now: Millis) -> QueueView:
        sets = (*STAGE_KEYS, "done")

        async def ask(client: Any) -> Any:
            async with client.pipeline(transaction=False) as pipe:
                for keys in queue.keys:
                    for name in sets:
                        pipe.zcard(keys[name])
                    pipe.zcount(keys["waiting"], "-inf", now)
                    pipe.hgetall(keys["meta"])
                return await pipe.execute()

        found, width = await self._store.read(ask), len(sets) + 2
        counts = [sum(found[i::width]) for i in range(len(sets) + 1)]
        return QueueView(
            name=queue.name,
            order=queue.queue.order,
            partitions=queue.partitions,
            paused=any(b"paused" in meta for meta in found[width - 1 :: width]),
            due=counts[-1],
            stages=dict(zip(STAGE_KEYS, counts, strict=False)),
            done=counts[-2],
            counters=_sum_counters(found[width - 1 :: width]),
            moving_to=None if queue.moving is None else queue.moving.to,
        )

    async def _job(self, queue: OpenQueue, job_id: str) -> JobView | None:
        job, outcome = await asyncio.gather(self._jobs.get(queue, job_id), self._jobs.outcome(queue, job_id))
        if job is None and outcome is None:
            return None
        deadline = None
        if job is not None and job.stage is Stage.WORKING:
            working = queue.keys[queue.partition_of(job_id)]["working"]
            deadline = await self._store.read(lambda c: c.zscore(working, job_id))
        return JobView(job_id, queue.name, job, None if deadline is None else int(deadline), outcome)


# The fields of `meta` that count something, as lua/*.lua names them.
COUNTERS = ("put", "claimed", "succeeded", "failed", "skipped", "cancelled", "retried", "recovered", "buried")


def _sum_counters(metas: list[dict[bytes, bytes]]) -> dict[str, int]:
    return {name: sum(int(meta.get(name.encode(), 0)) for meta in metas) for name in COUNTERS}
