"""Orphans: the slow net beneath recovery, cast over whole queues by the leader.

The reaper brings back the runs of dead workers within seconds, and those past their deadline soon after. What is left
for this pass is what no transition leaves behind and no worker meets: runs that are long overdue all the same, names
without a job, claims that cannot be read, scores that are not ours. A job that only this worker does not know is none
of these: it has a record, and whoever claims it and does not know its handler parks it.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from tocsin.model.clock import Clock
from tocsin.model.durations import Millis
from tocsin.model.errors import StoreError, StoreUnavailable
from tocsin.store.store import OpenQueue
from tocsin.store.strays import STAGES, Kind, Strays
from tocsin.store.survey import Survey
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.orphans")

# What is cleaned up, by the name under which it is counted; and which of it may be due then.
COUNTED = {Kind.NO_RECORD: "no_record", Kind.SCORE: "score", Kind.OVERDUE: "recovered", Kind.CLAIM: "claim"}
NUMERIC = "numeric"
BRINGS_WORK = ("recovered", "score", "claim")


class Settings(Struct, frozen=True):
    # How far past its deadline a run is brought back.
    threshold_ms: Millis = 600_000
    interval_ms: Millis = 300_000
    # How long one pass may take; 0: until it is through.
    run_budget_ms: Millis = 0
    # Whether names of nothing but digits go, if there is no such job: scores that were once written as names.
    remove_numeric_only: bool = True


class Place(Struct, frozen=True):
    queue: OpenQueue
    partition: int
    stage: str


class Orphans:
    """One pass: page after page through all places, as long as we lead and the budget lasts."""

    name = "orphans"

    def __init__(
        self,
        strays: Strays,
        survey: Survey,
        queues: Sequence[OpenQueue],
        clock: Clock,
        settings: Settings,
        *,
        leading: Callable[[], bool],
        slack: Callable[[], Millis | None],
        look_again: Callable[[OpenQueue, int], None],
        owns: Callable[[str, str], bool] = lambda queue, member: True,
    ) -> None:
        """`slack`: what is added to deadlines after steps of the server's clock; None while they are not believed.
        `owns`: whether a member of a queue is this worker's to touch."""
        self.wake = asyncio.Event()
        # What was cleaned up so far, by kind.
        self.cleaned: Counter[str] = Counter(dict.fromkeys((*COUNTED.values(), NUMERIC), 0))
        self._strays = strays
        self._survey = survey
        self._queues = queues
        self._places: list[Place] = []
        self._layouts: list[str] = []
        self._clock = clock
        self._settings = settings
        self._leading = leading
        self._slack = slack
        self._look_again = look_again
        self._owns = owns
        # Where the next page begins.
        self._at = 0
        self._cursor = b"0"

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
        self._find_places()
        budget_s = self._settings.run_budget_ms / 1000 or math.inf
        ends = self._clock.monotonic() + budget_s
        left = len(self._places)
        while left and self._leading():
            left -= await self._page(self._places[self._at])
            if self._clock.monotonic() >= ends:
                return

    def _find_places(self) -> None:
        """Anew, where a queue was repartitioned."""
        layouts = [queue.layout for queue in self._queues]
        if self._places and layouts == self._layouts:
            return
        self._layouts, self._at, self._cursor = layouts, 0, b"0"
        self._places = [
            Place(queue, p, stage) for queue in self._queues for p in range(queue.partitions) for stage in STAGES
        ]

    async def _page(self, place: Place) -> bool:
        """Whether the place is done with."""
        try:
            following = await self._clean_page(place)
        except StoreUnavailable:
            raise
        except StoreError as error:
            # One that is broken must not keep the others from being looked at.
            log.warning("cannot clean up", queue=place.queue.name, partition=place.partition, error=str(error))
            following = b"0"
        if following is None:
            return False
        self._cursor = following
        if following != b"0":
            return False
        self._at = (self._at + 1) % len(self._places)
        return True

    async def _clean_page(self, place: Place) -> bytes | None:
        """Where the next page begins; None: the term was over before this one was done."""
        slack = self._slack()
        overdue = None if slack is None else self._settings.threshold_ms + slack
        page = await self._strays.look(place.queue, place.partition, place.stage, self._cursor, overdue)
        for kind, members in self._sorted(place.queue.name, page.found).items():
            if not self._leading():
                return None
            cleaned = await self._clean(place, kind, members, overdue or 0)
            self.cleaned[kind] += cleaned
            if cleaned and kind in BRINGS_WORK:
                self._look_again(place.queue, place.partition)
        return page.cursor

    def _sorted(self, queue: str, found: dict[bytes, Kind]) -> dict[str, list[bytes]]:
        """What is to be done, with whom; only those that are ours to touch."""
        work: dict[str, list[bytes]] = {}
        for member, kind in found.items():
            numeric = kind is Kind.NO_RECORD and member.isdigit()
            if numeric and not self._settings.remove_numeric_only:
                continue
            if self._owns(queue, member.decode(errors="replace")):
                work.setdefault(NUMERIC if numeric else COUNTED[kind], []).append(member)
        return work

    async def _clean(self, place: Place, kind: str, members: list[bytes], overdue: Millis) -> int:
        where = place.queue, place.partition
        if kind == "recovered":
            return await self._strays.recover(*where, members, overdue)
        if kind == "score":
            return await self._strays.rescore(*where, members)
        # What an audit would do: out goes what has no record, and what nobody can hold is put back in line.
        return sum(await self._survey.mend(*where, members))
