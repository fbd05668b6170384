"""Finds the first tick of any trigger from a moment on, in milliseconds."""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from functools import lru_cache
from itertools import pairwise

from tocsin.model import cron, holidays, rrule
from tocsin.model.cron_walk import CrontabSearch
from tocsin.model.durations import Millis, ceil_ms, epoch_ms
from tocsin.model.errors import TriggerFailed
from tocsin.model.local_time import date_of
from tocsin.model.step_budget import Budget, BudgetSpent
from tocsin.model.trigger import AnyOf, Cron, Dates, Every, Except, Holidays, Once, Rrule, Trigger, phrase, zone_of
from tocsin.triggers import wallclock
from tocsin.triggers.wallclock import DAY, DstRule, Find

RULES = {
    "skip": DstRule("skip", "first"),
    "earlier": DstRule("earlier", "first"),
    "later": DstRule("later", "second"),
    # RFC 5545: read a time that does not exist with the offset before the gap, and take the first of two equal times.
    "later-first": DstRule("later", "first"),
    "both": DstRule("end", "both"),
}
# As in Debian's cron: jobs at fixed times run once despite a change of the clock, all others follow real time.
_FIXED = DstRule("end", "first")
_WILD = DstRule("skip", "both")
# How far ahead to search for a day that no calendar leaves out.
_FAR_MS = 50 * 366 * DAY * 1000
# Steps of a budget for one more search of a trigger, and for computing the holidays of a year.
_ASK = 25
_YEAR = 700


def next_at(trigger: Trigger, since: Millis, budget: Budget | None = None) -> Millis | None:
    """The first tick from `since` on; None if no tick is left.

    An Every without an anchor has no cadence of its own, so it counts from 1970 here. Raises only TriggerFailed: for
    anything wrong with the trigger, and if the search takes more than its budget."""
    try:
        return _next_at(trigger, since, budget or Budget())
    except TriggerFailed:
        raise
    except BudgetSpent:
        raise TriggerFailed(
            f"the next time of {phrase(trigger):.200} was not found in reasonable time: it fires too rarely, or never "
            "again. Write it so that it fires more often, or end it"
        ) from None
    except Exception as error:
        raise TriggerFailed(
            f"the next time of {phrase(trigger):.200} cannot be worked out: {type(error).__name__}: {error}"
        ) from error


def _next_at(trigger: Trigger, since: Millis, budget: Budget) -> Millis | None:
    if isinstance(trigger, (Cron, Rrule)):
        second = next_after(trigger, -(-since // 1000) - 1, budget)
        return None if second is None else second * 1000
    if isinstance(trigger, Every):
        anchor = 0 if trigger.anchor is None else epoch_ms(trigger.anchor)
        return since + (anchor - since) % ceil_ms(trigger.interval)
    if isinstance(trigger, Once):
        at = epoch_ms(trigger.at)
        return at if at >= since else None
    if isinstance(trigger, AnyOf):
        ticks = [_next_at(part, since, budget) for part in trigger.triggers]
        return min((tick for tick in ticks if tick is not None), default=None)
    return _next_outside(trigger, since, budget)


def next_after(trigger: Cron | Rrule, after: int, budget: Budget | None = None) -> int | None:
    """The first tick later than `after`, in seconds. Raises BudgetSpent."""
    budget = budget or Budget()
    if isinstance(trigger, Cron):
        find, fixed = _cron(trigger.expression)
        rule = RULES.get(trigger.dst) or (_FIXED if fixed else _WILD)
        return wallclock.next_after(find, trigger.tz, rule, after, budget)
    walk = rrule.parse(trigger.text, trigger.start, trigger.tz).after
    return wallclock.next_after(lambda local: walk(local, budget), trigger.tz, RULES["later-first"], after, budget)


@lru_cache(maxsize=4096)
def _cron(expression: str) -> tuple[Find, bool]:
    parsed = cron.parse(expression)
    return CrontabSearch(parsed).after, parsed.fixed


def _next_outside(trigger: Except, since: Millis, budget: Budget) -> Millis | None:
    """The first tick on a day that no calendar leaves out. Skips a day as a whole, however many ticks it has."""
    zone, end = zone_of(trigger), since + _FAR_MS
    at = _next_at(trigger.trigger, since, budget)
    while at is not None and at < end:
        day = (at // 1000 + wallclock.offset_at(zone, at // 1000)) // DAY
        following = _first_kept(trigger, day, budget)
        if following == day:
            return at
        budget.spend(_ASK)
        at = _next_at(trigger.trigger, max(at + 1, _begin_of_day(zone, following) * 1000), budget)
    return None


def _first_kept(trigger: Except, day: int, budget: Budget) -> int:
    """The first day from `day` on that no calendar leaves out."""
    year = None
    while any(_has(calendar, date_of(day)) for calendar in trigger.calendars):
        budget.spend(len(trigger.calendars))
        if year != date_of(day).year:
            year = date_of(day).year
            budget.spend(_YEAR * sum(isinstance(calendar, Holidays) for calendar in trigger.calendars))
        day += 1
    return day


def _begin_of_day(zone: str, day: int) -> int:
    """A moment shortly before or exactly at the begin of a day: clocks may change at midnight."""
    midnight = day * DAY
    guess = midnight - wallclock.offset_at(zone, midnight)
    return min(guess, midnight - wallclock.offset_at(zone, guess - DAY))


def _has(calendar: Holidays | Dates, day: date) -> bool:
    if isinstance(calendar, Dates):
        at = bisect_left(calendar.days, day)
        return at < len(calendar.days) and calendar.days[at] == day
    return day in holidays.in_year(calendar.country, calendar.subdiv, day.year)


@lru_cache(maxsize=4096)
def shortest_distance(trigger: Trigger) -> Millis | None:
    """The shortest time between two ticks, from a sample of some hundred ticks or a year; None with less than two."""
    if isinstance(trigger, Every):
        return ceil_ms(trigger.interval)
    ticks = list(_sampled(trigger))
    return min((after - before for before, after in pairwise(ticks)), default=None)


def _sampled(trigger: Trigger) -> Iterator[Millis]:
    budget, at = Budget(), _SAMPLED_FROM
    with contextlib.suppress(TriggerFailed):
        for _ in range(_SAMPLED):
            following = next_at(trigger, at, budget)
            if following is None:
                return
            yield following
            if following > _SAMPLED_UNTIL:
                return
            at = following + 1


_SAMPLED = 300
_SAMPLED_FROM = int(datetime(2028, 1, 1, tzinfo=UTC).timestamp()) * 1000
_SAMPLED_UNTIL = _SAMPLED_FROM + 400 * DAY * 1000

NextAt = Callable[[Trigger, Millis], Millis | None]


class TickCache:
    """`next_at` with a cache: a million jobs with the same trigger compute each tick once."""

    # Cached ticks per trigger. Jitter spreads the requested moments over several ticks.
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
