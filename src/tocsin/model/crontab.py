"""Cron expressions: read once, by cronsim, with errors that say what a field may be."""

from __future__ import annotations

import re
from bisect import bisect_left
from datetime import date, datetime, timedelta
from functools import lru_cache

from cronsim import CronSim, CronSimError
from msgspec import Struct

from tocsin.model.errors import InvalidTrigger, nearest

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_LONGEST = 500
_DAY = 86_400
_BEGIN = date(1970, 1, 1)
_YEARS = 50
# A range of one with steps is that one: cronsim takes 2-2/10 for 2/10.
_ONE_STEPPED = re.compile(r"\b(\w+)-\1/0*[1-9][0-9]*(?![^\s,])", re.ASCII | re.IGNORECASE)
# Whatever fires at all does so within the 28 years after which the calendar repeats; cronsim looks 50 years ahead.
_EPOCH = datetime(2000, 1, 1)
_FIELDS = {
    "Bad second": ("second", "0 to 59"),
    "Bad minute": ("minute", "0 to 59"),
    "Bad hour": ("hour", "0 to 23"),
    "Bad day-of-month": ("day of the month", "1 to 31, L for the last or LW for the last weekday"),
    "Bad month": ("month", "1 to 12 or JAN to DEC"),
    "Bad day-of-week": (
        "day of the week",
        "0 to 7 (0 and 7 are Sunday), SUN to SAT, 5L for the last Friday or 1#2 for the second Monday",
    ),
}


class Crontab(Struct, frozen=True):
    """What an expression says. `sim` has read its fields and knows whether a day fits."""

    sim: CronSim
    # At times of day that are written down, without seconds: what Debian's cron treats apart when the clock changes.
    fixed: bool


@lru_cache(maxsize=4096)
def parse(expression: str) -> Crontab:
    """Raises InvalidTrigger."""
    if len(expression) > _LONGEST:
        raise InvalidTrigger(f"a cron expression has at most {_LONGEST} characters, not {len(expression)}")
    text = _ONE_STEPPED.sub(r"\1", _without_alias(expression))
    fields = text.split()
    if len(fields) not in (5, 6):
        raise InvalidTrigger(
            f"{expression!r} has {len(fields)} fields: write 5 (minute, hour, day, month, day of the week), "
            "or 6 with the second first"
        )
    try:
        sim = CronSim(text, _EPOCH)
        next(CronSim(text, _EPOCH))
    except CronSimError as error:
        raise InvalidTrigger(_explained(expression, fields[-3:], str(error))) from None
    except StopIteration:
        raise InvalidTrigger(f"{expression!r} never fires: no date fits its day, month and day of the week") from None
    minute, hour = fields[-5], fields[-4]
    return Crontab(sim, len(fields) == 5 and not minute.startswith("*") and not hour.startswith("*"))


class Walk:
    """From one local time that fits to the next, in seconds since a local 1970; zones are not known here."""

    def __init__(self, sim: CronSim) -> None:
        self._sim = sim
        self._hours, self._minutes, self._seconds = sorted(sim.hours), sorted(sim.minutes), sorted(sim.seconds)
        self._first = (self._hours[0] * 60 + self._minutes[0]) * 60 + self._seconds[0]
        # The last answer, and from when on it is the answer: many ask for one time, and a rare one is far to walk.
        self._last = (0, 0)

    def after(self, local: int) -> int | None:
        since, found = self._last
        if since <= local < found:
            return found
        day, second = divmod(local + 1, _DAY)
        today = _BEGIN + timedelta(days=day)
        time = self._time_from(second) if today.month in self._sim.months and self._sim.match_day(today) else None
        if time is None:
            following = self._day_from(today + timedelta(days=1))
            if following is None:
                return None
            day, time = (following - _BEGIN).days, self._first
        found = day * _DAY + time
        self._last = (local, found)
        return found

    def _time_from(self, second: int) -> int | None:
        """The first time of day that fits and is not before a second of it."""
        minute, second = divmod(second, 60)
        hour, minute = divmod(minute, 60)
        if hour in self._sim.hours:
            if minute in self._sim.minutes:
                at = bisect_left(self._seconds, second)
                if at < len(self._seconds):
                    return (hour * 60 + minute) * 60 + self._seconds[at]
            at = bisect_left(self._minutes, minute + 1)
            if at < len(self._minutes):
                return (hour * 60 + self._minutes[at]) * 60 + self._seconds[0]
        at = bisect_left(self._hours, hour + 1)
        if at < len(self._hours):
            return (self._hours[at] * 60 + self._minutes[0]) * 60 + self._seconds[0]
        return None

    def _day_from(self, day: date) -> date | None:
        last = day.year + _YEARS
        while day.year <= last:
            if day.month not in self._sim.months:
                day = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
            elif self._sim.match_day(day):
                return day
            else:
                day += timedelta(days=1)
        return None


def _without_alias(expression: str) -> str:
    word = expression.strip().lower()
    if not word.startswith("@"):
        return expression
    if word not in ALIASES:
        raise InvalidTrigger(f"there is no {expression!r}; {nearest(word, ALIASES)}")
    return ALIASES[word]


def _explained(expression: str, days: list[str], error: str) -> str:
    name, may_be = _FIELDS[error]
    if error == "Bad day-of-month" and _is_days(days[0]):
        return f"{expression!r} never fires: no month that it names has such a day"
    return f"the {name} in {expression!r} is wrong: it can be {may_be}, *, lists (1,2), ranges (1-5) and steps (*/5)"


def _is_days(field: str) -> bool:
    """Whether a field is right by itself, so that only the months can be the reason."""
    try:
        CronSim(f"0 0 {field} * *", _EPOCH)
    except CronSimError:
        return False
    return True
