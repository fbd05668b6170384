"""Local times as moments, and what becomes of those that a change of the clock leaves out or repeats.

A zone is a row of stretches of constant offset; inside one, local time is UTC plus the offset. Where the offset grows,
the local times of a gap are left out; where it shrinks, those of a fold come twice. A rule says what happens to both.
So the moments of a stretch are those of a few windows: pieces of it, each with the offset by which it is read.

All is in whole seconds: of UTC since 1970, and of local time since its own 1970.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal
from zoneinfo import ZoneInfo

from msgspec import Struct

from tocsin.model.local_time import DAY as DAY
from tocsin.model.step_budget import Budget
from tocsin.model.zones import find_zone

# Zones are looked up between these; before the first there is nothing to plan, after the last nothing is found.
FIRST = -(70 * 365 + 17) * DAY
LAST = 7930 * 365 * DAY
# Further than any two local times of one moment are apart.
_MARGIN = 3 * DAY
# No zone has changed twice within this.
_STEP = DAY // 2

# More jumps than this mean that the times fall into gaps, perhaps all of them. What another one costs: it may need the
# changes of a year that nobody has asked for before.
_USUAL_JUMPS = 2
_JUMP = 1300

# The first local time, in seconds, that is later than the one given; None when there is none.
Find = Callable[[int], int | None]


class DstRule(Struct, frozen=True):
    """What becomes of local times that do not exist, and of those that come twice.

    gap   skip: nothing; end: once, when the gap is over; earlier, later: read with the offset after, before the gap
    fold  first, second, both
    """

    gap: Literal["skip", "end", "earlier", "later"]
    fold: Literal["first", "second", "both"]


class Stretch(Struct, frozen=True, gc=False):
    """[begin, end) with one offset, and the offsets on either side; the same where nothing changes."""

    begin: int
    end: int
    offset: int
    before: int
    after: int


def next_after(find: Find, zone: str, rule: DstRule, after: int, budget: Budget) -> int | None:
    """The first moment later than `after`."""
    at, jumps = max(after, FIRST), 0
    while at < LAST:
        stretch = stretch_at(zone, at + 1)
        found = _inside(find, stretch, rule, at)
        if found is not None:
            return found
        local = find(stretch.end + min(stretch.offset, stretch.after) - 1)
        if local is None:
            return None
        # Nothing before that, so what lies between need not be looked at.
        at = max(stretch.end - 1, local - _MARGIN)
        jumps += 1
        if jumps > _USUAL_JUMPS:
            budget.spend(_JUMP)
    return None


def _inside(find: Find, stretch: Stretch, rule: DstRule, after: int) -> int | None:
    best = None
    for low, high, offset in _windows(stretch, rule):
        low = max(low, after + 1)
        if low >= high or (best is not None and low >= best):
            continue
        local = find(low - 1 + offset)
        if local is not None and local - offset < high and (best is None or local - offset < best):
            best = local - offset
    if rule.gap == "end" and after < stretch.begin and stretch.before < stretch.offset:
        local = find(stretch.begin + stretch.before - 1)
        if local is not None and local < stretch.begin + stretch.offset:
            return stretch.begin
    return best


def _windows(stretch: Stretch, rule: DstRule) -> Iterator[tuple[int, int, int]]:
    """(from, to, the offset by which local times are read); the largest first."""
    begin, end, offset = stretch.begin, stretch.end, stretch.offset
    grew, grows = offset - stretch.before, stretch.after - offset
    yield (
        begin - grew if grew < 0 and rule.fold == "first" else begin,
        end + grows if grows < 0 and rule.fold == "second" else end,
        offset,
    )
    if grew > 0 and rule.gap == "later":
        yield begin, begin + grew, stretch.before
    if grows > 0 and rule.gap == "earlier":
        yield end - grows, end, stretch.after


def stretch_at(zone: str, moment: int) -> Stretch:
    begins, stretches = _stretches(zone, _year_of(moment))
    return stretches[bisect_right(begins, moment) - 1]


def changes(zone: str, begin: int, end: int) -> list[tuple[int, int, int]]:
    """(moment, offset before, offset after) of each change in [begin, end)."""
    years = range(_year_of(begin), _year_of(end) + 1)
    return [change for year in years for change in _changes(zone, year) if begin <= change[0] < end]


def offset_at(zone: str, moment: int) -> int:
    return stretch_at(zone, moment).offset


@lru_cache(maxsize=4096)
def _stretches(zone: str, year: int) -> tuple[list[int], list[Stretch]]:
    """Those that reach into a year, seen from the years around it."""
    found = [change for near in (year - 1, year, year + 1) for change in _changes(zone, near)]
    first, last = _begin_of(year - 1), _begin_of(year + 2)
    begins, ends = [first, *(at for at, _, _ in found)], [*(at for at, _, _ in found), last]
    offsets = [_offset(find_zone(zone), first), *(after for _, _, after in found)]
    stretches = [
        Stretch(begin, end, offset, offsets[max(0, i - 1)], offsets[min(i + 1, len(offsets) - 1)])
        for i, (begin, end, offset) in enumerate(zip(begins, ends, offsets, strict=True))
    ]
    return begins, stretches


@lru_cache(maxsize=8192)
def _changes(name: str, year: int) -> tuple[tuple[int, int, int], ...]:
    """Of one year, its first moment included: found by looking twice a day, then halving."""
    zone, found = find_zone(name), []
    at, end = _begin_of(year) - 1, _begin_of(year + 1) - 1
    before = _offset(zone, at)
    while at < end:
        then = min(at + _STEP, end)
        offset = _offset(zone, then)
        if offset != before:
            found.append((_moment_of_change(zone, at, then, before), before, offset))
        at, before = then, offset
    return tuple(found)


def _moment_of_change(zone: ZoneInfo, low: int, high: int, before: int) -> int:
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(zone, middle) == before:
            low = middle
        else:
            high = middle
    return high


def _offset(zone: ZoneInfo, moment: int) -> int:
    offset = datetime.fromtimestamp(moment, zone).utcoffset()
    assert offset is not None
    return offset.days * DAY + offset.seconds


def _year_of(moment: int) -> int:
    return datetime.fromtimestamp(moment, UTC).year


@lru_cache(maxsize=1024)
def _begin_of(year: int) -> int:
    return int(datetime(year, 1, 1, tzinfo=UTC).timestamp())
