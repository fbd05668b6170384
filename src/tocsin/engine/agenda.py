"""The agenda: which partitions have work now, and when the next one has, over all queues of a worker.

A worker may serve hundreds of queues, so a pass of the fetcher asks the agenda instead of every partition.
"""

from __future__ import annotations

import heapq
import itertools
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tocsin.engine.served_queue import ServedQueue

# The heap is rebuilt without superseded entries when it is this much longer than twice its size after the last rebuild.
SLACK = 64


class Agenda:
    """Queues report each change of a due time here."""

    def __init__(self) -> None:
        # Queues with partitions to ask now; the one that waits longest comes first.
        self.ripe: dict[ServedQueue, None] = {}
        # Also holds superseded times, which are skipped when they come up.
        self._later: list[tuple[float, int, ServedQueue, int]] = []
        self._most = SLACK
        self._served: list[ServedQueue] = []
        self._count = itertools.count()

    def serve(self, served: ServedQueue) -> None:
        self._served.append(served)

    def note(self, served: ServedQueue, partition: int) -> None:
        """The partition's due time has changed, or its answer has come."""
        at = served.next_due[partition]
        if partition in served.asked or at == math.inf:
            return
        if at <= 0:
            self._ripen(served, partition)
        else:
            heapq.heappush(self._later, (at, next(self._count), served, partition))
            if len(self._later) > self._most:
                self._rebuild()

    def ripen(self, now: float) -> None:
        """Move what is due by now to `ripe`."""
        later = self._later
        while later and later[0][0] <= now:
            entry = heapq.heappop(later)
            if not _superseded(entry):
                self._ripen(entry[2], entry[3])

    def soonest(self) -> float:
        """When the next partition is due that is not ripe yet, in ms of the server's clock."""
        later = self._later
        while later and _superseded(later[0]):
            heapq.heappop(later)
        return later[0][0] if later else math.inf

    def picked(self, served: ServedQueue, partition: int) -> None:
        """A pass is asking this partition. A queue that has more to ask goes behind the others."""
        served.ripe.discard(partition)
        self.ripe.pop(served, None)
        if served.ripe:
            self.ripe[served] = None

    def drop(self, served: ServedQueue) -> None:
        """Ask nothing of this queue now."""
        served.ripe.clear()
        self.ripe.pop(served, None)

    def _ripen(self, served: ServedQueue, partition: int) -> None:
        served.ripe.add(partition)
        self.ripe.setdefault(served)

    def _rebuild(self) -> None:
        entries = [
            (at, next(self._count), served, partition)
            for served in self._served
            for partition, at in enumerate(served.next_due)
            if 0 < at < math.inf and partition not in served.asked and partition not in served.ripe
        ]
        heapq.heapify(entries)
        self._later, self._most = entries, SLACK + 2 * len(entries)


def _superseded(entry: tuple[float, int, ServedQueue, int]) -> bool:
    at, _, served, partition = entry
    dues = served.next_due
    return partition >= len(dues) or dues[partition] != at or partition in served.asked or partition in served.ripe
