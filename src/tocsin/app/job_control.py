"""What a program may see of jobs, and do about those that are dead or parked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any

from tocsin.app import job_options
from tocsin.app.queue_control import QueueControl
from tocsin.inspection.why.answer import Explanation
from tocsin.inspection.why.explain import JobExplainer
from tocsin.model.durations import Millis, epoch_ms, moment
from tocsin.model.job import Job, Stage
from tocsin.model.trigger import zone_of
from tocsin.model.zones import find_zone
from tocsin.store.store import OpenQueue
from tocsin.store.views.events import Decision, PastRun
from tocsin.store.views.job_pages import JobFilter
from tocsin.triggers.recurrence import phase, upcoming


class JobControl(QueueControl):
    """Jobs, their runs, what became of their ticks, and why one is not running."""

    async def get(self, id: str, *, queue: str | None = None) -> Job | None:
        found = await self._lookup.find(id, queue)
        return None if found is None else found[1]

    def jobs(
        self,
        *,
        queue: str | None = None,
        tenant: str | None = None,
        stage: str | Stage | None = None,
        name: str | None = None,
        due_before: datetime | None = None,
        due_after: datetime | None = None,
    ) -> AsyncIterator[Job]:
        """Jobs stage by stage, in the order in which they run, read page by page."""
        wanted = wanted_of(tenant, name, due_before, due_after)
        return self._lookup.walk(queue, None if stage is None else job_options.check_stage(stage), wanted)

    def runs(self, id: str | None = None, *, queue: str | None = None) -> AsyncIterator[PastRun]:
        """Attempts that ended lately, newest first, as far back as the queues' events reach."""
        return self._lookup.runs(id, queue)

    def decisions(self, id: str | None = None, *, queue: str | None = None) -> AsyncIterator[Decision]:
        """What became of each tick of a schedule, newest first: ran, coalesced or skipped, and why."""
        return self._lookup.decisions(id, queue)

    async def next_runs(self, id: str, n: int = 5, *, queue: str | None = None) -> list[datetime]:
        """When it is due next, in the zone of its trigger."""
        _, job = await self._lookup.must_find(id, queue)
        zone = find_zone(zone_of(job.trigger))
        return [moment(due).astimezone(zone) for due in upcoming(job.spec, job.due_ms, n, shift_of(job))]

    async def why(self, id: str, *, queue: str | None = None) -> Explanation:
        """What a job is doing and why it is not running, in plain words. May listen for heartbeats for two seconds."""
        return await JobExplainer(self.store).ask(id, queue)

    # Dead and parked

    def dead(self, *, queue: str | None = None) -> AsyncIterator[Job]:
        return self.jobs(queue=queue, stage=Stage.DEAD)

    async def retry_dead(self, id: str, *, queue: str | None = None) -> bool:
        """Give a dead job another life, with all its retries. False if it is not dead."""
        return await self._wake_up(id, queue, self._jobs.revive)

    async def drop_dead(self, id: str, *, queue: str | None = None) -> bool:
        found = await self._lookup.find(id, queue)
        return found is not None and await self._jobs.delete(found[0], id, only="dead")

    async def unpark(self, id: str, *, queue: str | None = None) -> bool:
        """Try a parked job again. False if it is not parked."""
        return await self._wake_up(id, queue, self._jobs.unpark)

    async def _wake_up(self, job_id: str, queue: str | None, how: Callable[[OpenQueue, str], Any]) -> bool:
        found = await self._lookup.find(job_id, queue)
        if found is None or not await how(found[0], job_id):
            return False
        self._ringer.ring(found[0], found[0].partition_of(job_id))
        return True


def wanted_of(
    tenant: str | None, name: str | None, due_before: datetime | None = None, due_after: datetime | None = None
) -> JobFilter:
    return JobFilter(
        tenant=tenant,
        name=name,
        due_before=None if due_before is None else epoch_ms(due_before, "due_before"),
        due_after=None if due_after is None else epoch_ms(due_after, "due_after"),
    )


def shift_of(job: Job) -> Millis:
    """By how much jitter moves its ticks."""
    return phase(job.id, job.spec.rules.jitter)
