"""Puts jobs: one-shots and schedules, one at a time or in bulk, and updates of their definitions."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator
from typing import Any

from tocsin.app.bulk import Bulk
from tocsin.app.declarations import Declarations
from tocsin.app.dependencies import DependentWriter, UpstreamRefs
from tocsin.app.handle import Handle
from tocsin.app.job_options import (
    JobDefinition,
    JobLimits,
    OneShotOptions,
    check_delivery_time,
    check_order,
    check_retries_fit_interval,
    one_shot,
    recurring,
    warn_if_odd,
)
from tocsin.app.job_update import apply_changes
from tocsin.app.lookup import Lookup
from tocsin.app.rows import BulkSchedule, Rows
from tocsin.model.durations import Millis
from tocsin.model.errors import InvalidArgument
from tocsin.model.ids import check_job_id, check_member, new_id
from tocsin.model.outcome import CONFLICT, EDIT, MISSING, NEW
from tocsin.model.queue import Queue
from tocsin.model.record import encode_record
from tocsin.store.store import LARGEST_BATCH, OpenQueue, Store
from tocsin.store.transitions.fleet import BellRinger
from tocsin.store.transitions.jobs import Jobs, PutItem
from tocsin.store.transitions.queue_settings import open_and_declare


class JobWriter:
    """Opens the queue of a job, puts the job there, and rings if it became the first in line."""

    def __init__(
        self,
        *,
        store: Store,
        declarations: Declarations,
        limits: JobLimits,
        jobs: Jobs,
        lookup: Lookup,
        dependents: DependentWriter,
        ringer: BellRinger,
        cancel: Callable[[str, str], Awaitable[bool]],
    ) -> None:
        """`cancel`: what `Handle.cancel` calls with the id and the queue of its job."""
        self._store = store
        self._declarations = declarations
        self._limits = limits
        self._jobs = jobs
        self._lookup = lookup
        self._dependents = dependents
        self._ringer = ringer
        self._cancel = cancel

    async def enqueue(
        self, job: JobDefinition, job_id: str | None, options: OneShotOptions, after: UpstreamRefs | None
    ) -> Handle:
        where = await open_and_declare(self._store, self._queue_of(job))
        put = one_shot(job, job_id, new_id(), options, self._limits.keep_s)
        # In a burst, thousands of calls wait below. The less each holds, the less the garbage collector has to look at.
        del job, options
        answer = self._dependents.put(where, put, after) if after else self._jobs.put(where, put)
        return self._handle_of(where, put, await answer)

    async def enqueue_many(
        self,
        first: Rows,
        rows: Iterable[Any] | AsyncIterable[Any],
        ids: Iterable[str] | None,
        options: OneShotOptions,
        after: UpstreamRefs | None,
    ) -> int:
        where = await open_and_declare(self._store, self._queue_of(first.template))
        names = None if ids is None else iter(ids)
        make = first.one_shots(options, named=ids is not None)

        def put(row: Any) -> PutItem:
            return make(new_id() if names is None else _next_id(names), row)

        send = await self._dependents.bulk(where, after) if after else (None, LARGEST_BATCH)
        return await Bulk(self._jobs, where, self._ringer.ring, *send).put_all(rows, put)

    async def schedule(self, job: JobDefinition, job_id: str, mode: int) -> Handle:
        where = await open_and_declare(self._store, self._queue_of(job))
        check_retries_fit_interval(job.spec, job_id, self._limits.retry_exceeds_interval)
        warn_if_odd(job.spec.trigger, job_id)
        put = recurring(job, job_id, self._now(), mode)
        return self._handle_of(where, put, await self._jobs.put(where, put))

    async def schedule_many(self, schedule: BulkSchedule, rows: Iterable[Any] | AsyncIterable[Any]) -> int:
        where = await open_and_declare(self._store, self._queue_of(schedule.rows.template))
        bulk = Bulk(self._jobs, where, self._ringer.ring)
        return await bulk.put_all(rows, lambda row: schedule.put(row, self._now()))

    async def update(self, job_id: str, queue: str | None, changes: dict[str, Any]) -> bool:
        while True:
            found = await self._lookup.find(job_id, queue)
            if found is None:
                return False
            where, job = found
            check_order(where.queue, has_priority=changes.get("priority") is not None)
            check_delivery_time(changes.get("target"), self._limits.delivery_s)
            header, spec, due, relative = apply_changes(job, changes, self._declarations, self._now())
            if changes.keys() & {"trigger", "retry"}:
                check_retries_fit_interval(spec, job_id, self._limits.retry_exceeds_interval)
            if "trigger" in changes:
                warn_if_odd(spec.trigger, job_id)
            record = encode_record(header, spec, self._limits.arguments_bytes)
            put = PutItem(job_id, record, due, relative, EDIT, job.version)
            code, head = await self._jobs.put(where, put)
            if head >= 0:
                self._ringer.ring(where, where.partition_of(job_id))
            if code != CONFLICT:
                return code != MISSING

    def handle(self, job_id: str, queue: str | None) -> Handle:
        return Handle(check_member(job_id), False, queue, self._lookup, self._cancel)

    def _queue_of(self, job: JobDefinition) -> Queue:
        queue = self._declarations.known_queue(job.queue)
        check_order(queue, has_priority=job.has_priority)
        return queue

    def _handle_of(self, where: OpenQueue, put: PutItem, answer: tuple[int, Millis]) -> Handle:
        code, head = answer
        if head >= 0:
            self._ringer.ring(where, where.partition_of(put.member))
        return Handle(put.member, code == NEW, where.name, self._lookup, self._cancel)

    def _now(self) -> Millis:
        return int(self._store.clock.server_ms())


def _next_id(names: Iterator[str]) -> str:
    try:
        return check_job_id(next(names))
    except StopIteration:
        raise InvalidArgument("there are fewer ids than rows") from None
