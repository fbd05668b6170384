"""Decide what becomes of a run: pure functions of (outcome, run, policy, now), so that a case is a line in a table."""

from __future__ import annotations

from msgspec import Struct

from tocsin.model.durations import Millis, ceil_ms
from tocsin.model.failure_class import FailureClass
from tocsin.model.job import PLAIN, Spec
from tocsin.model.outcome import CANCELLED, FAILED, SKIPPED, SUCCEEDED
from tocsin.model.run import MAX_RECOVERIES, Claim
from tocsin.model.skipped_ticks import SkippedTicks
from tocsin.model.trigger import Every
from tocsin.resilience.backoff import BackoffSettings, delay_ms
from tocsin.triggers import misfires
from tocsin.triggers.recurrence import counts_from_now, phase, tick_after, tick_from


class Finish(Struct, frozen=True):
    """The run has ended. The job waits for `next_due`; 0: it ends too."""

    next_due: Millis
    outcome: int
    # Ticks that the job skips on its way there.
    skips: tuple[SkippedTicks, ...] = ()


class ExtraRun(Struct, frozen=True):
    """This occurrence gets a run of its own, with `alone` instead of the last one. The job waits for `next_due`."""

    next_due: Millis
    alone: bool
    skips: tuple[SkippedTicks, ...] = ()


class Advance(Struct, frozen=True):
    """The run ended earlier, when the next due time could not be computed. The job waits for `next_due`; 0: it ends."""

    next_due: Millis
    skips: tuple[SkippedTicks, ...] = ()


class RetryIn(Struct, frozen=True):
    """The run gets another attempt."""

    delay: Millis


class Dead(Struct, frozen=True):
    """The job is dead."""


class Release(Struct, frozen=True):
    """Nothing happened; any worker may claim the run again after the delay."""

    delay: Millis = 0


class Park(Struct, frozen=True):
    """This worker cannot execute the run or plan its job. A worker with other code may, after the wait."""

    wait: Millis = 0


Decision = Finish | ExtraRun | Advance | RetryIn | Dead | Release | Park
DEAD = Dead()
NO_BACKOFF = BackoffSettings(enabled=False, jitter_ratio=0.0)
# Classes whose own delay overrides that of `Retry`, and classes that an immediate retry may get past.
_OWN_DELAY = frozenset([FailureClass.PERMANENT_FORBIDDEN, FailureClass.THROTTLED])
_PASSING = frozenset([FailureClass.TRANSIENT, FailureClass.SERVER_ERROR])
DONE = Finish(0, SUCCEEDED)


def decide_before_run(claim: Claim, spec: Spec, recurring: bool, now: Millis) -> tuple[Decision, str] | None:
    """A decision without executing the run, and why; None: execute it."""
    if claim.has_ended:
        step = _ended(claim, spec, recurring, now, SKIPPED)
        return Advance(step.next_due, step.skips), "its run has ended"
    if claim.cancelled:
        return _ended(claim, spec, recurring, now, CANCELLED), "cancelled"
    if claim.recoveries >= MAX_RECOVERIES:
        why = f"recovered {claim.recoveries} times: each worker that tried it died or let its deadline pass"
        if recurring:
            return _ended(claim, spec, recurring, now, FAILED), why
        return DEAD, why
    return _before_a_tick(claim, spec, now) if recurring else None


def _before_a_tick(claim: Claim, spec: Spec, now: Millis) -> tuple[Decision, str] | None:
    rules = spec.policy or PLAIN
    if rules.misfire == "coalesce" and rules.overlap not in misfires.EXTRA_RUN_OVERLAPS:
        return None
    shift = _shift(claim, spec)
    # A run that began in time and is tried again is not late.
    if claim.attempt == 1 and misfires.is_misfire(spec, claim.due, now, shift):
        step = misfires.skip_misfire(spec, claim.due, now, shift, claim.held_since)
        return Finish(step.next_due or 0, SKIPPED, step.skips), "too late"
    if rules.overlap not in misfires.EXTRA_RUN_OVERLAPS:
        return None
    step = misfires.plan_extra_run(spec, claim.due, now, shift, claim.held_since)
    return ExtraRun(step.next_due or 0, rules.overlap == "cancel_other", step.skips), "has a run of its own"


def after_success(claim: Claim, spec: Spec, recurring: bool, now: Millis) -> Decision:
    return _ended(claim, spec, recurring, now, SUCCEEDED) if recurring else DONE


def next_tick_if_on_time(claim: Claim, spec: Spec, now: Millis) -> Millis:
    """The next tick of an interval without an end, if it is still to come; 0: only after_success knows what follows.

    This is the hot path: most schedules are such, and most of their runs end before the next tick."""
    trigger, rules = spec.trigger, spec.policy
    if type(trigger) is not Every or trigger.anchor is not None or (rules is not None and rules.ends is not None):
        return 0
    following = claim.due + ceil_ms(trigger.interval)
    return following if following >= now else 0


class FailureFacts(Struct, frozen=True):
    """How a run failed: its class, how often in a row on this worker, and a random number for the jitter."""

    chance: float = 0.0
    kind: FailureClass = FailureClass.UNKNOWN
    streak: int = 1
    # Whether retrying cannot help; and how long the receiver asks us to wait, if it does.
    final: bool = False
    wait: Millis | None = None


def after_failure(
    claim: Claim, spec: Spec, recurring: bool, now: Millis, setback: FailureFacts, backoff: BackoffSettings = NO_BACKOFF
) -> Decision:
    """The class of the failure decides how long to wait, `Retry` how often. Without retries left, one-shots are dead
    and the others wait for their next time. A failure that retrying cannot mend is not retried."""
    retry, kind = spec.retry, setback.kind
    may_retry = retry is not None and claim.attempt <= retry.retries and not setback.final
    if setback.wait is not None:
        return _as_asked(claim, spec, recurring, now, setback, may_retry)
    if backoff.enabled and kind in _OWN_DELAY:
        wait = delay_ms(backoff, kind, setback.streak, 0, setback.chance)
        if may_retry and kind is not FailureClass.PERMANENT_FORBIDDEN:
            return RetryIn(wait)
        if not recurring:
            return DEAD
        return _failed(claim, spec, now, _not_before(claim, spec, now + wait))
    if retry is not None and may_retry:
        return RetryIn(ceil_ms(retry.delay(claim.attempt - 1, setback.chance)))
    if not recurring:
        return DEAD
    if backoff.enabled and kind in _PASSING and not setback.final and setback.streak <= backoff.max_immediate_retries:
        return RetryIn(0)
    error_interval = spec.rules.error_interval
    if error_interval is not None:
        wait = delay_ms(backoff, FailureClass.UNKNOWN, 1, ceil_ms(error_interval), setback.chance)
        return _failed(claim, spec, now, now + wait)
    return _ended(claim, spec, recurring, now, FAILED)


def _as_asked(
    claim: Claim, spec: Spec, recurring: bool, now: Millis, setback: FailureFacts, may_retry: bool
) -> Decision:
    """The receiver asks us to come back later. Jitter keeps retries from arriving all at that moment."""
    wait = setback.wait or 0
    if may_retry and spec.retry is not None:
        return RetryIn(wait + ceil_ms(spec.retry.jitter * setback.chance))
    if not recurring:
        return DEAD
    return _failed(claim, spec, now, _not_before(claim, spec, now + wait))


def _not_before(claim: Claim, spec: Spec, at: Millis) -> Millis | None:
    """An agent's cadence counts from its runs, so it goes on from there; other schedules keep their ticks."""
    return at if spec.rules.agent else tick_from(spec, claim.due, at, _shift(claim, spec))


def after_cancel(claim: Claim, spec: Spec, recurring: bool, now: Millis) -> Decision:
    return _ended(claim, spec, recurring, now, CANCELLED)


def _ended(claim: Claim, spec: Spec, recurring: bool, now: Millis, outcome: int) -> Finish:
    if not recurring:
        return Finish(0, outcome)
    shift = _shift(claim, spec)
    following = tick_after(spec, claim.due, shift)
    if following is None or following >= now:
        return Finish(following or 0, outcome)
    step = misfires.after_run(spec, claim.due, claim.started, now, shift, claim.held_since)
    return Finish(step.next_due or 0, outcome, step.skips)


def _failed(claim: Claim, spec: Spec, now: Millis, following: Millis | None) -> Finish:
    step = misfires.after_failure(spec, claim.due, claim.started, now, following, _shift(claim, spec))
    return Finish(step.next_due or 0, FAILED, step.skips)


def _shift(claim: Claim, spec: Spec) -> Millis:
    """By how much jitter moves the job's ticks. The due times of `Every` include it already."""
    rules = spec.policy
    if rules is None or not rules.jitter or counts_from_now(spec.trigger):
        return 0
    return phase(claim.job_id, rules.jitter)
