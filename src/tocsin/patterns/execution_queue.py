"""A queue of executions by priority, within a priority first come, first served, with a limit of active ones.

`try_schedule` gives a slot, `release` frees it. If a slot is not freed in time, its execution returns to the line, to
the position of its age, and the next caller gets it.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any

from msgspec.structs import replace

from tocsin.app import Tocsin
from tocsin.app.job_options import check_tenant
from tocsin.model.durations import Duration
from tocsin.model.errors import InvalidArgument
from tocsin.model.ids import check_job_id
from tocsin.model.job import DEFAULT_KEEP, NORMAL, PRIORITIES, Header, check_keep, check_priority, check_timeout
from tocsin.model.outcome import CANCELLED, CONFLICT, EDIT_IN_LINE, MISSING, SUCCEEDED
from tocsin.model.queue import Queue
from tocsin.model.record import encode_header, encode_record
from tocsin.patterns.execution_metrics import ExecutionMetrics
from tocsin.patterns.manual_claims import ManualClaims
from tocsin.store.keys import BANDS
from tocsin.store.transitions.jobs import PutItem

_NAME = "tocsin.patterns.ExecutionQueue"
_GIVEN_UP = "scheduled {n} times and never released"
_FIELDS = ("execution_id", "priority", "user_id", "payload")
# A process remembers the tokens of so many slots: those that it holds, and those that it lost to others.
_MOST_REMEMBERED = 100_000


class ExecutionQueue:
    """Any number of processes may use the same name. Callers take executions themselves; no worker serves the queue.

    An event is a mapping, or an object with attributes. It has an `execution_id`, which is text, and may have a
    `priority` (default: normal), a `user_id`, also text, and a `payload`. `try_schedule` returns a mapping as it was
    given, an object as the dict of its public attributes. Inside, tuples and sets come back as lists, dataclasses as
    dicts, and enums as their values.
    """

    def __init__(
        self, app: Tocsin, name: str = "exec_queue", timeout: Duration = "1h", *, keep: Duration = DEFAULT_KEEP
    ) -> None:
        """`timeout` is how long a slot can be held. Choose it longer than any execution takes.

        `keep` is how long the queue remembers an execution that is over: until then the same event changes nothing.
        """
        self._timeout, self._keep = check_timeout(timeout), check_keep(keep)
        self._claims = ManualClaims(app, Queue(name, "priority", partitions=1), _NAME)
        self._tokens: dict[str, int] = {}
        self._metrics = ExecutionMetrics()

    async def enqueue(self, event: Any) -> int | None:
        """Returns its position in the whole line, the number of executions ahead. The same event again changes nothing.

        None if it is no longer in line: it is active, was released, removed or given up, or is set aside.
        """
        member, record = self._record(event)
        queue = await self._claims.bring_back()
        await self._claims.jobs.put(queue, PutItem(member, record, 0, relative=True))
        await self._metrics.refresh(self._claims)
        return await self._claims.jobs.position(queue, member)

    async def try_schedule(self, max_active: int) -> tuple[str, Any] | None:
        """The next execution and its event; None if the line is empty, or if `max_active` are active already.

        It is active until `release`, or until `timeout` is over.
        """
        cap = _check_cap(max_active)
        # Before the claim, so that a caller that is cancelled while the numbers are read holds no slot.
        await self._metrics.refresh(self._claims)
        held = await self._claims.take(self._timeout, _GIVEN_UP, cap)
        if held is None:
            return None
        self._metrics.scheduled(self._claims.store, held.claim)
        execution_id = held.claim.member
        self._remember(execution_id, held.claim.token)
        return execution_id, held.obj

    def token(self, execution_id: str) -> int | None:
        """The token of what this process scheduled last under this id, for `release` in another process."""
        return self._tokens.get(check_job_id(execution_id))

    async def release(self, execution_id: str, *, token: int | None = None) -> bool:
        """End the execution and free its slot. False if it was not active; then nothing changes.

        Only the slot of the token is freed: the given token, else the one that this process got when it scheduled the
        execution. With neither, the execution is released no matter which process scheduled it.
        """
        member = check_job_id(execution_id)
        ours = self._tokens.get(member) if token is None else token
        if not await self._claims.end(member, ours, SUCCEEDED, self._keep):
            return False
        self._tokens.pop(member, None)
        await self._metrics.refresh(self._claims)
        return True

    async def update_priority(self, execution_id: str, new_priority: str) -> bool:
        """Move it to another priority, at the position of its age. False if it is not in line."""
        member, band = check_job_id(execution_id), _band(new_priority)
        queue = await self._claims.bring_back()
        while True:
            job = await self._claims.jobs.get(queue, member)
            # Leave alone a job that is no execution, or that we cannot read: we would overwrite it.
            if job is None or job.header.handler != self._claims.handler:
                return False
            record = encode_record(replace(job.header, band=band), job.spec)
            code, _ = await self._claims.jobs.put(queue, PutItem(member, record, 0, False, EDIT_IN_LINE, job.version))
            if code != CONFLICT:
                return code != MISSING

    async def remove(self, execution_id: str) -> bool:
        """Take it out of the line, or free its slot, no matter which process holds it. False if it had neither.

        It is remembered as cancelled, so the same event does not bring it back.
        """
        member = check_job_id(execution_id)
        queue = await self._claims.open()
        while True:
            code, owner, token = await self._claims.jobs.cancel(queue, member)
            # 1: it was in line. 2: it is active, and will not be scheduled again if its slot returns first. Without an
            # owner the claim is unreadable: the slot returns at its deadline.
            if code != 2 or not owner:
                return code > 0
            if await self._claims.end_as(owner, member, token, CANCELLED, self._keep):
                self._tokens.pop(member, None)
                return True

    async def get_queue_status(self) -> dict[str, int]:
        """How many are in line, and how many are active."""
        queue = await self._claims.bring_back()
        counts = await self._claims.jobs.count(queue, (*BANDS, "waiting", "working"))
        active = counts.pop("working")
        return {"queue_depth": sum(counts.values()), "active_count": active}

    async def get_pending_by_priority(self) -> dict[str, int]:
        """How many are in line, by priority. All five priorities are listed, also with 0."""
        queue = await self._claims.bring_back()
        return dict(zip(PRIORITIES, await self._claims.jobs.ready_counts(queue), strict=True))

    def _record(self, event: Any) -> tuple[str, bytes]:
        fields = _fields_of(event)
        if "execution_id" not in fields:
            raise InvalidArgument(f"an event has an execution_id, {reprlib.repr(event)} has none")
        member = _named("execution_id", check_job_id, fields["execution_id"])
        priority = fields.get("priority")
        header = Header(
            recurring=False,
            timeout=self._timeout,
            handler=self._claims.handler,
            band=NORMAL if priority is None else _band(priority),
            keep=self._keep,
            tenant=_named("user_id", check_tenant, fields.get("user_id")),
        )
        return member, encode_header(header) + self._claims.body(fields)

    def _remember(self, execution_id: str, token: int) -> None:
        # Kept even after the slot has returned: a late release must not free the slot that another process has by then.
        self._tokens.pop(execution_id, None)
        self._tokens[execution_id] = token
        if len(self._tokens) > _MOST_REMEMBERED:
            del self._tokens[next(iter(self._tokens))]


def _fields_of(event: Any) -> dict[Any, Any]:
    if isinstance(event, Mapping):
        return dict(event)
    kind = type(event)
    fields: Iterable[str] = getattr(kind, "__struct_fields__", ()) or getattr(kind, "__dataclass_fields__", ())
    own = fields or getattr(event, "__dict__", ())
    names = dict.fromkeys((*own, *_FIELDS))
    return {name: getattr(event, name) for name in names if not name.startswith("_") and hasattr(event, name)}


def _named(field: str, check: Callable[[Any], str], value: Any) -> str:
    try:
        return check(value)
    except InvalidArgument as error:
        raise InvalidArgument(f"{field} of an event: {error}") from None


def _band(priority: Any) -> int:
    return check_priority(priority.value if isinstance(priority, Enum) else priority)


def _check_cap(max_active: Any) -> int:
    if not isinstance(max_active, int) or isinstance(max_active, bool) or max_active < 0:
        raise InvalidArgument(f"max_active is a whole number from 0, not {max_active!r}")
    return max_active
