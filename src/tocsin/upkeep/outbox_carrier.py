"""Carries the entries of outboxes to the partitions that they concern.

A script changes only its own partition. It leaves its effects on other partitions as entries in an outbox, and the
carrier applies them. Each step is an idempotent script, and an entry is removed only after its effect was applied. If a
worker dies in between, the entry stays, and any worker carries it again. A worker learns of new entries from the
replies to its own calls; to find entries that others left it checks some outboxes now and then.
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

# How often a worker looks for entries that others left, and how many outboxes it checks in one round trip.
EVERY_S = 10.0
OUTBOXES = 16
# How many partitions one pass carries from.
MOST = 50
# A program carries the effects of its own calls for at most so many passes, and leaves the rest to the workers.
LONGEST_CARRY = 100

QueuePartition = tuple[OpenQueue, int]


class OutboxCarrier:
    """Each pass carries one page from each outbox that is known to have entries."""

    name = "carry"

    def __init__(self, store: Store, clock: Clock, look_again: Callable[[OpenQueue, int], None]) -> None:
        self.wake = asyncio.Event()
        self.carried = 0
        self._store = store
        self._outbox = Outbox(store)
        self._clock = clock
        self._look_again = look_again
        # The outboxes that have entries.
        self._filled: dict[tuple[str, int], QueuePartition] = {}
        # How many entries at the front of an outbox were skipped in this round, because they cannot be carried yet.
        self._skipped: dict[tuple[str, int], int] = {}
        # The outboxes that are still to be checked in this round.
        self._unchecked: list[QueuePartition] = []
        self._next_check = 0.0
        self._may_log = LogThrottle()

    def note_filled(self, queue: OpenQueue, partition: int) -> None:
        """Note that this outbox has entries, and carry them soon."""
        self._filled[queue.name, partition] = (queue, partition)
        self.wake.set()

    async def step(self) -> float:
        if self._clock.monotonic() >= self._next_check:
            await self._check_some()
            self._next_check = self._clock.monotonic() + EVERY_S
        await self.carry_some()
        return 0.0 if self._within_reach() else max(self._next_check - self._clock.monotonic(), 0.0)

    def _within_reach(self) -> list[tuple[str, int]]:
        """The filled outboxes, without those on a node that is away. Those wait until it is back."""
        return [key for key, where in self._filled.items() if not is_away(self._store, *where)]

    async def carry_some(self) -> bool:
        """Carry a page from each filled outbox. True if more is left to carry, there or where these entries led to."""
        for key in self._within_reach()[:MOST]:
            where = self._filled.pop(key)
            try:
                await self._carry_page(*where)
            except StoreUnavailable:
                self._filled[key] = where
                raise
            except StoreError as error:
                # A broken partition must not keep the others waiting. A later check finds its entries again.
                if self._may_log("page", *key):
                    log.warning("cannot carry", queue=where[0].name, partition=where[1], error=str(error))
        return bool(self._filled)

    async def _check_some(self) -> None:
        """Check the next outboxes, of all queues: even if all workers of a queue are dead, jobs elsewhere may wait for
        its entries."""
        if not self._unchecked:
            self._unchecked = await self._all_partitions()
        some, self._unchecked = self._unchecked[:OUTBOXES], self._unchecked[OUTBOXES:]
        some = [where for where in some if not is_away(self._store, *where)]
        for queue, partition in await self._outbox.non_empty(some):
            self.note_filled(queue, partition)

    async def _all_partitions(self) -> list[QueuePartition]:
        partitions = [(queue, p) for queue in await self._store.queues.open_all() for p in range(queue.partitions)]
        # Each worker takes its own order, so that together they find entries sooner.
        random.shuffle(partitions)
        return partitions

    async def _carry_page(self, queue: OpenQueue, partition: int) -> None:
        at = self._skipped.pop((queue.name, partition), 0)
        entries = await self._outbox.page(queue, partition, at)
        done = await self.carry(queue, partition, entries)
        if len(entries) == PAGE:
            # A page of entries that cannot be carried now must not block the entries behind it.
            self._skipped[queue.name, partition] = at if done else at + PAGE
            self.note_filled(queue, partition)

    async def carry(self, queue: OpenQueue, partition: int, entries: Sequence[bytes]) -> bool:
        """Carry these entries of the partition's outbox. True if at least one is done."""
        ends = [entry for entry in entries if is_end(entry)]
        asks = [entry for entry in entries if is_ask(entry)]
        if len(ends) + len(asks) < len(entries) and self._may_log("entries", queue.name, partition):
            log.error(
                "entries that this version cannot read are left: `tocsin doctor --repair` clears them",
                queue=queue.name,
                partition=partition,
            )
        done = await self.ask(queue, asks) if asks else 0
        if ends:
            done += await self._pass_on_ends(queue, partition, ends)
        self.carried += done
        return done > 0

    # Entries of dependents, which wait for the end of an upstream job

    async def ask(self, queue: OpenQueue, entries: Sequence[bytes]) -> int:
        """Register the dependents of these entries as watchers of their upstream jobs, and unblock those whose upstream
        job has ended. Returns how many entries are done."""
        by_name: dict[bytes, list[bytes]] = {}
        for entry in entries:
            by_name.setdefault(decode_ask(entry)[2], []).append(entry)
        codes: dict[bytes, str] = {}
        for name, some in by_name.items():
            answer = await self._watch(name, [_watch_of(queue, entry) for entry in some])
            codes |= dict(zip(some, answer, strict=True))
        ends = [_upstream_end(entry, code) for entry, code in codes.items() if code not in (WATCHING, LATER)]
        done = [entry for entry, code in codes.items() if code != LATER]
        await self._unblock(queue, ends, done)
        return len(done)

    async def _watch(self, name: bytes, pairs: Sequence[tuple[bytes, bytes]]) -> str:
        try:
            where = await self._store.find_queue(name.decode(errors="replace"))
            if where is None:
                return GONE * len(pairs)
            codes = await self._outbox.watch(where, pairs)
            return await self._add_remembered(where, pairs, codes) if GONE in codes else codes
        except StoreUnavailable:
            raise
        except (StoreError, InvalidConfig):
            # The queue is being repartitioned or is garbled. Entries for other queues must not wait for it.
            return LATER * len(pairs)

    async def _add_remembered(self, where: OpenQueue, pairs: Sequence[tuple[bytes, bytes]], codes: str) -> str:
        """Replace GONE by a success if the events have one. A job's outcome is kept for its watchers; if the server
        lost the watcher before the job ended, only the events may still know that the job succeeded."""
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

    # Entries of upstream jobs that have ended

    async def _pass_on_ends(self, queue: OpenQueue, partition: int, entries: Sequence[bytes]) -> int:
        """Pass these ends on to the jobs that wait for them. Returns how many ends reached all their watchers."""
        upstreams = [job_of_entry(entry) for entry in entries]
        found = await self._outbox.watchers(queue, partition, entries)
        by_name: dict[bytes, list[UpstreamEnd]] = {}
        for entry, upstream, watchers in zip(entries, upstreams, found, strict=True):
            source = source_of(queue.name.encode(), upstream)
            for watcher in filter(is_watcher, watchers):
                name, member, life = decode_watcher(watcher)
                by_name.setdefault(name, []).append(UpstreamEnd(member, life, source, outcome_of_end(entry)))
        unreached: set[bytes] = set()
        for name, ends in by_name.items():
            try:
                where = await self._store.find_queue(name.decode(errors="replace"))
                if where is not None:
                    await self._unblock(where, ends)
            except StoreUnavailable:
                raise
            except (StoreError, InvalidConfig):
                unreached.add(name)
        reached = [
            # A garbled watcher names no job, so it counts as reached and its watch ends.
            (
                entry,
                upstream,
                [watcher for watcher in watchers if not unreached or job_of_entry(watcher) not in unreached],
            )
            for entry, upstream, watchers in zip(entries, upstreams, found, strict=True)
        ]
        for there, left in (await self._outbox.end_watch(queue, reached)).items():
            # A later check finds the entries for queues that are being repartitioned.
            if left and not unreached:
                self.note_filled(queue, there)
        return sum(len(some) == len(watchers) for (_, _, some), watchers in zip(reached, found, strict=True))

    async def _unblock(self, queue: OpenQueue, ends: Sequence[UpstreamEnd], carried: Sequence[bytes] = ()) -> None:
        async for reply in self._outbox.unblock(queue, ends, carried):
            if reply.head >= 0:
                self._look_again(queue, reply.partition)
            if reply.to_carry:
                self.note_filled(queue, reply.partition)


def _watch_of(queue: OpenQueue, entry: bytes) -> tuple[bytes, bytes]:
    """Return (upstream, watcher) of a W entry in an outbox of this queue."""
    member, life, _, upstream = decode_ask(entry)
    return upstream, encode_watcher(queue.name.encode(), member, life)


def _upstream_end(entry: bytes, code: str) -> UpstreamEnd:
    member, life, name, upstream = decode_ask(entry)
    # A recurring job never ends, so it counts as cancelled; a job that nobody knows has not succeeded.
    outcome = {GONE: UPSTREAM_UNKNOWN, RECURRING: CANCELLED}.get(code)
    return UpstreamEnd(member, life, source_of(name, upstream), int(code) if outcome is None else outcome)
