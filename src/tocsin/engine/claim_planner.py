"""The claim planner: which queues and partitions a pass claims from, and how many runs from each.

Queues that have work share the permits by their weights. A queue below its share is asked even while all permits are
taken, if one will be free in a moment, because the pool serves it next. Only runs of quick handlers are claimed ahead
of the permits: as many as a measured handler gets through in a moment.
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

# Claimed ahead: what the permits get through in AHEAD_S, if a run takes less than QUICK_S, and at most MOST_AHEAD.
AHEAD_S = 0.1
QUICK_S = 0.05
MOST_AHEAD = 4000
# The share of that which must be used up before more is claimed.
REFILL = 0.25
# Passes take turns, each with its own partitions: while the server claims for one, the runs of another are handed out.
# Many passes with few runs each keep both sides busy; few with many runs wait for each other. More passes than that
# need only wake up and find nothing to claim.
PASSES = 6
MOST_PER_PASS = 1000
# How many runs all passes together ask of one queue.
MOST_ASKED = 3000
# Handing out this many runs takes a while.
MANY = 50
# A claim by ids names this many for each run it may have, and at least so many.
NAMED_EACH, NAMED_LEAST = 4, 50
# One pass asks at most this many partitions: the server answers no other client meanwhile.
MOST_PARTITIONS = 64

# A claim that a pass is about to make.
PlannedClaim = tuple[ServedQueue, ClaimRequest]


class Batching(Struct, frozen=True):
    """How many runs one claim asks for at most, and how many more candidates than usual it may look at: 1.0 means twice
    as many."""

    size: int = MOST_PER_PASS
    extra_attempts: float = 0.0


class ClaimPlanner:
    """Reads the pool and the queues. It changes only when the pool wakes the fetcher."""

    def __init__(self, pool: RunnerPool, clock: Clock, batching: Batching) -> None:
        self._pool = pool
        self._clock = clock
        self._batching = batching
        self._throughput = Throughput()
        self._turnover = _Turnover()

    def frees_soon(self) -> float:
        """How many permits come free within a moment, judging by the last moment."""
        return self._turnover.look(self._pool.left, self._clock.monotonic())

    def plan(self, ripe: Iterable[ServedQueue], asked: int) -> list[PlannedClaim]:
        """`asked`: how many runs other passes are asking for, or have claimed and not handed out."""
        pool = self._pool
        self._throughput.look(pool.ran, self._clock.monotonic())
        # Queues that hold least come first; of equals, the one that waits longest.
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
        requests: list[PlannedClaim] = []
        for left, (served, share, permits) in zip(range(len(given), 0, -1), given, strict=True):
            # Any queue may have what those below their share leave.
            spare = 0.0 if free == math.inf else _whole(free / left)
            free -= spare
            if len(requests) < MOST_PARTITIONS:
                ahead = self._ahead(served) * served.weight / due
                units = _with_ahead(permits + spare, ahead, served.taken - share)
                requests += self._requests_of(served, units * served.batch())
        self._wake_for_room(queues, due, hungry, not requests)
        return requests

    def _wake_for_room(self, queues: list[ServedQueue], due: int, hungry: bool, nothing: bool) -> None:
        """Make the pool wake the fetcher: for a queue below its share at the next permit, otherwise when enough of what
        was claimed ahead is used up."""
        pool = self._pool
        if pool.permits == math.inf:
            return
        if hungry:
            pool.signal_room_at(pool.busy - 1)
        elif nothing:
            ahead = sum(self._ahead(served) * served.weight / due for served in queues) * (1 - REFILL)
            pool.signal_room_at(int(pool.permits + ahead) if ahead >= 1 else int(pool.permits) - 1)

    def _ahead(self, served: ServedQueue) -> float:
        """How many units to claim beyond the permits. None if the handler is slow or not measured yet, or if recovered
        runs follow: the intake would release those."""
        slowest = served.slowest()
        if served.brings_recovered or slowest > QUICK_S or self._pool.permits == math.inf:
            return 0.0
        return min(self._pool.permits * AHEAD_S / max(slowest, 1e-6), self._throughput.rate * AHEAD_S, MOST_AHEAD)

    def _requests_of(self, served: ServedQueue, units: float) -> list[PlannedClaim]:
        """As many from each partition as are known to be due there; equal parts if that is unknown."""
        room = int(min(units, self._batching.size, MOST_ASKED // min(PASSES, len(served.next_due))))
        if room < 1:
            return []
        if served.timetable is not None:
            return self._requests_by_id(served, served.timetable, room)
        due = sorted(served.ripe, key=served.next_due.__getitem__)[: self._partitions(served)]
        equal = max(1, room // len(due))
        requests: list[PlannedClaim] = []
        for partition in due:
            limit = min(room, max(served.left[partition], equal), LARGEST_BATCH)
            if limit < 1:
                break
            requests.append((served, ClaimRequest(served.queue, partition, limit, suspects=0, layout=served.layout)))
            room -= limit
        return requests

    def _partitions(self, served: ServedQueue) -> int:
        """How many one pass asks: if it asked all, the other passes would come back with a few runs each."""
        count = len(served.next_due)
        return count if served.busy + served.coming < MANY else -(-count // PASSES)

    def _requests_by_id(self, served: ServedQueue, timetable: AgentTimetable, room: int) -> list[PlannedClaim]:
        """Names more ids than there is room for, because other workers may have taken some of them. The agents' queue
        has one partition."""
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
    """Add what to claim ahead. What the queue holds beyond its share counts towards that. Claim more only when enough
    of it is used up: a few at a time would cost a call each."""
    if not ahead:
        return permits
    more = ahead - max(0.0, beyond + permits)
    return permits + more if more >= (1.0 if permits >= 1 else max(1.0, ahead * REFILL)) else permits


def _whole(permits: float) -> float:
    """Round up: a share of a third of a permit is one when its turn comes."""
    return max(0.0, permits + 0.999) // 1 if permits < math.inf else permits
