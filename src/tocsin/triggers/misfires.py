"""Decides which tick a recurring job runs next, and why the ticks before it get no run of their own.

A tick at exactly `now` has not passed: it is the next one. So a late job has three kinds of ticks after its due time:
ticks before its run started, which that run covers; ticks during its run, which overlapped it; and future ticks.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from tocsin.model.durations import Millis, ceil_ms
from tocsin.model.job import Policy, Spec
from tocsin.model.skipped_ticks import SkippedTicks, SkipReason
from tocsin.triggers.recurrence import tick_after, tick_from

# Overlap policies that give each tick an extra run; the job itself only moves on to its next tick.
EXTRA_RUN_OVERLAPS = frozenset(["allow", "cancel_other"])
_BUFFERED = frozenset(["buffer_one", "buffer_all"])


class NextTick(Struct, frozen=True):
    """The next due time of a job, None if it has ended, and the ticks that it skips on the way."""

    next_due: Millis | None
    skips: tuple[SkippedTicks, ...] = ()


def after_run(
    spec: Spec, due: Millis, started: Millis, now: Millis, shift: Millis = 0, held_since: Millis | None = None
) -> NextTick:
    """The run of `due`, started at `started`, has ended. `held_since`: since when the queue's cap held it back."""
    following = tick_after(spec, due, shift)
    if following is None or following >= now:
        return NextTick(following)
    rules, started = spec.rules, min(started, now)
    since = _since(rules, due, started, now)
    step = following if following >= since else tick_from(spec, due, since, shift)
    if rules.misfire == "all" and rules.overlap == "skip" and (step is None or step >= started):
        # No tick from before its start is owed. Later ticks overlapped the run.
        since, step = now, tick_from(spec, due, now, shift)
    if step == following:
        return NextTick(following)
    marks = _marks(rules, started, held_since)
    return NextTick(step, _cut(spec, following, since if step is None else step, marks, shift))


def plan_extra_run(
    spec: Spec, due: Millis, now: Millis, shift: Millis = 0, held_since: Millis | None = None
) -> NextTick:
    """`due` gets an extra run beside the job now (overlap `allow` or `cancel_other`)."""
    return after_run(spec, due, now, now, shift, held_since)


def is_misfire(spec: Spec, due: Millis, now: Millis, shift: Millis = 0) -> bool:
    """Whether `due` is too late to run at all: under `skip`, and under `all` beyond `catch_up`."""
    rules = spec.rules
    if rules.misfire == "coalesce":
        return False
    if rules.misfire == "all":
        too_old = rules.catch_up is not None and now - due > ceil_ms(rules.catch_up)
        return too_old and _is_late(spec, due, now, shift)
    # Buffered ticks are late only because they wait for the run before them.
    if rules.overlap in _BUFFERED and rules.grace is None:
        return False
    return _is_late(spec, due, now, shift)


def skip_misfire(spec: Spec, due: Millis, now: Millis, shift: Millis = 0, held_since: Millis | None = None) -> NextTick:
    """`due` is a misfire and gets no run: the job waits for the next tick, or for the first one that is still owed."""
    rules, since = spec.rules, now
    if rules.misfire == "all" and rules.catch_up is not None:
        since = now - ceil_ms(rules.catch_up)
    step = tick_from(spec, due, since, shift)
    marks = [(0, SkipReason.MISFIRE)]
    if held_since is not None:
        marks.append((held_since, SkipReason.CAPPED))
    return NextTick(step, _cut(spec, due, since if step is None else step, marks, shift))


def after_failure(
    spec: Spec, due: Millis, started: Millis, now: Millis, step: Millis | None, shift: Millis = 0
) -> NextTick:
    """A run failed, and the job waits for the tick `step`, which is after the backoff."""
    following = tick_after(spec, due, shift)
    if following is None or following == step:
        return NextTick(step)
    marks = [*_marks(spec.rules, min(started, now), None), (now, SkipReason.BACKOFF)]
    ends = spec.rules.ends
    until = step if step is not None else max(now, (ends or now) + 1)
    return NextTick(step, _cut(spec, following, until, marks, shift))


def _since(rules: Policy, due: Millis, started: Millis, now: Millis) -> Millis:
    """Ticks after `due` and before the returned time get no run."""
    if rules.misfire == "all":
        return due if rules.catch_up is None else now - ceil_ms(rules.catch_up)
    if rules.overlap == "buffer_all":
        late = rules.grace is not None and started - due > ceil_ms(rules.grace)
        return started if late and rules.misfire == "coalesce" else due
    if rules.overlap == "buffer_one":
        return started
    if rules.overlap in EXTRA_RUN_OVERLAPS and rules.misfire == "skip":
        # Each tick is checked against its own grace when it is claimed.
        return due
    return now


def _is_late(spec: Spec, due: Millis, now: Millis, shift: Millis) -> bool:
    rules = spec.rules
    if rules.grace is not None:
        return now - due > ceil_ms(rules.grace)
    following = tick_after(spec, due, shift)
    if following is None and rules.ends is not None:
        # The last tick is late if, without `ends`, another tick would have come by now.
        following = tick_after(replace(spec, policy=replace(rules, ends=None)), due, shift)
    return following is not None and following <= now


def _marks(rules: Policy, started: Millis, held_since: Millis | None) -> list[tuple[Millis, SkipReason]]:
    """(time, reason) pairs: ticks skipped from each time on have that reason."""
    if rules.misfire == "all":
        # A buffer skips only ticks that are too old.
        before, during = SkipReason.MISFIRE, SkipReason.OVERLAP if rules.overlap == "skip" else SkipReason.MISFIRE
    elif rules.misfire == "skip" and rules.overlap == "buffer_one":
        # This buffer holds one tick only.
        before = during = SkipReason.OVERLAP
    else:
        before, during = SkipReason.COALESCED, SkipReason.OVERLAP
    marks = [(0, before)]
    if held_since is not None:
        marks.append((min(held_since, started), SkipReason.CAPPED))
    if during is not before or held_since is not None:
        marks.append((started, during))
    return marks


def _cut(
    spec: Spec, first: Millis, until: Millis, marks: list[tuple[Millis, SkipReason]], shift: Millis
) -> tuple[SkippedTicks, ...]:
    """The ticks in [first, until) as ranges, one for each reason that applies. Each range begins with a tick."""
    found: list[SkippedTicks] = []
    for begin, why in reversed(marks):
        if begin < until:
            tick = first if begin <= first else tick_from(spec, first, begin, shift)
            if tick is not None and tick < until:
                found.append(SkippedTicks(tick, until, why))
            until = begin
    found.reverse()
    return tuple(found)
