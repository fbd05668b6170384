"""What the daylight-saving rules say, stated a second time: by walking every minute and looking at the clock.

Nothing here is shared with the code under test: fields are expanded by hand, offsets are read off the zone minute by
minute, and a rule is what one sees on the clock: minutes that are missing, minutes that were seen before, minutes that
will be seen again. Minutes are numbered from 1970, those of UTC and those of the wall clock alike.
"""

from __future__ import annotations

import calendar
from array import array
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

ZONES = (
    "Europe/Paris", "America/New_York", "America/Havana", "Australia/Lord_Howe", "Africa/Casablanca",
    "Asia/Kathmandu", "Pacific/Apia",
)  # fmt: skip
YEARS = range(2005, 2036)
# The one of each that is walked as a whole; Apia skipped a day in it.
WHOLE = dict.fromkeys(ZONES, 2026) | {"Pacific/Apia": 2011}
# What lies within the edge of a walk is not told: whether a minute comes twice is seen only when it does.
EDGE_H = 2
AROUND_H = 3 * 24 + EDGE_H
DAY_NAMES = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
MONTH_NAMES = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
EPOCH = date(1970, 1, 1)


def minute_of(year: int) -> int:
    return int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) // 60


@cache
def whole_year(zone: str) -> list[Span]:
    year = WHOLE[zone]
    return [_walked(zone, minute_of(year) - 60 * EDGE_H, minute_of(year + 1) + 60 * EDGE_H)]


@cache
def around_changes(zone: str) -> list[Span]:
    """Three days either side of each change in all the years."""
    info = ZoneInfo(zone)
    hours = range(minute_of(YEARS[0]) // 60, minute_of(YEARS[-1] + 1) // 60)
    offsets = [datetime.fromtimestamp(hour * 3600, info).utcoffset() for hour in hours]
    changed = [hours[i] for i in range(1, len(offsets)) if offsets[i] != offsets[i - 1]]
    return [_walked(zone, (hour - AROUND_H) * 60, (hour + AROUND_H) * 60) for hour in changed]


class Span(NamedTuple):
    # The first minute of UTC, and what the clock on the wall shows at each from there on.
    first: int
    shown: array
    # Where minutes are missing before one, which; and the minutes that are shown twice, with where they are first.
    missing: dict[int, range]
    again: dict[int, int]


def _walked(zone: str, first: int, last: int) -> Span:
    info = ZoneInfo(zone)
    shown = array("q")
    for minute in range(first, last):
        offset = datetime.fromtimestamp(minute * 60, info).utcoffset()
        shown.append(minute + (offset.days * 86_400 + offset.seconds) // 60)
    return Span(first, shown, *_irregular(shown))


# Expressions


def expand(field: str, low: int, high: int, names: tuple[str, ...] = ()) -> set[int]:
    found: set[int] = set()
    for term in field.upper().split(","):
        span, _, step = term.partition("/")
        if span == "*":
            first, last = low, high
        elif "-" in span:
            first, last = (_number(part, names, low) for part in span.split("-"))
        else:
            first = _number(span, names, low)
            last = high if step else first
        found |= set(range(first, last + 1, int(step or 1)))
    return found


def _number(text: str, names: tuple[str, ...], low: int) -> int:
    return names.index(text) + low if text in names else int(text)


def fits_day(day: date, dom: str, month: str, dow: str) -> bool:
    if day.month not in expand(month, 1, 12, MONTH_NAMES):
        return False
    last = calendar.monthrange(day.year, day.month)[1]
    by_number = day.day == last if dom == "L" else day.day in expand(dom, 1, 31)
    weekday = day.isoweekday() % 7
    if dow.endswith("L"):
        by_name = weekday == int(dow[:-1]) % 7 and day.day + 7 > last
    elif "#" in dow:
        which, nth = dow.split("#")
        by_name = weekday == _number(which.upper(), DAY_NAMES, 0) % 7 and (day.day - 1) // 7 + 1 == int(nth)
    else:
        by_name = weekday in {number % 7 for number in expand(dow, 0, 7, DAY_NAMES)}
    return by_number and by_name if dom.startswith("*") or dow.startswith("*") else by_number or by_name


class Fits:
    """Whether a minute of the wall clock fits an expression; each day is looked at once."""

    def __init__(self, expression: str) -> None:
        fields = expression.split()
        self.seconds = sorted(expand(fields[0], 0, 59)) if len(fields) == 6 else [0]
        minute, hour, *self._day = fields[-5:]
        self._of_day = {60 * h + m for h in expand(hour, 0, 23) for m in expand(minute, 0, 59)}
        self._days: dict[int, set[int]] = {}
        self.fixed = len(fields) == 5 and "*" not in (minute[0], hour[0])

    def on(self, day: int) -> set[int]:
        if day not in self._days:
            fits = fits_day(EPOCH + timedelta(days=day), *self._day)
            self._days[day] = {day * 1440 + minute for minute in self._of_day} if fits else set()
        return self._days[day]

    def __call__(self, minute: int) -> bool:
        return minute in self.on(minute // 1440)


# Rules


def ticks(span: Span, expression: str, dst: str) -> list[int]:
    """All moments of a span, in seconds, at which an expression fires."""
    first, shown, missing, again = span
    fits = Fits(expression)
    days = {minute // 1440 for minute in (min(shown), max(shown), *shown[::720])}
    fitting = set().union(*(fits.on(day) for day in days))
    hits = [i for i, minute in enumerate(shown) if minute in fitting]
    fires: set[int] = set()

    def fire(minute: int) -> None:
        fires.update((first + minute) * 60 + second for second in fits.seconds)

    for i in hits:
        seen_before = again.get(shown[i], i) < i
        seen_again = again.get(shown[i]) == i
        if dst in ("skip", "earlier", "later-first") and seen_before:
            continue
        if dst == "cron" and fits.fixed and seen_before:
            continue
        if dst == "later" and seen_again:
            continue
        fire(i)
    for i, minutes in missing.items():
        lost = [minute for minute in minutes if fits(minute)]
        if lost and (dst == "both" or (dst == "cron" and fits.fixed)):
            fires.add((first + i) * 60)
        for minute in lost:
            if dst == "earlier":
                fire(i - (shown[i] - minute))
            elif dst in ("later", "later-first"):
                fire(i + (minute - shown[i - 1] - 1))
    return sorted(fires)


def _irregular(shown: array) -> tuple[dict[int, range], dict[int, int]]:
    missing, again = {}, {}
    for i in range(1, len(shown)):
        step = shown[i] - shown[i - 1]
        if step > 1:
            missing[i] = range(shown[i - 1] + 1, shown[i])
        elif step < 1:
            back = 1 - step
            again |= {shown[j]: j for j in range(max(0, i - back), i)}
    return missing, again
