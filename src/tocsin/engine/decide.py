"""What becomes of a run: pure functions of (outcome, run, policy, now), so that each case is a line in a table."""

from __future__ import annotations

from msgspec import Struct

from tocsin.model.durations import Millis, ceil_ms
from tocsin.model.job import Spec
from tocsin.model.run import MAX_RECOVERIES, Claim
from tocsin.store.runs import CANCELLED, FAILED, SKIPPED, SUCCEEDED
from tocsin.triggers.recurrence import is_misfire, next_due


class Finish(Struct, frozen=True):
    """The run has ended; the job waits for `next_due`, or with 0 ends too."""

    next_due: Millis
    outcome: int


class RetryIn(Struct, frozen=True):
    """The run goes on with another attempt."""

    delay: Millis


class Bury(Struct, frozen=True):
    """The job is dead."""


class Release(Struct, frozen=True):
    """Nothing happened; another worker may have it at once."""


Decision = Finish | RetryIn | Bury | Release
BURY, RELEASE = Bury(), Release()
DONE = Finish(0, SUCCEEDED)


def before(claim: Claim, spec: Spec, recurring: bool, now: Millis) -> tuple[Decision, str] | None:
    """A decision that needs no execution, and why; None: execute it."""
    if claim.cancelled:
        return _ended(claim, spec, recurring, now, CANCELLED), "cancelled"
    if claim.recoveries >= MAX_RECOVERIES:
        why = f"recovered {claim.recoveries} times: each worker that tried it died or let its deadline pass"
        if recurring:
            return _ended(claim, spec, recurring, now, FAILED), why
        return BURY, why
    if recurring and is_misfire(spec, claim.due, now):
        return _ended(claim, spec, recurring, now, SKIPPED), "too late"
    return None


def after_success(claim: Claim, spec: Spec, recurring: bool, now: Millis) -> Decision:
    return _ended(claim, spec, recurring, now, SUCCEEDED) if recurring else DONE


def after_failure(claim: Claim, spec: Spec, recurring: bool, now: Millis, chance: float) -> Decision:
    """`Retry` says how often and how long. Out of retries, one-shots are dead, the others wait for their next time."""
    retry = spec.retry
    if retry is not None and claim.attempt <= retry.retries:
        return RetryIn(ceil_ms(retry.delay(claim.attempt - 1, chance)))
    if not recurring:
        return BURY
    error_interval = spec.rules.error_interval
    if error_interval is not None:
        return Finish(now + ceil_ms(error_interval), FAILED)
    return _ended(claim, spec, recurring, now, FAILED)


def after_cancel(claim: Claim, spec: Spec, recurring: bool, now: Millis) -> Decision:
    return _ended(claim, spec, recurring, now, CANCELLED)


def _ended(claim: Claim, spec: Spec, recurring: bool, now: Millis, outcome: int) -> Finish:
    following = next_due(spec, claim.due, now) if recurring else None
    return Finish(following or 0, outcome)
