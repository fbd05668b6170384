"""Releases unheld runs: runs that are claimed in this worker's name although the worker does not have them.

A server that loses its last second (a power loss with `appendfsync everysec`, a failover with lag) also loses outcomes
that it had confirmed. Their claims are back, but the worker has forgotten these runs; and because the worker is alive,
nobody else would touch them before their deadline. So each worker compares the claims under its name with the runs that
it holds, and releases the rest. The names of its earlier incarnations count as its own: if the server lost a heartbeat,
no worker declares that name dead.

A run is released if the worker does not hold it at the first look, and still does not a heartbeat later. By then, a
claim call that was under way at the first look has its reply; if it is still under way, the run is left alone. The
release checks owner and token, so a wrong guess changes nothing.
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

# How many pages one pass reads, and the rest after it. So an idle worker reads at most two pages a second, however many
# queues it serves, and a single partition once in four seconds.
PAGES, EVERY_S = 8, 4.0
# The same after the server may have lost writes, until each partition was checked.
HURRIED_PAGES, HURRIED_S = 50, 1.0


class HeldByWorker(Struct, frozen=True):
    """What the worker has from a partition: the keys of its runs, and the number of the claim call under way."""

    keys: Collection[bytes]
    asking: int | None = None


class SuspectedRun(Struct, frozen=True):
    queue: OpenQueue
    layout: str
    partition: int
    run: HeldRun
    # The number of the claim call that was under way at the first look, and when that look was, in monotonic seconds.
    asking: int | None
    seen: float


class UnheldRuns:
    """Each pass releases the runs that were suspected a heartbeat ago, and reads some more pages."""

    name = "unheld"

    def __init__(
        self,
        *,
        held_runs: HeldRuns,
        queues: Sequence[OpenQueue],
        clock: Clock,
        names: Collection[str],
        held_by_us: Callable[[OpenQueue, int], HeldByWorker | None],
        on_release: Callable[[OpenQueue, int, Sequence[bytes]], None],
        beat_s: float,
    ) -> None:
        """`names`: all that this worker has had; more may come. `held_by_us` returns None at moments when the worker
        cannot know what it holds."""
        self.wake = asyncio.Event()
        self.released = 0
        self._held_runs = held_runs
        self._queues = queues
        self._clock = clock
        self._names = names
        self._held_by_us = held_by_us
        self._on_release = on_release
        self._beat_s = beat_s
        self._suspects: dict[tuple[str, bytes, int], SuspectedRun] = {}
        # Where the next page begins.
        self._queue = 0
        self._partition = 0
        self._cursor = b"0"
        # How many partitions are left to check quickly.
        self._hurried = 0
        self._may_log = LogThrottle()

    def hurry(self) -> None:
        """Check every partition soon, because the server may have lost writes."""
        self._hurried = sum(queue.partitions for queue in self._queues)

    async def step(self) -> float:
        await self._release_suspects()
        pages = 0
        while self._queues and pages < (HURRIED_PAGES if self._hurried else PAGES):
            await self._read_page()
            pages += 1
            if self._at_start() and not self._hurried:
                break
        if self._hurried:
            return HURRIED_S
        return min(self._beat_s, EVERY_S) if self._suspects else EVERY_S

    def _at_start(self) -> bool:
        return (self._queue, self._partition, self._cursor) == (0, 0, b"0")

    async def _read_page(self) -> None:
        queue, partition = self._queues[self._queue], self._partition
        if partition >= queue.partitions:
            # The queue has fewer partitions now.
            self._go_on(b"0")
            return
        layout = queue.layout
        try:
            cursor, found = await self._held_runs.look(queue, partition, self._cursor, list(self._names))
        except NodeUnavailable:
            # When the node is back, the worker checks each partition.
            cursor, found = b"0", []
        except StoreUnavailable:
            raise
        except StoreError as error:
            # A broken partition must not stop the check of the others.
            if self._may_log(queue.name, partition):
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
        ours, now = self._held_by_us(queue, partition), self._clock.monotonic()
        if ours is None:
            return
        for run in found:
            if run.key not in ours.keys:
                suspect = SuspectedRun(queue, layout, partition, run, ours.asking, now)
                self._suspects.setdefault((queue.name, run.key, run.token), suspect)

    async def _release_suspects(self) -> None:
        latest = self._clock.monotonic() - self._beat_s
        ripe = [(key, suspect) for key, suspect in self._suspects.items() if suspect.seen <= latest]
        ripe.sort(key=lambda each: (each[1].queue.name, each[1].partition))
        for _, same in groupby(ripe, key=lambda each: (each[1].queue.name, each[1].partition)):
            group = list(same)
            await self._release([suspect for _, suspect in group])
            # Only after the call, so that an outage does not lose them.
            for key, _ in group:
                self._suspects.pop(key, None)

    async def _release(self, suspects: list[SuspectedRun]) -> None:
        """Release these runs of one partition, except those that turn out to be held. The next round finds them again
        if need be."""
        queue, partition = suspects[0].queue, suspects[0].partition
        ours = self._held_by_us(queue, partition)
        if ours is None:
            return
        unheld = [
            suspect.run
            for suspect in suspects
            if suspect.run.key not in ours.keys
            and suspect.layout == queue.layout
            and (suspect.asking is None or suspect.asking != ours.asking)
        ]
        if not unheld:
            return
        try:
            released = await self._held_runs.release(queue, partition, unheld)
        except NodeUnavailable:
            return
        except StoreUnavailable:
            raise
        except StoreError as error:
            # A broken partition, or one that is being repartitioned: the next round finds the runs again.
            if self._may_log(queue.name, partition):
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
            self._on_release(queue, partition, [run.key for run in unheld])
