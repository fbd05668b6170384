"""What a program can do to many jobs at once: count, remove or retry all that match, or empty a queue."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from tocsin.app import job_options
from tocsin.app.lookup import Lookup
from tocsin.app.queue_control import check_exists, ring_all
from tocsin.model.errors import InvalidArgument
from tocsin.model.job import Stage
from tocsin.store.keys import STAGE_KEYS
from tocsin.store.store import Store
from tocsin.store.transitions.fleet import BellRinger
from tocsin.store.transitions.jobs import REMOVED, REVIVED, RUNNING, Jobs
from tocsin.store.views.job_pages import ANY, JobFilter
from tocsin.store.views.job_selection import Progress, Selection, unseen

STAGES = (Stage.READY, *map(Stage, STAGE_KEYS))
# What job_delete calls the stage of a job, where it is not the stage's own name: "waiting" includes what is ready, and
# "" is any stage, because a running job is only marked.
_STAGE_TO_DELETE_FROM = {Stage.READY: "waiting", Stage.WORKING: ""}


class Removed(Struct, frozen=True):
    """How many jobs are gone, and how many are running and go when their runs end."""

    removed: int
    running: int


class BulkControl:
    """Goes page by page, a thousand jobs a call. A walk may or may not see jobs that are put while it goes on."""

    def __init__(self, store: Store, jobs: Jobs, lookup: Lookup, ringer: BellRinger) -> None:
        self._store = store
        self._jobs = jobs
        self._lookup = lookup
        self._ringer = ringer

    async def count(self, queue: str | None, stage: str | Stage | None, wanted: JobFilter) -> int:
        chosen = await self._choose(queue, _stages(stage), wanted, unseen)
        return sum([len(members) async for _, members in chosen.walk()])

    async def remove(
        self, queue: str | None, stage: str | Stage | None, wanted: JobFilter, progress: Progress
    ) -> Removed:
        if wanted == ANY and stage is None:
            raise InvalidArgument(
                "say which jobs: by tenant, stage, name, due_before or due_after; "
                "purge_queue(name) removes all jobs of a queue"
            )
        return await self._remove(queue, _stages(stage), wanted, progress)

    async def retry_dead(self, queue: str | None, wanted: JobFilter, progress: Progress) -> int:
        # Jobs that die again after this moment are left alone: otherwise the walk might never end.
        began, retried = await self._store.now(), 0
        chosen = await self._choose(queue, [Stage.DEAD], wanted, progress)
        async for where, members in chosen.walk(until=began):
            retried += (await self._jobs.revive_many(where, members)).count(REVIVED)
            ring_all(self._ringer, where)
        return retried

    async def drop_dead(self, queue: str | None, wanted: JobFilter, progress: Progress) -> int:
        return (await self._remove(queue, [Stage.DEAD], wanted, progress)).removed

    async def purge_queue(self, name: str, progress: Progress) -> Removed:
        await check_exists(self._store, name)
        return await self._remove(name, STAGES, ANY, progress)

    async def _choose(
        self, queue: str | None, stages: Sequence[Stage], wanted: JobFilter, progress: Progress
    ) -> Selection:
        return Selection(self._store, await self._lookup.as_they_are(queue), stages, wanted, progress)

    async def _remove(
        self, queue: str | None, stages: Sequence[Stage], wanted: JobFilter, progress: Progress
    ) -> Removed:
        removed = running = 0
        only = _STAGE_TO_DELETE_FROM.get(stages[0], stages[0].value) if len(stages) == 1 else ""
        chosen = await self._choose(queue, stages, wanted, progress)
        async for where, members in chosen.walk():
            codes = await self._jobs.delete_many(where, members, only)
            removed += codes.count(REMOVED)
            running += codes.count(RUNNING)
        return Removed(removed, running)


def _stages(stage: str | Stage | None) -> Sequence[Stage]:
    return STAGES if stage is None else [job_options.check_stage(stage)]
