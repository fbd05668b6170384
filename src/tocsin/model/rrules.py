"""Rules of RFC 5545, read once: dateutil walks them, in local time that knows no zones."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from msgspec import Struct

from tocsin.model.errors import InvalidTrigger, nearest
from tocsin.model.zones import find_zone

_FREQS = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
_DAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
# Lists of numbers: from, to, and whether they may count from the end.
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
_DAY = re.compile(r"([+-]?[1-9]\d?)?(MO|TU|WE|TH|FR|SA|SU)")
_LONGEST = 500
# All of a rule that counts are kept in memory: where it stands can only be told from its start.
MOST_COUNTED = 10_000
_FAR = 50 * 366


class Rule(Struct, frozen=True):
    """A rule whose every part is said, so that it can start at any of its periods and stay the same."""

    freq: int
    interval: int
    start: datetime
    count: int | None
    parts: dict[str, Any]

    def after(self, local: datetime) -> datetime | None:
        """Its first time that is later."""
        if self.count is not None:
            times = _counted(self)
            at = bisect.bisect_right(times, local)
            return times[at] if at < len(times) else None
        try:
            found: datetime | None = self._from(self._period_before(local)).after(local)
        except (OverflowError, ValueError):
            # Beyond the last year that there is.
            return None
        return found

    def _from(self, start: datetime, **more: Any) -> Any:
        from dateutil.rrule import rrule

        return rrule(self.freq, dtstart=start, interval=self.interval, **self.parts, **more)  # type: ignore[arg-type]

    def _period_before(self, local: datetime) -> datetime:
        """The start of one of its periods, so late that few are walked from there, and before all that matter."""
        start = self.start
        if local <= start:
            return start
        if self.freq == 0:
            away = (local.year - start.year) // self.interval * self.interval
            return max(start, datetime(start.year + away, 1, 1))
        if self.freq == 1:
            months = (local.year - start.year) * 12 + local.month - start.month
            year, month = divmod(start.year * 12 + start.month - 1 + months // self.interval * self.interval, 12)
            return max(start, datetime(year, month + 1, 1))
        period = _PERIODS[self.freq] * self.interval
        return start + max(0, (local - start) // period - 1) * period

    def __hash__(self) -> int:
        return hash((self.freq, self.interval, self.start, self.count))


_PERIODS: dict[int, timedelta] = {
    2: timedelta(weeks=1),
    3: timedelta(days=1),
    4: timedelta(hours=1),
    5: timedelta(minutes=1),
    6: timedelta(seconds=1),
}


@lru_cache(maxsize=64)
def _counted(rule: Rule) -> list[datetime]:
    return list(rule._from(rule.start, count=rule.count))


@lru_cache(maxsize=4096)
def parse(text: str, start: datetime, tz: str) -> Rule:
    """Raises InvalidTrigger."""
    if len(text) > _LONGEST:
        raise InvalidTrigger(f"a rule has at most {_LONGEST} characters, not {len(text)}")
    given = _pairs(text)
    zone = find_zone(tz)
    local = start.astimezone(zone).replace(tzinfo=None, fold=0)
    if local.microsecond:
        local = local.replace(microsecond=0) + timedelta(seconds=1)
    freq = _FREQS.index(_choice(given, "FREQ", _FREQS))
    count = _number(given, "COUNT", MOST_COUNTED) if "COUNT" in given else None
    parts = _parts(given, freq, local)
    if "UNTIL" in given:
        if count is not None:
            raise InvalidTrigger("a rule has COUNT or UNTIL, not both")
        parts["until"] = _until(given["UNTIL"], lambda at: at.astimezone(zone).replace(tzinfo=None))
    rule = Rule(freq, _number(given, "INTERVAL", 10_000) if "INTERVAL" in given else 1, local, count, parts)
    _check_fires(text, rule)
    return rule


def _check_fires(text: str, rule: Rule) -> None:
    never = InvalidTrigger(f"{text!r} never fires: no date fits its parts, or its UNTIL is before its start")
    days = {name: value for name, value in rule.parts.items() if name not in ("bysetpos", "until")}
    try:
        # Days that do not exist would be looked for until the year 9999, day by day; year by year that is soon over.
        if rule.freq >= 2 and Rule(0, 1, datetime(2000, 1, 1), None, days).after(datetime(1999, 1, 1)) is None:
            raise never
        first = rule._from(rule.start).after(rule.start - timedelta(seconds=1))
    except ValueError as error:
        raise InvalidTrigger(f"{text!r} is no rule: {error}") from None
    if first is None or first - rule.start > timedelta(days=_FAR):
        raise never


def _pairs(text: str) -> dict[str, str]:
    body = text.strip().upper()
    body = body.removeprefix("RRULE:")
    found: dict[str, str] = {}
    for pair in body.strip(";").split(";"):
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not value:
            raise InvalidTrigger(f"{pair[:100]!r} in a rule is not NAME=VALUE: write it like FREQ=WEEKLY;BYDAY=MO,FR")
        if name not in _KNOWN:
            raise InvalidTrigger(f"a rule has no {name[:100]!r}; {nearest(name[:100], _KNOWN)}")
        if name in found:
            raise InvalidTrigger(f"a rule has only one {name}")
        found[name] = value
    if "FREQ" not in found:
        raise InvalidTrigger(f"a rule needs a FREQ: write it like FREQ=WEEKLY;BYDAY=MO,FR, not {text[:100]!r}")
    return found


def _choice(given: dict[str, str], name: str, known: tuple[str, ...]) -> str:
    if given[name] not in known:
        raise InvalidTrigger(f"there is no {name}={given[name][:100]}; {nearest(given[name][:100], known)}")
    return given[name]


def _number(given: dict[str, str], name: str, most: int) -> int:
    value = given[name]
    if not (value.isascii() and value.isdigit() and len(value) < 9 and 1 <= int(value) <= most):
        raise InvalidTrigger(f"{name} must be a whole number from 1 to {most}, not {value[:100]!r}")
    return int(value)


def _parts(given: dict[str, str], freq: int, start: datetime) -> dict[str, Any]:
    """In dateutil's words; what the rule leaves to its start is said too."""
    from dateutil.rrule import weekdays

    parts: dict[str, Any] = {name.lower(): _list(given[name], name) for name in _LISTS if name in given}
    parts["wkst"] = weekdays[_DAYS.index(_choice(given, "WKST", _DAYS))] if "WKST" in given else weekdays[0]
    if "BYDAY" in given:
        parts["byweekday"] = [_weekday(day, freq) for day in given["BYDAY"].split(",")]
    if "bysetpos" in parts and not any(name.startswith("by") and name != "bysetpos" for name in parts):
        raise InvalidTrigger("BYSETPOS needs another BY… to choose from")
    if not parts.keys() & {"byweekno", "byyearday", "bymonthday", "byweekday"}:
        if freq == 0:
            parts.setdefault("bymonth", [start.month])
        if freq <= 1:
            parts["bymonthday"] = [start.day]
        elif freq == 2:
            parts["byweekday"] = [weekdays[start.weekday()]]
    for coarser, name, value in (
        (4, "byhour", start.hour),
        (5, "byminute", start.minute),
        (6, "bysecond", start.second),
    ):
        if freq < coarser:
            parts.setdefault(name, [value])
    return parts


def _list(text: str, name: str) -> list[int]:
    low, high, backwards = _LISTS[name]
    numbers = []
    for word in text.split(","):
        digits = word.removeprefix("-" if backwards else "").removeprefix("+" if backwards else "")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 4 and low <= int(digits) <= high):
            also = f", or -{high} to -{low}" if backwards else ""
            raise InvalidTrigger(f"{name} must be numbers from {low} to {high}{also}, not {word[:100]!r}")
        numbers.append(-int(digits) if word.startswith("-") else int(digits))
    return numbers


def _weekday(text: str, freq: int) -> Any:
    from dateutil.rrule import weekdays

    match = _DAY.fullmatch(text)
    if match is None:
        raise InvalidTrigger(
            f"BYDAY must be days like MO,FR, or 1MO and -1FR for the first and last, not {text[:100]!r}"
        )
    day = weekdays[_DAYS.index(match[2])]
    if match[1] is None:
        return day
    if freq > 1:
        raise InvalidTrigger(f"{text!r} needs FREQ=MONTHLY or FREQ=YEARLY: elsewhere days are not counted")
    return day(int(match[1]))


def _until(text: str, localise: Callable[[datetime], datetime]) -> datetime:
    for form in ("%Y%m%d", "%Y%m%dT%H%M%S", "%Y%m%dT%H%M%SZ"):
        try:
            at = datetime.strptime(text, form)
        except ValueError:
            continue
        if form.endswith("Z"):
            return localise(at.replace(tzinfo=UTC))
        return at if "T" in form else at.replace(hour=23, minute=59, second=59)
    raise InvalidTrigger(
        f"UNTIL must be like 20301231, 20301231T170000 (local) or 20301231T160000Z, not {text[:100]!r}"
    )
