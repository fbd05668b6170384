"""Computes how long a failed job waits, from the class of its failure and the length of its streak of failures."""

from __future__ import annotations

import math
from collections import OrderedDict

from msgspec import Struct

from tocsin.model.durations import Millis, ceil_ms
from tocsin.model.errors import InvalidArgument
from tocsin.model.failure_class import FailureClass


class BackoffSettings(Struct, frozen=True):
    """Settings of `redis.scheduler.failure-backoff`. A `jitter_ratio` of 0.1 is ±10 %."""

    enabled: bool = False
    max_immediate_retries: int = 0
    permanent_forbidden_backoff_ms: Millis = 1_800_000
    throttled_base_ms: Millis = 30_000
    throttled_multiplier: float = 2.0
    throttled_cap_ms: Millis = 600_000
    jitter_ratio: float = 0.1

    def __post_init__(self) -> None:
        for name in ("permanent_forbidden_backoff_ms", "throttled_base_ms", "throttled_cap_ms"):
            if getattr(self, name) < 0:
                raise InvalidArgument(f"{name} must not be negative, and is {getattr(self, name)!r}")
        if not math.isfinite(self.throttled_multiplier) or self.throttled_multiplier < 1:
            raise InvalidArgument(f"throttled_multiplier must be a number from 1, not {self.throttled_multiplier!r}")
        # A ratio above 1 would make delays negative.
        if not 0 <= self.jitter_ratio <= 1:
            raise InvalidArgument(f"jitter_ratio must be between 0 and 1, not {self.jitter_ratio!r}")


def delay_ms(
    settings: BackoffSettings,
    failure_class: FailureClass,
    streak: int,
    error_interval_ms: Millis,
    chance: float,
) -> Millis:
    """Milliseconds until the next try, always with jitter. The class of the failure counts only if that is enabled.
    `streak` includes this failure, so it is at least 1; `chance` in [0, 1) picks the jitter."""
    delay = _delay(settings, failure_class, streak, error_interval_ms) if settings.enabled else error_interval_ms
    return _jittered(delay, settings.jitter_ratio, chance)


def _delay(settings: BackoffSettings, failure_class: FailureClass, streak: int, error_interval_ms: Millis) -> float:
    match failure_class:
        case FailureClass.PERMANENT_FORBIDDEN:
            return settings.permanent_forbidden_backoff_ms
        case FailureClass.THROTTLED:
            return _throttled(settings, streak)
        case FailureClass.TRANSIENT | FailureClass.SERVER_ERROR if streak <= settings.max_immediate_retries:
            return 0
        case _:
            return error_interval_ms


def _throttled(settings: BackoffSettings, streak: int) -> float:
    try:
        delay = settings.throttled_base_ms * float(settings.throttled_multiplier) ** max(0, streak - 1)
    except OverflowError:
        delay = math.inf if settings.throttled_base_ms else 0.0
    return min(delay, settings.throttled_cap_ms)


def _jittered(delay: float, ratio: float, chance: float) -> Millis:
    # Add jitter after the cap, otherwise all jobs that reached the cap would come back at the same moment. So the wait
    # may exceed the cap by the ratio. Round up, so that a short wait does not become 0.
    return max(0, ceil_ms(delay * (1 + ratio * (2 * chance - 1)) / 1000))


class Streaks:
    """Counts how often each job has failed in a row on this worker. Beyond `limit` jobs it forgets the job that failed
    longest ago, which then starts over: bounded memory matters more than an exact streak."""

    def __init__(self, limit: int = 100_000) -> None:
        self._limit = limit
        self.by_job: OrderedDict[str, int] = OrderedDict()

    def failed(self, job_id: str) -> int:
        """Count a failure and return the streak."""
        # Taken out and put in again, to move it behind all others.
        self.by_job[job_id] = streak = self.by_job.pop(job_id, 0) + 1
        if len(self.by_job) > self._limit:
            self.by_job.popitem(last=False)
        return streak

    def succeeded(self, job_id: str) -> None:
        self.by_job.pop(job_id, None)

    def of(self, job_id: str) -> int:
        return self.by_job.get(job_id, 0)
