"""The auditor's eyes and hands: pages of a partition, where some jobs stand at one instant, sizes, mends.

Nothing here asks the server for everything at once. Every page is a cursor's, every look a bounded script.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Sequence
from enum import IntFlag
from typing import Any

import msgspec
from redis.asyncio import RedisCluster

from tocsin.model import codec
from tocsin.model.durations import Millis
from tocsin.model.errors import InvalidArgument, RecordUnreadable, StoreError, did_you_mean
from tocsin.store import queue_directory
from tocsin.store.keys import BANDS, STAGE_KEYS
from tocsin.store.numbers import is_whole, time_of, whole
from tocsin.store.scripts.script import script
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.dependencies import Outbox
from tocsin.store.transitions.jobs import HASHES, columns_of

# A look at so many jobs takes the server about two milliseconds.
PAGE = 500
# Bytes of values that one page may bring along: HSCAN always sends them.
PAGE_BYTES = 1024 * 1024
# Of a result; some are larger (`limits.result-bytes`), most are far smaller.
WIDE_RESULT = 64 * 1024
LARGEST_SESSION = 64 * 1024
LARGEST_WAIT = 64 * 1024
_LARGEST = {"claims": 512, "errors": 6 * 1024, "results": WIDE_RESULT, "needs": LARGEST_WAIT}


class JobPresence(IntFlag):
    """What lua/audit_look.lua says of a job."""

    RECORD = 1
    WAITING = 2
    WORKING = 4
    PAUSED = 8
    PARKED = 16
    DEAD = 32
    DONE = 64
    CLAIM = 128
    HELD = 256
    UNREADABLE = 512
    ERROR = 1024
    RESULT = 2048
    READY = 4096
    BLOCKED = 8192
    MISPLACED = 16384
    NEEDS = 32768
    UNNAMED = 65536

    @property
    def stages(self) -> list[str]:
        return [name for name in (*STAGE_KEYS, "ready") if self & JobPresence[name.upper()]]


class PartitionMeta(msgspec.Struct, frozen=True):
    """What a partition says of itself; None where it says nothing."""

    epoch: bytes | None
    order: str | None
    partitions: int | None
    sealed: bool
    widest: int


class Session(msgspec.Struct, frozen=True):
    key: bytes
    # Seq and time, as stored: they change with each call.
    mark: bytes
    at: Millis

    @property
    def name(self) -> str:
        return self.key.decode(errors="replace")


class Node(msgspec.Struct, frozen=True):
    """A server, in its own words."""

    name: str
    product: str
    version: str
    aof: bool
    write_errors: list[str]
    used_bytes: int
    max_bytes: int


class AuditReader:
    """Looks at one namespace without opening its queues: opening would create what is missing."""

    def __init__(self, store: Store, most: int | None = None) -> None:
        """`most`: how many entries of a key are looked at, in no order; None: all."""
        self.store = store
        self.most = most
        self._fleet = store.keys.fleet()
        self.outbox = Outbox(store)

    async def now(self) -> Millis:
        return await self.store.now()

    async def queues(self) -> tuple[list[OpenQueue], list[str]]:
        """All that are registered, without epochs; and the names of those whose entry cannot be read."""
        found = await self.store.read(lambda c: c.hgetall(self._fleet["queues"]))
        readable, garbled = [], []
        for name, raw in sorted((name.decode(errors="replace"), raw) for name, raw in found.items()):
            try:
                entry = queue_directory.read(raw)
                queue = OpenQueue(entry.queue(name), self.store.keys, [], entry.move)
            except RecordUnreadable:
                garbled.append(name)
                continue
            if entry.moving is not None:
                # Its jobs are in the partitions that it had, or in those that it will have.
                queue.keys = [self.store.keys.partition(name, p) for p in range(max(entry.partitions, entry.moving.to))]
                queue.moving = entry.moving
            readable.append(queue)
        return readable, garbled

    async def named(self, name: str | None) -> list[OpenQueue]:
        """The one of that name, or all. Raises InvalidArgument for a name that nobody registered."""
        queues, _ = await self.queues()
        wanted = [queue for queue in queues if name in (None, queue.name)]
        if name is not None and not wanted:
            known = [queue.name for queue in queues]
            hint = did_you_mean(name, known) if known else "none is registered yet: start a worker, or enqueue a job"
            raise InvalidArgument(f"there is no queue {name!r}; {hint}")
        return wanted

    async def settings(self, queue: OpenQueue, partition: int) -> PartitionMeta:
        names = ("epoch", "order", "partitions", "sealed", "widest")
        meta = queue.keys[partition]["meta"]
        epoch, order, partitions, sealed, widest = await self.store.read(lambda c: c.hmget(meta, names))
        return PartitionMeta(
            epoch=epoch,
            order=None if order is None else order.decode(errors="replace"),
            partitions=whole(partitions) if is_whole(partitions) else None,
            sealed=sealed is not None,
            widest=whole(widest),
        )

    # Pages

    async def fields(
        self, queue: OpenQueue, partition: int, base: str, widest: int
    ) -> AsyncIterator[dict[bytes, bytes]]:
        """What a hash has for its ids, in no order; some may come twice. `widest`: bytes of its largest value."""
        async for page in self._hash(queue.keys[partition][base], widest):
            yield page

    async def members(self, queue: OpenQueue, partition: int, base: str) -> AsyncIterator[list[bytes]]:
        """The ids in a sorted set, in no order; some may come twice."""
        key, cursor = queue.keys[partition][base], 0
        left = self._enough(await self.store.read(lambda c: c.zcard(key)))
        while left > 0:
            cursor, page = await self.store.read(
                lambda c, at=cursor: c.zscan(key, at, count=PAGE)  # type: ignore[misc]
            )
            yield [member for member, _ in page]
            left = left - len(page) if cursor else 0

    async def without_record(self, queue: OpenQueue, partition: int) -> AsyncIterator[tuple[list[bytes], int]]:
        """Pages of all keys that have something of jobs: the ids that have no record, and how many a page had."""
        look, sizes = queue.script("audit_page"), await self._sizes(queue, partition)
        keys = queue.keys_of(look, partition)
        for number, (base, size) in enumerate(sizes.items(), 1):
            if base == "jobs" or not size:
                continue
            left, cursor = self._enough(size), b"0"
            while left > 0:
                args = [number, cursor, _page_of(_LARGEST.get(base, 1))]
                cursor, ids, looked = await self.store.read(lambda c, a=args: look(c, keys, a))  # type: ignore[misc]
                yield ids, int(looked)
                left = left - int(looked) if cursor != b"0" else 0

    async def sessions(self, queue: OpenQueue, partition: int) -> AsyncIterator[list[Session]]:
        async for page in self._hash(queue.keys[partition]["sessions"], LARGEST_SESSION):
            yield [Session(name, raw[:16], int.from_bytes(raw[8:16], "big")) for name, raw in page.items()]

    async def _hash(self, key: str, widest: int) -> AsyncIterator[dict[bytes, bytes]]:
        count, cursor = _page_of(widest), 0
        left = self._enough(await self.store.read(lambda c: c.hlen(key)))
        while left > 0:
            cursor, page = await self.store.read(
                lambda c, at=cursor: c.hscan(key, at, count=count)  # type: ignore[misc]
            )
            yield page
            left = left - len(page) if cursor else 0

    async def look(self, queue: OpenQueue, partition: int, members: Sequence[bytes]) -> list[JobPresence]:
        """Where they stand, all at one instant, however many a page had."""
        look = queue.script("audit_look")
        keys = queue.keys_of(look, partition)
        seen: list[JobPresence] = []
        for first in range(0, len(members), PAGE):
            items = _ids(members[first : first + PAGE])
            seen += map(_standing, await self.store.read(lambda c, i=items: look(c, keys, [i])))  # type: ignore[misc]
        return seen

    # Sizes

    async def entries(self, queue: OpenQueue, partition: int) -> int:
        """How many entries of all keys that have jobs a walk over the partition meets."""
        sizes = (await self._sizes(queue, partition)).values()
        return sum(sizes) if self.most is None else sum(min(size, self.most) for size in sizes)

    async def _sizes(self, queue: OpenQueue, partition: int) -> dict[str, int]:
        keys, bases = queue.keys[partition], columns_of(queue.queue.order)

        async def ask(client: Any) -> Any:
            async with client.pipeline(transaction=False) as pipe:
                for base in bases:
                    pipe.hlen(keys[base]) if base in HASHES else pipe.zcard(keys[base])
                return await pipe.execute()

        return dict(zip(bases, await self.store.read(ask), strict=True))

    def _enough(self, size: int) -> int:
        """How many entries of a cursor are enough: one that is chased by new entries might never end."""
        return 2 * size + 1000 if self.most is None else self.most

    async def counts(self, queue: OpenQueue, overdue_before: Millis) -> dict[str, int]:
        """Per stage, and `done`, `claims`, `sessions`, `overdue`, over all partitions."""

        async def ask(client: Any) -> Any:
            async with client.pipeline(transaction=False) as pipe:
                for keys in queue.keys:
                    for stage in (*STAGE_KEYS, "done", *BANDS):
                        pipe.zcard(keys[stage])
                    for base in ("claims", "sessions"):
                        pipe.hlen(keys[base])
                    pipe.zcount(keys["working"], "-inf", overdue_before)
                return await pipe.execute()

        names = (*STAGE_KEYS, "done", *BANDS, "claims", "sessions", "overdue")
        found = await self.store.read(ask)
        counts = {name: sum(found[i :: len(names)]) for i, name in enumerate(names)}
        return {"ready": sum(counts.pop(band) for band in BANDS), **counts}

    async def due_before(self, queue: OpenQueue, before: Millis) -> int:
        """How many wait in line since then or longer, of the queue of agents."""
        line = queue.keys[0]["waiting"]
        return int(await self.store.read(lambda client: client.zcount(line, "-inf", before)))

    async def memory(self, queue: OpenQueue) -> int | None:
        """Bytes, estimated by the server from samples; None where it does not let us ask."""

        async def ask(client: Any) -> Any:
            async with client.pipeline(transaction=False) as pipe:
                for keys in queue.keys:
                    for key in keys.values():
                        pipe.memory_usage(key)
                return await pipe.execute()

        try:
            return sum(size or 0 for size in await self.store.read(ask))
        except StoreError:
            return None

    async def bell(self, queue: OpenQueue) -> int:
        key = self.store.keys.bell(queue.name)
        return int(await self.store.read(lambda c: c.llen(key)))

    async def buried(self) -> list[tuple[str, Millis]]:
        """The first hundred workers whose claims are still to be brought back, and since when."""
        found = await self.store.read(lambda c: c.zrange(self._fleet["buried"], 0, 99, withscores=True))
        return [(name.decode(errors="replace"), time_of(since)) for name, since in found]

    async def nodes(self) -> list[Node]:
        async def ask(client: Any) -> Any:
            if not isinstance(client, RedisCluster):
                return {self.store.address.shown: await client.info()}
            await client.initialize()
            return {
                node.name: await client.execute_command("INFO", target_nodes=node) for node in client.get_primaries()
            }

        return [_node(name, info) for name, info in (await self.store.read(ask)).items()]

    # Mending

    async def mend(self, queue: OpenQueue, partition: int, members: Sequence[bytes]) -> list[bool]:
        """Each is looked at again where it is changed."""
        mended: list[bool] = []
        for first in range(0, len(members), PAGE):
            answer = await self.store.change("audit_mend", queue, partition, _ids(members[first : first + PAGE]))
            mended += [code == ord("1") for code in answer[1]]
        return mended

    async def forget(self, queue: OpenQueue, partition: int, sessions: Sequence[Session]) -> int:
        forget, dropped = script("audit_forget"), 0
        keys = queue.keys_of(forget, partition)
        for first in range(0, len(sessions), PAGE):
            items = _ids([part for s in sessions[first : first + PAGE] for part in (s.key, s.mark)])
            dropped += int(await self.store.read(lambda c, i=items: forget(c, keys, [i])))  # type: ignore[misc]
        return dropped


def _page_of(widest: int) -> int:
    """How many entries of so many bytes a page may have."""
    return max(10, min(PAGE, PAGE_BYTES // max(widest, 1)))


def _ids(members: Sequence[bytes]) -> bytes:
    return codec.array(len(members), map(codec.text, members))


def _node(name: str, info: dict[str, Any]) -> Node:
    valkey = "valkey_version" in info
    failed = [what for what in ("aof_last_write_status", "rdb_last_bgsave_status") if info.get(what, "ok") != "ok"]
    return Node(
        name=name,
        product="Valkey" if valkey else "Redis",
        version=str(info.get("valkey_version" if valkey else "redis_version", "?")),
        aof=bool(info.get("aof_enabled")),
        write_errors=failed,
        used_bytes=int(info.get("used_memory", 0)),
        max_bytes=int(info.get("maxmemory", 0)),
    )


@functools.cache
def _standing(code: int) -> JobPresence:
    """Making one takes longer than the look."""
    return JobPresence(code)
