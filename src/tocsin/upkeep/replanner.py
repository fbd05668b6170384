"""Replans jobs that follow the wall clock when the time zone database has changed.

Governments change their clocks at short notice. Redis keeps the version of the database by which jobs are planned. A
leader with a newer version goes once through all jobs that wait for a future time, and moves those that are due at
another moment now. It leaves runs alone that are due, working or retried: the worker that ends such a run plans the
next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tocsin.model.clock import Clock
from tocsin.model.durations import Millis
from tocsin.model.errors import InvalidArgument, InvalidTrigger, StoreError, StoreUnavailable, TriggerFailed
from tocsin.model.job import Job, Stage
from tocsin.model.outcome import CONFLICT, EDIT
from tocsin.model.record import encode_record
from tocsin.model.trigger import by_the_wall_clock
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.fleet import Fleet
from tocsin.store.transitions.jobs import Jobs, PutItem
from tocsin.store.views import job_pages
from tocsin.telemetry.logs import get_logger
from tocsin.triggers import zone_version
from tocsin.triggers.next_tick import next_at
from tocsin.triggers.recurrence import first_due, phase
from tocsin.upkeep.partition_stages import PartitionStage, partition_stages

log = get_logger("tocsin.replan")

PAGE = 500
# Jobs that are due this soon are left alone, because a worker may claim them while we look at them.
NEAR_MS = 10_000
DAY_MS = 86_400_000
# How long one pass may take, and how long to rest between looks at the version.
BUDGET_S = 1.0
EVERY_S = 60.0
# CONFLICT as the byte that the script returns.
STAGES = (Stage.WAITING, Stage.PAUSED)


class Replanner:
    """Each pass compares the version in Redis with ours. If ours is newer it replans jobs page by page, while we lead
    and the budget lasts."""

    name = "replan"

    def __init__(
        self,
        store: Store,
        fleet: Fleet,
        clock: Clock,
        look_again: Callable[[OpenQueue, int], None],
        *,
        leading: Callable[[], bool],
        version: Callable[[], str] = zone_version.version,
    ) -> None:
        self.wake = asyncio.Event()
        # How many jobs were given another due time so far.
        self.moved = 0
        self._store = store
        self._fleet = fleet
        self._jobs = Jobs(store)
        self._clock = clock
        self._look_again = look_again
        self._leading = leading
        self._version = version
        self._warned = False
        # The places that are left in this round, and where the next page begins; None before a round.
        self._left: list[PartitionStage] | None = None
        self._after: tuple[float, bytes] | None = None

    async def step(self) -> float:
        ours, theirs = await asyncio.to_thread(self._version), await self._fleet.zones()
        self._warn_if_older(ours, theirs)
        if not self._leading() or (theirs is not None and not zone_version.newer(ours, theirs)):
            self._left = self._after = None
            return EVERY_S
        if theirs is not None and not await self._walk():
            return 0.0 if self._leading() else EVERY_S
        if self._leading():
            # If we lose the term before this, the next leader starts the round again.
            await self._fleet.set_zone_version(ours)
            log.info("planned by a new zone database", version=ours, before=theirs, moved=self.moved)
        return EVERY_S

    def _warn_if_older(self, ours: str, theirs: str | None) -> None:
        if theirs is not None and ours != theirs and not zone_version.newer(ours, theirs) and not self._warned:
            self._warned = True
            log.warning("the zone database here is older than the one by which jobs are planned", ours=ours, is_=theirs)

    async def _walk(self) -> bool:
        """True if all places are done."""
        ends = self._clock.monotonic() + BUDGET_S
        if self._left is None:
            # All queues, also those that this worker does not serve.
            self._left = partition_stages(await self._store.queues.open_all(), [stage.value for stage in STAGES])
        while self._left:
            if not self._leading() or self._clock.monotonic() >= ends:
                return False
            if await self._page(self._left[-1]):
                self._left.pop()
        self._left = None
        return True

    async def _page(self, place: PartitionStage) -> bool:
        """True if this was the last page of the place."""
        try:
            after = self._begin()
            page = await job_pages.look(self._store, place.queue, place.partition, place.stage, after, size=PAGE)
            await self._replan(place, [member for member, _ in page.found])
        except StoreUnavailable:
            raise
        except StoreError as error:
            # A broken partition must not stop the replanning of the others.
            log.warning("cannot replan", queue=place.queue.name, partition=place.partition, error=str(error))
            page = None
        self._after = None if page is None else page.end
        return self._after is None

    def _begin(self) -> tuple[float, bytes]:
        return self._after or (float(self._clock.server_ms() + NEAR_MS), b"")

    async def _replan(self, place: PartitionStage, members: list[bytes]) -> None:
        """Replan these jobs. A job that somebody else changes meanwhile is read again, three times at most."""
        for _ in range(3):
            if not members:
                return
            now = int(self._clock.server_ms())
            puts = []
            for job in await self._jobs.get_all(place.queue, place.partition, members):
                due = self._new_due(job, now)
                if due is not None:
                    puts += _put_at(job, due)
            if not puts:
                return
            codes, head = await self._jobs.put_many(place.queue, puts)
            conflicts = [put.member.encode() for put, code in zip(puts, codes, strict=True) if code == CONFLICT]
            self.moved += len(puts) - len(conflicts)
            for partition in {place.queue.partition_of(put.member) for put in puts} if head >= 0 else ():
                self._look_again(place.queue, partition)
            members = conflicts

    def _new_due(self, job: Job, now: Millis) -> Millis | None:
        try:
            return _new_due(job, now)
        except TriggerFailed as error:
            # The job keeps its due time. If its trigger still fails when the run ends, the worker parks the job.
            log.warning("cannot replan", job=job.id, queue=job.queue, error=str(error))
            return None


def _put_at(job: Job, due: Millis) -> list[PutItem]:
    """The put that changes the due time; empty if the job has invalid arguments, because somebody wrote its record by
    hand."""
    try:
        return [PutItem(job.id, encode_record(job.header, job.spec), due, False, EDIT, job.version)]
    except InvalidArgument:
        return []


def _new_due(job: Job, now: Millis) -> Millis | None:
    """When the job is due by the present zones; None if that is no other time, or if the job must not be moved."""
    trigger, rules = job.trigger, job.spec.rules
    fresh = job.attempt == 1 and not job.recoveries and job.not_before_ms in (None, job.due_ms)
    waits = job.stage in STAGES and job.due_ms > now + NEAR_MS
    if trigger is None or not (job.recurring and fresh and waits and by_the_wall_clock(trigger)):
        return None
    if job.failure is not None:
        # A failed job may be waiting on purpose. Replan it only if its due time is no longer a tick, and then to a tick
        # that is at most a day earlier.
        shift = phase(job.id, rules.jitter)
        if rules.error_interval is not None or next_at(trigger, job.due_ms - shift) == job.due_ms - shift:
            return None
        now = max(now, job.due_ms - DAY_MS)
    try:
        due = first_due(trigger, rules, job.id, now)
    except TriggerFailed:
        raise
    except InvalidTrigger:
        # By the present zones the job has no ticks left. Its last run keeps its due time.
        return None
    return None if due == job.due_ms else due
