"""Puts jobs that wait for other jobs.

The upstreams, the jobs to wait for, are watched first. Then the dependent is put; the put leaves entries in its outbox.
These watch the upstreams once more, so an upstream that ends in between is not missed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct

from tocsin.app.blocking import BlockingHandle
from tocsin.app.handle import Handle
from tocsin.app.lookup import Lookup
from tocsin.model.errors import InvalidArgument, StoreError, TocsinError, UnknownJob, did_you_mean
from tocsin.model.ids import check_job_id, new_id
from tocsin.model.outcome import CHANGED, IS_WORKING, NEW, SUCCEEDED
from tocsin.store.store import LARGEST_BATCH, OpenQueue, Store
from tocsin.store.transitions.dependencies import GONE, LATER, RECURRING, WATCHING, DependencyWait, Outbox, Upstream
from tocsin.store.transitions.jobs import Jobs, PutItem
from tocsin.upkeep.outbox_carrier import LONGEST_CARRY, OutboxCarrier

MOST = 1000
_POLICIES = ("cancel", "run")


class UpstreamRefs(Struct, frozen=True):
    """The jobs of `after`. `anyway`: run whether they succeed or not, as `on_upstream_failure` says."""

    refs: Sequence[str | Upstream]
    anyway: bool


def check_after(after: Iterable[Any], on_upstream_failure: str) -> UpstreamRefs | None:
    """None if no job is to be waited for."""
    if on_upstream_failure not in _POLICIES:
        hint = did_you_mean(str(on_upstream_failure), _POLICIES)
        raise InvalidArgument(f"there is no on_upstream_failure={on_upstream_failure!r}; {hint}")
    if after == ():
        return None
    if isinstance(after, (str, bytes, Handle, BlockingHandle)) or not isinstance(after, Iterable):
        raise InvalidArgument(f"after is a list of job ids or handles, not {after!r}: write after=[...]")
    refs = list(dict.fromkeys(map(_ref, after)))
    if len(refs) > MOST:
        raise InvalidArgument(f"a job can wait for at most {MOST} others, not {len(refs)}: put a job in between")
    return UpstreamRefs(refs, on_upstream_failure == "run") if refs else None


def _ref(ref: Any) -> str | Upstream:
    if isinstance(ref, (Handle, BlockingHandle)):
        return ref.id if ref.queue is None else Upstream(ref.queue, ref.id)
    return check_job_id(ref)


class EndCarrier:
    """Carries on what calls of this program leave in outboxes, so that dependents need not wait for a worker.

    Each call has a carrier of its own. One carrier for all would return to a call whose entries another call still
    carries, and fail a call because a server is away that only another call needs.
    """

    def __init__(self, store: Store, ring: Callable[[OpenQueue, int], None]) -> None:
        self._store = store
        self._ring = ring

    def new(self) -> OutboxCarrier:
        return OutboxCarrier(self._store, self._store.clock, self._ring)

    async def carry(self, queue: OpenQueue, partition: int) -> None:
        """Carry the ends of jobs from that outbox to their dependents. What fails now is left to a worker."""
        carrier = self.new()
        carrier.note_filled(queue, partition)
        with contextlib.suppress(StoreError):
            await _carry_on(carrier)


class DependentWriter:
    """Puts jobs that wait for others."""

    def __init__(self, store: Store, lookup: Lookup, jobs: Jobs, new_carrier: Callable[[], OutboxCarrier]) -> None:
        self._store = store
        self._lookup = lookup
        self._jobs = jobs
        self._new_carrier = new_carrier
        self._outbox = Outbox(store)

    async def put(self, where: OpenQueue, put: PutItem, after: UpstreamRefs) -> tuple[int, int]:
        """As Jobs.put. Raises UnknownJob for an upstream that does not exist and is not remembered."""
        upstreams = await self._resolve(after.refs)
        if Upstream(where.name, put.member) in upstreams:
            raise InvalidArgument(f"job {put.member!r} cannot wait for itself")
        wait = await self._watch(where, put.member, DependencyWait(new_id(), after.anyway, upstreams))
        if not wait.upstreams:
            return await self._jobs.put(where, put)
        codes = await self._block(where, [put], wait)
        return codes[0], -1

    async def bulk(self, where: OpenQueue, after: UpstreamRefs) -> tuple[Any, int]:
        """How to send a batch of puts that all wait for the same jobs (None: as usual), and the size of a batch."""
        wait = DependencyWait(new_id(), after.anyway, await self._resolve(after.refs))
        # This watcher is no job. It only makes the upstreams remembered until the last row is put.
        wait = await self._watch(where, wait.life, wait)
        if not wait.upstreams:
            return None, LARGEST_BATCH

        async def send(puts: list[PutItem]) -> tuple[bytes, int]:
            for put in puts:
                if Upstream(where.name, put.member) in wait.upstreams:
                    raise InvalidArgument(f"job {put.member!r} cannot wait for itself")
            return await self._block(where, puts, wait), -1

        return send, max(1, LARGEST_BATCH // len(wait.upstreams))

    async def _resolve(self, refs: Sequence[str | Upstream]) -> list[Upstream]:
        """Finds the queues of plain ids, all at once."""
        found = await asyncio.gather(*(self._find(ref) for ref in refs if isinstance(ref, str)))
        return sorted({*found, *(ref for ref in refs if isinstance(ref, Upstream))})

    async def _find(self, job_id: str) -> Upstream:
        found = await self._lookup.find_any(job_id, None, "pass the handle that enqueue returned")
        if found is None:
            raise _unknown(job_id)
        return Upstream(found.queue.name, job_id)

    async def _watch(self, where: OpenQueue, member: str, wait: DependencyWait) -> DependencyWait:
        """Watch the upstreams, and return the wait without those that have ended as the dependent needs it."""
        watcher = wait.watcher(where.name, member)
        by_queue: dict[str, list[Upstream]] = {}
        for upstream in wait.upstreams:
            by_queue.setdefault(upstream.queue, []).append(upstream)
        needed: list[Upstream] = []
        for name, some in by_queue.items():
            queue = await self._store.find_queue(name)
            if queue is None:
                raise _unknown(some[0].id)
            codes = await self._watch_some(queue, some, watcher)
            for upstream, code in zip(some, codes, strict=True):
                _refuse(upstream, code)
                if code == WATCHING or not (wait.anyway or int(code) == SUCCEEDED):
                    needed.append(upstream)
        return DependencyWait(wait.life, wait.anyway, needed)

    async def _watch_some(self, queue: OpenQueue, some: list[Upstream], watcher: bytes) -> str:
        carrier, pairs = self._new_carrier(), [(upstream.id.encode(), watcher) for upstream in some]
        for _ in range(LONGEST_CARRY):
            codes = await self._outbox.watch(queue, pairs)
            if LATER not in codes:
                return codes
            # The end of an earlier job with that id is still on its way to its dependents. Carry it there, then ask for
            # the present job.
            for upstream, code in zip(some, codes, strict=True):
                if code == LATER:
                    carrier.note_filled(queue, queue.partition_of(upstream.id))
            await carrier.carry_some()
        raise TocsinError(f"dependents of jobs of queue {queue.name!r} cannot be unblocked: run `tocsin doctor`")

    async def _block(self, where: OpenQueue, puts: list[PutItem], wait: DependencyWait) -> bytes:
        codes = await self._outbox.block(where, [(put, wait) for put in puts])
        placed = [put for put, code in zip(puts, codes, strict=True) if code in (NEW, CHANGED)]
        for put, code in zip(puts, codes, strict=True):
            if code == IS_WORKING:
                raise InvalidArgument(f"job {put.member!r} is running and cannot wait for others now: give another id")
        entries = [entry for put in placed for entry in wait.entries(put.member)]
        # The jobs are put. A worker carries what cannot be carried now.
        with contextlib.suppress(StoreError):
            carrier = self._new_carrier()
            await carrier.ask(where, entries)
            await _carry_on(carrier)
        return codes


async def _carry_on(carrier: OutboxCarrier) -> None:
    for _ in range(LONGEST_CARRY):
        if not await carrier.carry_some():
            return


def _refuse(upstream: Upstream, code: str) -> None:
    if code == GONE:
        raise _unknown(upstream.id)
    if code == RECURRING:
        raise InvalidArgument(
            f"job {upstream.id!r} of queue {upstream.queue!r} recurs and never ends, so nothing can wait for it: "
            "enqueue a one-shot and wait for that"
        )


def _unknown(job_id: str) -> UnknownJob:
    return UnknownJob(
        job_id,
        "if it has ended, it is forgotten: enqueue jobs that others wait for with an id of their own, or with keep=",
    )
