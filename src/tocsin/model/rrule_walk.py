"""Finds the next local time that matches an RRULE (RFC 5545).

A time matches if three parts match: its period (the year, week, hour … that FREQ names, one in each INTERVAL), its day
and its time of the day. Each part can compute its own next match, so the search jumps from part to part until all three
agree. BYSETPOS then chooses among all times of a period, including those before the start or after the end of the rule.

Times are seconds since a local 1970, without zones.
"""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.model.local_time import DAY, END_YEAR, TimesOfDay, date_of, day_number, month_of, weekday_of
from tocsin.model.rrule_days import Days
from tocsin.model.step_budget import Budget, BudgetSpent

FREQS = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
YEARLY, MONTHLY, WEEKLY, DAILY, HOURLY, MINUTELY, SECONDLY = range(7)
_SECONDS = {WEEKLY: 7 * DAY, DAILY: DAY, HOURLY: 3600, MINUTELY: 60, SECONDLY: 1}
_END = day_number(END_YEAR) * DAY
# The steps of a budget that choosing among the times of a period costs.
_CHOOSING = 4


class Periods:
    """The numbered years, months, weeks … of a rule. The rule uses one in each `interval`."""

    def __init__(self, freq: int, interval: int, start: int, week_begins: int) -> None:
        self.freq = freq
        self._interval = interval
        self._seconds = _SECONDS.get(freq, 0)
        day = start // DAY
        # The begin of period 0: for weeks the given weekday, for all others 1970.
        self._origin = (day - (weekday_of(day) - week_begins) % 7) * DAY if freq == WEEKLY else 0
        self._first = self.number_of(start)

    def number_of(self, at: int) -> int:
        if self._seconds:
            return (at - self._origin) // self._seconds
        day = date_of(at // DAY)
        return day.year if self.freq == YEARLY else day.year * 12 + day.month - 1

    def begin_of(self, number: int) -> int:
        if self._seconds:
            return self._origin + number * self._seconds
        if number >= (END_YEAR if self.freq == YEARLY else END_YEAR * 12):
            return _END
        return (day_number(number) if self.freq == YEARLY else month_of(number)[0]) * DAY

    def at_or_after(self, at: int) -> int:
        """`at` if it is in one of the rule's periods, else the begin of the next one."""
        if self._interval == 1:
            return at
        number = self.number_of(at)
        late = (number - self._first) % self._interval
        return self.begin_of(number + self._interval - late) if late else at


class ParsedRrule:
    """A rule whose times can be searched. `start` and `until` are the first and last possible times."""

    def __init__(
        self, periods: Periods, days: Days, times: TimesOfDay, positions: tuple[int, ...], start: int, until: int | None
    ) -> None:
        self._periods = periods
        self._days = days
        self._times = times
        self._positions = positions
        self.start = start
        # Steps of a budget that parsing the rule took.
        self.cost = 0
        self._until = _END - 1 if until is None else min(until, _END - 1)

    def after(self, local: int, budget: Budget, until: int | None = None) -> int | None:
        """The first time later than `local`; None if that is after `until`. Raises BudgetSpent."""
        at, last = max(local + 1, self.start), self._until if until is None else min(until, self._until)
        if at > last:
            return None
        return self._chosen(at, last, budget) if self._positions else self._fitting(at, last, budget)

    def can_choose(self) -> bool:
        """Whether BYSETPOS can choose any time. Within a day the number of times is constant, so it can be checked."""
        if not self._positions or self._periods.freq < DAILY:
            return True
        times, freq = self._times, self._periods.freq
        size = len(times.seconds) if freq < SECONDLY else 1
        size *= len(times.minutes) if freq < MINUTELY else 1
        size *= len(times.hours) if freq < HOURLY else 1
        return min(map(abs, self._positions)) <= size

    def end_with(self, count: int, budget: Budget, far: int) -> None:
        """End the rule after `count` times. If counting spends the budget after `far`, the rule gets no end."""
        at = self.start - 1
        try:
            for _ in range(count):
                following = self.after(at, budget)
                if following is None:
                    return
                at = following
        except BudgetSpent:
            if at < far:
                raise
        else:
            self._until = at

    def _fitting(self, at: int, last: int, budget: Budget) -> int | None:
        """The first time from `at` on, ignoring BYSETPOS."""
        periods, days, times = self._periods, self._days, self._times
        last_day = last // DAY
        while at <= last:
            budget.spend()
            at = periods.at_or_after(at)
            if at > last:
                return None
            day, second = divmod(at, DAY)
            fits = days.first_from(day, last_day, budget)
            if fits is None:
                return None
            if fits != day:
                at = fits * DAY
                continue
            time = times.at_or_after(second)
            if time is None:
                at = (day + 1) * DAY
                continue
            found = day * DAY + time
            if periods.number_of(found) == periods.number_of(at):
                return found if found <= last else None
            at = found
        return None

    def _chosen(self, at: int, last: int, budget: Budget) -> int | None:
        periods = self._periods
        fits = self._fitting(periods.begin_of(periods.number_of(at)), last, budget)
        while fits is not None:
            budget.spend(_CHOOSING)
            number = periods.number_of(fits)
            found = min((time for time in self._positioned(number, budget) if time >= at), default=None)
            if found is not None:
                return found if found <= last else None
            fits = self._fitting(periods.begin_of(number + 1), last, budget)
        return None

    def _positioned(self, number: int, budget: Budget) -> list[int]:
        """The times that BYSETPOS chooses in a period."""
        periods, times = self._periods, self._times
        begin, end = periods.begin_of(number), periods.begin_of(number + 1)
        hours, minutes, seconds = len(times.hours), len(times.minutes), len(times.seconds)
        days: Sequence[int] = (0,)
        if periods.freq <= DAILY:
            days = self._days.between(begin // DAY, end // DAY, budget)
            begin = 0
        else:
            # An hour has one choice of hours, a minute one of hours and one of minutes.
            hours, minutes, seconds = 1, minutes if periods.freq == HOURLY else 1, seconds if end - begin > 1 else 1
        size = len(days) * hours * minutes * seconds
        found = []
        for position in self._positions:
            at = position - 1 if position > 0 else size + position
            if 0 <= at < size:
                at, second = divmod(at, seconds)
                at, minute = divmod(at, minutes)
                day, hour = divmod(at, hours)
                found.append(begin + days[day] * DAY + self._seconds_of(hour, minute, second))
        return found

    def _seconds_of(self, hour: int, minute: int, second: int) -> int:
        """The time of the day in seconds, from indexes into the lists. The period itself gives the coarser parts."""
        times, freq = self._times, self._periods.freq
        seconds = times.seconds[second] if freq < SECONDLY else 0
        if freq < MINUTELY:
            seconds += 60 * times.minutes[minute]
        if freq < HOURLY:
            seconds += 3600 * times.hours[hour]
        return seconds
