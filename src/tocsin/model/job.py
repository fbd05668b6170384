"""Job, its spec and header, and its retry and schedule policies."""

from __future__ import annotations

import math
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from tocsin.model.durations import (
    EARLIEST_MS,
    LATEST_MS,
    LONGEST_MS,
    Duration,
    Millis,
    ceil_ms,
    moment,
    seconds,
)
from tocsin.model.errors import InvalidArgument, did_you_mean
from tocsin.model.http import without_login
from tocsin.model.trigger import Every as Every
from tocsin.model.trigger import Once as Once
from tocsin.model.trigger import Trigger as Trigger

DEFAULT_TIMEOUT = 300.0
DEFAULT_KEEP = 86_400.0
# Milliseconds in 32 bits of the record's header.
LONGEST_TIMEOUT = 49 * 86_400.0

PRIORITIES = ("critical", "high", "normal", "low", "background")
NORMAL = PRIORITIES.index("normal")


class Stage(StrEnum):
    """The stage of a job. A job is in exactly one, or in none if it has ended or does not exist."""

    WAITING = "waiting"
    READY = "ready"
    WORKING = "working"
    PAUSED = "paused"
    PARKED = "parked"
    BLOCKED = "blocked"
    DEAD = "dead"


class Retry(Struct, frozen=True, array_like=True, gc=False):
    """How many times to retry a failed run, and how long to wait before each try."""

    retries: int
    interval: float
    jitter: float = 0.0
    factor: float = 2.0
    max_interval: float | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            retries: int,
            interval: Duration,
            jitter: Duration = 0,
            factor: float = 2,
            max_interval: Duration | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        if not isinstance(self.retries, int) or isinstance(self.retries, bool) or self.retries < 0:
            raise InvalidArgument(f"retries must be a whole number from 0, not {self.retries!r}")
        if not isinstance(self.factor, (int, float)) or not math.isfinite(self.factor) or self.factor < 1:
            raise InvalidArgument(f"factor must be a number from 1, not {self.factor!r}")
        force_setattr(self, "interval", seconds(self.interval, "the retry interval"))
        force_setattr(self, "jitter", seconds(self.jitter, "the retry jitter"))
        if self.max_interval is not None:
            force_setattr(self, "max_interval", seconds(self.max_interval, "max_interval"))

    def delay(self, retry: int, chance: float) -> float:
        """Seconds to wait before retry number `retry` (from 0). `chance` in [0, 1) picks the jitter."""
        try:
            wait = self.interval * self.factor**retry
        except OverflowError:
            wait = math.inf if self.interval else 0.0
        if self.max_interval is not None:
            wait = min(wait, self.max_interval)
        return min(wait, 1000 * 365 * 86_400.0) + self.jitter * chance

    def worst_case(self) -> float:
        """The longest time from the first failure to the last try."""
        summed = min(self.retries, 1000)
        # Delays never shrink, so for more than 1000 retries this is a lower bound, which is enough for a warning.
        beyond = (self.retries - summed) * self.delay(summed, 1.0)
        return sum(self.delay(retry, 1.0) for retry in range(summed)) + beyond


MISFIRES = ("coalesce", "skip", "all")
OVERLAPS = ("skip", "buffer_one", "buffer_all", "allow", "cancel_other")


# Limits that decoding checks: another program may have written the record, and a NaN would fail only when the job runs.
_Seconds = Annotated[float, Meta(ge=0, le=LONGEST_MS / 1000)]
_Moment = Annotated[int, Meta(ge=EARLIEST_MS, le=LATEST_MS)]


class Policy(Struct, frozen=True, array_like=True, gc=False):
    """Options that most jobs leave at their defaults. Stored only if one differs."""

    misfire: Literal["coalesce", "skip", "all"] = "coalesce"
    grace: _Seconds | None = None
    catch_up: _Seconds | None = None
    starts: _Moment | None = None
    ends: _Moment | None = None
    jitter: _Seconds = 0.0
    error_interval: _Seconds | None = None
    agent: bool = False
    criticality: Annotated[int, Meta(ge=-(2**31), lt=2**31)] = 0
    overlap: Literal["skip", "buffer_one", "buffer_all", "allow", "cancel_other"] = "skip"


PLAIN = Policy()


class Spec(Struct, frozen=True, array_like=True, gc=False):
    """The body of a record: the handler, its arguments and the trigger.

    Each run decodes one. It is never part of a reference cycle, hence gc=False.
    """

    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    trigger: Trigger | None = None
    retry: Retry | None = None
    policy: Policy | None = None

    @property
    def rules(self) -> Policy:
        return self.policy or PLAIN

    def __repr__(self) -> str:
        """Without the logins in addresses: this text appears in logs and tracebacks."""
        shown = [without_login(arg) if isinstance(arg, str) else arg for arg in self.args]
        trigger, retry, policy = self.trigger, self.retry, self.policy
        return f"Spec({self.name!r}, args={shown!r}, kwargs={self.kwargs!r}, {trigger=}, {retry=}, {policy=})"


class Header(Struct, frozen=True):
    """The fixed part of a record. Scripts read it and update its counters."""

    recurring: bool
    timeout: Millis
    handler: int
    trigger: int = 0
    band: int = NORMAL
    cost: int = 1
    keep: int = 0
    tenant: str = ""
    version: int = 0
    succeeded: int = 0
    failed: int = 0
    attempts: int = 0
    # The id was generated. Outcomes of such jobs are kept as a convenience and are deleted first.
    unnamed: bool = False


class Failure(Struct, frozen=True, array_like=True):
    """The last error of a job, in bounded size."""

    error: str
    traceback: str = ""
    at: Millis = 0
    attempt: int = 0
    # The name of the exception's class. `error` begins with it.
    type: str = ""


class Job(Struct, frozen=True):
    """A job as Redis holds it now."""

    id: str
    queue: str
    spec: Spec
    header: Header
    stage: Stage
    due_ms: Millis
    attempt: int = 1
    recoveries: int = 0
    not_before_ms: Millis | None = None
    owner: str | None = None
    failure: Failure | None = None

    @property
    def is_readable(self) -> bool:
        """False if the record could not be decoded: then only id, stage and due time are known, and `failure` has the
        reason. No handler has the digest 0."""
        return self.header.handler != 0

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def args(self) -> tuple[Any, ...]:
        return self.spec.args

    @property
    def kwargs(self) -> dict[str, Any]:
        return self.spec.kwargs

    @property
    def trigger(self) -> Trigger | None:
        return self.spec.trigger

    @property
    def retry(self) -> Retry | None:
        return self.spec.retry

    @property
    def recurring(self) -> bool:
        return self.header.recurring

    @property
    def timeout(self) -> float:
        return self.header.timeout / 1000

    @property
    def priority(self) -> str:
        return PRIORITIES[self.header.band]

    @property
    def tenant(self) -> str | None:
        return self.header.tenant or None

    @property
    def criticality(self) -> int:
        return self.spec.rules.criticality

    @property
    def version(self) -> int:
        return self.header.version

    @property
    def succeeded(self) -> int:
        return self.header.succeeded

    @property
    def failed(self) -> int:
        return self.header.failed

    @property
    def attempts(self) -> int:
        return self.header.attempts

    @property
    def due(self) -> datetime:
        return moment(self.due_ms)


def check_priority(priority: str) -> int:
    band = str(priority).lower()
    if band not in PRIORITIES:
        raise InvalidArgument(f"there is no priority {priority!r}; {did_you_mean(band, PRIORITIES)}")
    return PRIORITIES.index(band)


def check_timeout(timeout: Duration) -> Millis:
    value = seconds(timeout, "a timeout")
    if not 0.001 <= value <= LONGEST_TIMEOUT:
        raise InvalidArgument(f"a timeout must be between 1 ms and 49 days, not {timeout!r}")
    return ceil_ms(value)


def check_keep(keep: Duration, what: str = "keep") -> int:
    """Whole seconds, rounded up: keep at least as long as requested."""
    value = seconds(keep, what)
    if value > 0xFFFF_FFFF:
        raise InvalidArgument(f"{what} must be below 136 years, not {keep!r}")
    return math.ceil(value)
