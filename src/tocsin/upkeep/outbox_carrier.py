"""Carrying: effects on other partitions, from the outboxes where scripts left them to where they belong.

Each step is an idempotent script, and an entry is removed when its effect is there. Who dies in between leaves the
entry, and anybody carries it again. A worker is told of entries by the answers to its own calls; for those that
others left it looks at some of the outboxes now and then.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from tocsin.model.clock import Clock
from tocsin.model.errors import InvalidConfig, StoreError, StoreUnavailable
from tocsin.model.outcome import CANCELLED, SUCCEEDED
from tocsin.store.connection.nodes import is_away
from tocsin.store.formats import (
    decode_ask,
    decode_watcher,
    encode_watcher,
    is_ask,
    is_end,
    is_watcher,
    job_of_entry,
    outcome_of_end,
    source_of,
)
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.dependencies import (
    GONE,
    LATER,
    PAGE,
    RECURRING,
    UPSTREAM_UNKNOWN,
    WATCHING,
    Outbox,
    UpstreamEnd,
)
from tocsin.store.views.events import succeeded_last
from tocsin.telemetry.log_throttle import LogThrottle
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.carry")

# How often a worker looks for what others left, and at how many outboxes, in one round trip.
EVERY_S = 10.0
PLACES = 16
# Partitions that one pass carries from.
MOST = 50
# Passes in which a program carries on with what it began; the rest is for the workers.
LONGEST_CARRY = 100

Place = tuple[OpenQueue, int]


class OutboxCarrier:
    """One pass: a page of each outbox of which it was told, and of those that a look found filled."""

    name = "carry"

    def __init__(self, store: Store, clock: Clock, look_again: Callable[[OpenQueue, int], None]) -> None:
        self.wake = asyncio.Event()
        self.carried = 0
        self._store = store
        self._outbox = Outbox(store)
        self._clock = clock
        self._look_again = look_again
        self._heard: dict[tuple[str, int], Place] = {}
        # How many entries of an outbox were passed by in this round, because they cannot be carried yet.
        self._passed: dict[tuple[str, int], int] = {}
        self._places: list[Place] = []
        self._next_look = 0.0
        self._seldom = LogThrottle()

    def hear(self, queue: OpenQueue, partition: int) -> None:
        """There is something to carry from there."""
        self._heard[queue.name, partition] = (queue, partition)
        self.wake.set()

    async def step(self) -> float:
        if self._clock.monotonic() >= self._next_look:
            await self._look_around()
            self._next_look = self._clock.monotonic() + EVERY_S
        await self.carry_some()
        return 0.0 if self._within_reach() else max(self._next_look - self._clock.monotonic(), 0.0)

    def _within_reach(self) -> list[tuple[str, int]]:
        """Those on a node that is away are kept until it is back."""
        return [key for key, place in self._heard.items() if not is_away(self._store, *place)]

    async def carry_some(self) -> bool:
        """A page of each place that it was told of. Whether there is more, there or where that had effects."""
        for key in self._within_reach()[:MOST]:
            place = self._heard.pop(key)
            try:
                await self._carry_page(*place)
            except StoreUnavailable:
                self._heard[key] = place
                raise
            except StoreError as error:
                # One that is broken must not keep the others waiting; the next look comes by again.
                if self._seldom("page", *key):
                    log.warning("cannot carry", queue=place[0].name, partition=place[1], error=str(error))
        return bool(self._heard)

    async def _look_around(self) -> None:
        """At some outboxes in turn, of all queues: whose workers are all dead may be waited for by others."""
        if not self._places:
            self._places = await self._all_places()
        some, self._places = self._places[:PLACES], self._places[PLACES:]
        some = [place for place in some if not is_away(self._store, *place)]
        for queue, partition in await self._outbox.non_empty(some):
            self.hear(queue, partition)

    async def _all_places(self) -> list[Place]:
        places = [(queue, p) for queue in await self._store.queues.open_all() for p in range(queue.partitions)]
        # Each worker in its own order, so that a fleet is sooner through.
        random.shuffle(places)
        return places

    async def _carry_page(self, queue: OpenQueue, partition: int) -> None:
        at = self._passed.pop((queue.name, partition), 0)
        entries = await self._outbox.page(queue, partition, at)
        done = await self.carry(queue, partition, entries)
        if len(entries) == PAGE:
            # A page of what cannot be carried now must not keep those behind it waiting.
            self._passed[queue.name, partition] = at if done else at + PAGE
            self.hear(queue, partition)

    async def carry(self, queue: OpenQueue, partition: int, entries: Sequence[bytes]) -> bool:
        """These entries of that outbox. Whether anything came of it."""
        ends = [entry for entry in entries if is_end(entry)]
        asks = [entry for entry in entries if is_ask(entry)]
        if len(ends) + len(asks) < len(entries) and self._seldom("entries", queue.name, partition):
            log.error(
                "entries that this version cannot read are left: `tocsin doctor --repair` clears them",
                queue=queue.name,
                partition=partition,
            )
        done = await self.ask(queue, asks) if asks else 0
        if ends:
            done += await self._tell(queue, partition, ends)
        self.carried += done
        return done > 0

    # A dependent asks to be told

    async def ask(self, queue: OpenQueue, entries: Sequence[bytes]) -> int:
        """For these entries of outboxes of the queue. How many are done with."""
        by_name: dict[bytes, list[bytes]] = {}
        for entry in entries:
            by_name.setdefault(decode_ask(entry)[2], []).append(entry)
        codes: dict[bytes, str] = {}
        for name, some in by_name.items():
            answer = await self._watch(name, [_watch_of(queue, entry) for entry in some])
            codes |= dict(zip(some, answer, strict=True))
        tellings = [_telling(entry, code) for entry, code in codes.items() if code not in (WATCHING, LATER)]
        done = [entry for entry, code in codes.items() if code != LATER]
        await self._unblock(queue, tellings, done)
        return len(done)

    async def _watch(self, name: bytes, pairs: Sequence[tuple[bytes, bytes]]) -> str:
        try:
            where = await self._store.find_queue(name.decode(errors="replace"))
            if where is None:
                return GONE * len(pairs)
            codes = await self._outbox.watch(where, pairs)
            return await self._look_back(where, pairs, codes) if GONE in codes else codes
        except StoreUnavailable:
            raise
        except (StoreError, InvalidConfig):
            # It is being repartitioned or is garbled: what concerns other queues does not wait for it.
            return LATER * len(pairs)

    async def _look_back(self, where: OpenQueue, pairs: Sequence[tuple[bytes, bytes]], codes: str) -> str:
        """A success is remembered for those who watch. If the server lost the watcher, and then the job ended, only the
        events may know of it."""
        by_partition: dict[int, set[bytes]] = {}
        for (upstream, _), code in zip(pairs, codes, strict=True):
            if code == GONE:
                by_partition.setdefault(where.partition_of_key(upstream), set()).add(upstream)
        succeeded = set[bytes]()
        for partition, gone in by_partition.items():
            succeeded |= await succeeded_last(self._store, where, partition, gone)
        return "".join(
            f"{SUCCEEDED}" if code == GONE and upstream in succeeded else code
            for (upstream, _), code in zip(pairs, codes, strict=True)
        )

    # An upstream has ended

    async def _tell(self, queue: OpenQueue, partition: int, entries: Sequence[bytes]) -> int:
        """How many were told, to all who were found."""
        upstreams = [job_of_entry(entry) for entry in entries]
        found = await self._outbox.watchers(queue, partition, entries)
        by_name: dict[bytes, list[UpstreamEnd]] = {}
        for entry, upstream, watchers in zip(entries, upstreams, found, strict=True):
            source = source_of(queue.name.encode(), upstream)
            for watcher in filter(is_watcher, watchers):
                name, member, life = decode_watcher(watcher)
                by_name.setdefault(name, []).append(UpstreamEnd(member, life, source, outcome_of_end(entry)))
        untold: set[bytes] = set()
        for name, tellings in by_name.items():
            try:
                where = await self._store.find_queue(name.decode(errors="replace"))
                if where is not None:
                    await self._unblock(where, tellings)
            except StoreUnavailable:
                raise
            except (StoreError, InvalidConfig):
                untold.add(name)
        told = [
            # One that somebody garbled is nobody to tell, and watches no more.
            (entry, upstream, [watcher for watcher in watchers if not untold or job_of_entry(watcher) not in untold])
            for entry, upstream, watchers in zip(entries, upstreams, found, strict=True)
        ]
        for there, left in (await self._outbox.end_watch(queue, told)).items():
            # Those of a queue that is being repartitioned are left to a later look.
            if left and not untold:
                self.hear(queue, there)
        return sum(len(some) == len(all_of_it) for (_, _, some), all_of_it in zip(told, found, strict=True))

    async def _unblock(self, queue: OpenQueue, tellings: Sequence[UpstreamEnd], carried: Sequence[bytes] = ()) -> None:
        async for told in self._outbox.unblock(queue, tellings, carried):
            if told.head >= 0:
                self._look_again(queue, told.partition)
            if told.to_carry:
                self.hear(queue, told.partition)


def _watch_of(queue: OpenQueue, entry: bytes) -> tuple[bytes, bytes]:
    """(upstream, watcher) of a W entry in an outbox of this queue."""
    member, life, _, upstream = decode_ask(entry)
    return upstream, encode_watcher(queue.name.encode(), member, life)


def _telling(entry: bytes, code: str) -> UpstreamEnd:
    member, life, name, upstream = decode_ask(entry)
    # What recurs never ends, and what nobody knows has not succeeded: as good as cancelled.
    outcome = {GONE: UPSTREAM_UNKNOWN, RECURRING: CANCELLED}.get(code)
    return UpstreamEnd(member, life, source_of(name, upstream), int(code) if outcome is None else outcome)
