"""The ticks of any trigger, in milliseconds: the first one from a moment on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache

from tocsin.model import crontab, holidays, rrules
from tocsin.model.durations import Millis, ceil_ms, epoch_ms
from tocsin.model.trigger import AnyOf, Cron, Dates, Every, Except, Holidays, Once, Rrule, Trigger, zone_of
from tocsin.triggers import wallclock
from tocsin.triggers.wallclock import DAY, Find, Rule

_EPOCH = datetime(1970, 1, 1)
_SECOND = timedelta(seconds=1)

RULES = {
    "skip": Rule("skip", "first"),
    "earlier": Rule("earlier", "first"),
    "later": Rule("later", "second"),
    "both": Rule("end", "both"),
}
# Debian's: what runs at fixed times of the day is made up for and not repeated, the others follow real time.
_FIXED = Rule("end", "first")
_WILD = Rule("skip", "both")
# RFC 5545: a time that does not exist is read with the offset before the gap, one that comes twice is the first.
_RFC = Rule("later", "first")
# How far ahead a day is looked for that no calendar leaves out.
_FAR_MS = 50 * 366 * DAY * 1000


def next_at(trigger: Trigger, since: Millis) -> Millis | None:
    """The first tick that is not before `since`; None when there is no other.

    An Every without an anchor has no cadence of its own: it counts from 1970 here.
    """
    if isinstance(trigger, (Cron, Rrule)):
        second = next_after(trigger, -(-since // 1000) - 1)
        return None if second is None else second * 1000
    if isinstance(trigger, Every):
        anchor = 0 if trigger.anchor is None else epoch_ms(trigger.anchor)
        return since + (anchor - since) % ceil_ms(trigger.interval)
    if isinstance(trigger, Once):
        at = epoch_ms(trigger.at)
        return at if at >= since else None
    if isinstance(trigger, AnyOf):
        ticks = [next_at(part, since) for part in trigger.triggers]
        return min((tick for tick in ticks if tick is not None), default=None)
    return _next_outside(trigger, since)


def next_after(trigger: Cron | Rrule, after: int) -> int | None:
    """In seconds: the first tick later than `after`."""
    if isinstance(trigger, Cron):
        find, fixed = _cron(trigger.expression)
        rule = RULES.get(trigger.dst) or (_FIXED if fixed else _WILD)
        return wallclock.next_after(find, trigger.tz, rule, after)
    return wallclock.next_after(_rrule(trigger), trigger.tz, _RFC, after)


@lru_cache(maxsize=4096)
def _cron(expression: str) -> tuple[Find, bool]:
    parsed = crontab.parse(expression)
    return crontab.Walk(parsed.sim).after, parsed.fixed


def _rrule(trigger: Rrule) -> Find:
    rule = rrules.parse(trigger.text, trigger.start, trigger.tz)

    def find(local: int) -> int | None:
        found = rule.after(_EPOCH + timedelta(seconds=local))
        return None if found is None else (found - _EPOCH) // _SECOND

    return find


def _next_outside(trigger: Except, since: Millis) -> Millis | None:
    """The first tick on a day that is not left out. A day that is, is left as a whole, however many ticks it has."""
    zone, end = zone_of(trigger), since + _FAR_MS
    at = next_at(trigger.trigger, since)
    while at is not None and at < end:
        local = at // 1000 + wallclock.offset_at(zone, at // 1000)
        day = (_EPOCH + timedelta(days=local // DAY)).date()
        if not any(_has(calendar, day) for calendar in trigger.calendars):
            return at
        at = next_at(trigger.trigger, max(at + 1, _begin_of_day(zone, local // DAY + 1) * 1000))
    return None


def _begin_of_day(zone: str, day: int) -> int:
    """A moment at which a day has not begun, or has only just: clocks may change at midnight."""
    midnight = day * DAY
    guess = midnight - wallclock.offset_at(zone, midnight)
    return min(guess, midnight - wallclock.offset_at(zone, guess - DAY))


def _has(calendar: Holidays | Dates, day: date) -> bool:
    if isinstance(calendar, Dates):
        return day in calendar.days
    return day in holidays.in_year(calendar.country, calendar.subdiv, day.year)


@lru_cache(maxsize=4096)
def shortest_distance(trigger: Trigger) -> Millis | None:
    """Between two ticks, as far as a few hundred of them or a year show; None when there are no two."""
    if isinstance(trigger, Every):
        return ceil_ms(trigger.interval)
    at = next_at(trigger, _SAMPLED_FROM)
    shortest = None
    for _ in range(_SAMPLED):
        following = None if at is None else next_at(trigger, at + 1)
        if at is None or following is None:
            break
        shortest = following - at if shortest is None else min(shortest, following - at)
        at = following
        if at > _SAMPLED_UNTIL:
            break
    return shortest


_SAMPLED = 300
_SAMPLED_FROM = int(datetime(2028, 1, 1, tzinfo=UTC).timestamp()) * 1000
_SAMPLED_UNTIL = _SAMPLED_FROM + 400 * DAY * 1000

NextAt = Callable[[Trigger, Millis], Millis | None]


class Known:
    """`next_at` that remembers: of triggers that a million jobs have in common each tick is worked out once."""

    # Ticks of one trigger that are kept: jitter spreads the moments that are asked for over some.
    _KEPT = 100

    def __init__(self) -> None:
        self._ticks: dict[Trigger, list[tuple[Millis, Millis]]] = {}

    def next_at(self, trigger: Trigger, since: Millis) -> Millis | None:
        known = self._ticks.setdefault(trigger, [])
        for asked, tick in known:
            if asked <= since <= tick:
                return tick
        found = next_at(trigger, since)
        if found is not None:
            if len(known) >= self._KEPT:
                known.clear()
            if len(self._ticks) > 10_000:
                self._ticks.clear()
            known.append((since, found))
        return found
