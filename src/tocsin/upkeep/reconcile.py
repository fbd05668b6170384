"""Reconciliation: what a program's agents should be in Redis, and which of them are this worker's to run.

Differential: what is missing is added, what is there is left alone, its time too. What this worker no longer owns is
taken off its timetable; the job itself stays. It goes in pages within a budget and never stands in the way of claims.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tocsin.model import codec
from tocsin.model.clock import Clock
from tocsin.model.durations import Millis, ceil_ms
from tocsin.model.errors import StoreChanged, StoreFull
from tocsin.model.trigger import Every
from tocsin.store.jobs import IGNORE, Jobs, Put
from tocsin.store.keys import STAGE_KEYS
from tocsin.store.store import OpenQueue, Store
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.reconcile")

PAGE = 500


class Rules(Struct, frozen=True):
    """How often, how long at most in one pass (0: no bound), and over how long new agents are spread."""

    every_s: float = 30.0
    budget_s: float = 0.0
    jitter_s: float = 0.0


class Reconciler:
    """One pass: the agents that are declared now, those of them that we own, and whether Redis has them."""

    name = "reconcile"

    def __init__(
        self,
        store: Store,
        queue: OpenQueue,
        declared: Callable[[], Mapping[str, Put]],
        owns: Callable[[str], bool],
        own: Callable[[Iterable[str]], None],
        clock: Clock,
        ring: Callable[[OpenQueue, int], None],
        rules: Rules,
    ) -> None:
        self.wake = asyncio.Event()
        self.registered = 0
        self.added = 0
        # The average of the agents that are ours.
        self.interval_s = 0.0
        self._store = store
        self._jobs = Jobs(store)
        self._queue = queue
        self._declared = declared
        self._owns = owns
        # Tells the fetcher which jobs to ask for.
        self._own = own
        self._clock = clock
        self._ring = ring
        self._rules = rules
        # Definitions that were compared with what Redis has, and the ids that this round has not come to.
        self._compared: dict[str, bytes] = {}
        self._left: list[str] = []
        self._owned_before: set[str] = set()

    def start_over(self) -> None:
        """The server was emptied or replaced: nothing that was compared is known to be there."""
        self._compared.clear()
        self._left.clear()
        self.wake.set()

    async def register(self) -> None:
        """The first pass, before the worker starts. A worker must also start on a full server, to run what is there."""
        try:
            await self.step()
        except StoreFull as error:
            log.warning("new or changed agents could not be registered, trying again later", error=str(error))

    async def step(self) -> float:
        """Seconds until the next round; at once if the budget ended before the round did."""
        began = self._clock.monotonic()
        declared = self._declared()
        owned = [member for member in declared if self._owned(member)]
        self.registered = len(owned)
        self.interval_s = _mean_interval([declared[member] for member in owned])
        self._own(owned)
        if not self._left:
            self._left = owned[::-1]
        else:
            self._left += [member for member in owned if member not in self._owned_before]
        self._owned_before = set(owned)
        while self._left:
            page = [self._left.pop() for _ in range(min(PAGE, len(self._left)))]
            await self._reconcile({member: declared[member] for member in page if member in declared})
            if 0 < self._rules.budget_s <= self._clock.monotonic() - began:
                break
            await asyncio.sleep(0)
        return 0.0 if self._left else self._rules.every_s

    def _owned(self, member: str) -> bool:
        try:
            return bool(self._owns(member))
        except Exception:
            # One id on which a program's own sharding fails must not stop the others.
            log.error("cannot tell whether an agent is ours: left alone", agent=member, exc_info=True)
            return member in self._owned_before

    async def _reconcile(self, puts: Mapping[str, Put]) -> None:
        if not puts:
            return
        try:
            there = await self._there(list(puts))
            wanted = [put for member, put in puts.items() if self._wanted(put, member in there)]
            wanted = [self._as_new(put) if put.member not in there else put for put in wanted]
            if wanted:
                codes, head = await self._jobs.put_many(self._queue, wanted)
                self.added += codes.count(b"1")
                if head >= 0:
                    self._ring(self._queue, 0)
        except StoreChanged:
            await self._store.reopen(self._queue)
            self.start_over()
            return
        self._compared |= {member: put.record for member, put in puts.items()}

    async def _there(self, members: list[str]) -> set[str]:
        """Those that are in some stage: a job always is."""
        keys = self._queue.keys[0]

        async def ask(client: Any) -> list[Any]:
            async with client.pipeline(transaction=False) as pipe:
                for stage in STAGE_KEYS:
                    pipe.zmscore(keys[stage], members)
                return list(await pipe.execute())

        scores = zip(*await self._store.read(ask), strict=True)
        return {member for member, found in zip(members, scores, strict=True) if any(at is not None for at in found)}

    def _wanted(self, put: Put, there: bool) -> bool:
        # What is there is compared once: this program may declare it differently than the last one did.
        return not there or self._compared.get(put.member) != put.record

    def _as_new(self, put: Put) -> Put:
        """Registered for now, or spread over the time asked for."""
        return replace(put, due=self._spread(), relative=True, mode=IGNORE)

    def _spread(self) -> Millis:
        return ceil_ms(self._rules.jitter_s * random.random()) if self._rules.jitter_s > 0 else 0


def _mean_interval(puts: list[Put]) -> float:
    triggers = [codec.decode_spec(put.record).trigger for put in puts]
    intervals = [trigger.interval for trigger in triggers if isinstance(trigger, Every)]
    return sum(intervals) / len(intervals) if intervals else 0.0
