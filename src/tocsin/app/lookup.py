"""Finds jobs by id in all queues, and lists jobs in the order in which they run."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import TypeVar

from msgspec import Struct

from tocsin.model.durations import Millis, epoch_ms, moment
from tocsin.model.errors import ConflictingJobs, UnknownJob
from tocsin.model.ids import check_job_id, check_member
from tocsin.model.job import Job, Stage
from tocsin.model.outcome import Outcome
from tocsin.model.trigger import zone_of
from tocsin.model.zones import find_zone
from tocsin.store.keys import BANDS, STAGE_KEYS
from tocsin.store.store import LARGEST_BATCH, OpenQueue, Store
from tocsin.store.transitions.jobs import Jobs
from tocsin.store.views import job_pages
from tocsin.store.views.events import Decision, PastRun, decisions, past_runs
from tocsin.store.views.job_pages import ANY, JobFilter
from tocsin.triggers.recurrence import phase, upcoming

PAGE = 200
# Greater than all scores. Ready jobs sort by band * _BAND + score, so by band first.
_BAND = 1e14

Event = TypeVar("Event", PastRun, Decision)


class Found(Struct, frozen=True):
    """A job, or the outcome of one that has ended and is remembered: one of the two."""

    queue: OpenQueue
    job: Job | None = None
    outcome: Outcome | None = None


class Lookup:
    """Reads only. A call without a queue asks all queues at once."""

    def __init__(self, store: Store, jobs: Jobs) -> None:
        self._store = store
        self._jobs = jobs

    async def queues(self, name: str | None = None) -> list[OpenQueue]:
        """The registered queues, or only the named one."""
        at_rest, others = await self.apart(name)
        return at_rest + await self.opened(others)

    async def apart(self, name: str | None) -> tuple[list[OpenQueue], list[str]]:
        """The registered queues that are open, and the names of those that may have to be waited for: the named one, or
        those that are being repartitioned. A call by id waits for these only if it finds nothing in the others."""
        return ([], [name]) if name is not None else await self._store.queues.open_registered()

    async def opened(self, names: list[str]) -> list[OpenQueue]:
        """Raises QueueRepartitioning if one is being repartitioned for too long."""
        found = await asyncio.gather(*map(self._store.find_queue, names))
        return [queue for queue in found if queue is not None]

    async def as_they_are(self, name: str | None) -> list[OpenQueue]:
        """The queues with the partitions that they have now. A list reads what it finds in the partitions that it knows
        and would not notice new ones, so it refreshes them first."""
        queues = await self.queues(name)
        await asyncio.gather(*map(self._store.queues.refresh_if_repartitioned, queues))
        return queues

    async def find(self, job_id: str, queue: str | None) -> tuple[OpenQueue, Job] | None:
        """Raises ConflictingJobs if several queues have it."""
        check_member(job_id)
        at_rest, others = await self.apart(queue)
        hits = await self._having(at_rest, job_id) or await self._having(await self.opened(others), job_id)
        if len(hits) > 1:
            raise ConflictingJobs(job_id, [hit.queue.name for hit in hits])
        return (hits[0].queue, hits[0].job) if hits and hits[0].job is not None else None

    async def find_any(self, job_id: str, queue: str | None, advice: str = "say which with queue=") -> Found | None:
        """A job, or its outcome if it is only remembered. Raises ConflictingJobs if several queues know it."""
        at_rest, others = await self.apart(queue)
        hits = await self._knowing(at_rest, job_id) or await self._knowing(await self.opened(others), job_id)
        if len(hits) > 1:
            raise ConflictingJobs(job_id, [hit.queue.name for hit in hits], advice)
        return hits[0] if hits else None

    async def _knowing(self, queues: list[OpenQueue], job_id: str) -> list[Found]:
        hits = await self._having(queues, job_id)
        if hits:
            return hits
        outcomes = await asyncio.gather(*(self._jobs.outcome(where, job_id) for where in queues))
        return [Found(where, outcome=end) for where, end in zip(queues, outcomes, strict=True) if end is not None]

    async def _having(self, queues: list[OpenQueue], job_id: str) -> list[Found]:
        jobs = await asyncio.gather(*(self._jobs.get(where, job_id) for where in queues))
        return [Found(where, job) for where, job in zip(queues, jobs, strict=True) if job is not None]

    async def must_find(self, job_id: str, queue: str | None) -> tuple[OpenQueue, Job]:
        """Raises UnknownJob."""
        found = await self.find(check_job_id(job_id), queue)
        if found is None:
            raise UnknownJob(job_id)
        return found

    async def next_runs(self, job_id: str, n: int, queue: str | None) -> list[datetime]:
        _, job = await self.must_find(job_id, queue)
        zone = find_zone(zone_of(job.trigger))
        return [moment(due).astimezone(zone) for due in upcoming(job.spec, job.due_ms, n, jitter_offset(job))]

    async def walk(self, queue: str | None, stage: Stage | None, wanted: JobFilter) -> AsyncIterator[Job]:
        """Stage by stage, each in order of its score over all queues and partitions, page by page."""
        stages = [each for each in (Stage.READY, *map(Stage, STAGE_KEYS)) if stage in (None, each)]
        queues = await self.as_they_are(queue)
        for each in stages:
            async for job in self._in_order(queues, each, wanted):
                yield job

    async def _in_order(self, queues: list[OpenQueue], stage: Stage, wanted: JobFilter) -> AsyncIterator[Job]:
        sources = [
            self._partition(queue, partition, stage, wanted)
            for queue in queues
            for partition in range(queue.partitions)
        ]
        heads: list[tuple[float, str, int, Job]] = []

        async def push(source: int) -> None:
            found = await anext(sources[source], None)
            if found is not None:
                heapq.heappush(heads, (found[0], found[1].id, source, found[1]))

        await asyncio.gather(*map(push, range(len(sources))))
        while heads:
            _, _, source, job = heapq.heappop(heads)
            yield job
            await push(source)

    async def _partition(
        self, queue: OpenQueue, partition: int, stage: Stage, wanted: JobFilter
    ) -> AsyncIterator[tuple[float, Job]]:
        size = PAGE if wanted == ANY else LARGEST_BATCH
        async for base, page in job_pages.walk(self._store, queue, partition, stage, wanted, size):
            band = BANDS.index(base) if stage is Stage.READY else 0
            order = {member.decode(errors="replace"): band * _BAND + score for member, score in page.found}
            for job in await self._jobs.get_all(queue, partition, [member for member, _ in page.found]):
                if job.stage is stage and wanted.fits(job):
                    yield order[job.id], job
            latest = wanted.due_before
            beyond = stage is Stage.WAITING and page.end is not None and latest is not None and page.end[0] > latest
            # A score, "not before", is never earlier than the due time. So no job further on can match, except one that
            # waits for a retry.
            if beyond and not await self._retries_wait(queue, partition):
                return

    def runs(self, job_id: str | None, queue: str | None) -> AsyncIterator[PastRun]:
        """Attempts that ended, newest first, as far back as the queues' events reach."""
        return self._newest_first(past_runs, lambda run: run.ended_ms, job_id, queue)

    def decisions(self, job_id: str | None, queue: str | None) -> AsyncIterator[Decision]:
        """The decisions about ticks of schedules, newest first, as far back as the queues' events reach."""
        return self._newest_first(decisions, lambda decision: decision.at_ms, job_id, queue)

    async def _newest_first(
        self,
        events_of: Callable[[Store, OpenQueue, int], AsyncIterator[Event]],
        time_of: Callable[[Event], Millis],
        job_id: str | None,
        queue: str | None,
    ) -> AsyncIterator[Event]:
        sources = [
            events_of(self._store, where, partition)
            for where in await self._with_events(job_id, queue)
            for partition in range(where.partitions)
            if job_id is None or partition == where.partition_of(job_id)
        ]
        heads: list[tuple[Millis, int, Event]] = []

        async def push(source: int) -> None:
            async for event in sources[source]:
                if job_id is None or event.job_id == job_id:
                    heapq.heappush(heads, (-time_of(event), source, event))
                    return

        await asyncio.gather(*map(push, range(len(sources))))
        while heads:
            _, source, event = heapq.heappop(heads)
            yield event
            await push(source)

    async def _with_events(self, job_id: str | None, queue: str | None) -> list[OpenQueue]:
        """The queues whose events to read. If an open queue knows the job, do not wait for one that is being
        repartitioned."""
        at_rest, others = await self.apart(queue)
        if job_id is None or not others or not await self._knowing(at_rest, job_id):
            at_rest += await self.opened(others)
        await asyncio.gather(*map(self._store.queues.refresh_if_repartitioned, at_rest))
        return at_rest

    async def _retries_wait(self, queue: OpenQueue, partition: int) -> bool:
        claims, working = queue.keys[partition]["claims"], queue.keys[partition]["working"]
        entries = await self._store.run_repeatable(lambda c: c.hlen(claims))
        return bool(entries > await self._store.run_repeatable(lambda c: c.zcard(working)))


def job_filter(
    tenant: str | None, name: str | None, due_before: datetime | None = None, due_after: datetime | None = None
) -> JobFilter:
    return JobFilter(
        tenant=tenant,
        name=name,
        due_before=None if due_before is None else epoch_ms(due_before, "due_before"),
        due_after=None if due_after is None else epoch_ms(due_after, "due_after"),
    )


def jitter_offset(job: Job) -> Millis:
    """By how much jitter moves the ticks of a job."""
    return phase(job.id, job.spec.rules.jitter)
