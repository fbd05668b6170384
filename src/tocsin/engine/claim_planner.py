"""The claim planner: of which queues a pass asks for runs, of which partitions, and for how many.

Queues that have work share the permits by their weights: one below its share is asked also while all permits are taken,
if one will be free in a moment, because the pool serves it next. Ahead of the permits only what is known to be quick is
fetched: what a measured handler gets through in a moment.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec import Struct

from tocsin.engine.agent_timetable import AgentTimetable
from tocsin.engine.runner_pool import RunnerPool
from tocsin.engine.served_queue import ServedQueue
from tocsin.engine.throughput import Throughput
from tocsin.model.clock import Clock
from tocsin.store.store import LARGEST_BATCH
from tocsin.store.transitions.claims import ClaimRequest

# Fetched ahead: what the permits get through in this time, if each run takes less than the second, at most the third.
AHEAD_S = 0.1
QUICK_S = 0.05
MOST_AHEAD = 4000
# Of that, how much must be used up before more is fetched.
REFILL = 0.25
# Passes take turns, each with its own partitions: while the server claims for one, another's runs are handed out.
# Many with few runs each keep both sides busy; few with many runs wait for each other. More than are needed for that
# only wake up and find nothing to ask for.
PASSES = 6
MOST_PER_PASS = 1000
# What all passes ask of a queue together.
MOST_ASKED = 3000
# So many runs at once take a while to be handed out.
MANY = 50
# A claim by ids names so many for each that it may have, and so many at least.
NAMED_EACH, NAMED_LEAST = 4, 50
# Partitions that one pass asks at most: the server answers nobody else meanwhile.
MOST_PARTITIONS = 64


class Batching(Struct, frozen=True):
    """How many runs one claim asks for at most, and how many more candidates than usual it may look at: 1.0 is twice as
    many."""

    size: int = MOST_PER_PASS
    extra_attempts: float = 0.0


class ClaimPlanner:
    """Knows the pool and the queues, changes neither."""

    def __init__(self, pool: RunnerPool, clock: Clock, batching: Batching) -> None:
        self._pool = pool
        self._clock = clock
        self._batching = batching
        self._pace = Throughput()
        self._turnover = _Turnover()

    def frees_soon(self) -> float:
        """How many permits come free within a moment, going by the last one."""
        return self._turnover.look(self._pool.left, self._clock.monotonic())

    def plan(self, ripe: Iterable[ServedQueue], asked: int) -> list[tuple[ServedQueue, ClaimRequest]]:
        """`asked`: how many runs other passes are asking for, or were given and have not handed out."""
        pool = self._pool
        self._pace.look(pool.ran, self._clock.monotonic())
        # Those that hold least come first; of equals, the one that waits longest.
        queues = sorted(ripe, key=lambda served: served.taken / served.weight)
        due = sum(served.weight for served in queues)
        at_work = pool.weight_at_work + sum(served.weight for served in queues if not served.busy)
        free, soon = max(0.0, pool.permits - pool.busy - asked), self.frees_soon()
        given: list[tuple[ServedQueue, float, float]] = []
        hungry = False
        for served in queues:
            share = pool.permits * served.weight / at_work
            room = _whole(share - served.taken)
            permits = min(room, max(free, _whole(soon * served.weight / at_work) - len(served.line)))
            given.append((served, share, max(permits, 0.0)))
            free = free if free == math.inf else max(0.0, free - permits)
            hungry = hungry or (room >= 1 > permits)
        wishes: list[tuple[ServedQueue, ClaimRequest]] = []
        for left, (served, share, permits) in zip(range(len(given), 0, -1), given, strict=True):
            # What no queue below its share wants is for any.
            spare = 0.0 if free == math.inf else _whole(free / left)
            free -= spare
            if len(wishes) < MOST_PARTITIONS:
                ahead = self._ahead(served) * served.weight / due
                units = _with_ahead(permits + spare, ahead, served.taken - share)
                wishes += self._wishes(served, units * served.batch())
        self._wake_for_room(queues, due, hungry, not wishes)
        return wishes

    def _wake_for_room(self, queues: list[ServedQueue], due: int, hungry: bool, nothing: bool) -> None:
        """The pool is asked to wake the fetcher: for a queue below its share by the next permit, else when a claim for
        what is fetched ahead is worth its while."""
        pool = self._pool
        if pool.permits == math.inf:
            return
        if hungry:
            pool.starved_at = pool.busy - 1
        elif nothing:
            ahead = sum(self._ahead(served) * served.weight / due for served in queues) * (1 - REFILL)
            pool.starved_at = int(pool.permits + ahead) if ahead >= 1 else int(pool.permits) - 1

    def _ahead(self, served: ServedQueue) -> float:
        """How many units to fetch beyond the permits: none of what is slow or not known yet, nor of what was recovered,
        which the collector would release."""
        slowest = served.slowest()
        if served.brings_recovered or slowest > QUICK_S or self._pool.permits == math.inf:
            return 0.0
        return min(self._pool.permits * AHEAD_S / max(slowest, 1e-6), self._pace.rate * AHEAD_S, MOST_AHEAD)

    def _wishes(self, served: ServedQueue, units: float) -> list[tuple[ServedQueue, ClaimRequest]]:
        """As many from each partition as are known to be due there; equal parts where that is not known."""
        room = int(min(units, self._batching.size, MOST_ASKED // min(PASSES, len(served.next_due))))
        if room < 1:
            return []
        if served.timetable is not None:
            return self._own_wishes(served, served.timetable, room)
        due = sorted(served.ripe, key=served.next_due.__getitem__)[: self._partitions(served)]
        equal = max(1, room // len(due))
        wishes: list[tuple[ServedQueue, ClaimRequest]] = []
        for partition in due:
            limit = min(room, max(served.left[partition], equal), LARGEST_BATCH)
            if limit < 1:
                break
            wishes.append((served, ClaimRequest(served.queue, partition, limit, suspects=0, layout=served.layout)))
            room -= limit
        return wishes

    def _partitions(self, served: ServedQueue) -> int:
        """Of how many a pass asks: if one asked for all, the others would come back with a few runs each."""
        count = len(served.next_due)
        return count if served.busy + served.coming < MANY else -(-count // PASSES)

    def _own_wishes(
        self, served: ServedQueue, timetable: AgentTimetable, room: int
    ) -> list[tuple[ServedQueue, ClaimRequest]]:
        """By ids, of more than there is room for: other workers may have taken some of them. The agents' queue has one
        partition."""
        named = math.ceil(max(room * NAMED_EACH, NAMED_LEAST) * (1 + self._batching.extra_attempts))
        members = timetable.take(self._clock.server_ms(), min(named, LARGEST_BATCH))
        return (
            [(served, ClaimRequest(served.queue, 0, min(room, len(members)), members, suspects=0))] if members else []
        )


class _Turnover:
    """How many permits were given back in the last moment."""

    def __init__(self) -> None:
        self._at = -math.inf
        self._left = 0
        self._in_a_moment = 0.0

    def look(self, left: int, now: float) -> float:
        took = now - self._at
        if took >= AHEAD_S:
            self._in_a_moment = (left - self._left) / took * AHEAD_S
            self._at, self._left = now, left
        return self._in_a_moment


def _with_ahead(permits: float, ahead: float, beyond: float) -> float:
    """Add what to fetch ahead. What the queue holds beyond its share counts towards that. Fetch more only when enough
    of it is used up: a few at a time would cost a call each."""
    if not ahead:
        return permits
    more = ahead - max(0.0, beyond + permits)
    return permits + more if more >= (1.0 if permits >= 1 else max(1.0, ahead * REFILL)) else permits


def _whole(permits: float) -> float:
    """A share of a third of a permit is one, when its turn comes."""
    return max(0.0, permits + 0.999) // 1 if permits < math.inf else permits
