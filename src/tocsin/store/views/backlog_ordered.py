"""The backlog of ordered queues: how many ready jobs could start, and for how long they have been due.

The counts are exact. So is the oldest due time in a queue of order `priority`, which the heads of its bands have. In a
fair queue it comes from the first jobs of the tenants whose turn is next: exact if a band has fewer than TENANTS of
them, otherwise the oldest job may be older. Jobs of resting tenants are held by a cap or rate, and do not count; if
many tenants rest, the number of their jobs is estimated from some of them."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from msgspec import Struct

from tocsin.model.durations import Millis
from tocsin.store.formats import due_of_member, members_under
from tocsin.store.keys import BANDS, TURNS
from tocsin.store.numbers import is_whole, number, time_of, whole

# How many tenants of a band, and how many resting ones, a look reads.
TENANTS = 20
# The fields of `meta` that say how much may start, as in lua/lib/limits.lua.
LIMITS = ("paused", "max_active", "every", "burst", "spent", "capped", "claimed")

# Fills a pipeline, sends it, and returns the answers.
Ask = Callable[[Callable[[Any], None]], Awaitable[list[Any]]]


class OrderedPartition(Struct, frozen=True):
    """One partition of an ordered queue; `counts`: ready jobs by band."""

    keys: dict[str, str]
    is_fair: bool
    counts: list[int]


class Ready(Struct):
    """How many jobs could start; `oldest`: the earliest due time among them."""

    count: int
    is_estimate: bool = False
    oldest: float = math.inf


class QueueLimits(Struct, frozen=True):
    """The limits in `meta`, at one look."""

    paused: bool
    # The queue's own cap or rate lets nothing start now.
    at_limit: bool
    # They held runs back at the last claim.
    capped: bool
    claimed: int

    def holds(self, claimed_before: int | None) -> bool:
        """Whether nothing starts because of the limits: now, or at a claim since the last look."""
        return self.at_limit or (self.capped and self.claimed != claimed_before)


def read_limits(fields: list[bytes | None], working: int, now: Millis) -> QueueLimits:
    paused, most, every, burst, spent, capped, claimed = fields
    full = is_whole(most) and working >= whole(most)
    # If more is spent than this rate can spend, the rate was slower before, and begins again (lua/lib/rate.lua).
    over = (number(spent) or 0.0) - now - (number(burst) or 0.0)
    ahead = 0 < over <= (number(every) or 0.0)
    return QueueLimits(paused is not None, full or ahead, capped is not None, whole(claimed))


async def look(ask: Ask, lines: list[OrderedPartition]) -> list[Ready]:
    """In two round trips if one of them is fair, else in one."""

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
    return Ready(sum(line.counts), oldest=min((time_of(head[0][1]) for head in heads if head), default=math.inf))


class _Fair:
    """One fair line, between its two round trips."""

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
            low, high = members_under(tenant)
            pipe.zrange(self._line.keys[band], low, high, bylex=True, offset=0, num=1)
        for tenant in self._resting:
            for band in self._used:
                pipe.zlexcount(self._line.keys[band], *members_under(tenant))

    def ready(self, answers: Iterator[Any]) -> Ready:
        heads = [_read(answers, []) for _ in self._served]
        held = sum(_read(answers, 0) for _ in self._resting for _ in self._used)
        dues = [due for head in heads if head and (due := due_of_member(head[0])) is not None]
        if not dues and self._all_turns_seen:
            # No tenant with work has a turn.
            return Ready(0)
        is_estimate = self._rest_count > len(self._resting)
        if is_estimate:
            held = round(held * self._rest_count / len(self._resting))
        return Ready(max(0, sum(self._line.counts) - held), is_estimate, min(dues, default=math.inf))


def _read(answers: Iterator[Any], otherwise: Any) -> Any:
    """The next answer, or `otherwise` if the key is garbled."""
    answer = next(answers)
    return otherwise if isinstance(answer, Exception) else answer
