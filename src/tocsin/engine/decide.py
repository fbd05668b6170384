"""What becomes of a run: pure functions of (outcome, run, policy, now), so that each case is a line in a table."""

from __future__ import annotations

from msgspec import Struct

from tocsin.model.durations import Millis, ceil_ms
from tocsin.model.failure_class import FailureClass
from tocsin.model.job import PLAIN, Spec
from tocsin.model.run import MAX_RECOVERIES, Claim
from tocsin.model.skipped_ticks import SkippedTicks
from tocsin.model.trigger import Every
from tocsin.resilience.backoff import BackoffSettings, delay_ms
from tocsin.store.transitions.claims import CANCELLED, FAILED, SKIPPED, SUCCEEDED
from tocsin.triggers import misfires
from tocsin.triggers.recurrence import counts_from_now, phase, tick_after, tick_from


class Finish(Struct, frozen=True):
    """The run has ended; the job waits for `next_due`, or with 0 ends too."""

    next_due: Millis
    outcome: int
    # Ticks that the job passes on its way there.
    skips: tuple[SkippedTicks, ...] = ()


class ExtraRun(Struct, frozen=True):
    """The occurrence gets a run of its own, if `alone` in the place of the last one; the job waits for `next_due`."""

    next_due: Millis
    alone: bool
    skips: tuple[SkippedTicks, ...] = ()


class Advance(Struct, frozen=True):
    """The run ended before, when nobody could tell what follows; the job waits for `next_due`, or with 0 ends."""

    next_due: Millis
    skips: tuple[SkippedTicks, ...] = ()


class RetryIn(Struct, frozen=True):
    """The run goes on with another attempt."""

    delay: Millis


class Dead(Struct, frozen=True):
    """The job is dead."""


class Release(Struct, frozen=True):
    """Nothing happened; another worker may have it at once."""


Decision = Finish | ExtraRun | Advance | RetryIn | Dead | Release
BURY, RELEASE = Dead(), Release()
NO_BACKOFF = BackoffSettings(enabled=False, jitter_ratio=0.0)
# Classes whose own delay goes before that of `Retry`, and those that may be over at once.
_OWN_DELAY = frozenset([FailureClass.PERMANENT_FORBIDDEN, FailureClass.THROTTLED])
_PASSING = frozenset([FailureClass.TRANSIENT, FailureClass.SERVER_ERROR])
DONE = Finish(0, SUCCEEDED)


def before(claim: Claim, spec: Spec, recurring: bool, now: Millis) -> tuple[Decision, str] | None:
    """A decision that needs no execution, and why; None: execute it."""
    if claim.has_ended:
        step = _ended(claim, spec, recurring, now, SKIPPED)
        return Advance(step.next_due, step.skips), "its run has ended"
    if claim.cancelled:
        return _ended(claim, spec, recurring, now, CANCELLED), "cancelled"
    if claim.recoveries >= MAX_RECOVERIES:
        why = f"recovered {claim.recoveries} times: each worker that tried it died or let its deadline pass"
        if recurring:
            return _ended(claim, spec, recurring, now, FAILED), why
        return BURY, why
    return _before_a_tick(claim, spec, now) if recurring else None


def _before_a_tick(claim: Claim, spec: Spec, now: Millis) -> tuple[Decision, str] | None:
    rules = spec.policy or PLAIN
    if rules.misfire == "coalesce" and rules.overlap not in misfires.EXTRA_RUN_OVERLAPS:
        return None
    shift = _shift(claim, spec)
    # What was begun in time and is tried again is not late.
    if claim.attempt == 1 and misfires.is_misfire(spec, claim.due, now, shift):
        step = misfires.skip_misfire(spec, claim.due, now, shift, claim.held_since)
        return Finish(step.next_due or 0, SKIPPED, step.skips), "too late"
    if rules.overlap not in misfires.EXTRA_RUN_OVERLAPS:
        return None
    step = misfires.plan_extra_run(spec, claim.due, now, shift, claim.held_since)
    return ExtraRun(step.next_due or 0, rules.overlap == "cancel_other", step.skips), "has a run of its own"


def after_success(claim: Claim, spec: Spec, recurring: bool, now: Millis) -> Decision:
    return _ended(claim, spec, recurring, now, SUCCEEDED) if recurring else DONE


def on_time(claim: Claim, spec: Spec, now: Millis) -> Millis:
    """The next tick of an interval without an end, if that is to come; 0: only after_success knows what follows.

    Most schedules are such, and most of their runs end before the next tick: this is the hot path."""
    trigger, rules = spec.trigger, spec.policy
    if type(trigger) is not Every or trigger.anchor is not None or (rules is not None and rules.ends is not None):
        return 0
    following = claim.due + ceil_ms(trigger.interval)
    return following if following >= now else 0


class FailureFacts(Struct, frozen=True):
    """How a run failed: its class, how often in a row by now on this worker, and the luck of its jitter."""

    chance: float = 0.0
    kind: FailureClass = FailureClass.UNKNOWN
    streak: int = 1
    # Trying again cannot mend it; and when the other side wants to be asked again, if it said so.
    final: bool = False
    wait: Millis | None = None


def after_failure(
    claim: Claim, spec: Spec, recurring: bool, now: Millis, setback: FailureFacts, backoff: BackoffSettings = NO_BACKOFF
) -> Decision:
    """The class of the failure says how long, `Retry` how often. Out of retries, one-shots are dead, the others wait
    for their next time. A failure that trying again cannot mend is not retried at all."""
    retry, kind = spec.retry, setback.kind
    may_retry = retry is not None and claim.attempt <= retry.retries and not setback.final
    if setback.wait is not None:
        return _as_asked(claim, spec, recurring, now, setback, may_retry)
    if backoff.enabled and kind in _OWN_DELAY:
        wait = delay_ms(backoff, kind, setback.streak, 0, setback.chance)
        if may_retry and kind is not FailureClass.PERMANENT_FORBIDDEN:
            return RetryIn(wait)
        if not recurring:
            return BURY
        return _failed(claim, spec, now, _not_before(claim, spec, now + wait))
    if retry is not None and may_retry:
        return RetryIn(ceil_ms(retry.delay(claim.attempt - 1, setback.chance)))
    if not recurring:
        return BURY
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
    """The other side said when to come back. Not all at that very moment: jitter comes on top."""
    wait = setback.wait or 0
    if may_retry and spec.retry is not None:
        return RetryIn(wait + ceil_ms(spec.retry.jitter * setback.chance))
    if not recurring:
        return BURY
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
    """By how much jitter moves the job's ticks. The due times of Every have it in them: nothing to compute."""
    rules = spec.policy
    if rules is None or not rules.jitter or counts_from_now(spec.trigger):
        return 0
    return phase(claim.job_id, rules.jitter)
