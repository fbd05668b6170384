"""Reconciliation: what a program's agents should be in Redis, and which of them are this worker's to run.

Differential: what is missing is added, what is there is left alone, its time too. What this worker no longer owns is
taken off its timetable; the job itself stays. A round over all agents goes in pages within a budget, and gives way to
other tasks every few milliseconds. An agent that was scheduled or unscheduled is looked at by itself, without a round.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tocsin.model.clock import Clock, monotonic
from tocsin.model.durations import Millis, ceil_ms
from tocsin.model.errors import StoreChanged, StoreFull, StoreUnavailable
from tocsin.model.outcome import IGNORE, NEW, UNCHANGED
from tocsin.model.record import decode_spec
from tocsin.model.trigger import Every
from tocsin.store.formats import not_before
from tocsin.store.keys import STAGE_KEYS
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.jobs import Jobs, PutItem
from tocsin.store.views.audit import AuditReader
from tocsin.telemetry import agent_log
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.reconcile")

PAGE = 500
# How long one agent after the other is looked at before other tasks of the event loop have their turn.
SLICE_S = 0.002
_LOOKED_INTO = ("waiting", "working")


class RegistrationRules(Struct, frozen=True):
    """How often, how long at most in one pass (0: no bound), and over how long new agents are spread."""

    every_s: float = 30.0
    budget_s: float = 0.0
    jitter_s: float = 0.0


class _Owned(Struct, frozen=True):
    put: PutItem
    interval: Millis


class AgentRegistrar:
    """One pass: the agents that are declared now, those of them that we own, and whether Redis has them."""

    name = "reconcile"

    def __init__(
        self,
        store: Store,
        queue: OpenQueue,
        declared: Callable[[], Mapping[str, PutItem]],
        owns: Callable[[str], bool],
        own: Callable[[Iterable[str], Iterable[str]], None],
        hear: Callable[[Mapping[str, float]], None],
        clock: Clock,
        ring: Callable[[OpenQueue, int], None],
        rules: RegistrationRules,
    ) -> None:
        """`declared` gives a mapping that may change from one moment to the next; `own` hears which agents became ours
        and which are ours no more."""
        self.wake = asyncio.Event()
        self.added = 0
        self._store = store
        self._jobs = Jobs(store)
        self._survey = AuditReader(store)
        self._queue = queue
        self._declared = declared
        self._owns = owns
        # Which jobs the fetcher is to ask for, and when.
        self._own = own
        self._hear = hear
        self._clock = clock
        self._ring = ring
        self._rules = rules
        # Fewer records than names: some of these have none.
        self._records_are_missing = False
        # Definitions that were compared with what Redis has.
        self._compared: dict[str, bytes] = {}
        # The ids that this round has not come to, the next one last; when the next round begins.
        self._left: list[str] = []
        self._round_at = -math.inf
        # Agents to look at before that, in the order in which they changed.
        self._changed: dict[str, None] = {}
        self._owned: dict[str, _Owned] = {}
        self._intervals: Millis = 0

    @property
    def registered(self) -> int:
        return len(self._owned)

    @property
    def interval_s(self) -> float:
        """The average of the agents that are ours."""
        return self._intervals / len(self._owned) / 1000 if self._owned else 0.0

    def reconsider(self, member: str) -> None:
        """It was scheduled, unscheduled or changed: look at this one at once."""
        self._changed[member] = None
        self.wake.set()

    def start_over(self) -> None:
        """The server was emptied or replaced: nothing that was compared is known to be there."""
        # A new one: a page that is under way notes what it compared in the old.
        self._compared = {}
        self._left.clear()
        self._round_at = -math.inf
        self.wake.set()

    async def register(self) -> None:
        """The first pass, before the worker starts. A worker must also start on a full server, to run what is there."""
        try:
            await self.step()
        except StoreFull as error:
            log.warning("new or changed agents could not be registered, trying again later", error=str(error))

    async def step(self) -> float:
        """Seconds until the next round; at once if the budget ended before the round did."""
        began, declared = self._clock.monotonic(), self._declared()
        if not self._left and (not self._changed or began >= self._round_at):
            await self._begin_round(declared, began)
        self._left += reversed(self._changed)
        self._changed.clear()
        while self._left:
            await self._next_page(declared)
            if 0 < self._rules.budget_s <= self._clock.monotonic() - began:
                break
            await asyncio.sleep(0)
        return 0.0 if self._left else max(0.0, self._round_at - self._clock.monotonic())

    async def _begin_round(self, declared: Mapping[str, PutItem], now: float) -> None:
        self._records_are_missing = await self._counts_differ()
        names = list(declared)
        self._left = [*(self._owned.keys() - set(names)), *reversed(names)]
        self._round_at = now + self._rules.every_s

    async def _next_page(self, declared: Mapping[str, PutItem]) -> None:
        page = [self._left.pop() for _ in range(min(PAGE, len(self._left)))]
        compared = self._compared
        try:
            await self._reconcile(await self._take_stock(page, declared))
        except (StoreUnavailable, asyncio.CancelledError) as error:
            # A full server takes nothing new: these wait for the next round, so that the others have their turn.
            if not isinstance(error, StoreFull) and compared is self._compared:
                self._left += reversed(page)
            raise

    async def _take_stock(self, members: list[str], declared: Mapping[str, PutItem]) -> dict[str, PutItem]:
        """Which of these are declared and ours. The first time each of them is encoded, so it takes a while."""
        ours: dict[str, PutItem] = {}
        gained: list[str] = []
        lost: list[str] = []
        unclear: list[str] = []
        slice_ends = monotonic() + SLICE_S
        for member in members:
            if member in declared and self._is_ours(member, unclear):
                ours[member] = declared[member]
                if self._keep(member, ours[member]):
                    gained.append(member)
            elif self._give_up(member):
                lost.append(member)
            if monotonic() >= slice_ends:
                await asyncio.sleep(0)
                slice_ends = monotonic() + SLICE_S
        if unclear:
            log.error("cannot tell whether some agents are ours: leaving them as they are", agents=unclear)
        if lost and agent_log.is_wanted():
            agent_log.unregistered(lost)
        self._own(gained, lost)
        return ours

    def _is_ours(self, member: str, unclear: list[str]) -> bool:
        try:
            return bool(self._owns(member))
        except Exception:
            # One id on which a program's own sharding fails must not stop the others. One traceback a page will do.
            if not unclear:
                log.error("the sharding function failed", agent=member, exc_info=True)
            unclear.append(member)
            return member in self._owned

    def _keep(self, member: str, put: PutItem) -> bool:
        """Whether it is new."""
        known = self._owned.get(member)
        if known is not None and known.put is put:
            return False
        interval = _interval_of(put)
        self._owned[member] = _Owned(put, interval)
        self._intervals += interval - (0 if known is None else known.interval)
        return known is None

    def _give_up(self, member: str) -> bool:
        """Whether it was ours."""
        known = self._owned.pop(member, None)
        if known is None:
            return False
        self._intervals -= known.interval
        # When it is ours again, others may have changed it meanwhile.
        self._compared.pop(member, None)
        return True

    async def _reconcile(self, puts: Mapping[str, PutItem]) -> None:
        if not puts:
            return
        compared = self._compared
        try:
            there = await self._there(list(puts))
            if self._records_are_missing and (bare := await self._without_record(list(puts))):
                # Names without a record go, and the agents are registered as new ones.
                await self._survey.mend(self._queue, 0, [member.encode() for member in bare])
                there -= set(bare)
            wanted = [put for member, put in puts.items() if self._wanted(put, member in there)]
            wanted = [self._as_new(put) if put.member not in there else put for put in wanted]
            if wanted:
                await self._put(wanted, there)
        except StoreChanged:
            await self._store.reopen(self._queue)
            self.start_over()
            return
        compared |= {member: put.record for member, put in puts.items() if member in self._owned}

    async def _put(self, puts: list[PutItem], there: set[str]) -> None:
        codes, head = await self._jobs.put_many(self._queue, puts)
        self.added += codes.count(NEW)
        if agent_log.is_wanted():
            agent_log.registered(put.member for put, code in zip(puts, codes, strict=True) if code == NEW)
        # Redis has its record, and it is in no stage: somebody removed it from there.
        lost = [
            put.member for put, code in zip(puts, codes, strict=True) if code == UNCHANGED and put.member not in there
        ]
        if lost:
            mended = await self._survey.mend(self._queue, 0, [member.encode() for member in lost])
            log.warning("agents were lost from their line and are back", agents=sum(mended))
        if head >= 0 or lost:
            self._ring(self._queue, 0)
        await self._there([put.member for put in puts])

    async def _counts_differ(self) -> bool:
        """Whether some names in the stages have no record: two numbers say it, whatever their size."""
        keys = self._queue.keys[0]

        async def ask(client: Any) -> list[int]:
            async with client.pipeline(transaction=False) as pipe:
                pipe.hlen(keys["jobs"])
                for stage in STAGE_KEYS:
                    pipe.zcard(keys[stage])
                return list(await pipe.execute())

        records, *names = await self._store.run_repeatable(ask)
        return bool(records < sum(names))

    async def _without_record(self, members: list[str]) -> list[str]:
        key = self._queue.keys[0]["jobs"]

        async def ask(client: Any) -> list[bool]:
            async with client.pipeline(transaction=False) as pipe:
                for member in members:
                    pipe.hexists(key, member)
                return list(await pipe.execute())

        return [member for member, has in zip(members, await self._store.run_repeatable(ask), strict=True) if not has]

    async def _there(self, members: list[str]) -> set[str]:
        """Those that are in some stage: a job always is. The fetcher hears when they are due."""
        keys = self._queue.keys[0]

        async def ask(client: Any) -> list[Any]:
            async with client.pipeline(transaction=False) as pipe:
                for stage in STAGE_KEYS:
                    pipe.zmscore(keys[stage], members)
                return list(await pipe.execute())

        scores = await self._store.run_repeatable(ask)
        waiting, working = (zip(members, scores[STAGE_KEYS.index(stage)], strict=True) for stage in _LOOKED_INTO)
        self._hear({member: math.floor(not_before(at)) for member, at in waiting if at is not None})
        if running := [member for member, at in working if at is not None]:
            await self._free_unclaimed(running)
        places = zip(members, zip(*scores, strict=True), strict=True)
        return {member for member, found in places if any(at is not None for at in found)}

    async def _free_unclaimed(self, members: list[str]) -> None:
        """Whoever runs one whose claim is gone cannot end it, and until its deadline nobody else would look at it."""
        key = self._queue.keys[0]["claims"]
        claims = await self._store.run_repeatable(lambda client: client.hmget(key, members))
        bare = [member for member, claim in zip(members, claims, strict=True) if claim is None]
        # It looks again: most of what has no claim by now has just ended.
        mended = await self._survey.mend(self._queue, 0, [member.encode() for member in bare])
        freed = [member for member, was_mended in zip(bare, mended, strict=True) if was_mended]
        if freed:
            log.warning("agents lost their claims while they ran, and are due again", agents=len(freed))
            self._hear(dict.fromkeys(freed, 0.0))
            self._ring(self._queue, 0)

    def _wanted(self, put: PutItem, there: bool) -> bool:
        # What is there is compared once: this program may declare it differently than the last one did.
        return not there or self._compared.get(put.member) != put.record

    def _as_new(self, put: PutItem) -> PutItem:
        """Registered for now, or spread over the time asked for."""
        return replace(put, due=self._spread(), relative=True, mode=IGNORE)

    def _spread(self) -> Millis:
        return ceil_ms(self._rules.jitter_s * random.random()) if self._rules.jitter_s > 0 else 0


def _interval_of(put: PutItem) -> Millis:
    trigger = decode_spec(put.record).trigger
    return ceil_ms(trigger.interval) if isinstance(trigger, Every) else 0
