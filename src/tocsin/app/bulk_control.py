"""What a program may do to many jobs at once: count, remove or retry all that match, empty a queue and delete it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from tocsin.app import job_options
from tocsin.app.job_control import JobControl, wanted_of
from tocsin.model.errors import InvalidArgument, nearest
from tocsin.model.job import Stage
from tocsin.store.keys import STAGE_KEYS
from tocsin.store.repartition import delete_queue as retire
from tocsin.store.transitions.jobs import REMOVED, REVIVED, RUNNING
from tocsin.store.views.job_pages import ANY, JobFilter
from tocsin.store.views.job_selection import Progress, Selection, unseen
from tocsin.upkeep import silent_workers

STAGES = (Stage.READY, *map(Stage, STAGE_KEYS))
# In which stage job_delete must find a job, where one was asked for: `waiting` is all of the line.
_ONLY = {Stage.READY: "waiting", Stage.WORKING: ""}


class Removed(Struct, frozen=True):
    """How many jobs are gone, and how many are running and go when their runs end."""

    removed: int
    running: int


class BulkControl(JobControl):
    """Page by page, a thousand jobs a call. Jobs that are put meanwhile may be met or not."""

    async def count_jobs(
        self,
        *,
        queue: str | None = None,
        tenant: str | None = None,
        stage: str | Stage | None = None,
        name: str | None = None,
        due_before: datetime | None = None,
        due_after: datetime | None = None,
    ) -> int:
        """How many jobs `jobs` would list."""
        wanted = wanted_of(tenant, name, due_before, due_after)
        chosen = await self._choose(queue, _stages(stage), wanted, unseen)
        return sum([len(members) async for _, members in chosen.walk()])

    async def remove_many(
        self,
        *,
        queue: str | None = None,
        tenant: str | None = None,
        stage: str | Stage | None = None,
        name: str | None = None,
        due_before: datetime | None = None,
        due_after: datetime | None = None,
        progress: Progress = unseen,
    ) -> Removed:
        """Remove all jobs that match. Those that are running are removed when their runs end."""
        wanted = wanted_of(tenant, name, due_before, due_after)
        if wanted == ANY and stage is None:
            raise InvalidArgument(
                "say which jobs: by tenant, stage, name, due_before or due_after; "
                "purge_queue(name) removes all jobs of a queue"
            )
        return await self._remove(queue, _stages(stage), wanted, progress)

    async def retry_dead_many(
        self,
        *,
        queue: str | None = None,
        tenant: str | None = None,
        name: str | None = None,
        progress: Progress = unseen,
    ) -> int:
        """Give all jobs that are dead now, and match, another life with all their retries. How many."""
        # Those that die again meanwhile are left alone: otherwise this might never end.
        began, retried = await self.store.now(), 0
        chosen = await self._choose(queue, [Stage.DEAD], wanted_of(tenant, name), progress)
        async for where, members in chosen.walk(until=began):
            retried += (await self._jobs.revive_many(where, members)).count(REVIVED)
            self._ring_all(where)
        return retried

    async def drop_dead_many(
        self,
        *,
        queue: str | None = None,
        tenant: str | None = None,
        name: str | None = None,
        progress: Progress = unseen,
    ) -> int:
        """Remove all dead jobs that match. How many."""
        return (await self._remove(queue, [Stage.DEAD], wanted_of(tenant, name), progress)).removed

    async def purge_queue(self, name: str, progress: Progress = unseen) -> Removed:
        """Remove all jobs of a queue. Its settings stay, and so does what it remembers of jobs that ended."""
        await self._must_exist(name)
        return await self._remove(name, STAGES, ANY, progress)

    async def delete_queue(self, name: str, *, force: bool = False) -> None:
        """Delete an empty queue with its settings and all that it remembers. Raises InvalidArgument while it has jobs.

        A program that declares the queue and uses it again creates it anew. So this is refused while live workers
        serve it, unless it is forced.
        """
        await self._must_exist(name)
        serving = await self._served_by(name)
        if serving and not force:
            raise InvalidArgument(
                f"queue {name!r} is served by {', '.join(serving)}, and would be created anew at once: "
                "stop these workers, or start them without this queue"
            )
        await retire.delete(self.store, name)

    async def _served_by(self, name: str) -> list[str]:
        """Live workers."""
        workers, silent = await silent_workers.listen(self._fleet, silent_workers.PATIENCE_S)
        return [worker.id for worker in workers if name in worker.about.queues and worker.id not in silent]

    async def _must_exist(self, name: str) -> None:
        known = await self.store.queues.names()
        if name not in known:
            raise InvalidArgument(f"there is no queue {name!r}" + (f"; {nearest(name, known)}" if known else ""))

    async def _choose(
        self, queue: str | None, stages: Sequence[Stage], wanted: JobFilter, progress: Progress
    ) -> Selection:
        return Selection(self.store, await self._lookup.as_they_are(queue), stages, wanted, progress)

    async def _remove(
        self, queue: str | None, stages: Sequence[Stage], wanted: JobFilter, progress: Progress
    ) -> Removed:
        removed = running = 0
        only = _ONLY.get(stages[0], stages[0].value) if len(stages) == 1 else ""
        chosen = await self._choose(queue, stages, wanted, progress)
        async for where, members in chosen.walk():
            codes = await self._jobs.delete_many(where, members, only)
            removed += codes.count(REMOVED)
            running += codes.count(RUNNING)
        return Removed(removed, running)


def _stages(stage: str | Stage | None) -> Sequence[Stage]:
    return STAGES if stage is None else [job_options.check_stage(stage)]
