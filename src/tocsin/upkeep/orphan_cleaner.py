"""Cleans up orphans: the leader's slow check of all queues, also of those that it does not serve.

The reaper recovers the runs of dead workers within seconds, and jobs past their deadline soon after. This pass handles
agents that are long past their deadline, and damage that no transition of ours causes and no worker notices: runs that
are long overdue in spite of the reaper, names without a job, claims that nobody can read, scores that Tocsin does not
write. A job whose handler this worker does not know is no orphan: it has a record, and a worker that claims it without
knowing its handler parks it.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import Struct

from tocsin.model.clock import Clock
from tocsin.model.durations import Millis
from tocsin.model.errors import NodeUnavailable, StoreError, StoreUnavailable
from tocsin.store.store import OpenQueue
from tocsin.store.transitions.claims import Deadlines
from tocsin.store.views.audit import AuditReader
from tocsin.store.views.strays import STAGES, StrayKind, StrayReader
from tocsin.telemetry.log_throttle import LogThrottle
from tocsin.telemetry.logs import get_logger
from tocsin.upkeep.partition_stages import PartitionStage, partition_stages

log = get_logger("tocsin.orphans")

# The name under which each kind is counted, and the kinds whose repair may make jobs due.
COUNTED = {
    StrayKind.NO_RECORD: "no_record",
    StrayKind.SCORE: "score",
    StrayKind.OVERDUE: "recovered",
    StrayKind.CLAIM: "claim",
}
NUMERIC = "numeric"
MAKES_DUE = ("recovered", "score", "claim")


class OrphanRules(Struct, frozen=True):
    # A run is recovered when it is this far past its deadline.
    threshold_ms: Millis = 600_000
    interval_ms: Millis = 300_000
    # How long one pass may take; 0: no limit.
    run_budget_ms: Millis = 0
    # Whether to remove names that consist of digits and have no job. Scores were once written as names by mistake.
    remove_numeric_only: bool = True


class OrphanCleaner:
    """Each pass goes page by page through the stages of all partitions, while we lead and the budget lasts."""

    name = "orphans"

    def __init__(
        self,
        strays: StrayReader,
        audit: AuditReader,
        queues: Callable[[], Awaitable[Sequence[OpenQueue]]],
        clock: Clock,
        rules: OrphanRules,
        *,
        leading: Callable[[], bool],
        deadlines: Callable[[Millis], Deadlines | None],
        look_again: Callable[[OpenQueue, int], None],
        owns: Callable[[str, str], bool] = lambda queue, member: True,
    ) -> None:
        """`queues` returns all registered queues. `deadlines` says which runs are overdue by so many ms, or returns
        None while deadlines cannot be trusted. `owns` says whether this worker may touch a member of a queue."""
        self.wake = asyncio.Event()
        # How many orphans of each kind were cleaned up so far.
        self.cleaned: Counter[str] = Counter(dict.fromkeys((*COUNTED.values(), NUMERIC), 0))
        self._strays = strays
        self._audit = audit
        self._queues = queues
        self._places: list[PartitionStage] = []
        self._clock = clock
        self._rules = rules
        self._leading = leading
        self._deadlines = deadlines
        self._look_again = look_again
        self._owns = owns
        # Where the next page begins.
        self._at = 0
        self._cursor = b"0"
        self._may_log = LogThrottle()

    async def step(self) -> float:
        before = self.cleaned.copy()
        try:
            await self._walk()
        finally:
            done: dict[str, Any] = self.cleaned - before
            if done:
                log.info("orphans cleaned up", **done)
        return self._rules.interval_ms / 1000

    async def _walk(self) -> None:
        """Go around once, from where the last pass ended."""
        if not self._leading():
            return
        await self._find_places()
        budget_s = self._rules.run_budget_ms / 1000 or math.inf
        ends = self._clock.monotonic() + budget_s
        left = len(self._places)
        while left and self._leading():
            left -= await self._page(self._places[self._at])
            if self._clock.monotonic() >= ends:
                return

    async def _find_places(self) -> None:
        """List the places again, because queues come, go and change their partitions. Go on where the last pass ended,
        or from the beginning if that place is gone."""
        places = partition_stages(await self._queues(), STAGES)
        ended_at = self._places[self._at] if self._places else None
        self._places = places
        if ended_at in places:
            self._at = places.index(ended_at)
        else:
            self._at, self._cursor = 0, b"0"

    async def _page(self, place: PartitionStage) -> bool:
        """True if this was the last page of the place."""
        try:
            following = await self._clean_page(place)
        except NodeUnavailable:
            # The next round tries again.
            following = b"0"
        except StoreUnavailable:
            raise
        except StoreError as error:
            # A broken partition must not stop the check of the others.
            if self._may_log(place.queue.name, place.partition):
                log.warning("cannot clean up", queue=place.queue.name, partition=place.partition, error=str(error))
            following = b"0"
        if following is None:
            return False
        self._cursor = following
        if following != b"0":
            return False
        self._at = (self._at + 1) % len(self._places)
        return True

    async def _clean_page(self, place: PartitionStage) -> bytes | None:
        """Return where the next page begins, or None if our term ended before this page was done."""
        deadlines = self._deadlines(self._rules.threshold_ms)
        overdue = None if deadlines is None else deadlines.overdue
        page = await self._strays.look(place.queue, place.partition, place.stage, self._cursor, overdue)
        for kind, members in self._sort(place.queue.name, page.found).items():
            if not self._leading():
                return None
            cleaned = await self._clean(place, kind, members, deadlines)
            self.cleaned[kind] += cleaned
            if cleaned and kind in MAKES_DUE:
                self._look_again(place.queue, place.partition)
        return page.cursor

    def _sort(self, queue: str, found: dict[bytes, StrayKind]) -> dict[str, list[bytes]]:
        """Group the members that we may touch by the repair that they need."""
        work: dict[str, list[bytes]] = {}
        for member, kind in found.items():
            numeric = kind is StrayKind.NO_RECORD and member.isdigit()
            if numeric and not self._rules.remove_numeric_only:
                continue
            if self._owns(queue, member.decode(errors="replace")):
                work.setdefault(NUMERIC if numeric else COUNTED[kind], []).append(member)
        return work

    async def _clean(self, place: PartitionStage, kind: str, members: list[bytes], deadlines: Deadlines | None) -> int:
        where = place.queue, place.partition
        if kind == "recovered" and deadlines is not None:
            return await self._strays.recover(*where, members, deadlines)
        if kind == "score":
            return await self._strays.rescore(*where, members)
        # The doctor's repair: it removes names without a record, and puts jobs with an unreadable claim back in line.
        return sum(await self._audit.mend(*where, members))
