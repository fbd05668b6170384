"""Converts durations and times as users write them to integer milliseconds."""

from __future__ import annotations

import functools
import math
import re
from datetime import UTC, datetime, timedelta

from tocsin.model.errors import InvalidArgument

Duration = int | float | timedelta | str
Millis = int

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")

# A thousand years. With more, a score would leave the range in which doubles are exact.
LONGEST_MS = 1000 * 366 * 86_400_000
# The range of datetime in UTC: the years 1 to 9999. Scores hold these times exactly.
EARLIEST_MS, LATEST_MS = -62_135_596_800_000, 253_402_300_799_999


def seconds(value: Duration, what: str = "a duration") -> float:
    """Seconds, never negative. Text joins one or more of 200ms, 30s, 5m, 2h, 1d, like 1h30m."""
    result = _seconds(value, what)
    if not math.isfinite(result) or result < 0 or result * 1000 > LONGEST_MS:
        raise InvalidArgument(f"{what} must be between 0 and 1000 years, not {value!r}")
    return result


def _seconds(value: Duration, what: str) -> float:
    if isinstance(value, bool):
        raise InvalidArgument(f"{what} must be a number, a timedelta or text like '30s', not {value!r}")
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        total, end = 0.0, 0
        while match := _TEXT.match(value, end):
            total += float(match[1]) * _UNITS[match[2]]
            end = match.end()
        if value and end == len(value):
            return total
    raise InvalidArgument(f"{what} must be a number of seconds, a timedelta or text like '30s', not {value!r}")


def millis(value: Duration, what: str = "a duration") -> Millis:
    """Whole milliseconds, rounded up: rounding may make a run late, never early."""
    return ceil_ms(seconds(value, what))


@functools.lru_cache(4096)
def ceil_ms(secs: float) -> Millis:
    # Do not round up an error of floating point: 2.007 s are 2007 ms although 2.007 * 1000 is a little more.
    ms = secs * 1000
    return math.ceil(ms - max(1e-4, ms * 4e-16))


def epoch_ms(moment: datetime, what: str = "a time") -> Millis:
    """An aware datetime as epoch milliseconds, rounded up."""
    if not isinstance(moment, datetime):
        raise InvalidArgument(f"{what} must be a datetime, not {moment!r}")
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise InvalidArgument(
            f"{what} must say its zone, {moment!r} does not: use datetime.now(UTC) or datetime(..., tzinfo=UTC)"
        )
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    ms = -((-since) // timedelta(milliseconds=1))
    if not EARLIEST_MS <= ms <= LATEST_MS:
        raise InvalidArgument(f"{what} must be within the years 1 to 9999 in UTC, {moment!r} is not")
    return ms


def moment(ms: Millis) -> datetime:
    """Epoch milliseconds as an aware datetime in UTC. Values out of its range, which only another program can have
    written, become the first or last moment of the range."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=min(max(ms, EARLIEST_MS), LATEST_MS))
