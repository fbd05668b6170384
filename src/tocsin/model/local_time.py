"""Local time for cron and RRULE: days as numbers since 1970-01-01, times of the day as seconds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from datetime import date

DAY = 86_400
_ORDINAL = date(1970, 1, 1).toordinal()
# Searches end before this year: dates end with 9999, and some searches look at the following years too.
END_YEAR = 9996


def day_number(year: int, month: int = 1, day: int = 1) -> int:
    return date(year, month, day).toordinal() - _ORDINAL


def date_of(day: int) -> date:
    return date.fromordinal(day + _ORDINAL)


def weekday_of(day: int) -> int:
    """Monday is 0."""
    return (day + 3) % 7


def month_of(index: int) -> tuple[int, int]:
    """The first day of a month and the one after its last; months are numbered from January of the year 0."""
    year, month = divmod(index, 12)
    following, next_month = divmod(index + 1, 12)
    return day_number(year, month + 1), day_number(following, next_month + 1)


class TimesOfDay:
    """All times of the day that combine one of the given hours, minutes and seconds."""

    __slots__ = ("hours", "minutes", "seconds")

    def __init__(self, hours: Iterable[int], minutes: Iterable[int], seconds: Iterable[int]) -> None:
        self.hours, self.minutes, self.seconds = (sorted(set(part)) for part in (hours, minutes, seconds))

    @property
    def first(self) -> int:
        return (self.hours[0] * 60 + self.minutes[0]) * 60 + self.seconds[0]

    def at_or_after(self, second: int) -> int | None:
        hours, minutes, seconds = self.hours, self.minutes, self.seconds
        minute, second = divmod(second, 60)
        hour, minute = divmod(minute, 60)
        in_hours = bisect_left(hours, hour)
        if in_hours == len(hours):
            return None
        if hours[in_hours] == hour:
            in_minutes = bisect_left(minutes, minute)
            if in_minutes < len(minutes) and minutes[in_minutes] == minute:
                in_seconds = bisect_left(seconds, second)
                if in_seconds < len(seconds):
                    return (hour * 60 + minute) * 60 + seconds[in_seconds]
                in_minutes += 1
            if in_minutes < len(minutes):
                return (hour * 60 + minutes[in_minutes]) * 60 + seconds[0]
            in_hours += 1
            if in_hours == len(hours):
                return None
        return (hours[in_hours] * 60 + minutes[0]) * 60 + seconds[0]
