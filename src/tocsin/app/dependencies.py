"""Jobs that wait for other jobs: which ones, and how they are put.

Those that are waited for are watched first, then the dependent is put, then they are watched once more by the entries
that the put left in its outbox. So whichever of them ends in between is known to have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from tocsin.app.blocking import BlockingHandle
from tocsin.app.handle import Handle
from tocsin.app.lookup import Lookup
from tocsin.model.errors import InvalidArgument, StoreError, TocsinError, UnknownJob, nearest
from tocsin.model.ids import check_job_id, new_id
from tocsin.model.outcome import CHANGED, IS_WORKING, NEW, SUCCEEDED
from tocsin.store.store import LARGEST_BATCH, OpenQueue, Store
from tocsin.store.transitions.dependencies import GONE, LATER, RECURRING, WATCHING, DependencyWait, Outbox, Upstream
from tocsin.store.transitions.jobs import Jobs, PutItem
from tocsin.upkeep.outbox_carrier import LONGEST_CARRY, OutboxCarrier

MOST = 1000
_POLICIES = ("cancel", "run")


class UpstreamRefs(Struct, frozen=True):
    """What `after` and `on_upstream_failure` say."""

    refs: Sequence[str | Upstream]
    anyway: bool


def check_after(after: Iterable[Any], on_upstream_failure: str) -> UpstreamRefs | None:
    """None if there is nothing to wait for."""
    if on_upstream_failure not in _POLICIES:
        hint = nearest(str(on_upstream_failure), _POLICIES)
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


class DependentWriter:
    """Puts jobs that wait for others."""

    def __init__(self, store: Store, lookup: Lookup, jobs: Jobs, carrier: OutboxCarrier) -> None:
        self._store = store
        self._lookup = lookup
        self._jobs = jobs
        self._carrier = carrier
        self._outbox = Outbox(store)

    async def put(self, where: OpenQueue, put: PutItem, after: UpstreamRefs) -> tuple[int, int]:
        """As Jobs.put. Raises UnknownJob for a job to wait for that nobody knows."""
        upstreams = await self._resolve(after.refs)
        if Upstream(where.name, put.member) in upstreams:
            raise InvalidArgument(f"job {put.member!r} cannot wait for itself")
        wait = await self._watch(where, put.member, DependencyWait(new_id(), after.anyway, upstreams))
        if not wait.upstreams:
            return await self._jobs.put(where, put)
        codes = await self._block(where, [put], wait)
        return codes[0], -1

    async def bulk(self, where: OpenQueue, after: UpstreamRefs) -> tuple[Any, int]:
        """How to send a batch of puts that all wait for the same, and how large one may be."""
        wait = DependencyWait(new_id(), after.anyway, await self._resolve(after.refs))
        # A watcher that is no job: it makes them remembered until the last row is put.
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
        """Ids are looked up in all queues in one round."""
        found = await asyncio.gather(*(self._find(ref) for ref in refs if isinstance(ref, str)))
        return sorted({*found, *(ref for ref in refs if isinstance(ref, Upstream))})

    async def _find(self, job_id: str) -> Upstream:
        found = await self._lookup.find_any(job_id, None, "pass the handle that enqueue returned")
        if found is None:
            raise _unknown(job_id)
        return Upstream(found.queue.name, job_id)

    async def _watch(self, where: OpenQueue, member: str, wait: DependencyWait) -> DependencyWait:
        """Without those that are no reason to wait."""
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
        pairs = [(upstream.id.encode(), watcher) for upstream in some]
        for _ in range(LONGEST_CARRY):
            codes = await self._outbox.watch(queue, pairs)
            if LATER not in codes:
                return codes
            # An end of an earlier job of that id is still on its way: it is not the one that is meant.
            for upstream, code in zip(some, codes, strict=True):
                if code == LATER:
                    self._carrier.hear(queue, queue.partition_of(upstream.id))
            await self._carrier.carry_some()
        raise TocsinError(f"the ends of jobs of queue {queue.name!r} cannot be told: run `tocsin doctor`")

    async def _block(self, where: OpenQueue, puts: list[PutItem], wait: DependencyWait) -> bytes:
        codes = await self._outbox.block(where, [(put, wait) for put in puts])
        placed = [put for put, code in zip(puts, codes, strict=True) if code in (NEW, CHANGED)]
        for put, code in zip(puts, codes, strict=True):
            if code == IS_WORKING:
                raise InvalidArgument(f"job {put.member!r} is running and cannot wait for others now: give another id")
        entries = [entry for put in placed for entry in wait.entries(put.member)]
        # What cannot be carried now is carried by a worker: the job is put.
        with contextlib.suppress(StoreError):
            await self._carrier.ask(where, entries)
            await carry_on(self._carrier)
        return codes


async def carry_on(carrier: OutboxCarrier) -> None:
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
        "if it has ended, nobody remembers it: enqueue what others wait for with an id of its own, or with keep=",
    )
