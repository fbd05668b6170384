"""Orphans: the slow net beneath recovery, cast over all queues by the leader, whichever of them it serves.

The reaper brings back the runs of dead workers within seconds, and jobs past their deadline soon after. What is left
for this pass is agents that are long past their deadline, and what no transition leaves behind and no worker meets:
runs that are long overdue all the same, names without a job, claims that cannot be read, scores that are not ours. A
job that only this worker does not know is none of these: it has a record, and whoever claims it and does not know its
handler parks it.
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

log = get_logger("tocsin.orphans")

# What is cleaned up, by the name under which it is counted; and which of it may be due then.
COUNTED = {
    StrayKind.NO_RECORD: "no_record",
    StrayKind.SCORE: "score",
    StrayKind.OVERDUE: "recovered",
    StrayKind.CLAIM: "claim",
}
NUMERIC = "numeric"
BRINGS_WORK = ("recovered", "score", "claim")


class OrphanRules(Struct, frozen=True):
    # How far past its deadline a run is brought back.
    threshold_ms: Millis = 600_000
    interval_ms: Millis = 300_000
    # How long one pass may take; 0: until it is through.
    run_budget_ms: Millis = 0
    # Whether names of nothing but digits go, if there is no such job: scores that were once written as names.
    remove_numeric_only: bool = True


class PartitionStage(Struct, frozen=True):
    queue: OpenQueue
    layout: str
    partition: int
    stage: str


class OrphanCleaner:
    """One pass: page after page through all places, as long as we lead and the budget lasts."""

    name = "orphans"

    def __init__(
        self,
        strays: StrayReader,
        survey: AuditReader,
        queues: Callable[[], Awaitable[Sequence[OpenQueue]]],
        clock: Clock,
        settings: OrphanRules,
        *,
        leading: Callable[[], bool],
        deadlines: Callable[[Millis], Deadlines | None],
        look_again: Callable[[OpenQueue, int], None],
        owns: Callable[[str, str], bool] = lambda queue, member: True,
    ) -> None:
        """`queues`: all that are registered.
        `deadlines`: those that passed so many ms ago; None while none is believed.
        `owns`: whether a member of a queue is this worker's to touch."""
        self.wake = asyncio.Event()
        # What was cleaned up so far, by kind.
        self.cleaned: Counter[str] = Counter(dict.fromkeys((*COUNTED.values(), NUMERIC), 0))
        self._strays = strays
        self._survey = survey
        self._queues = queues
        self._places: list[PartitionStage] = []
        self._clock = clock
        self._settings = settings
        self._leading = leading
        self._deadlines = deadlines
        self._look_again = look_again
        self._owns = owns
        # Where the next page begins.
        self._at = 0
        self._cursor = b"0"
        self._seldom = LogThrottle()

    async def step(self) -> float:
        before = self.cleaned.copy()
        try:
            await self._walk()
        finally:
            done: dict[str, Any] = self.cleaned - before
            if done:
                log.info("orphans cleaned up", **done)
        return self._settings.interval_ms / 1000

    async def _walk(self) -> None:
        """Once around, from where the last pass ended."""
        if not self._leading():
            return
        await self._find_places()
        budget_s = self._settings.run_budget_ms / 1000 or math.inf
        ends = self._clock.monotonic() + budget_s
        left = len(self._places)
        while left and self._leading():
            left -= await self._page(self._places[self._at])
            if self._clock.monotonic() >= ends:
                return

    async def _find_places(self) -> None:
        """Anew, where a queue was added, deleted or repartitioned; from the place on where the last pass ended."""
        places = [
            PartitionStage(queue, queue.layout, partition, stage)
            for queue in await self._queues()
            for partition in range(queue.partitions)
            for stage in STAGES
        ]
        ended_at = self._places[self._at] if self._places else None
        self._places = places
        if ended_at in places:
            self._at = places.index(ended_at)
        else:
            self._at, self._cursor = 0, b"0"

    async def _page(self, place: PartitionStage) -> bool:
        """Whether the place is done with."""
        try:
            following = await self._clean_page(place)
        except NodeUnavailable:
            # The next round comes by again.
            following = b"0"
        except StoreUnavailable:
            raise
        except StoreError as error:
            # One that is broken must not keep the others from being looked at.
            if self._seldom(place.queue.name, place.partition):
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
        """Where the next page begins; None: the term was over before this one was done."""
        deadlines = self._deadlines(self._settings.threshold_ms)
        overdue = None if deadlines is None else deadlines.overdue
        page = await self._strays.look(place.queue, place.partition, place.stage, self._cursor, overdue)
        for kind, members in self._sorted(place.queue.name, page.found).items():
            if not self._leading():
                return None
            cleaned = await self._clean(place, kind, members, deadlines)
            self.cleaned[kind] += cleaned
            if cleaned and kind in BRINGS_WORK:
                self._look_again(place.queue, place.partition)
        return page.cursor

    def _sorted(self, queue: str, found: dict[bytes, StrayKind]) -> dict[str, list[bytes]]:
        """What is to be done, with whom; only those that are ours to touch."""
        work: dict[str, list[bytes]] = {}
        for member, kind in found.items():
            numeric = kind is StrayKind.NO_RECORD and member.isdigit()
            if numeric and not self._settings.remove_numeric_only:
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
        # What an audit would do: out goes what has no record, and what nobody can hold is put back in line.
        return sum(await self._survey.mend(*where, members))
