"""Blocked jobs, page by page, and whether they will be told of the ends that they wait for.

A dependent and what it waits for may be on different nodes. If one of the two loses its last writes, the other goes on
as if nothing had happened: the dependent is blocked again after it was told, or its name among the watchers is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from tocsin.model import codec
from tocsin.store.scripts.script import script
from tocsin.store.store import LARGEST_BATCH, OpenQueue, Store
from tocsin.store.transitions.dependencies import GONE, DependencyWait, Upstream, read_wait

# What dependency_look says of a wait that is in order.
IN_ORDER = "."

Item = TypeVar("Item")


class UnheardEnd(msgspec.Struct, frozen=True):
    """A blocked job that will not be notified of an end that it waits for. `code`: what dependency_watch says of it."""

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
        """Some blocked jobs of a partition, about `count`, and what they wait for; the cursor of the next, 0: none."""
        key = queue.keys[partition]["needs"]
        following, found = await self._read(lambda c: c.hscan(key, cursor, count=count))
        return following, readable_waits(found)

    async def unheard(
        self, queue: OpenQueue, partition: int, waits: Mapping[bytes, DependencyWait], queues: Mapping[str, OpenQueue]
    ) -> list[UnheardEnd]:
        """Of these blocked jobs of a partition, what they wait for and will not be told of. `queues`: where that may
        be; what is in a queue that is being repartitioned is passed over.

        The order matters: an entry of the outbox goes when the watcher is there, and a watcher when the job was told.
        So what is found nowhere and is waited for all the same is not on its way."""
        pairs = [UnheardEnd(member, wait, upstream) for member, wait in waits.items() for upstream in wait.upstreams]
        unasked = await self._unasked(queue, partition, pairs)
        unwatched = await self._unwatched(queue, unasked, queues)
        return await self._still_waiting(queue, partition, unwatched) if unwatched else []

    async def _unasked(self, queue: OpenQueue, partition: int, pairs: Sequence[UnheardEnd]) -> list[UnheardEnd]:
        """Those that no entry of the outbox asks for."""
        outbox, left = queue.keys[partition]["outbox"], []
        for some in _batches(pairs):
            entries = [each.wait.entry(_name(each.member), each.upstream) for each in some]
            scores = await self._read(lambda c, e=entries: c.zmscore(outbox, e))
            left += [each for each, score in zip(some, scores, strict=True) if score is None]
        return left

    async def _unwatched(
        self, queue: OpenQueue, pairs: Sequence[UnheardEnd], queues: Mapping[str, OpenQueue]
    ) -> list[UnheardEnd]:
        """Those that will not be told where the upstream is."""
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
        pairs = [(each.upstream.id, each.wait.watcher(queue.name, _name(each.member))) for each in some]
        look, args = script("dependency_look"), [codec.encode([part for pair in pairs for part in pair])]
        answer: bytes = await self._read(lambda c: look(c, where.keys_of(look, partition), args))
        return answer.decode()

    async def _still_waiting(self, queue: OpenQueue, partition: int, found: Sequence[UnheardEnd]) -> list[UnheardEnd]:
        """Without those that were told, or put anew, while we looked."""
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
        return await self._store.read(command)


def readable_waits(found: Mapping[bytes, bytes | None]) -> dict[bytes, DependencyWait]:
    read = {member: read_wait(raw) for member, raw in found.items() if raw is not None}
    return {member: wait for member, wait in read.items() if wait is not None}


def _batches(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    return (items[first : first + LARGEST_BATCH] for first in range(0, len(items), LARGEST_BATCH))


def _name(member: bytes) -> str:
    return member.decode(errors="replace")
