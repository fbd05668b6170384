"""The backlog: how much is ready, for how long, and how much waits in all. A look costs the same at any size.

Counting due jobs is O(log n) for the server, so for a whole queue the number is exact. backlog_ordered.py counts
ordered queues. Jobs that a queue's own cap or rate holds are not ready: no worker could start them.

A worker that runs only some of the jobs counts its own ids among the first thousand due jobs. If more than a thousand
are due, it asks for the scores of up to a thousand of its own ids. If it has more ids than that, the number is an
estimate.

A look asks the partitions in which something is due, as far as this process knows, and one of the others in turn, so an
idle worker sends two commands. If a job is put at the head of a quiet partition, a look finds it in that partition's
turn.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from tocsin.model.durations import Millis
from tocsin.model.queue import OUTGROWN, outgrown
from tocsin.store.connection.errors import FAILURES, answers_of, translate
from tocsin.store.formats import OTHERS, due_score_bound, is_apart, is_due_score, not_before
from tocsin.store.keys import BANDS
from tocsin.store.store import LARGEST_BATCH, OpenQueue, Store
from tocsin.store.views.backlog_ordered import LIMITS, OrderedPartition, QueueLimits, look, read_limits

# How many members one look reads of a partition, at most twice.
MOST = LARGEST_BATCH
# A sample is taken from at most so many own ids: a walk over a million would hold up the event loop.
LONGEST_WALK = 100_000


class Backlog(Struct, frozen=True):
    """The result of a look. A queue that is paused, or held by its own cap or rate, has nothing ready."""

    ready: int = 0
    ready_is_estimate: bool = False
    oldest_overdue_s: float = 0.0
    depth: int = 0
    # Advice about queues that have outgrown their partitions.
    outgrown: tuple[str, ...] = ()


class _PartitionBacklog:
    """One partition, as the last look at it saw it."""

    def __init__(self, queue: OpenQueue, partition: int) -> None:
        self.queue = queue
        self.keys = queue.keys[partition]
        self.waiting, self.meta = self.keys["waiting"], self.keys["meta"]
        self.bands = () if queue.queue.order == "due" else BANDS
        # How many are ready, by band.
        self.ready: list[int] = []
        # When the first waiting job is due. -inf makes the first look ask for it.
        self.head = -math.inf
        # Since when the first suspect is due.
        self.apart_since = math.inf
        self.depth = 0
        # The partition's counter of claimed runs, once seen.
        self.claimed: int | None = None

    def ask(self, pipe: Any) -> None:
        pipe.zrange(self.waiting, 0, 0, withscores=True)
        pipe.zcard(self.waiting)
        for band in self.bands:
            pipe.zcard(self.keys[band])

    def learn(self, answers: Iterator[Any]) -> None:
        head, waiting, *ready = [next(answers) for _ in range(2 + len(self.bands))]
        if any(isinstance(answer, Exception) for answer in (head, waiting, *ready)):
            # A key holds another type: nothing there can start. It is asked again in its turn.
            self.ready, self.head, self.apart_since, self.depth = [], math.inf, math.inf, 0
            return
        self.ready = ready
        first = head[0][1] if head else math.inf
        self.head = -math.inf if any(self.ready) else first
        self.apart_since = not_before(first) if is_apart(first) else math.inf
        self.depth = waiting + sum(self.ready)

    def line(self) -> OrderedPartition:
        return OrderedPartition(self.keys, self.queue.queue.order == "fair", self.ready)


class _DueJob(Struct):
    """How many jobs are due in one partition, of those that count, and since when."""

    count: int
    is_estimate: bool = False
    oldest: float = math.inf


# The ids of a queue that count, with `in` also for their extra runs; None if all count.
Own = Callable[[OpenQueue], Collection[str] | None]


def everything(_: OpenQueue) -> None:
    """All ids count."""


class BacklogReader:
    """Looks at the backlog of some queues, on the server's clock as this process knows it."""

    def __init__(self, store: Store, queues: Sequence[OpenQueue], own: Own = everything) -> None:
        self._store = store
        self._own = own
        self._queues = queues
        self._find_places()

    async def look(self) -> Backlog:
        """One look. Raises StoreUnavailable at once, because a late number is of no use."""
        if self._layouts != [queue.layout for queue in self._queues]:
            self._find_places()
        now = int(self._store.clock.server_ms())
        due = await self._find_due(now)
        found = await self._count(due, now) if due else []
        oldest = min((each.oldest for each in found), default=math.inf)
        return Backlog(
            ready=sum(each.count for each in found),
            ready_is_estimate=any(each.is_estimate for each in found),
            # Scores that are not ours may be anything, also -inf.
            oldest_overdue_s=0.0 if oldest == math.inf else max(now - max(oldest, 0.0), 0.0) / 1000,
            depth=sum(place.depth for place in self._places),
            outgrown=self._outgrown(),
        )

    def _outgrown(self) -> tuple[str, ...]:
        full = sorted((place for place in self._places if place.depth >= OUTGROWN), key=lambda place: place.depth)
        largest = {place.queue.name: place for place in full}
        return tuple(filter(None, (outgrown(place.queue.queue, place.depth) for place in largest.values())))

    def _find_places(self) -> None:
        queues = self._queues
        self._layouts = [queue.layout for queue in queues]
        self._places = [
            _PartitionBacklog(queue, partition) for queue in queues for partition in range(queue.partitions)
        ]
        self._turns = itertools.cycle(self._places)

    async def _find_due(self, now: Millis) -> list[_PartitionBacklog]:
        asked = [place for place in self._places if is_due_score(place.head, now)]
        quiet = next(self._turns, None)
        if quiet is not None and not is_due_score(quiet.head, now):
            asked.append(quiet)

        def ask(pipe: Any) -> None:
            for place in asked:
                place.ask(pipe)

        answers = iter(await self._ask(ask))
        for place in asked:
            place.learn(answers)
        return [place for place in asked if is_due_score(place.head, now)]

    async def _count(self, due: list[_PartitionBacklog], now: Millis) -> list[_DueJob]:
        owned, bound = [self._own(place.queue) for place in due], due_score_bound(now)

        def ask(pipe: Any) -> None:
            for place, own in zip(due, owned, strict=True):
                pipe.hmget(place.meta, LIMITS)
                pipe.zcard(place.keys["working"])
                pipe.zcount(place.waiting, "-inf", bound)
                start, most = (OTHERS, 1) if own is None else ("-inf", MOST)
                pipe.zrange(place.waiting, start, bound, byscore=True, offset=0, num=most, withscores=True)

        answers = await self._ask(ask)
        found, longer, lines = [], [], []
        for place, own, limits, count, first in zip(due, owned, *_limits(answers, now), strict=True):
            if limits is None:
                continue
            held = limits.holds(place.claimed)
            place.claimed = limits.claimed
            if limits.paused:
                continue
            if own is not None:
                found.append(_among(first, own))
                if own and count > len(first):
                    longer.append((place, own, found[-1]))
            elif not held:
                oldest = min(place.apart_since, first[0][1] if first else math.inf)
                found.append(_DueJob(count, oldest=oldest))
                if any(place.ready):
                    lines.append(place.line())
        if longer:
            await self._ask_for_own(longer, now)
        ready = await look(self._ask, lines) if lines else []
        return [*found, *(_DueJob(each.count, each.is_estimate, each.oldest) for each in ready)]

    async def _ask_for_own(self, longer: list[tuple[_PartitionBacklog, Collection[str], _DueJob]], now: Millis) -> None:
        """More jobs are due than were read: ask for the scores of our own ids instead."""
        samples = [_sample(own) for _, own, _ in longer]

        def ask(pipe: Any) -> None:
            for (place, _, _), members in zip(longer, samples, strict=True):
                pipe.zmscore(place.waiting, members)

        answers = await self._ask(ask)
        for (_, own, due), members, answer in zip(longer, samples, answers, strict=True):
            scores = [not_before(score) for score in answer if score is not None and is_due_score(score, now)]
            due.is_estimate = len(members) < len(own)
            due.oldest = min([due.oldest, *scores])
            # Jobs that were seen in line are there, even if the sample has fewer.
            due.count = max(due.count, round(len(scores) * len(own) / len(members)))

    async def _ask(self, fill: Callable[[Any], None]) -> list[Any]:
        """One round trip, to each node at once where the server is a cluster."""
        try:
            async with self._store.client.pipeline(transaction=False) as pipe:
                fill(pipe)
                return await answers_of(pipe)
        except FAILURES as error:
            raise translate(error, self._store.address) from error


def _limits(answers: list[Any], now: Millis) -> tuple[list[QueueLimits | None], list[Any], list[Any]]:
    """For each partition: its limits, how many jobs are due, and the first of them. No limits: it is garbled."""
    fields, working, counts, firsts = (answers[i::4] for i in range(4))
    limits = [
        None if any(isinstance(answer, Exception) for answer in each) else read_limits(each[0], each[1], now)
        for each in zip(fields, working, counts, firsts, strict=True)
    ]
    return limits, counts, firsts


def _among(line: Iterable[tuple[bytes, float]], own: Collection[str]) -> _DueJob:
    scores = [not_before(score) for member, score in line if member.decode(errors="replace") in own]
    return _DueJob(len(scores), oldest=min(scores, default=math.inf))


def _sample(own: Collection[str]) -> list[str]:
    """All ids or, evenly spaced, as many as a look may ask for."""
    walk = min(len(own), LONGEST_WALK)
    step = math.ceil(walk / MOST)
    return list(itertools.islice(own, random.randrange(step), walk, step))
