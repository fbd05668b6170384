"""Parses and checks RRULEs (RFC 5545). Errors quote the wrong part."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from tocsin.model.errors import InvalidTrigger, did_you_mean
from tocsin.model.local_time import DAY, TimesOfDay
from tocsin.model.rrule_days import DayParts, Days
from tocsin.model.rrule_walk import (
    DAILY,
    FREQS,
    HOURLY,
    MINUTELY,
    MONTHLY,
    SECONDLY,
    WEEKLY,
    YEARLY,
    ParsedRrule,
    Periods,
)
from tocsin.model.step_budget import STEPS, Budget, BudgetSpent
from tocsin.model.zones import find_zone

_DAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
# Lists of numbers: lowest, highest, and whether they may count from the end (negative).
_LISTS = {
    "BYMONTH": (1, 12, False),
    "BYMONTHDAY": (1, 31, True),
    "BYYEARDAY": (1, 366, True),
    "BYWEEKNO": (1, 53, True),
    "BYSETPOS": (1, 366, True),
    "BYHOUR": (0, 23, False),
    "BYMINUTE": (0, 59, False),
    "BYSECOND": (0, 59, False),
}
_KNOWN = ("FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYDAY", *_LISTS)
# Combinations that the RFC forbids (MUST NOT), and what to write instead.
_FORBIDDEN = {
    "BYWEEKNO": ((MONTHLY, WEEKLY, DAILY, HOURLY, MINUTELY, SECONDLY), "weeks are counted in a year: use FREQ=YEARLY"),
    "BYYEARDAY": ((MONTHLY, WEEKLY, DAILY), "days are counted in a year: use FREQ=YEARLY"),
    "BYMONTHDAY": ((WEEKLY,), "a week has no days of the month: use FREQ=MONTHLY or FREQ=DAILY"),
}
_DAY = re.compile(r"([+-]?\d{1,3})?(MO|TU|WE|TH|FR|SA|SU)")
_EPOCH = datetime(1970, 1, 1)
_SECOND = timedelta(seconds=1)
_LONGEST = 500
MOST_COUNTED = 10_000
_MOST_INTERVAL = 999_999_999
# A rule that first fires after more than this is refused as one that never fires.
_FAR_S = 50 * 366 * DAY
# COUNT is counted no further than this: nobody will use the rule then.
_COUNTED_S = 100 * 366 * DAY


@lru_cache(maxsize=4096)
def parse(text: str, start: datetime, tz: str) -> ParsedRrule:
    """Raises InvalidTrigger."""
    if len(text) > _LONGEST:
        raise InvalidTrigger(f"a rule has at most {_LONGEST} characters, not {len(text)}")
    given = _pairs(text)
    zone = find_zone(tz)
    local = _local(start, zone)
    if local.year < 2:
        raise InvalidTrigger(f"the start of a rule must be after the year 1, not {start.isoformat()}")
    freq = FREQS.index(_choice(given, "FREQ", FREQS))
    if "UNTIL" in given and "COUNT" in given:
        raise InvalidTrigger("a rule has COUNT or UNTIL, not both")
    until = None
    if "UNTIL" in given:
        until = _seconds(_until(given["UNTIL"], zone))
    _check_combination(given, freq)
    begins = _DAYS.index(_choice(given, "WKST", _DAYS)) if "WKST" in given else 0
    interval = _number(given, "INTERVAL", _MOST_INTERVAL) if "INTERVAL" in given else 1
    rule = ParsedRrule(
        Periods(freq, interval, _seconds(local), begins),
        Days(_days(given, freq, local, begins)),
        _times(given, freq, local),
        _list(given, "BYSETPOS"),
        _seconds(local),
        until,
    )
    budget = Budget()
    _check_fires(text, rule, budget)
    rule.cost = STEPS - budget.left
    if "COUNT" in given:
        rule.cost += _end_with(rule, _number(given, "COUNT", MOST_COUNTED), text)
    return rule


def _check_fires(text: str, rule: ParsedRrule, budget: Budget) -> None:
    try:
        first = rule.after(rule.start - 1, budget, until=rule.start + _FAR_S) if rule.can_choose() else None
    except BudgetSpent:
        first = None
    if first is None:
        raise InvalidTrigger(
            f"{text!r} never fires, or not within 50 years: no date fits its parts, or its UNTIL is before its start"
        )
    try:
        rule.after(first, budget)
    except BudgetSpent:
        raise InvalidTrigger(
            f"{text!r} fires too rarely: its second time was not found in reasonable time; give Once(...) for one run"
        ) from None


def _end_with(rule: ParsedRrule, count: int, text: str) -> int:
    """Find the last time of a rule with COUNT. Returns the steps that it took."""
    budget = Budget()
    try:
        rule.end_with(count, budget, rule.start + _COUNTED_S)
    except BudgetSpent:
        raise InvalidTrigger(
            f"{text!r} cannot be counted to its end in reasonable time: use UNTIL, or a smaller COUNT"
        ) from None
    return STEPS - budget.left


def _pairs(text: str) -> dict[str, str]:
    body = text.strip().upper()
    body = body.removeprefix("RRULE:")
    found: dict[str, str] = {}
    for pair in body.strip(";").split(";"):
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not value:
            raise InvalidTrigger(f"{pair[:100]!r} in a rule is not NAME=VALUE: write it like FREQ=WEEKLY;BYDAY=MO,FR")
        if name not in _KNOWN:
            raise InvalidTrigger(f"a rule has no {name[:100]!r}; {did_you_mean(name[:100], _KNOWN)}")
        if name in found:
            raise InvalidTrigger(f"a rule has only one {name}")
        found[name] = value
    if "FREQ" not in found:
        raise InvalidTrigger(f"a rule needs a FREQ: write it like FREQ=WEEKLY;BYDAY=MO,FR, not {text[:100]!r}")
    return found


def _check_combination(given: dict[str, str], freq: int) -> None:
    for name, (freqs, instead) in _FORBIDDEN.items():
        if name in given and freq in freqs:
            raise InvalidTrigger(f"RFC 5545 forbids {name} with FREQ={FREQS[freq]}: {instead}")
    if "BYSETPOS" in given and not any(name.startswith("BY") and name != "BYSETPOS" for name in given):
        raise InvalidTrigger("BYSETPOS needs another BY… to choose from")


def _choice(given: dict[str, str], name: str, known: tuple[str, ...]) -> str:
    if given[name] not in known:
        raise InvalidTrigger(f"there is no {name}={given[name][:100]}; {did_you_mean(given[name][:100], known)}")
    return given[name]


def _number(given: dict[str, str], name: str, most: int) -> int:
    value = given[name]
    if not (value.isascii() and value.isdigit() and len(value) < 11 and 1 <= int(value) <= most):
        raise InvalidTrigger(f"{name} must be a whole number from 1 to {most}, not {value[:100]!r}")
    return int(value)


def _days(given: dict[str, str], freq: int, start: datetime, begins: int) -> DayParts:
    """Days as the rule gives them. Parts that it leaves out come from its start."""
    months, monthdays = _list(given, "BYMONTH"), _list(given, "BYMONTHDAY")
    by_month = freq == MONTHLY or (freq == YEARLY and bool(months))
    yeardays, weeks = _list(given, "BYYEARDAY"), _list(given, "BYWEEKNO")
    days = tuple(_weekday(day, given, freq, by_month) for day in given.get("BYDAY", "").split(",") if "BYDAY" in given)
    if not (monthdays or yeardays or days):
        if freq == WEEKLY or weeks:
            days = ((0, start.weekday()),)
        elif freq in (YEARLY, MONTHLY):
            monthdays = (start.day,)
            if freq == YEARLY:
                months = months or (start.month,)
    return DayParts(months, monthdays, yeardays, weeks, days, by_month, begins)


def _times(given: dict[str, str], freq: int, start: datetime) -> TimesOfDay:
    """Times as the rule gives them. Parts that it leaves out come from its start if finer than FREQ, else any fits."""
    return TimesOfDay(
        _list(given, "BYHOUR") or ((start.hour,) if freq < HOURLY else range(24)),
        _list(given, "BYMINUTE") or ((start.minute,) if freq < MINUTELY else range(60)),
        _list(given, "BYSECOND") or ((start.second,) if freq < SECONDLY else range(60)),
    )


def _list(given: dict[str, str], name: str) -> tuple[int, ...]:
    if name not in given:
        return ()
    low, high, backwards = _LISTS[name]
    numbers = []
    for word in given[name].split(","):
        digits = word.removeprefix("-" if backwards else "").removeprefix("+" if backwards else "")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 4 and low <= int(digits) <= high):
            also = f", or -{high} to -{low}" if backwards else ""
            raise InvalidTrigger(f"{name} must be numbers from {low} to {high}{also}, not {word[:100]!r}")
        numbers.append(-int(digits) if word.startswith("-") else int(digits))
    return tuple(dict.fromkeys(numbers))


def _weekday(text: str, given: dict[str, str], freq: int, by_month: bool) -> tuple[int, int]:
    match = _DAY.fullmatch(text)
    if match is None:
        raise InvalidTrigger(
            f"BYDAY must be days like MO,FR, or 1MO and -1FR for the first and last, not {text[:100]!r}"
        )
    weekday = _DAYS.index(match[2])
    if match[1] is None:
        return 0, weekday
    if freq not in (YEARLY, MONTHLY):
        raise InvalidTrigger(f"{text!r} needs FREQ=MONTHLY or FREQ=YEARLY: elsewhere days are not counted")
    if "BYWEEKNO" in given:
        raise InvalidTrigger(f"RFC 5545 forbids {text!r} with BYWEEKNO: write {match[2]}")
    nth, most, where = int(match[1]), 5 if by_month else 53, "month" if by_month else "year"
    if not 1 <= abs(nth) <= most:
        raise InvalidTrigger(
            f"{text!r} does not exist: a {where} has at most {most} of a weekday, so 1 to {most} or -{most} to -1"
        )
    return nth, weekday


def _until(text: str, zone: ZoneInfo) -> datetime:
    for form in ("%Y%m%d", "%Y%m%dT%H%M%S", "%Y%m%dT%H%M%SZ"):
        try:
            at = datetime.strptime(text, form)
        except ValueError:
            continue
        if form.endswith("Z"):
            return _local(at.replace(tzinfo=UTC), zone)
        return at if "T" in form else at.replace(hour=23, minute=59, second=59)
    raise InvalidTrigger(
        f"UNTIL must be like 20301231, 20301231T170000 (local) or 20301231T160000Z, not {text[:100]!r}"
    )


def _local(moment: datetime, zone: ZoneInfo) -> datetime:
    """The local time in the zone, in whole seconds, rounded up."""
    try:
        local = moment.astimezone(zone).replace(tzinfo=None, fold=0)
    except OverflowError:
        # Within a day of the first or last moment that datetime can hold.
        local = moment.replace(tzinfo=None)
    return local.replace(microsecond=0) + _SECOND if local.microsecond else local


def _seconds(local: datetime) -> int:
    return (local - _EPOCH) // _SECOND
