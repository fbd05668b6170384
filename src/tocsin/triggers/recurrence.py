"""Computes the due times of recurring jobs: the first and the following ones.

A due time is a tick of the trigger plus the job's `shift`. The shift comes from the jitter and a stable hash of the
job's id, so it never changes.
"""

from __future__ import annotations

import zlib

from tocsin.model.durations import Millis, ceil_ms, epoch_ms
from tocsin.model.errors import InvalidTrigger
from tocsin.model.job import Policy, Spec
from tocsin.model.step_budget import Budget
from tocsin.model.trigger import Every, Once, Trigger
from tocsin.triggers.next_tick import NextAt, next_at


def first_due(trigger: Trigger, rules: Policy, job_id: str, now: Millis, find: NextAt = next_at) -> Millis:
    """The first due time of a new schedule. Raises InvalidTrigger if it would never run."""
    if isinstance(trigger, Once):
        return epoch_ms(trigger.at)
    shift = phase(job_id, rules.jitter)
    due: Millis | None
    if counts_from_now(trigger):
        interval = ceil_ms(trigger.interval)  # type: ignore[union-attr]
        base = rules.starts if rules.starts is not None else now + interval
        due = base + shift
        if due < now and rules.starts is not None:
            due = _first_from(due, interval, now)
    else:
        # Strictly later than now: putting or changing a job must not run a tick of this same moment.
        since = now + 1 - shift
        due = find(trigger, since if rules.starts is None else max(since, rules.starts))
        due = None if due is None else due + shift
    if due is None:
        raise InvalidTrigger(f"job {job_id!r} would never run: its trigger has no time left")
    if rules.ends is not None and due > rules.ends:
        raise InvalidTrigger(f"job {job_id!r} would never run: its first time is after `ends`")
    return due


def counts_from_now(trigger: Trigger | None) -> bool:
    """Whether a trigger's ticks count from the time it was put. All other triggers have fixed ticks."""
    return type(trigger) is Every and trigger.anchor is None


def tick_after(spec: Spec, tick: Millis, shift: Millis = 0) -> Millis | None:
    """The first due time after the due time `tick`; None if there is no other."""
    return _unless_over(spec, _following(spec.trigger, tick, shift))


def tick_from(spec: Spec, tick: Millis, since: Millis, shift: Millis = 0) -> Millis | None:
    """The first due time from `since` on, counted from the due time `tick`; None if there is none."""
    trigger = spec.trigger
    following: Millis | None
    if tick >= since:
        following = tick
    elif type(trigger) is Every and trigger.anchor is None:
        following = _first_from(tick, ceil_ms(trigger.interval), since)
    elif trigger is None or isinstance(trigger, Once):
        return None
    else:
        following = next_at(trigger, since - shift)
        following = None if following is None else following + shift
    return _unless_over(spec, following)


def occurrences(spec: Spec, due: Millis, start: Millis, end: Millis, limit: int, shift: Millis = 0) -> list[Millis]:
    """The first `limit` due times in [start, end), on the cadence of the due time `due`."""
    trigger = spec.trigger
    if trigger is None or isinstance(trigger, Once):
        return [due] if start <= due < end else []
    if counts_from_now(trigger):
        interval = ceil_ms(trigger.interval)  # type: ignore[union-attr]
        first = start + (due - start) % interval
        return list(range(first, end, interval)[:limit])
    found: list[Millis] = []
    budget = Budget()
    tick = next_at(trigger, start - shift, budget)
    while tick is not None and tick + shift < end and len(found) < limit:
        found.append(tick + shift)
        budget.refill()
        tick = next_at(trigger, tick + 1, budget)
    return found


def upcoming(spec: Spec, due: Millis, n: int, shift: Millis = 0) -> list[Millis]:
    """The next `n` due times, beginning with `due`."""
    times, budget = [due], Budget()
    while len(times) < n:
        budget.refill()
        following = _unless_over(spec, _following(spec.trigger, times[-1], shift, budget))
        if following is None:
            break
        times.append(following)
    return times[:n]


def phase(job_id: str, jitter: float) -> Millis:
    width = ceil_ms(jitter) if jitter else 0
    return zlib.crc32(job_id.encode(errors="surrogateescape")) * width >> 32 if width else 0


def _following(trigger: Trigger | None, tick: Millis, shift: Millis, budget: Budget | None = None) -> Millis | None:
    if type(trigger) is Every and trigger.anchor is None:
        return tick + ceil_ms(trigger.interval)
    if trigger is None or isinstance(trigger, Once):
        return None
    following = next_at(trigger, tick + 1 - shift, budget)
    return None if following is None else following + shift


def _unless_over(spec: Spec, due: Millis | None) -> Millis | None:
    rules = spec.policy
    if rules is None or rules.ends is None or due is None:
        return due
    return None if due > rules.ends else due


def _first_from(due: Millis, interval: Millis, since: Millis) -> Millis:
    """The first of due, due + interval, … from `since` on."""
    return due if due >= since else due + -((due - since) // interval) * interval
