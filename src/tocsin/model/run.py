"""Claim, the right of a worker to execute a run, and Run, which handlers receive."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from msgspec import Struct

from tocsin.model.durations import Duration, Millis, moment, seconds
from tocsin.model.ids import idempotency_key, job_of, run_id
from tocsin.model.job import PRIORITIES, Header, Spec
from tocsin.model.record import timeout_of

MAX_RECOVERIES = 5
# A run recovered this often may be the one that kills workers, so it is claimed alone. One recovery proves nothing: all
# runs of a dead worker are recovered together.
SUSPECT = 2


class Claim(Struct, frozen=True, gc=False):
    """The right of one worker to execute a run until a deadline, as a claim script returns it."""

    queue: str
    partition: int
    # The member's name in Redis, as bytes: it may be garbage that is not UTF-8, and must go back unchanged.
    key: bytes
    token: int
    due: Millis
    attempt: int
    recoveries: int
    cancelled: bool
    deadline: Millis
    record: bytes
    # Since when the queue's cap or rate had held back runs; None if it held back none.
    held_since: Millis | None = None

    @property
    def member(self) -> str:
        return self.key.decode("utf-8", "surrogateescape")

    @property
    def has_ended(self) -> bool:
        """The run has ended already: only the next due time of its job is missing (lua/run_park.lua)."""
        return self.attempt == 0

    @property
    def run_id(self) -> str:
        return run_id(self.member, self.due)

    @property
    def job_id(self) -> str:
        return job_of(self.member)

    @property
    def started(self) -> Millis:
        """When it was claimed: the deadline minus the timeout in its record."""
        return self.deadline - timeout_of(self.record)


class Run:
    """The run that a handler is executing: its facts, and `extend`."""

    __slots__ = ("_claim", "_extend", "_header", "_namespace", "_spec", "cancelled", "deadline", "extended_until")

    def __init__(
        self,
        claim: Claim,
        header: Header,
        spec: Spec,
        namespace: str,
        extend: Callable[[Run, float], Any],
    ) -> None:
        self._claim = claim
        self._header = header
        self._spec = spec
        self._namespace = namespace
        self._extend = extend
        # Set when the run timed out, was cancelled or lost its claim. Handlers in threads must check it: nothing else
        # can stop them.
        self.cancelled = False
        self.deadline: datetime = moment(claim.deadline)
        # The extended deadline in monotonic seconds, for the worker; None until `extend` is called.
        self.extended_until: float | None = None

    @property
    def id(self) -> str:
        return self._claim.run_id

    @property
    def job_id(self) -> str:
        return self._claim.job_id

    @property
    def queue(self) -> str:
        return self._claim.queue

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def due(self) -> datetime:
        return moment(self._claim.due)

    @property
    def attempt(self) -> int:
        return self._claim.attempt

    @property
    def recoveries(self) -> int:
        return self._claim.recoveries

    @property
    def token(self) -> int:
        return self._claim.token

    @property
    def idempotency_key(self) -> str:
        claim = self._claim
        return idempotency_key(self._namespace, claim.queue, claim.member, claim.due)

    @property
    def tenant(self) -> str | None:
        return self._header.tenant or None

    @property
    def priority(self) -> str:
        return PRIORITIES[self._header.band]

    @property
    def args(self) -> tuple[Any, ...]:
        return self._spec.args

    @property
    def kwargs(self) -> dict[str, Any]:
        return self._spec.kwargs

    def extend(self, by: Duration) -> Any:
        """Move the deadline to `by` from now. Await it in an `async def`; in a thread it blocks.

        Raises ClaimLost if another worker has the run.
        """
        return self._extend(self, seconds(by, "an extension"))

    def __repr__(self) -> str:
        return f"Run({self.id!r}, attempt={self.attempt})"
