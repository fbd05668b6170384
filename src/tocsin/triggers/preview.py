"""Previews coming ticks for people: in local time, with a note where the clock changes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from tocsin.model.durations import Millis, moment
from tocsin.model.zones import find_zone
from tocsin.triggers.wallclock import DAY, changes


class ComingTick(Struct, frozen=True):
    utc: datetime
    local: datetime
    # About a change of the clock; "" if none.
    note: str


def preview(ticks: Sequence[Millis], zone: str, since: Millis) -> list[ComingTick]:
    """The ticks, each with notes on changes of the clock since the tick before, or since `since`."""
    info, coming, before = find_zone(zone), [], since // 1000
    for tick in ticks:
        at = moment(tick)
        notes = [_describe(change) for change in changes(zone, before + 1, tick // 1000 + 1)[-2:]]
        if twice := _repeated(zone, tick // 1000):
            notes.append(twice)
        coming.append(ComingTick(at, at.astimezone(info), "; ".join(notes)))
        before = tick // 1000
    return coming


def _describe(change: tuple[int, int, int]) -> str:
    """Like: the clock goes forward from 02:00 to 03:00 on 2026-03-29"""
    at, before, after = change
    old, new = moment((at + before) * 1000), moment((at + after) * 1000)
    day = f"{old:%Y-%m-%d}" if old.date() == new.date() else f"{old:%Y-%m-%d}, and the date to {new:%Y-%m-%d}"
    return f"the clock goes {'forward' if after > before else 'back'} from {old:%H:%M} to {new:%H:%M} on {day}"


def _repeated(zone: str, tick: int) -> str:
    """A note saying which of two it is, if the local time of a tick comes twice."""
    for at, before, after in changes(zone, tick - DAY, tick + DAY + 1):
        if after < before and at - (before - after) <= tick < at + (before - after):
            return f"the {'first' if tick < at else 'second'} of two such times"
    return ""
