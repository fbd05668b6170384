"""When a recurring job is due first, and when again."""

from __future__ import annotations

import zlib

from tocsin.model.durations import Millis, ceil_ms, epoch_ms
from tocsin.model.errors import InvalidTrigger
from tocsin.model.job import Every, Once, Policy, Spec, Trigger


def first_due(trigger: Trigger, rules: Policy, job_id: str, now: Millis) -> Millis:
    """The first due time of a new schedule. Jitter moves its phase, for ever, by a stable hash of the id."""
    if isinstance(trigger, Once):
        return epoch_ms(trigger.at)
    interval = ceil_ms(trigger.interval)
    base = rules.starts if rules.starts is not None else now + interval
    due = base + phase(job_id, rules.jitter)
    if due < now and rules.starts is not None:
        due = _first_from(due, interval, now)
    if rules.ends is not None and due > rules.ends:
        raise InvalidTrigger(f"job {job_id!r} would never run: its first time is after `ends`")
    return due


def next_due(spec: Spec, due: Millis, now: Millis) -> Millis | None:
    """The occurrence after `due`, as the misfire policy wants it; None when there is no other."""
    trigger, rules = spec.trigger, spec.rules
    if not isinstance(trigger, Every):
        return None
    interval = ceil_ms(trigger.interval)
    following = due + interval
    if following < now:
        following = _first_from(following, interval, _owed_since(rules, now))
    if rules.ends is not None and following > rules.ends:
        return None
    return following


def next_from(spec: Spec, due: Millis, now: Millis) -> Millis | None:
    """The first occurrence from `due` on that is not in the past, whatever was missed; None when there is none."""
    if isinstance(spec.trigger, Every):
        due = _first_from(due, ceil_ms(spec.trigger.interval), now)
    ends = spec.rules.ends
    return None if ends is not None and due > ends else due


def occurrences(spec: Spec, due: Millis, start: Millis, end: Millis, limit: int) -> list[Millis]:
    """The due times in [start, end), on the cadence that `due` belongs to."""
    if not isinstance(spec.trigger, Every):
        return [due] if start <= due < end else []
    interval = ceil_ms(spec.trigger.interval)
    first = start + (due - start) % interval
    return list(range(first, end, interval)[:limit])


def upcoming(spec: Spec, due: Millis, n: int) -> list[Millis]:
    """The next `n` due times, the first of them `due` itself."""
    times = [due]
    while len(times) < n:
        following = next_due(spec, times[-1], times[-1])
        if following is None:
            break
        times.append(following)
    return times[:n]


def is_misfire(spec: Spec, due: Millis, now: Millis) -> bool:
    """Too late to run it under `misfire="skip"`: later than grace, or the next tick is due as well."""
    rules = spec.rules
    if rules.misfire != "skip" or not isinstance(spec.trigger, Every):
        return False
    if rules.grace is not None:
        return now - due > ceil_ms(rules.grace)
    return now >= due + ceil_ms(spec.trigger.interval)


def tick_after(spec: Spec, tick: Millis, shift: Millis = 0) -> Millis | None:
    """The first tick strictly after `tick`, which is one itself; None when there is no other."""
    if not isinstance(spec.trigger, Every):
        return None
    following = tick + ceil_ms(spec.trigger.interval)
    ends = spec.rules.ends
    return None if ends is not None and following > ends else following


def tick_from(spec: Spec, tick: Millis, since: Millis, shift: Millis = 0) -> Millis | None:
    """The first tick from `tick`, which is one itself, on that is not before `since`; None when there is none."""
    if isinstance(spec.trigger, Every):
        tick = _first_from(tick, ceil_ms(spec.trigger.interval), since)
    elif tick < since:
        return None
    ends = spec.rules.ends
    return None if ends is not None and tick > ends else tick


def phase(job_id: str, jitter: float) -> Millis:
    width = ceil_ms(jitter)
    return zlib.crc32(job_id.encode()) * width >> 32 if width else 0


def _owed_since(rules: Policy, now: Millis) -> Millis:
    """From when on missed occurrences are still run, each: only with misfire `all`."""
    if rules.misfire != "all":
        return now
    return 0 if rules.catch_up is None else now - ceil_ms(rules.catch_up)


def _first_from(due: Millis, interval: Millis, since: Millis) -> Millis:
    """The first of due, due + interval, … that is not before `since`."""
    return due if due >= since else due + -((due - since) // interval) * interval
