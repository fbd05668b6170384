"""The days of a year that match an RRULE: they match all of its BY… parts about days."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from msgspec import Struct

from tocsin.model.local_time import date_of, day_number, month_of, weekday_of
from tocsin.model.step_budget import Budget

# Cached years. One year is used again and again, and a week may reach into the next.
_KEPT = 8


class DayParts(Struct, frozen=True):
    """The BY… parts about days; an empty part matches any. `days` are (nth, weekday from Monday); nth 0 is every."""

    months: tuple[int, ...] = ()
    monthdays: tuple[int, ...] = ()
    yeardays: tuple[int, ...] = ()
    weeks: tuple[int, ...] = ()
    days: tuple[tuple[int, int], ...] = ()
    # Whether the nth weekday counts within a month, and not within the year.
    by_month: bool = False
    week_begins: int = 0


class Days:
    """Finds the days that match the parts, in order."""

    def __init__(self, parts: DayParts) -> None:
        self._parts = parts
        self.any = not (parts.months or parts.monthdays or parts.yeardays or parts.weeks or parts.days)
        # The steps of a budget that finding the days of a year costs.
        long = (parts.monthdays, parts.days, parts.weeks, parts.yeardays)
        self._steps = 20 + 4 * sum(map(len, long))
        self._years: dict[int, list[int]] = {}
        # The last year used: its first day, the day after its last, and its matching days.
        self._begin = self._end = 0
        self._near: list[int] = []

    def first_from(self, day: int, last: int, budget: Budget) -> int | None:
        """The first matching day from `day` on; None if that is after `last`."""
        if self.any:
            return day
        while day <= last:
            if not self._begin <= day < self._end:
                self._look_at(date_of(day).year, budget)
            at = bisect_left(self._near, day)
            if at < len(self._near):
                return self._near[at]
            day = self._end
        return None

    def _look_at(self, year: int, budget: Budget) -> None:
        days = self._of(year, budget)
        self._begin, self._end, self._near = day_number(year), day_number(year + 1), days

    def between(self, begin: int, end: int, budget: Budget) -> Sequence[int]:
        if self.any:
            return range(begin, end)
        found: list[int] = []
        for year in range(date_of(begin).year, date_of(end - 1).year + 1):
            days = self._of(year, budget)
            found += days[bisect_left(days, begin) : bisect_left(days, end)]
        return found

    def _of(self, year: int, budget: Budget) -> list[int]:
        days = self._years.get(year)
        if days is None:
            budget.spend(self._steps)
            if len(self._years) >= _KEPT:
                self._years.clear()
            days = self._years[year] = sorted(self._found(year))
        return days

    def _found(self, year: int) -> set[int]:
        parts, begin, end = self._parts, day_number(year), day_number(year + 1)
        months = [month_of(year * 12 + month - 1) for month in parts.months or range(1, 13)]
        found = []
        if parts.monthdays:
            found.append({day for month in months for day in _counted(parts.monthdays, *month)})
        elif parts.months:
            found.append({day for month in months for day in range(*month)})
        if parts.yeardays:
            found.append(set(_counted(parts.yeardays, begin, end)))
        if parts.weeks:
            found.append({day for day in self._in_weeks(year) if begin <= day < end})
        if parts.days:
            found.append(self._weekdays(months if parts.by_month else [(begin, end)], begin, end))
        return set.intersection(*found)

    def _weekdays(self, spans: list[tuple[int, int]], begin: int, end: int) -> set[int]:
        found: set[int] = set()
        for nth, weekday in self._parts.days:
            if nth == 0:
                found.update(range(begin + (weekday - weekday_of(begin)) % 7, end, 7))
            else:
                found.update(day for span in spans for day in _nth(nth, weekday, *span))
        return found

    def _in_weeks(self, year: int) -> Iterable[int]:
        """The days of the BYWEEKNO weeks. A year may begin in the last week of the year before, and end in the first of
        the next."""
        for near in (year - 1, year, year + 1):
            first, following = self._first_week(near), self._first_week(near + 1)
            for week in _counted(self._parts.weeks, 0, (following - first) // 7):
                yield from range(first + 7 * week, first + 7 * week + 7)

    def _first_week(self, year: int) -> int:
        """The first day of week 1, the first week with at least four days in the year."""
        first = day_number(year)
        before = (weekday_of(first) - self._parts.week_begins) % 7
        return first - before if before <= 3 else first - before + 7


def _counted(numbers: Iterable[int], begin: int, end: int) -> Iterable[int]:
    """The positions in [begin, end) that the numbers count: 1 is `begin`, -1 the last before `end`."""
    for number in numbers:
        at = begin + number - 1 if number > 0 else end + number
        if begin <= at < end:
            yield at


def _nth(nth: int, weekday: int, begin: int, end: int) -> Iterable[int]:
    if nth > 0:
        at = begin + (weekday - weekday_of(begin)) % 7 + 7 * (nth - 1)
    else:
        at = end - 1 - (weekday_of(end - 1) - weekday) % 7 + 7 * (nth + 1)
    return (at,) if begin <= at < end else ()
