"""Schedules of tasks: what is stored of one, and what is shown.

A schedule is a recurring job; its cron expression is the job's trigger, its user the tenant, and what the job's handler
is given is a `StoredTask`. Inactive is paused, or set aside because it cannot be read.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from tocsin.app import job_options
from tocsin.app.declarations import Declarations
from tocsin.app.job_update import changed
from tocsin.engine.handlers import Handler
from tocsin.model import msgpack
from tocsin.model.durations import Millis, moment
from tocsin.model.errors import InvalidArgument, InvalidTrigger, RecordUnreadable, nearest
from tocsin.model.job import Job, Retry, Stage
from tocsin.model.outcome import CONFLICT, EDIT, MISSING
from tocsin.model.record import body_of, decode_header, encode_record
from tocsin.model.trigger import Cron
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.fleet import BellRinger, Fleet
from tocsin.store.transitions.jobs import Jobs, PutItem

CHANGEABLE = ("cron_expression", "user_id", "priority", "payload", "timezone", "is_active")
# Each occurrence is pushed, however often that fails first and however late it is.
_TRIES = 2**31 - 1
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 30.0
# As a digit of the answer of a put.
RULES = job_options.policy(misfire="all", overlap="buffer_all")


class StoredTask(Struct, frozen=True):
    """What each occurrence pushes, and what is remembered of the schedule; times in epoch ms."""

    priority: str
    payload: Any
    created: Millis
    updated: Millis
    # Of the occurrence that was pushed last: when it was due, and when it was pushed.
    last: Millis | None = None
    ran: Millis | None = None


class Schedule(Struct, frozen=True):
    """A schedule as it stands. Times are in UTC; `next_run` is None while it is not active."""

    schedule_id: str
    cron_expression: str
    user_id: str
    priority: str
    payload: Any
    timezone: str
    is_active: bool
    last_run: datetime | None
    next_run: datetime | None
    created_at: datetime | None
    updated_at: datetime | None
    # Why it was set aside, or why its last push failed.
    error: str | None = None
    # When the occurrence that ran at `last_run` was due.
    last_due: datetime | None = None


def put_of(
    handler: Handler,
    schedule_id: str,
    cron: Cron,
    user_id: str,
    plan: StoredTask,
    timeout: Millis,
    pause: float,
    now: Millis,
    mode: int,
    largest: int,
) -> PutItem:
    """Raises InvalidTrigger if it would never run. `pause`: the longest between two tries of a push, in seconds."""
    retry = Retry(_TRIES, min(_FIRST_PAUSE_S, pause), max_interval=min(pause, _LONGEST_PAUSE_S))
    planned = job_options.plan(
        handler,
        (_stored(plan),),
        {},
        trigger=cron,
        retry=retry,
        timeout=timeout / 1000,
        tenant=user_id,
        policy=RULES,
        largest=largest,
    )
    return job_options.recurring(planned, schedule_id, now, mode)


def _stored(plan: StoredTask) -> dict[str, Any]:
    return msgspec.structs.asdict(plan)


async def revise(
    store: Store,
    where: OpenQueue,
    schedule_id: str,
    change: Callable[[Job], dict[str, Any]],
    largest: int = sys.maxsize,
) -> bool:
    """Change what `change` says of the job as it is: whoever else changes it meanwhile is not undone. False: no job.
    `largest`: bytes that its arguments may take then."""
    jobs = Jobs(store)
    while True:
        job = await jobs.get(where, schedule_id)
        if job is None:
            return False
        header, spec, due, relative = changed(job, change(job), Declarations(), int(store.clock.server_ms()))
        put = PutItem(schedule_id, encode_record(header, spec, largest), due, relative, EDIT, job.version)
        code, head = await jobs.put(where, put)
        await ring(store, where, head)
        if code != CONFLICT:
            return code != MISSING


async def ring(store: Store, where: OpenQueue, head: Millis) -> None:
    """A put became the first in line: whoever sleeps until another is told."""
    if head >= 0:
        ringer = BellRinger(Fleet(store))
        ringer.ring(where, 0)
        await ringer.quiet()


def changes_of(job: Job, wanted: dict[str, Any], now: Millis) -> dict[str, Any]:
    """What an update means for the job: its trigger if that is another, its tenant, and what it pushes."""
    cron, plan = cron_of(job), plan_of(job)
    pushes = {name: wanted[name] for name in ("priority", "payload") if name in wanted}
    changes: dict[str, Any] = {
        "trigger": Cron(wanted.get("cron_expression", cron.expression), wanted.get("timezone", cron.tz), cron.dst),
        "args": [_stored(plan) | pushes | {"updated": now}],
    }
    if "user_id" in wanted:
        changes["tenant"] = wanted["user_id"]
    return changes


def noted(job: Job, due: Millis, now: Millis) -> dict[str, Any]:
    """The occurrence of `due` was pushed."""
    return {"args": [_stored(plan_of(job)) | {"last": due, "ran": now, "updated": now}]}


async def note_all(store: Store, where: OpenQueue, dues: dict[str, Millis], now: Millis) -> None:
    """The occurrences of these schedules were pushed. All are read in one call and written in another; those that
    somebody changes in between are read again."""
    jobs, left = Jobs(store), dues
    while left:
        found = [job for each in _by_partition(where, left) for job in await jobs.get_all(where, *each)]
        puts = [_note(job, left[job.id], now) for job in found if is_readable(job)]
        codes, head = await jobs.put_many(where, puts)
        await ring(store, where, head)
        left = {put.member: left[put.member] for put, code in zip(puts, codes, strict=True) if code == CONFLICT}


def _by_partition(where: OpenQueue, members: Iterable[str]) -> list[tuple[int, list[bytes]]]:
    found: dict[int, list[bytes]] = {}
    for member in members:
        found.setdefault(where.partition_of(member), []).append(member.encode())
    return list(found.items())


def _note(job: Job, last: Millis, now: Millis) -> PutItem:
    header, spec, due, relative = changed(job, noted(job, last, now), Declarations(), now)
    return PutItem(job.id, encode_record(header, spec), due, relative, EDIT, job.version)


def check_changes(changes: dict[str, Any]) -> None:
    for name in changes:
        if name not in CHANGEABLE:
            raise InvalidArgument(f"a schedule has no {name!r} that can be changed; {nearest(name, CHANGEABLE)}")
    if not isinstance(changes.get("is_active", True), bool):
        raise InvalidArgument(f"is_active is True or False, not {changes['is_active']!r:.100}")


def cron_of(job: Job) -> Cron:
    if not isinstance(job.trigger, Cron):
        raise RecordUnreadable(f"schedule {job.id!r} has no cron expression: remove it and add it again")
    return job.trigger


def plan_of(job: Job) -> StoredTask:
    return read_plan(job.args[0] if job.args else None)


def read_plan(given: Any) -> StoredTask:
    try:
        return msgspec.convert(given, StoredTask)
    except msgspec.ValidationError as error:
        raise RecordUnreadable(f"a schedule cannot be read: {error}") from None


def is_readable(job: Job) -> bool:
    try:
        cron_of(job), plan_of(job)
    except RecordUnreadable:
        return False
    return True


# Showing


def schedule_of(job: Job) -> Schedule:
    cron = cron_of(job)
    return _shown(job, ScheduleRecord(plan_of(job), cron.expression, cron.tz, job.tenant or ""))


def unreadable_schedule(job: Job, record: bytes) -> Schedule:
    """What can still be told of it."""
    return _shown(job, ScheduleRecord.of(record))


class ScheduleRecord(Struct, frozen=True):
    """What a record says of a schedule, as far as it can be read."""

    plan: StoredTask | None = None
    expression: str = ""
    timezone: str = ""
    user_id: str = ""
    # Its cron expression, or its zone, is none that is known here: all else may be well.
    wrong_cron: str = ""

    @classmethod
    def of(cls, record: bytes) -> ScheduleRecord:
        try:
            user_id = decode_header(record).tenant
            body = msgpack.decode(body_of(record))
            (given,), (tag, expression, zone, dst) = body[1], body[3]
        except (RecordUnreadable, msgspec.MsgspecError, IndexError, ValueError, TypeError, KeyError):
            return cls()
        if tag != "cron" or not all(isinstance(text, str) for text in (expression, zone, dst)):
            return cls(user_id=user_id)
        plan: StoredTask | None = None
        with contextlib.suppress(RecordUnreadable):
            plan = read_plan(given)
        return cls(plan, expression, zone, user_id, _wrong(expression, zone, dst))


def _wrong(expression: str, zone: str, dst: str) -> str:
    try:
        Cron(expression, zone, dst)
    except InvalidTrigger as error:
        return str(error)
    return ""


def _shown(job: Job, saved: ScheduleRecord) -> Schedule:
    plan = saved.plan or StoredTask("", None, 0, 0)
    active = job.stage not in (Stage.PAUSED, Stage.PARKED)
    return Schedule(
        schedule_id=job.id,
        cron_expression=saved.expression,
        user_id=saved.user_id,
        priority=plan.priority,
        payload=plan.payload,
        timezone=saved.timezone,
        is_active=active,
        last_run=_moment(plan.ran or plan.last),
        next_run=moment(job.due_ms) if active else None,
        created_at=moment(plan.created) if plan.created else None,
        updated_at=moment(plan.updated) if plan.updated else None,
        error=None if job.failure is None else job.failure.error,
        last_due=_moment(plan.last),
    )


def _moment(ms: Millis | None) -> datetime | None:
    return None if ms is None else moment(ms)
