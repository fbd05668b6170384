"""What is ready in ordered queues, of that what could start, and for how long it has been due.

The counts are exact. So is the oldest due time in a queue of order `priority`: that of the heads of its bands. In a
fair queue it is taken from the first jobs of some tenants whose turn is next: exact up to so many tenants a band,
otherwise at least that old. Work of tenants who rest is held by their own cap or rate, and not counted; where many
rest, it is estimated from some of them.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from msgspec import Struct

from tocsin.model.durations import Millis
from tocsin.store.keys import BANDS, TURNS
from tocsin.store.numbers import is_whole, number, time_of, whole

# So many tenants of a band, or of those that rest, are looked at.
TENANTS = 20
# The fields of `meta` that say how much may start, as lua/lib/limits.lua reads them.
LIMITS = ("paused", "max_active", "every", "burst", "spent", "capped", "claimed")

# Sends what it fills a pipeline with.
Ask = Callable[[Callable[[Any], None]], Awaitable[list[Any]]]


class OrderedPartition(Struct, frozen=True):
    """One partition of an ordered queue; `counts` is how many are ready, by band."""

    keys: dict[str, str]
    is_fair: bool
    counts: list[int]


class Ready(Struct):
    """What could start; `oldest` is when it was due."""

    count: int
    is_estimate: bool = False
    oldest: float = math.inf


class QueueLimits(Struct, frozen=True):
    """What `meta` says, at one look."""

    paused: bool
    # The queue's own cap or rate lets nothing start now.
    at_limit: bool
    # They kept something back when somebody claimed last.
    capped: bool
    claimed: int

    def holds(self, claimed_before: int | None) -> bool:
        """Nothing starts because of them; or they held when somebody claimed since the last look, who is at work."""
        return self.at_limit or (self.capped and self.claimed != claimed_before)


def read_limits(fields: list[bytes | None], working: int, now: Millis) -> QueueLimits:
    paused, most, every, burst, spent, capped, claimed = fields
    full = is_whole(most) and working >= whole(most)
    # More than a rate can have spent was spent by a slower one: it begins anew (lua/lib/rate.lua).
    over = (number(spent) or 0.0) - now - (number(burst) or 0.0)
    ahead = 0 < over <= (number(every) or 0.0)
    return QueueLimits(paused is not None, full or ahead, capped is not None, whole(claimed))


async def look(ask: Ask, lines: list[OrderedPartition]) -> list[Ready]:
    """In two round trips where one of them is fair, else in one."""

    def heads(pipe: Any) -> None:
        for line in lines:
            _ask_heads(pipe, line)

    answers = iter(await ask(heads))
    found = [_Fair(line, answers) if line.is_fair else _priority(line, answers) for line in lines]
    fair = [each for each in found if isinstance(each, _Fair)]

    def tenants(pipe: Any) -> None:
        for each in fair:
            each.ask(pipe)

    if fair:
        answers = iter(await ask(tenants))
    return [each.ready(answers) if isinstance(each, _Fair) else each for each in found]


def _ask_heads(pipe: Any, line: OrderedPartition) -> None:
    for band, turns in zip(BANDS, TURNS, strict=True):
        if line.is_fair:
            pipe.zrange(line.keys[turns], 0, TENANTS - 1)
        else:
            pipe.zrange(line.keys[band], 0, 0, withscores=True)
    if line.is_fair:
        pipe.zrange(line.keys["resting"], 0, TENANTS - 1)
        pipe.zcard(line.keys["resting"])


def _priority(line: OrderedPartition, answers: Iterator[Any]) -> Ready:
    heads = [_read(answers, []) for _ in BANDS]
    # Below the millisecond is the place in line.
    return Ready(sum(line.counts), oldest=min((time_of(head[0][1]) for head in heads if head), default=math.inf))


class _Fair:
    """One fair line, between the two questions."""

    def __init__(self, line: OrderedPartition, answers: Iterator[Any]) -> None:
        self._line = line
        turns = [_read(answers, []) for _ in BANDS]
        self._served = [(band, tenant) for band, names in zip(BANDS, turns, strict=True) for tenant in names]
        self._all_turns_seen = all(len(names) < TENANTS for names in turns)
        self._resting: list[bytes] = _read(answers, [])
        self._rest_count: int = _read(answers, 0)
        self._used = [band for band, count in zip(BANDS, line.counts, strict=True) if count]

    def ask(self, pipe: Any) -> None:
        for band, tenant in self._served:
            low, high = _range(tenant)
            pipe.zrange(self._line.keys[band], low, high, bylex=True, offset=0, num=1)
        for tenant in self._resting:
            for band in self._used:
                pipe.zlexcount(self._line.keys[band], *_range(tenant))

    def ready(self, answers: Iterator[Any]) -> Ready:
        heads = [_read(answers, []) for _ in self._served]
        held = sum(_read(answers, 0) for _ in self._resting for _ in self._used)
        dues = [_due(head[0]) for head in heads if head]
        if not dues and self._all_turns_seen:
            # Nobody who has work has a turn.
            return Ready(0)
        is_estimate = self._rest_count > len(self._resting)
        if is_estimate:
            held = round(held * self._rest_count / len(self._resting))
        return Ready(max(0, sum(self._line.counts) - held), is_estimate, min(dues, default=math.inf))


def _read(answers: Iterator[Any], otherwise: Any) -> Any:
    """The next answer, or what stands for it if somebody garbled the key."""
    answer = next(answers)
    return otherwise if isinstance(answer, Exception) else answer


def _range(tenant: bytes) -> tuple[bytes, bytes]:
    return b"[" + tenant + b"\0", b"(" + tenant + b"\1"


def _due(member: bytes) -> float:
    """What is none of ours says nothing of a time."""
    parts = member.split(b"\0", 3)
    return whole(parts[1]) if len(parts) == 4 and is_whole(parts[1]) else math.inf
