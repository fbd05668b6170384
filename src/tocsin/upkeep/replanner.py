"""Replanning: when the zone database has changed, jobs that go by the wall clock are due at other moments.

Governments change their clocks at short notice. The version by which jobs are planned stands in Redis; a leader that
knows a newer one goes once through what waits for a time to come, and moves what is due otherwise now. A run that is
due, working or retried is left as it is: the next one is planned by whoever ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct

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

log = get_logger("tocsin.replan")

PAGE = 500
# So near to its time a job is left alone: it may be claimed while we look at it.
NEAR_MS = 10_000
DAY_MS = 86_400_000
# How long one pass may take, and how long to rest between looks at the version.
BUDGET_S = 1.0
EVERY_S = 60.0
# As a digit of the answer.
STAGES = (Stage.WAITING, Stage.PAUSED)


class WallClockJobs(Struct, frozen=True):
    queue: OpenQueue
    partition: int
    stage: Stage


class Replanner:
    """One pass: look at the version; if it is older than ours, page after page, as long as we lead and may."""

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
        # How many jobs were moved so far.
        self.moved = 0
        self._store = store
        self._fleet = fleet
        self._jobs = Jobs(store)
        self._clock = clock
        self._look_again = look_again
        self._leading = leading
        self._version = version
        self._warned = False
        # What is left to go through, and where the next page begins; None: not begun.
        self._left: list[WallClockJobs] | None = None
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
            # What was not reached before we lost the term is the next leader's: it begins anew.
            await self._fleet.set_zone_version(ours)
            log.info("planned by a new zone database", version=ours, before=theirs, moved=self.moved)
        return EVERY_S

    def _warn_if_older(self, ours: str, theirs: str | None) -> None:
        if theirs is not None and ours != theirs and not zone_version.newer(ours, theirs) and not self._warned:
            self._warned = True
            log.warning("the zone database here is older than the one by which jobs are planned", ours=ours, is_=theirs)

    async def _walk(self) -> bool:
        """Whether all places are done with."""
        ends = self._clock.monotonic() + BUDGET_S
        if self._left is None:
            self._left = await self._places()
        while self._left:
            if not self._leading() or self._clock.monotonic() >= ends:
                return False
            if await self._page(self._left[-1]):
                self._left.pop()
        self._left = None
        return True

    async def _places(self) -> list[WallClockJobs]:
        """Of all queues, also those that this worker does not serve."""
        queues = await self._store.queues.open_all()
        return [WallClockJobs(queue, p, stage) for queue in queues for p in range(queue.partitions) for stage in STAGES]

    async def _page(self, place: WallClockJobs) -> bool:
        """Whether the place is done with."""
        try:
            base, after = place.stage.value, self._begin()
            page = await job_pages.look(self._store, place.queue, place.partition, base, after, size=PAGE)
            await self._replan(place, [member for member, _ in page.found])
        except StoreUnavailable:
            raise
        except StoreError as error:
            # One that is broken must not keep the others from being planned.
            log.warning("cannot plan anew", queue=place.queue.name, partition=place.partition, error=str(error))
            page = None
        self._after = None if page is None else page.end
        return self._after is None

    def _begin(self) -> tuple[float, bytes]:
        return self._after or (float(self._clock.server_ms() + NEAR_MS), b"")

    async def _replan(self, place: WallClockJobs, members: list[bytes]) -> None:
        """What is changed by somebody else meanwhile is looked at again; a few times, then it is theirs."""
        for _ in range(3):
            if not members:
                return
            now = int(self._clock.server_ms())
            puts = []
            for job in await self._jobs.get_all(place.queue, place.partition, members):
                due = self._new_due(job, now)
                if due is not None:
                    puts += _moved(job, due)
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
            # It stays as it was planned. Whoever ends its run parks it, if it still fails then.
            log.warning("cannot plan anew", job=job.id, queue=job.queue, error=str(error))
            return None


def _moved(job: Job, due: Millis) -> list[PutItem]:
    """None if its arguments are such as nobody may put: somebody wrote its record by hand."""
    try:
        return [PutItem(job.id, encode_record(job.header, job.spec), due, False, EDIT, job.version)]
    except InvalidArgument:
        return []


def _new_due(job: Job, now: Millis) -> Millis | None:
    """When it is due by the present zones, if that is another time and the job is ours to move."""
    trigger, rules = job.trigger, job.spec.rules
    fresh = job.attempt == 1 and not job.recoveries and job.not_before_ms in (None, job.due_ms)
    waits = job.stage in STAGES and job.due_ms > now + NEAR_MS
    if trigger is None or not (job.recurring and fresh and waits and by_the_wall_clock(trigger)):
        return None
    if job.failure is not None:
        # It may have been told to wait: only its own day is looked at, if the time is still one of its times at all.
        shift = phase(job.id, rules.jitter)
        if rules.error_interval is not None or next_at(trigger, job.due_ms - shift) == job.due_ms - shift:
            return None
        now = max(now, job.due_ms - DAY_MS)
    try:
        due = first_due(trigger, rules, job.id, now)
    except TriggerFailed:
        raise
    except InvalidTrigger:
        # Nothing is left of it by the present zones: its last run stays as it was planned.
        return None
    return None if due == job.due_ms else due
