"""What a recurring job owes: which tick is next, and why those before it get no run of their own.

A tick at the very moment of looking has not passed: it is the next one. So a job that is late has three kinds of ticks
behind its due time: those due before its run started, which that run stands for; those that passed while it ran, which
overlapped it; and those to come.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from tocsin.model.durations import Millis, ceil_ms
from tocsin.model.job import Policy, Spec
from tocsin.model.skipped_ticks import SkippedTicks, SkipReason
from tocsin.triggers.recurrence import tick_after, tick_from

# Under these a tick gets a run of its own beside the job, which is only planned.
APART = frozenset(["allow", "cancel_other"])
_BUFFERED = frozenset(["buffer_one", "buffer_all"])


class NextTick(Struct, frozen=True):
    """Where a job goes on, None if nowhere; and the ticks that it passes without running them."""

    next_due: Millis | None
    skips: tuple[SkippedTicks, ...] = ()


def after_run(
    spec: Spec, due: Millis, started: Millis, now: Millis, shift: Millis = 0, held_since: Millis | None = None
) -> NextTick:
    """A run of `due` that started at `started` has ended. `held_since`: from when on the queue's cap held it back."""
    following = tick_after(spec, due, shift)
    if following is None or following >= now:
        return NextTick(following)
    rules, started = spec.rules, min(started, now)
    since = _since(rules, due, started, now)
    step = following if following >= since else tick_from(spec, due, since, shift)
    if rules.misfire == "all" and rules.overlap == "skip" and (step is None or step >= started):
        # Nothing is owed from before its start. What passed since then overlapped it.
        since, step = now, tick_from(spec, due, now, shift)
    if step == following:
        return NextTick(following)
    marks = _marks(rules, started, held_since)
    return NextTick(step, _cut(spec, following, since if step is None else step, marks, shift))


def plan_extra_run(
    spec: Spec, due: Millis, now: Millis, shift: Millis = 0, held_since: Millis | None = None
) -> NextTick:
    """`due` gets a run of its own beside the job (overlap `allow`, `cancel_other`), now."""
    return after_run(spec, due, now, now, shift, held_since)


def is_misfire(spec: Spec, due: Millis, now: Millis, shift: Millis = 0) -> bool:
    """So late that it is not to run at all: under `skip`, and under `all` beyond `catch_up`."""
    rules = spec.rules
    if rules.misfire == "coalesce":
        return False
    if rules.misfire == "all":
        too_old = rules.catch_up is not None and now - due > ceil_ms(rules.catch_up)
        return too_old and _is_late(spec, due, now, shift)
    # In a buffer ticks are late because they wait for their turn.
    if rules.overlap in _BUFFERED and rules.grace is None:
        return False
    return _is_late(spec, due, now, shift)


def skip_misfire(spec: Spec, due: Millis, now: Millis, shift: Millis = 0, held_since: Millis | None = None) -> NextTick:
    """`due` is a misfire and is not run: the job waits for the next tick to come, or the first that is still owed."""
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
    """A run has failed and the job waits for `step`, which lies beyond a backoff."""
    following = tick_after(spec, due, shift)
    if following is None or following == step:
        return NextTick(step)
    marks = [*_marks(spec.rules, min(started, now), None), (now, SkipReason.BACKOFF)]
    ends = spec.rules.ends
    until = step if step is not None else max(now, (ends or now) + 1)
    return NextTick(step, _cut(spec, following, until, marks, shift))


def _since(rules: Policy, due: Millis, started: Millis, now: Millis) -> Millis:
    """Ticks after `due` and before this are not run."""
    if rules.misfire == "all":
        return due if rules.catch_up is None else now - ceil_ms(rules.catch_up)
    if rules.overlap == "buffer_all":
        late = rules.grace is not None and started - due > ceil_ms(rules.grace)
        return started if late and rules.misfire == "coalesce" else due
    if rules.overlap == "buffer_one":
        return started
    if rules.overlap in APART and rules.misfire == "skip":
        # Each is judged by its own grace when its turn comes.
        return due
    return now


def _is_late(spec: Spec, due: Millis, now: Millis, shift: Millis) -> bool:
    rules = spec.rules
    if rules.grace is not None:
        return now - due > ceil_ms(rules.grace)
    following = tick_after(spec, due, shift)
    if following is None and rules.ends is not None:
        # The last one is late when another would have followed.
        following = tick_after(replace(spec, policy=replace(rules, ends=None)), due, shift)
    return following is not None and following <= now


def _marks(rules: Policy, started: Millis, held_since: Millis | None) -> list[tuple[Millis, SkipReason]]:
    """From when on what is passed is passed for which reason."""
    if rules.misfire == "all":
        # In a buffer, only what is too old.
        before, during = SkipReason.MISFIRE, SkipReason.OVERLAP if rules.overlap == "skip" else SkipReason.MISFIRE
    elif rules.misfire == "skip" and rules.overlap == "buffer_one":
        # One that waits behind another is all that this buffer holds.
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
    """The ticks from `first` up to `until` as ranges, one for each mark that has some; each begins with a tick."""
    found: list[SkippedTicks] = []
    for begin, why in reversed(marks):
        if begin < until:
            tick = first if begin <= first else tick_from(spec, first, begin, shift)
            if tick is not None and tick < until:
                found.append(SkippedTicks(tick, until, why))
            until = begin
    found.reverse()
    return tuple(found)
