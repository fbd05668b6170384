"""Converts local times to moments, including the times that a change of the clock skips or repeats.

A zone is a series of stretches with a constant offset; within one, local time is UTC plus the offset. Where the offset
grows, the local times of a gap do not exist; where it shrinks, those of a fold come twice. A DstRule decides about
both. It divides a stretch into a few windows, each with the offset for reading its local times.

All times are whole seconds: UTC since 1970, and local time since a local 1970.
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

# The range of searches. No job is due before FIRST, and no tick is found after LAST.
FIRST = -(70 * 365 + 17) * DAY
LAST = 7930 * 365 * DAY
# More than the difference of any two offsets.
_MARGIN = 3 * DAY
# No zone changes twice within this time.
_STEP = DAY // 2

# After this many jumps the times seem to fall into gaps, perhaps all of them. Then each jump costs steps of the budget,
# because it may have to compute the changes of another year.
_USUAL_JUMPS = 2
_JUMP = 1300

# Finds the first local time, in seconds, later than the given one; None if there is none.
Find = Callable[[int], int | None]


class DstRule(Struct, frozen=True):
    """What to do with local times that do not exist (gap) and times that come twice (fold).

    gap   skip: ignore them; end: fire once at the end of the gap; earlier, later: read them with the offset after,
          before the gap
    fold  first, second, both: which of the two moments to use
    """

    gap: Literal["skip", "end", "earlier", "later"]
    fold: Literal["first", "second", "both"]


class Stretch(Struct, frozen=True, gc=False):
    """The moments [begin, end) with one offset, and the offsets before and after (the same at the edge of a search)."""

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
        # No local time matches before that, so jump over the moments in between.
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
    """(begin, end, offset for reading local times), the largest window first."""
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
    """The stretches that overlap a year, computed from it and the years around it, and the begins of them all."""
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
    """The changes in a year, including its first moment. Checks the offset twice a day, then searches by halving."""
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
