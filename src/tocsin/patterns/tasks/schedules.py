"""Schedules of tasks: how a schedule is stored, changed and shown.

A schedule is a recurring job. Its cron expression is the job's trigger, its user the job's tenant, and its argument a
`StoredTask`. An inactive schedule is a paused job, or one that was parked because it cannot be read.
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
from tocsin.app.job_update import apply_changes
from tocsin.engine.handlers import Handler
from tocsin.model import msgpack
from tocsin.model.durations import Millis, moment
from tocsin.model.errors import InvalidArgument, InvalidTrigger, RecordUnreadable, did_you_mean
from tocsin.model.job import Job, Retry, Stage
from tocsin.model.outcome import CONFLICT, EDIT, MISSING
from tocsin.model.record import body_of, decode_header, encode_record
from tocsin.model.trigger import Cron
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.fleet import BellRinger, Fleet
from tocsin.store.transitions.jobs import Jobs, PutItem

CHANGEABLE = ("cron_expression", "user_id", "priority", "payload", "timezone", "is_active")
# Every occurrence is pushed in the end, however often the push fails and however late it is.
_TRIES = 2**31 - 1
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 30.0
# The answer of a put is an ASCII digit for each job.
RULES = job_options.policy(misfire="all", overlap="buffer_all")


class StoredTask(Struct, frozen=True):
    """What each occurrence pushes, and the times of the schedule in epoch ms."""

    priority: str
    payload: Any
    created: Millis
    updated: Millis
    # When the occurrence that was pushed last was due, and when it was pushed.
    last: Millis | None = None
    ran: Millis | None = None


class Schedule(Struct, frozen=True):
    """The present state of a schedule. Times are in UTC; `next_run` is None while it is not active."""

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
    # The due time of the occurrence that ran at `last_run`.
    last_due: datetime | None = None


def put_of(
    handler: Handler,
    schedule_id: str,
    cron: Cron,
    user_id: str,
    stored: StoredTask,
    *,
    timeout: Millis,
    pause: float,
    now: Millis,
    mode: int,
    largest: int,
) -> PutItem:
    """Raises InvalidTrigger if it would never run. `pause`: the longest time between two tries, in seconds."""
    retry = Retry(_TRIES, min(_FIRST_PAUSE_S, pause), max_interval=min(pause, _LONGEST_PAUSE_S))
    job = job_options.define_job(
        handler,
        (_fields(stored),),
        {},
        trigger=cron,
        retry=retry,
        timeout=timeout / 1000,
        tenant=user_id,
        policy=RULES,
        limits=job_options.JobLimits(largest),
    )
    return job_options.recurring(job, schedule_id, now, mode)


def _fields(stored: StoredTask) -> dict[str, Any]:
    return msgspec.structs.asdict(stored)


async def revise(
    store: Store,
    where: OpenQueue,
    schedule_id: str,
    change: Callable[[Job], dict[str, Any]],
    largest: int = sys.maxsize,
) -> bool:
    """Apply the changes that `change` returns for the present job. If another caller changes the job meanwhile, begin
    again, so that its change is not undone. `largest`: bytes that the arguments may take. False if the job is gone."""
    jobs = Jobs(store)
    while True:
        job = await jobs.get(where, schedule_id)
        if job is None:
            return False
        header, spec, due, relative = apply_changes(job, change(job), Declarations(), int(store.clock.server_ms()))
        put = PutItem(schedule_id, encode_record(header, spec, largest), due, relative, EDIT, job.version)
        code, head = await jobs.put(where, put)
        await ring(store, where, head)
        if code != CONFLICT:
            return code != MISSING


async def ring(store: Store, where: OpenQueue, head: Millis) -> None:
    """Wake sleeping workers if a put became the first in line, with `head` as its due time; -1: it did not."""
    if head >= 0:
        ringer = BellRinger(Fleet(store))
        ringer.ring(where, 0)
        await ringer.quiet()


def changes_of(job: Job, wanted: dict[str, Any], now: Millis) -> dict[str, Any]:
    """The changes of the job that make the wanted changes of its schedule."""
    cron, stored = cron_of(job), stored_task_of(job)
    pushes = {name: wanted[name] for name in ("priority", "payload") if name in wanted}
    changes: dict[str, Any] = {
        "trigger": Cron(wanted.get("cron_expression", cron.expression), wanted.get("timezone", cron.tz), cron.dst),
        "args": [_fields(stored) | pushes | {"updated": now}],
    }
    if "user_id" in wanted:
        changes["tenant"] = wanted["user_id"]
    return changes


def with_last_run(job: Job, due: Millis, now: Millis) -> dict[str, Any]:
    """The changes of the job that note a push, at `now`, of its occurrence of `due`."""
    return {"args": [_fields(stored_task_of(job)) | {"last": due, "ran": now, "updated": now}]}


async def note_all(store: Store, where: OpenQueue, dues: dict[str, Millis], now: Millis) -> None:
    """Note the pushes of these schedules. One call reads all jobs and another writes them; jobs that another caller
    changes in between are read again."""
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
    header, spec, due, relative = apply_changes(job, with_last_run(job, last, now), Declarations(), now)
    return PutItem(job.id, encode_record(header, spec), due, relative, EDIT, job.version)


def check_changes(changes: dict[str, Any]) -> None:
    for name in changes:
        if name not in CHANGEABLE:
            raise InvalidArgument(f"a schedule has no {name!r} that can be changed; {did_you_mean(name, CHANGEABLE)}")
    if not isinstance(changes.get("is_active", True), bool):
        raise InvalidArgument(f"is_active is True or False, not {changes['is_active']!r:.100}")


def cron_of(job: Job) -> Cron:
    if not isinstance(job.trigger, Cron):
        raise RecordUnreadable(f"schedule {job.id!r} has no cron expression: remove it and add it again")
    return job.trigger


def stored_task_of(job: Job) -> StoredTask:
    return read_stored_task(job.args[0] if job.args else None)


def read_stored_task(given: Any) -> StoredTask:
    try:
        return msgspec.convert(given, StoredTask)
    except msgspec.ValidationError as error:
        raise RecordUnreadable(f"a schedule cannot be read: {error}") from None


def is_readable(job: Job) -> bool:
    try:
        cron_of(job), stored_task_of(job)
    except RecordUnreadable:
        return False
    return True


# Showing


def schedule_of(job: Job) -> Schedule:
    cron = cron_of(job)
    return _shown(job, ScheduleRecord(stored_task_of(job), cron.expression, cron.tz, job.tenant or ""))


def unreadable_schedule(job: Job, record: bytes) -> Schedule:
    """What can still be read of it."""
    return _shown(job, ScheduleRecord.of(record))


class ScheduleRecord(Struct, frozen=True):
    """A schedule as far as its record can be read."""

    task: StoredTask | None = None
    expression: str = ""
    timezone: str = ""
    user_id: str = ""
    # What is wrong with its cron expression or zone, where the rest of the record is readable.
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
        stored: StoredTask | None = None
        with contextlib.suppress(RecordUnreadable):
            stored = read_stored_task(given)
        return cls(stored, expression, zone, user_id, _wrong(expression, zone, dst))


def _wrong(expression: str, zone: str, dst: str) -> str:
    try:
        Cron(expression, zone, dst)
    except InvalidTrigger as error:
        return str(error)
    return ""


def _shown(job: Job, record: ScheduleRecord) -> Schedule:
    stored = record.task or StoredTask("", None, 0, 0)
    active = job.stage not in (Stage.PAUSED, Stage.PARKED)
    return Schedule(
        schedule_id=job.id,
        cron_expression=record.expression,
        user_id=record.user_id,
        priority=stored.priority,
        payload=stored.payload,
        timezone=record.timezone,
        is_active=active,
        last_run=_moment(stored.ran or stored.last),
        next_run=moment(job.due_ms) if active else None,
        created_at=moment(stored.created) if stored.created else None,
        updated_at=moment(stored.updated) if stored.updated else None,
        error=None if job.failure is None else job.failure.error,
        last_due=_moment(stored.last),
    )


def _moment(ms: Millis | None) -> datetime | None:
    return None if ms is None else moment(ms)
