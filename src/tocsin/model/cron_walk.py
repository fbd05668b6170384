"""Finds the next local time that matches a cron expression. Times are seconds since a local 1970, without zones."""

from __future__ import annotations

from bisect import bisect_left

from msgspec import Struct

from tocsin.model.cron_fields import DaySpecial, NthWeekday
from tocsin.model.local_time import DAY, TimesOfDay, date_of, month_of, weekday_of

# The calendar repeats after 28 years, or 40 across a century without a leap year: an expression that has not fired by
# then never fires.
_MONTHS = 50 * 12
_KEPT = 24


class Crontab(Struct, frozen=True):
    """A parsed cron expression."""

    times: TimesOfDay
    months: frozenset[int]
    # Days of the month from 1. `weekdays` below count from Sunday, 0.
    days: frozenset[int]
    day_specials: tuple[DaySpecial, ...]
    weekdays: frozenset[int]
    nth_weekdays: tuple[NthWeekday, ...]
    # As in Debian's cron: if one of the day fields begins with a star both must match, otherwise one is enough.
    both_days: bool
    # Neither minute nor hour begins with a star, and seconds are not given. Debian's cron treats such jobs differently
    # when the clock changes.
    fixed: bool
    # Sentences about parts that are valid but probably mistakes.
    mistakes: tuple[str, ...]


class CrontabSearch:
    def __init__(self, crontab: Crontab) -> None:
        self._crontab = crontab
        self._times = crontab.times
        whole = len(crontab.days) == 31 and len(crontab.weekdays) == 7 and len(crontab.months) == 12
        self._any_day = crontab.both_days and whole
        # The matching days of recently used months.
        self._days: dict[int, list[int]] = {}
        # The last answer, and the time from which on it holds: many jobs ask for the same time.
        self._last = (0, 0)

    def after(self, local: int) -> int | None:
        since, found = self._last
        if since <= local < found:
            return found
        day, second = divmod(local + 1, DAY)
        following = self._day_from(day)
        if following is None:
            return None
        time = self._times.at_or_after(second) if following == day else self._times.first
        if time is None:
            following = self._day_from(day + 1)
            if following is None:
                return None
            time = self._times.first
        found = following * DAY + time
        self._last = (local, found)
        return found

    def _day_from(self, day: int) -> int | None:
        if self._any_day:
            return day
        date, months = date_of(day), self._crontab.months
        index = date.year * 12 + date.month - 1
        for month in range(index, index + _MONTHS):
            if month % 12 + 1 in months:
                days = self._days_of(month)
                at = bisect_left(days, day)
                if at < len(days):
                    return days[at]
        return None

    def _days_of(self, month: int) -> list[int]:
        days = self._days.get(month)
        if days is None:
            if len(self._days) >= _KEPT:
                self._days.clear()
            days = self._days[month] = sorted(self._fitting(*month_of(month)))
        return days

    def _fitting(self, first: int, end: int) -> set[int]:
        crontab = self._crontab
        by_number = {first + day - 1 for day in crontab.days if first + day <= end}
        for special in crontab.day_specials:
            by_number.update(_special(special, first, end))
        # A crontab counts weekdays from Sunday, `weekday_of` from Monday.
        by_name = {day for day in range(first, end) if (weekday_of(day) + 1) % 7 in crontab.weekdays}
        for nth in crontab.nth_weekdays:
            at = first + (nth.weekday - weekday_of(first) - 1) % 7
            same = range(at, end, 7)
            if nth.nth <= len(same):
                by_name.add(same[nth.nth - 1])
        return by_number & by_name if crontab.both_days else by_number | by_name


def _special(special: DaySpecial, first: int, end: int) -> tuple[int, ...]:
    day = end - 1 - special.day if special.from_end else first + special.day - 1
    if not first <= day < end:
        return ()
    weekday = weekday_of(day)
    if special.weekday and weekday == 5:
        day = day - 1 if day > first else day + 2
    elif special.weekday and weekday == 6:
        day = day + 1 if day < end - 1 else day - 2
    return (day,)
