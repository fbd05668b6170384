"""Formats times for people."""

from __future__ import annotations

import contextlib

from tocsin.model.durations import Millis, moment


def iso(ms: Millis | None) -> str | None:
    return None if ms is None else moment(ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def local(ms: Millis | None) -> str:
    """The time in this machine's zone."""
    if ms is None:
        return ""
    when = moment(ms)
    # In a zone ahead of UTC it may be the year 10000 already.
    with contextlib.suppress(OverflowError):
        when = when.astimezone()
    return when.isoformat(" ", timespec="seconds")


def distance(ms: Millis | None, now: Millis) -> str:
    """in 4m10s, 3s ago"""
    if ms is None:
        return ""
    size = span(abs(ms - now) / 1000)
    return f"in {size}" if ms > now else f"{size} ago"


def span(seconds: float) -> str:
    """The two largest units, like 1h5m."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    for unit, name, below, minor in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= unit:
            rest = whole % unit // below
            return f"{whole // unit}{name}{rest}{minor}" if rest else f"{whole // unit}{name}"
    return f"{whole}s"
