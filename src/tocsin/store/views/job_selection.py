"""Many jobs at once: all of some queues and stages that match a filter, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from tocsin.model.durations import Millis
from tocsin.model.errors import RecordUnreadable
from tocsin.model.job import Stage
from tocsin.model.record import decode_spec
from tocsin.store.store import OpenQueue, Store
from tocsin.store.views import job_pages
from tocsin.store.views.job_pages import ANY, JobFilter, JobPage
from tocsin.store.views.jobs import JobReader

# Records that are read at once to compare names.
AT_ONCE = 100

# How many jobs were looked at, and of how many.
Progress = Callable[[int, int], None]


def unseen(done: int, total: int) -> None:
    """For callers that show no progress."""


class Selection:
    """One walk over jobs. It may or may not meet jobs that are put meanwhile."""

    def __init__(
        self, store: Store, queues: Sequence[OpenQueue], stages: Sequence[Stage], wanted: JobFilter, progress: Progress
    ) -> None:
        self._store = store
        self._jobs = JobReader(store)
        self._queues = queues
        self._stages = stages
        self._wanted = wanted
        self._progress = progress
        self._looked, self._total = 0, 0

    async def walk(self, until: Millis | None = None) -> AsyncIterator[tuple[OpenQueue, list[bytes]]]:
        """The matching ids, page by page. `until`: only scores up to this one."""
        self._total = await self._count()
        for queue in self._queues:
            walked = None
            # If the queue is repartitioned meanwhile, walk again: jobs may have moved to where we had been.
            while walked != queue.layout:
                walked = queue.layout
                for partition in range(queue.partitions):
                    async for members in self._partition(queue, partition, until):
                        yield queue, members

    async def _count(self) -> int:
        async def ask(client: Any) -> Any:
            async with client.pipeline(transaction=False) as pipe:
                for queue in self._queues:
                    for keys in queue.keys:
                        for base in [base for stage in self._stages for base in job_pages.sets_of(stage)]:
                            pipe.zcard(keys[base])
                return await pipe.execute()

        return sum(await self._store.run_repeatable(ask))

    async def _partition(self, queue: OpenQueue, partition: int, until: Millis | None) -> AsyncIterator[list[bytes]]:
        for stage in self._stages:
            async for _, page in job_pages.walk(self._store, queue, partition, stage, self._wanted):
                members = [member for member, score in page.found if until is None or score <= until]
                members = await self._confirm(queue, partition, stage, members)
                if members:
                    yield members
                self._show(page)
                if until is not None and page.end is not None and page.end[0] > until:
                    break

    async def _confirm(self, queue: OpenQueue, partition: int, stage: Stage, members: list[bytes]) -> list[bytes]:
        """Check what the server could not: names of handlers, because two may share a digest, and jobs that are being
        run."""
        wanted = self._wanted
        if stage is Stage.WORKING and wanted != ANY:
            jobs = await self._jobs.get_all(queue, partition, members)
            return [job.id.encode() for job in jobs if wanted.fits(job)]
        if wanted.name is None:
            return members
        key, confirmed = queue.keys[partition]["jobs"], list[bytes]()
        for first in range(0, len(members), AT_ONCE):
            some = members[first : first + AT_ONCE]
            records = await self._store.run_repeatable(lambda c, m=some: c.hmget(key, m))  # type: ignore[misc]
            confirmed += [m for m, record in zip(some, records, strict=True) if _name_of(record) == wanted.name]
        return confirmed

    def _show(self, page: JobPage) -> None:
        self._looked += page.looked
        self._total = max(self._total, self._looked)
        self._progress(self._looked, self._total)


def _name_of(record: bytes | None) -> str | None:
    try:
        return None if record is None else decode_spec(record).name
    except RecordUnreadable:
        return None
