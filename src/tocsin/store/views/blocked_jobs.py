"""Blocked jobs, page by page, and whether the ends that they wait for will reach them.

A dependent and its upstream may be on different nodes. If one node loses its last writes, the other goes on as if
nothing had happened: the dependent is blocked again after its end reached it, or it is no longer among the watchers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from tocsin.model import msgpack
from tocsin.store.scripts.script import script
from tocsin.store.store import LARGEST_BATCH, OpenQueue, Store
from tocsin.store.transitions.dependencies import GONE, DependencyWait, Upstream, read_wait

# The answer of dependency_look for a wait that is in order.
IN_ORDER = "."

Item = TypeVar("Item")


class UnheardEnd(msgspec.Struct, frozen=True):
    """A blocked job and an upstream whose end will not reach it. `code`: what dependency_watch answers for that one."""

    member: bytes
    wait: DependencyWait
    upstream: Upstream
    code: str = GONE


class BlockedJobs:
    def __init__(self, store: Store) -> None:
        # Commands sent so far.
        self.calls = 0
        self._store = store

    async def page(
        self, queue: OpenQueue, partition: int, cursor: int, count: int
    ) -> tuple[int, dict[bytes, DependencyWait]]:
        """The cursor of the next page, 0: none; and about `count` blocked jobs with what they wait for."""
        key = queue.keys[partition]["needs"]
        following, found = await self._read(lambda c: c.hscan(key, cursor, count=count))
        return following, readable_waits(found)

    async def unheard(
        self, queue: OpenQueue, partition: int, waits: Mapping[bytes, DependencyWait], queues: Mapping[str, OpenQueue]
    ) -> list[UnheardEnd]:
        """The upstreams of these blocked jobs whose ends will not reach them. `queues`: where upstreams may be; those
        in a queue that is being repartitioned are passed over.

        The order of the checks matters. An entry of the outbox is removed after its watcher was added, and a watcher
        after the end reached the job. So a job that still waits, with neither entry nor watcher, waits in vain."""
        pairs = [UnheardEnd(member, wait, upstream) for member, wait in waits.items() for upstream in wait.upstreams]
        unasked = await self._unasked(queue, partition, pairs)
        unwatched = await self._unwatched(queue, unasked, queues)
        return await self._still_waiting(queue, partition, unwatched) if unwatched else []

    async def _unasked(self, queue: OpenQueue, partition: int, pairs: Sequence[UnheardEnd]) -> list[UnheardEnd]:
        """The pairs for which the outbox has no entry."""
        outbox, left = queue.keys[partition]["outbox"], []
        for some in _batches(pairs):
            entries = [each.wait.entry(_name(each.member), each.upstream) for each in some]
            scores = await self._read(lambda c, e=entries: c.zmscore(outbox, e))
            left += [each for each, score in zip(some, scores, strict=True) if score is None]
        return left

    async def _unwatched(
        self, queue: OpenQueue, pairs: Sequence[UnheardEnd], queues: Mapping[str, OpenQueue]
    ) -> list[UnheardEnd]:
        """The pairs for which the upstream's partition has no watcher."""
        found: list[UnheardEnd] = []
        places: dict[tuple[str, int], list[UnheardEnd]] = {}
        for each in pairs:
            where = queues.get(each.upstream.queue)
            if where is None:
                found.append(each)
            elif where.moving is None:
                places.setdefault((where.name, where.partition_of(each.upstream.id)), []).append(each)
        for (name, partition), there in places.items():
            for some in _batches(there):
                codes = await self._look(queue, queues[name], partition, some)
                found += [
                    msgspec.structs.replace(each, code=code)
                    for each, code in zip(some, codes, strict=True)
                    if code != IN_ORDER
                ]
        return found

    async def _look(self, queue: OpenQueue, where: OpenQueue, partition: int, some: Sequence[UnheardEnd]) -> str:
        pairs = [(each.upstream.id.encode(), each.wait.watcher(queue.name, _name(each.member))) for each in some]
        look, args = script("dependency_look"), [msgpack.texts(part for pair in pairs for part in pair)]
        answer: bytes = await self._read(lambda c: look(c, where.keys_of(look, partition), args))
        return answer.decode()

    async def _still_waiting(self, queue: OpenQueue, partition: int, found: Sequence[UnheardEnd]) -> list[UnheardEnd]:
        """Without jobs that the end reached, or that were put again, while we looked."""
        members = list(dict.fromkeys(each.member for each in found))
        key, now = queue.keys[partition]["needs"], dict[bytes, DependencyWait]()
        for some in _batches(members):
            raws = await self._read(lambda c, m=some: c.hmget(key, m))
            now |= readable_waits(dict(zip(some, raws, strict=True)))
        return [
            each
            for each in found
            if (wait := now.get(each.member)) and wait.life == each.wait.life and each.upstream in wait.upstreams
        ]

    async def _read(self, command: Any) -> Any:
        self.calls += 1
        return await self._store.run_repeatable(command)


def readable_waits(found: Mapping[bytes, bytes | None]) -> dict[bytes, DependencyWait]:
    read = {member: read_wait(raw) for member, raw in found.items() if raw is not None}
    return {member: wait for member, wait in read.items() if wait is not None}


def _batches(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    return (items[first : first + LARGEST_BATCH] for first in range(0, len(items), LARGEST_BATCH))


def _name(member: bytes) -> str:
    return member.decode(errors="replace")
