"""Unheld runs: claimed in this worker's name, but the worker does not have them.

A server that loses its last second (a power loss with `appendfsync everysec`, a failover with lag) also loses outcomes
that it had confirmed. Their claims are back, the worker has long forgotten them, and because it is alive nobody would
touch them before their deadline. So each worker compares what the server has under its name with what it holds, and
releases the rest. The names of its earlier incarnations count as its own: if the server forgot a heartbeat, nobody
buries that name.

A run is released if it was not in hand when it was seen and is still not in hand a beat later. A claim that was on its
way at the first look has been answered by then, or is still on its way, and then the run is left alone. The release
checks owner and token, so a wrong guess changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from itertools import groupby

from msgspec import Struct

from tocsin.model.clock import Clock
from tocsin.model.errors import NodeUnavailable, StoreError, StoreUnavailable
from tocsin.store.store import OpenQueue
from tocsin.store.transitions.held_runs import HeldRun, HeldRuns
from tocsin.telemetry.log_throttle import LogThrottle
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.unheld")

# Pages of each pass, and the rest after it: an idle worker looks at no more than two pages a second, however many
# queues it serves, and at a single partition once in four seconds.
PAGES, EVERY_S = 8, 4.0
# When the server may have lost something, until each partition was looked at.
HURRIED_PAGES, HURRIED_S = 50, 1.0


class HeldByWorker(Struct, frozen=True):
    """What the worker has of a partition: the keys of its runs, and the claim that is on its way, by number."""

    keys: Collection[bytes]
    asking: int | None = None


class SuspectedRun(Struct, frozen=True):
    queue: OpenQueue
    layout: str
    partition: int
    holding: HeldRun
    # The claim that was on its way when it was seen, and when that was, in monotonic seconds.
    asking: int | None
    seen: float


class UnheldRuns:
    """One pass: release what was suspected a beat ago, and look at some more pages."""

    name = "unheld"

    def __init__(
        self,
        *,
        holdings: HeldRuns,
        queues: Sequence[OpenQueue],
        clock: Clock,
        names: Collection[str],
        hand: Callable[[OpenQueue, int], HeldByWorker | None],
        on_release: Callable[[OpenQueue, int, Sequence[bytes]], None],
        beat_s: float,
    ) -> None:
        """`names`: all that this worker has had; more may come. `hand`: None at moments when the worker cannot know
        what it has."""
        self.wake = asyncio.Event()
        self.released = 0
        self._holdings = holdings
        self._queues = queues
        self._clock = clock
        self._names = names
        self._hand = hand
        self._on_release = on_release
        self._beat_s = beat_s
        self._suspects: dict[tuple[str, bytes, int], SuspectedRun] = {}
        # Where the next page begins.
        self._queue = 0
        self._partition = 0
        self._cursor = b"0"
        # Partitions left to look at quickly.
        self._hurried = 0
        self._seldom = LogThrottle()

    def hurry(self) -> None:
        """The server may have lost something: look at every partition soon."""
        self._hurried = sum(queue.partitions for queue in self._queues)

    async def step(self) -> float:
        await self._release_suspects()
        pages = 0
        while self._queues and pages < (HURRIED_PAGES if self._hurried else PAGES):
            await self._look()
            pages += 1
            if self._at_start() and not self._hurried:
                break
        if self._hurried:
            return HURRIED_S
        return min(self._beat_s, EVERY_S) if self._suspects else EVERY_S

    def _at_start(self) -> bool:
        return (self._queue, self._partition, self._cursor) == (0, 0, b"0")

    async def _look(self) -> None:
        queue, partition = self._queues[self._queue], self._partition
        if partition >= queue.partitions:
            # It was given fewer.
            self._go_on(b"0")
            return
        layout = queue.layout
        try:
            cursor, found = await self._holdings.look(queue, partition, self._cursor, list(self._names))
        except NodeUnavailable:
            # When it is back, each partition is looked at.
            cursor, found = b"0", []
        except StoreUnavailable:
            raise
        except StoreError as error:
            # One that is broken must not keep the others from being looked at.
            if self._seldom(queue.name, partition):
                log.warning("cannot look for unheld runs", queue=queue.name, partition=partition, error=str(error))
            cursor, found = b"0", []
        if found:
            self._suspect(queue, layout, partition, found)
        self._go_on(cursor)

    def _go_on(self, cursor: bytes) -> None:
        self._cursor = cursor
        if cursor != b"0":
            return
        self._hurried = max(self._hurried - 1, 0)
        self._partition += 1
        if self._partition >= self._queues[self._queue].partitions:
            self._partition, self._queue = 0, (self._queue + 1) % len(self._queues)

    def _suspect(self, queue: OpenQueue, layout: str, partition: int, found: list[HeldRun]) -> None:
        hand, now = self._hand(queue, partition), self._clock.monotonic()
        if hand is None:
            return
        for holding in found:
            if holding.key not in hand.keys:
                suspect = SuspectedRun(queue, layout, partition, holding, hand.asking, now)
                self._suspects.setdefault((queue.name, holding.key, holding.token), suspect)

    async def _release_suspects(self) -> None:
        latest = self._clock.monotonic() - self._beat_s
        ripe = [(key, suspect) for key, suspect in self._suspects.items() if suspect.seen <= latest]
        ripe.sort(key=lambda each: (each[1].queue.name, each[1].partition))
        for _, same in groupby(ripe, key=lambda each: (each[1].queue.name, each[1].partition)):
            group = list(same)
            await self._release([suspect for _, suspect in group])
            # Only now: an outage on the way must not lose them.
            for key, _ in group:
                self._suspects.pop(key, None)

    async def _release(self, suspects: list[SuspectedRun]) -> None:
        """Of one partition. Those that turn out to be held are forgotten, and seen again if need be."""
        queue, partition = suspects[0].queue, suspects[0].partition
        hand = self._hand(queue, partition)
        if hand is None:
            return
        unheld = [
            suspect.holding
            for suspect in suspects
            if suspect.holding.key not in hand.keys
            and suspect.layout == queue.layout
            and (suspect.asking is None or suspect.asking != hand.asking)
        ]
        if not unheld:
            return
        try:
            released = await self._holdings.release(queue, partition, unheld)
        except NodeUnavailable:
            return
        except StoreUnavailable:
            raise
        except StoreError as error:
            # Also while it is repartitioned: the next round finds them again.
            if self._seldom(queue.name, partition):
                log.warning("cannot release unheld runs", queue=queue.name, partition=partition, error=str(error))
            return
        if released:
            self.released += released
            log.warning(
                "released runs that were claimed by this worker but not held by it: "
                "the server may have lost its last writes",
                queue=queue.name,
                partition=partition,
                runs=released,
            )
            self._on_release(queue, partition, [holding.key for holding in unheld])
