"""What a program can do to one job: remove, pause, resume, fire, backfill, cancel; retry or drop a dead one, unpark."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from tocsin.app.job_options import check_limit
from tocsin.app.lookup import Lookup, jitter_offset
from tocsin.model.durations import Millis, epoch_ms
from tocsin.model.errors import InvalidArgument, TocsinError
from tocsin.model.ids import extra_member, parse_run_id
from tocsin.model.job import Stage
from tocsin.model.outcome import CONFLICT
from tocsin.model.run import Claim, Run
from tocsin.store.store import LARGEST_BATCH, OpenQueue, Store
from tocsin.store.transitions.fleet import BellRinger, Fleet
from tocsin.store.transitions.jobs import Jobs
from tocsin.triggers.recurrence import occurrences, tick_from


class JobControl:
    """Finds a job by its id, changes it with one script, and rings for its partition if it may be due now."""

    def __init__(self, store: Store, jobs: Jobs, lookup: Lookup, ringer: BellRinger, fleet: Fleet) -> None:
        self._store = store
        self._jobs = jobs
        self._lookup = lookup
        self._ringer = ringer
        self._fleet = fleet

    async def remove(self, job_id: str, queue: str | None, only: str = "") -> bool:
        """`only`: the stage that the job must be in."""
        found = await self._lookup.find(job_id, queue)
        return found is not None and await self._jobs.delete(found[0], job_id, only)

    async def pause(self, job_id: str, queue: str | None) -> bool:
        found = await self._lookup.find(job_id, queue)
        return found is not None and await self._jobs.pause(found[0], job_id)

    async def resume(self, job_id: str, replay: bool, queue: str | None) -> bool:
        while True:
            found = await self._lookup.find(job_id, queue)
            if found is None:
                return False
            where, job = found
            due: Millis | None = 0
            if job.recurring and not replay and job.stage is Stage.PAUSED:
                due = tick_from(job.spec, job.due_ms, self._now(), jitter_offset(job))
            if due is None:
                # The schedule ended while it was paused, so no run is left to resume.
                return await self._jobs.delete(where, job_id, only="paused")
            code, head = await self._jobs.resume(where, job_id, job.version, due)
            if head >= 0:
                self._ringer.ring(where, where.partition_of(job_id))
            if code != CONFLICT:
                return code != 0

    async def fire(self, job_id: str, queue: str | None) -> Run:
        where, job = await self._lookup.must_find(job_id, queue)
        [due] = await self._fire(where, job_id, [0])
        member, partition = extra_member(job_id, due), where.partition_of(job_id)
        claim = Claim(where.name, partition, member.encode(), 0, due, 1, 0, False, due + job.header.timeout, b"")
        return Run(claim, job.header, job.spec, self._store.keys.prefix, _not_running)

    async def backfill(
        self, job_id: str, start: datetime, end: datetime, overlap: str, limit: int | None, queue: str | None
    ) -> int:
        if overlap != "allow":
            raise InvalidArgument(f"overlap must be 'allow' here, not {overlap!r}")
        most = check_limit(limit)
        where, job = await self._lookup.must_find(job_id, queue)
        first, last = epoch_ms(start, "start"), min(epoch_ms(end, "end"), self._now() + 1)
        own = job.due_ms if job.stage is not Stage.PAUSED else None
        if own is not None and job.spec.rules.misfire == "all":
            last = min(last, own)
        # Leave out the occurrence that the job itself will run: it would run twice, under one run id.
        found = occurrences(job.spec, job.due_ms, first, last, most + 2, jitter_offset(job))
        dues = [due for due in found if due != own]
        if limit is None and len(dues) > most:
            raise InvalidArgument(f"these are more than {most} runs: give a shorter span, or a limit")
        del dues[most:]
        pages = (dues[i : i + LARGEST_BATCH] for i in range(0, len(dues), LARGEST_BATCH))
        return sum([len(await self._fire(where, job_id, page)) for page in pages])

    async def _fire(self, where: OpenQueue, job_id: str, dues: list[Millis]) -> list[Millis]:
        added = await self._jobs.fire(where, job_id, dues)
        self._ringer.ring(where, where.partition_of(job_id))
        return added

    async def cancel(self, run_id: str, queue: str | None) -> bool:
        """The id of a run or of a one-shot job."""
        at_rest, others = await self._lookup.apart(queue)
        return await self._cancel_run(at_rest, run_id) or await self._cancel_run(
            await self._lookup.opened(others), run_id
        )

    async def _cancel_run(self, queues: list[OpenQueue], run_id: str) -> bool:
        job_id, due = parse_run_id(run_id)
        for where in queues:
            # A run is the job itself, an extra run under its due time, or, as due 0, the one that replaces others.
            for member in (job_id, extra_member(job_id, due), extra_member(job_id, 0)):
                if await self._cancel_in(where, member, due):
                    return True
        return False

    async def cancel_job(self, job_id: str, queue: str) -> bool:
        return any([await self._cancel_in(where, job_id, 0) for where in await self._lookup.queues(queue)])

    async def _cancel_in(self, where: OpenQueue, member: str, due: Millis) -> bool:
        code, owner, token = await self._jobs.cancel(where, member, due)
        if code == 2 and owner:
            await self._fleet.post(owner, {"cancel": member, "token": token})
        return code > 0

    # Dead and parked

    async def retry_dead(self, job_id: str, queue: str | None) -> bool:
        return await self._wake_up(job_id, queue, self._jobs.revive)

    async def drop_dead(self, job_id: str, queue: str | None) -> bool:
        return await self.remove(job_id, queue, only="dead")

    async def unpark(self, job_id: str, queue: str | None) -> bool:
        return await self._wake_up(job_id, queue, self._jobs.unpark)

    async def _wake_up(
        self, job_id: str, queue: str | None, transition: Callable[[OpenQueue, str], Awaitable[Any]]
    ) -> bool:
        found = await self._lookup.find(job_id, queue)
        if found is None or not await transition(found[0], job_id):
            return False
        self._ringer.ring(found[0], found[0].partition_of(job_id))
        return True

    def _now(self) -> Millis:
        return int(self._store.clock.server_ms())


def _not_running(run: Run, seconds: float) -> Any:
    raise TocsinError(f"run {run.id!r} is not running here: only its handler can extend it")
