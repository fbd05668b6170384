"""What becomes of a run: pure functions of (outcome, run, policy, now), so that each case is a line in a table."""

from __future__ import annotations

from msgspec import Struct

from tocsin.model.durations import Millis, ceil_ms
from tocsin.model.job import Spec
from tocsin.model.run import MAX_RECOVERIES, Claim
from tocsin.resilience.backoff import BackoffSettings, delay_ms
from tocsin.resilience.failure import FailureClass
from tocsin.store.runs import CANCELLED, FAILED, SKIPPED, SUCCEEDED
from tocsin.triggers.recurrence import is_misfire, next_due, next_from, phase


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
NO_BACKOFF = BackoffSettings(enabled=False)
# Classes whose own delay goes before that of `Retry`, and those that may be over at once.
_OWN_DELAY = frozenset([FailureClass.PERMANENT_FORBIDDEN, FailureClass.THROTTLED])
_PASSING = frozenset([FailureClass.TRANSIENT, FailureClass.SERVER_ERROR])
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
    if recurring and is_misfire(spec, claim.due, now, _shift(claim, spec)):
        return _ended(claim, spec, recurring, now, SKIPPED), "too late"
    return None


def after_success(claim: Claim, spec: Spec, recurring: bool, now: Millis) -> Decision:
    return _ended(claim, spec, recurring, now, SUCCEEDED) if recurring else DONE


class Setback(Struct, frozen=True):
    """How a run failed: its class, how often in a row by now on this worker, and the luck of its jitter."""

    chance: float = 0.0
    kind: FailureClass = FailureClass.UNKNOWN
    streak: int = 1


def after_failure(
    claim: Claim, spec: Spec, recurring: bool, now: Millis, setback: Setback, backoff: BackoffSettings = NO_BACKOFF
) -> Decision:
    """The class of the failure says how long, `Retry` how often. Out of retries, one-shots are dead, the others wait
    for their next time. A failure that trying again cannot mend is not retried at all."""
    retry, kind = spec.retry, setback.kind
    may_retry = retry is not None and claim.attempt <= retry.retries
    if backoff.enabled and kind in _OWN_DELAY:
        wait = delay_ms(backoff, kind, setback.streak, 0, setback.chance)
        if may_retry and kind is not FailureClass.PERMANENT_FORBIDDEN:
            return RetryIn(wait)
        return Finish(next_from(spec, claim.due, now + wait, _shift(claim, spec)) or 0, FAILED) if recurring else BURY
    if retry is not None and may_retry:
        return RetryIn(ceil_ms(retry.delay(claim.attempt - 1, setback.chance)))
    if not recurring:
        return BURY
    if backoff.enabled and kind in _PASSING and setback.streak <= backoff.max_immediate_retries:
        return RetryIn(0)
    error_interval = spec.rules.error_interval
    if error_interval is not None:
        wait = delay_ms(backoff, FailureClass.UNKNOWN, 1, ceil_ms(error_interval), setback.chance)
        return Finish(now + wait, FAILED)
    return _ended(claim, spec, recurring, now, FAILED)


def after_cancel(claim: Claim, spec: Spec, recurring: bool, now: Millis) -> Decision:
    return _ended(claim, spec, recurring, now, CANCELLED)


def _ended(claim: Claim, spec: Spec, recurring: bool, now: Millis, outcome: int) -> Finish:
    following = next_due(spec, claim.due, now, _shift(claim, spec)) if recurring else None
    return Finish(following or 0, outcome)


def _shift(claim: Claim, spec: Spec) -> Millis:
    jitter = spec.rules.jitter
    return phase(claim.job_id, jitter) if jitter else 0
