"""Registers a program's agents in Redis, and works out which of them this worker runs.

The registrar adds the agents that are missing and leaves the others alone, with the times they are due. An agent that
this worker no longer owns leaves its timetable; the job itself stays. A round over all agents goes page by page within
a time budget, and lets other tasks run every few milliseconds. An agent that was just scheduled or unscheduled is
handled at once, without a round.
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
# After this long with one page the registrar lets other tasks of the event loop run.
SLICE_S = 0.002
_INSPECTED = ("waiting", "working")


class RegistrationRules(Struct, frozen=True):
    """How often a round begins, how long one pass may take (0: no bound), and over how long new agents are spread."""

    every_s: float = 30.0
    budget_s: float = 0.0
    jitter_s: float = 0.0


class _Owned(Struct, frozen=True):
    put: PutItem
    interval: Millis


class AgentRegistrar:
    """Each pass compares the agents that are declared now, and that we own, with what Redis has."""

    name = "reconcile"

    def __init__(
        self,
        *,
        store: Store,
        queue: OpenQueue,
        declared: Callable[[], Mapping[str, PutItem]],
        owns: Callable[[str], bool],
        on_owned: Callable[[Iterable[str], Iterable[str]], None],
        on_waiting: Callable[[Mapping[str, float]], None],
        clock: Clock,
        ring: Callable[[OpenQueue, int], None],
        rules: RegistrationRules,
    ) -> None:
        """`declared` returns a mapping that may change at any moment. `on_owned` gets the agents that became ours and
        those that are ours no more. `on_waiting` gets agents that wait, each with the time from which it may run."""
        self.wake = asyncio.Event()
        self.added = 0
        self._store = store
        self._jobs = Jobs(store)
        self._audit = AuditReader(store)
        self._queue = queue
        self._declared = declared
        self._owns = owns
        self._on_owned = on_owned
        self._on_waiting = on_waiting
        self._clock = clock
        self._ring = ring
        self._rules = rules
        # Redis has fewer records than names in the stages, so some names have no record.
        self._records_are_missing = False
        # The definitions that this worker has compared with Redis, by agent.
        self._compared: dict[str, bytes] = {}
        # The agents that are left in this round, the next one last.
        self._left: list[str] = []
        self._next_round_at = -math.inf
        # Agents to handle before the next round, in the order in which they changed.
        self._changed: dict[str, None] = {}
        self._owned: dict[str, _Owned] = {}
        self._intervals: Millis = 0

    @property
    def registered(self) -> int:
        return len(self._owned)

    @property
    def interval_s(self) -> float:
        """The average interval of the agents that we own."""
        return self._intervals / len(self._owned) / 1000 if self._owned else 0.0

    def reconsider(self, member: str) -> None:
        """Handle this agent at once: it was scheduled, unscheduled or changed."""
        self._changed[member] = None
        self.wake.set()

    def start_over(self) -> None:
        """Forget all comparisons, because the server was emptied or replaced."""
        # A new dict, because a page under way still adds to the old one.
        self._compared = {}
        self._left.clear()
        self._next_round_at = -math.inf
        self.wake.set()

    async def register(self) -> None:
        """Run the first pass, before the worker starts. On a full server the worker starts all the same, so that it
        can run what is there."""
        try:
            await self.step()
        except StoreFull as error:
            log.warning("new or changed agents could not be registered, trying again later", error=str(error))

    async def step(self) -> float:
        """Return the seconds until the next round, or 0 if the budget ended before this round did."""
        began, declared = self._clock.monotonic(), self._declared()
        if not self._left and (not self._changed or began >= self._next_round_at):
            await self._begin_round(declared, began)
        self._left += reversed(self._changed)
        self._changed.clear()
        while self._left:
            await self._next_page(declared)
            if 0 < self._rules.budget_s <= self._clock.monotonic() - began:
                break
            await asyncio.sleep(0)
        return 0.0 if self._left else max(0.0, self._next_round_at - self._clock.monotonic())

    async def _begin_round(self, declared: Mapping[str, PutItem], now: float) -> None:
        self._records_are_missing = await self._has_fewer_records_than_names()
        names = list(declared)
        self._left = [*(self._owned.keys() - set(names)), *reversed(names)]
        self._next_round_at = now + self._rules.every_s

    async def _next_page(self, declared: Mapping[str, PutItem]) -> None:
        page = [self._left.pop() for _ in range(min(PAGE, len(self._left)))]
        compared = self._compared
        try:
            await self._reconcile(await self._select_owned(page, declared))
        except (StoreUnavailable, asyncio.CancelledError) as error:
            # A full server takes nothing new, so this page waits for the next round and the others are tried first.
            if not isinstance(error, StoreFull) and compared is self._compared:
                self._left += reversed(page)
            raise

    async def _select_owned(self, members: list[str], declared: Mapping[str, PutItem]) -> dict[str, PutItem]:
        """Return the agents that are declared and ours. The first time this is slow, because it encodes each agent."""
        ours: dict[str, PutItem] = {}
        gained: list[str] = []
        lost: list[str] = []
        unclear: list[str] = []
        slice_ends = monotonic() + SLICE_S
        for member in members:
            if member in declared and self._is_ours(member, unclear):
                ours[member] = declared[member]
                if self._own(member, ours[member]):
                    gained.append(member)
            elif self._disown(member):
                lost.append(member)
            if monotonic() >= slice_ends:
                await asyncio.sleep(0)
                slice_ends = monotonic() + SLICE_S
        if unclear:
            log.error("cannot say whether some agents are ours: leaving them as they are", agents=unclear)
        if lost and agent_log.is_wanted():
            agent_log.unregistered(lost)
        self._on_owned(gained, lost)
        return ours

    def _is_ours(self, member: str, unclear: list[str]) -> bool:
        try:
            return bool(self._owns(member))
        except Exception:
            # A sharding function that fails on one agent must not stop the others. One traceback per page is enough.
            if not unclear:
                log.error("the sharding function failed", agent=member, exc_info=True)
            unclear.append(member)
            return member in self._owned

    def _own(self, member: str, put: PutItem) -> bool:
        """Note that this agent is ours. True if it was not before."""
        known = self._owned.get(member)
        if known is not None and known.put is put:
            return False
        interval = _interval_of(put)
        self._owned[member] = _Owned(put, interval)
        self._intervals += interval - (0 if known is None else known.interval)
        return known is None

    def _disown(self, member: str) -> bool:
        """Note that this agent is not ours. True if it was before."""
        known = self._owned.pop(member, None)
        if known is None:
            return False
        self._intervals -= known.interval
        # Others may change it before it becomes ours again.
        self._compared.pop(member, None)
        return True

    async def _reconcile(self, puts: Mapping[str, PutItem]) -> None:
        if not puts:
            return
        compared = self._compared
        try:
            there = await self._find_in_stages(list(puts))
            if self._records_are_missing and (bare := await self._without_record(list(puts))):
                # The repair removes names without a record; then we register these agents as new ones.
                await self._audit.mend(self._queue, 0, [member.encode() for member in bare])
                there -= set(bare)
            wanted = [put for member, put in puts.items() if self._needs_put(put, member in there)]
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
        # These have a record but are in no stage: somebody removed them from it.
        lost = [
            put.member for put, code in zip(puts, codes, strict=True) if code == UNCHANGED and put.member not in there
        ]
        if lost:
            mended = await self._audit.mend(self._queue, 0, [member.encode() for member in lost])
            log.warning("agents were lost from their line and are back", agents=sum(mended))
        if head >= 0 or lost:
            self._ring(self._queue, 0)
        await self._find_in_stages([put.member for put in puts])

    async def _has_fewer_records_than_names(self) -> bool:
        """True if some names in the stages have no record. Counting is cheap, however many agents exist."""
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

    async def _find_in_stages(self, members: list[str]) -> set[str]:
        """Return the agents that are in some stage, as every job should be. Report to `on_waiting` when they are due,
        and free those that are working without a claim."""
        keys = self._queue.keys[0]

        async def ask(client: Any) -> list[Any]:
            async with client.pipeline(transaction=False) as pipe:
                for stage in STAGE_KEYS:
                    pipe.zmscore(keys[stage], members)
                return list(await pipe.execute())

        scores = await self._store.run_repeatable(ask)
        waiting, working = (zip(members, scores[STAGE_KEYS.index(stage)], strict=True) for stage in _INSPECTED)
        self._on_waiting({member: math.floor(not_before(at)) for member, at in waiting if at is not None})
        if running := [member for member, at in working if at is not None]:
            await self._free_unclaimed(running)
        by_member = zip(members, zip(*scores, strict=True), strict=True)
        return {member for member, found in by_member if any(at is not None for at in found)}

    async def _free_unclaimed(self, members: list[str]) -> None:
        """Put agents back in line that are working without a claim. A worker without a claim cannot end its run, and
        nobody else would look at the agent before the deadline."""
        key = self._queue.keys[0]["claims"]
        claims = await self._store.run_repeatable(lambda client: client.hmget(key, members))
        bare = [member for member, claim in zip(members, claims, strict=True) if claim is None]
        # The script checks again, because most runs without a claim have just ended.
        mended = await self._audit.mend(self._queue, 0, [member.encode() for member in bare])
        freed = [member for member, was_mended in zip(bare, mended, strict=True) if was_mended]
        if freed:
            log.warning("agents lost their claims while they ran, and are due again", agents=len(freed))
            self._on_waiting(dict.fromkeys(freed, 0.0))
            self._ring(self._queue, 0)

    def _needs_put(self, put: PutItem, there: bool) -> bool:
        # An agent that exists is compared once, because another program may have registered it with other settings.
        return not there or self._compared.get(put.member) != put.record

    def _as_new(self, put: PutItem) -> PutItem:
        """The same agent, due now or at a random moment within the jitter."""
        return replace(put, due=self._spread(), relative=True, mode=IGNORE)

    def _spread(self) -> Millis:
        return ceil_ms(self._rules.jitter_s * random.random()) if self._rules.jitter_s > 0 else 0


def _interval_of(put: PutItem) -> Millis:
    trigger = decode_spec(put.record).trigger
    return ceil_ms(trigger.interval) if isinstance(trigger, Every) else 0
