"""What the doctor reads and mends: pages of a partition, the presence of jobs in its keys at one instant, sizes.

No call asks the server for everything at once: pages have a cursor, and scripts are bounded.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Sequence
from enum import IntFlag
from typing import Any

import msgspec
from redis.asyncio import RedisCluster

from tocsin.model import msgpack
from tocsin.model.durations import Millis
from tocsin.model.errors import InvalidArgument, RecordUnreadable, StoreError, did_you_mean
from tocsin.store.formats import codes_of, session_mark, session_time
from tocsin.store.keys import BANDS, STAGE_KEYS
from tocsin.store.numbers import is_whole, time_of, whole
from tocsin.store.queue_entry import decode_entry
from tocsin.store.scripts.script import script
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.dependencies import Outbox
from tocsin.store.views.jobs import HASHES, columns_of, stage_counts

# A look at so many jobs takes the server about two milliseconds.
PAGE = 500
# The most bytes of values in a page: HSCAN always sends values.
PAGE_BYTES = 1024 * 1024
# The usual size limit of values. Some results are larger (`limits.result-bytes`), most are far smaller.
WIDE_RESULT = 64 * 1024
LARGEST_SESSION = 64 * 1024
LARGEST_WAIT = 64 * 1024
_LARGEST = {"claims": 512, "errors": 6 * 1024, "results": WIDE_RESULT, "needs": LARGEST_WAIT}


class JobPresence(IntFlag):
    """The keys in which lua/audit_look.lua found a job, and what is wrong with its entries."""

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
    """Fields of a partition's `meta`; None if missing."""

    epoch: bytes | None
    order: str | None
    partitions: int | None
    sealed: bool
    widest: int


class Session(msgspec.Struct, frozen=True):
    key: bytes
    # Seq and time as stored: they change with each call.
    mark: bytes
    at: Millis

    @property
    def name(self) -> str:
        return self.key.decode(errors="replace")


class Node(msgspec.Struct, frozen=True):
    """A server, from its INFO."""

    name: str
    product: str
    version: str
    aof: bool
    write_errors: list[str]
    used_bytes: int
    max_bytes: int


class AuditReader:
    """Reads one namespace without opening its queues, because opening creates what is missing."""

    def __init__(self, store: Store, most: int | None = None) -> None:
        """`most`: how many entries of a key to look at, in no order; None: all."""
        self.store = store
        self.most = most
        self._fleet = store.keys.fleet()
        self.outbox = Outbox(store)

    async def now(self) -> Millis:
        return await self.store.now()

    async def queues(self) -> tuple[list[OpenQueue], list[str]]:
        """All registered queues, without epochs; and the names of those whose entry cannot be read."""
        found = await self.store.run_repeatable(lambda c: c.hgetall(self._fleet["queues"]))
        readable, garbled = [], []
        for name, raw in sorted((name.decode(errors="replace"), raw) for name, raw in found.items()):
            try:
                entry = decode_entry(raw)
                queue = OpenQueue(entry.queue(name), self.store.keys, [], entry.move)
            except RecordUnreadable:
                garbled.append(name)
                continue
            if entry.moving is not None:
                # Its jobs are in its old partitions or in its new ones: look at both.
                queue.keys = [self.store.keys.partition(name, p) for p in range(max(entry.partitions, entry.moving.to))]
                queue.moving = entry.moving
            readable.append(queue)
        return readable, garbled

    async def named(self, name: str | None) -> list[OpenQueue]:
        """The queue of that name, or all. Raises InvalidArgument for a name that is not registered."""
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
        epoch, order, partitions, sealed, widest = await self.store.run_repeatable(lambda c: c.hmget(meta, names))
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
        """The fields of a hash, in no order; some may come twice. `widest`: bytes of its largest value."""
        async for page in self._hash(queue.keys[partition][base], widest):
            yield page

    async def members(self, queue: OpenQueue, partition: int, base: str) -> AsyncIterator[list[bytes]]:
        """The ids in a sorted set, in no order; some may come twice."""
        key, cursor = queue.keys[partition][base], 0
        left = self._enough(await self.store.run_repeatable(lambda c: c.zcard(key)))
        while left > 0:
            cursor, page = await self.store.run_repeatable(
                lambda c, at=cursor: c.zscan(key, at, count=PAGE)  # type: ignore[misc]
            )
            yield [member for member, _ in page]
            left = left - len(page) if cursor else 0

    async def without_record(self, queue: OpenQueue, partition: int) -> AsyncIterator[tuple[list[bytes], int]]:
        """The ids without a record, page by page over all keys that have jobs; and how many entries the page had."""
        look, sizes = queue.script("audit_page"), await self._sizes(queue, partition)
        keys = queue.keys_of(look, partition)
        for number, (base, size) in enumerate(sizes.items(), 1):
            if base == "jobs" or not size:
                continue
            left, cursor = self._enough(size), b"0"
            while left > 0:
                args = [number, cursor, _page_of(_LARGEST.get(base, 1))]
                cursor, ids, looked = await self.store.run_repeatable(lambda c, a=args: look(c, keys, a))  # type: ignore[misc]
                yield ids, int(looked)
                left = left - int(looked) if cursor != b"0" else 0

    async def sessions(self, queue: OpenQueue, partition: int) -> AsyncIterator[list[Session]]:
        async for page in self._hash(queue.keys[partition]["sessions"], LARGEST_SESSION):
            yield [Session(name, session_mark(raw), session_time(raw)) for name, raw in page.items()]

    async def _hash(self, key: str, widest: int) -> AsyncIterator[dict[bytes, bytes]]:
        count, cursor = _page_of(widest), 0
        left = self._enough(await self.store.run_repeatable(lambda c: c.hlen(key)))
        while left > 0:
            cursor, page = await self.store.run_repeatable(
                lambda c, at=cursor: c.hscan(key, at, count=count)  # type: ignore[misc]
            )
            yield page
            left = left - len(page) if cursor else 0

    async def look(self, queue: OpenQueue, partition: int, members: Sequence[bytes]) -> list[JobPresence]:
        """The keys in which each job is, page by page, each page at one instant."""
        look = queue.script("audit_look")
        keys = queue.keys_of(look, partition)
        seen: list[JobPresence] = []
        for first in range(0, len(members), PAGE):
            items = msgpack.texts(members[first : first + PAGE])
            seen += map(_standing, await self.store.run_repeatable(lambda c, i=items: look(c, keys, [i])))  # type: ignore[misc]
        return seen

    # Sizes

    async def entries(self, queue: OpenQueue, partition: int) -> int:
        """How many entries a walk over all keys with jobs meets."""
        sizes = (await self._sizes(queue, partition)).values()
        return sum(sizes) if self.most is None else sum(min(size, self.most) for size in sizes)

    async def _sizes(self, queue: OpenQueue, partition: int) -> dict[str, int]:
        keys, bases = queue.keys[partition], columns_of(queue.queue.order)

        async def ask(client: Any) -> Any:
            async with client.pipeline(transaction=False) as pipe:
                for base in bases:
                    pipe.hlen(keys[base]) if base in HASHES else pipe.zcard(keys[base])
                return await pipe.execute()

        return dict(zip(bases, await self.store.run_repeatable(ask), strict=True))

    def _enough(self, size: int) -> int:
        """After how many entries to stop: a cursor might never end while new entries are added."""
        return 2 * size + 1000 if self.most is None else self.most

    async def counts(self, queue: OpenQueue, overdue_before: Millis) -> dict[str, int]:
        """Jobs per stage, and `done`, `claims`, `sessions`, `overdue`, over all partitions."""

        async def ask(client: Any) -> Any:
            async with client.pipeline(transaction=False) as pipe:
                for keys in queue.keys:
                    for base in ("claims", "sessions"):
                        pipe.hlen(keys[base])
                    pipe.zcount(keys["working"], "-inf", overdue_before)
                return await pipe.execute()

        jobs = await stage_counts(self.store, queue, (*STAGE_KEYS, "done", *BANDS))
        found = await self.store.run_repeatable(ask)
        others = {name: sum(found[i::3]) for i, name in enumerate(("claims", "sessions", "overdue"))}
        return {"ready": sum(jobs.pop(band) for band in BANDS), **jobs, **others}

    async def due_before(self, queue: OpenQueue, before: Millis) -> int:
        """For the agents' queue: how many jobs have been due since `before` or longer."""
        line = queue.keys[0]["waiting"]
        return int(await self.store.run_repeatable(lambda client: client.zcount(line, "-inf", before)))

    async def memory(self, queue: OpenQueue) -> int | None:
        """Bytes, as the server estimates them from samples; None if we may not ask."""

        async def ask(client: Any) -> Any:
            async with client.pipeline(transaction=False) as pipe:
                for keys in queue.keys:
                    for key in keys.values():
                        pipe.memory_usage(key)
                return await pipe.execute()

        try:
            return sum(size or 0 for size in await self.store.run_repeatable(ask))
        except StoreError:
            return None

    async def bell(self, queue: OpenQueue) -> int:
        key = self.store.keys.bell(queue.name)
        return int(await self.store.run_repeatable(lambda c: c.llen(key)))

    async def buried(self) -> list[tuple[str, Millis]]:
        """The first hundred dead workers whose runs must still be brought back, and since when."""
        found = await self.store.run_repeatable(lambda c: c.zrange(self._fleet["buried"], 0, 99, withscores=True))
        return [(name.decode(errors="replace"), time_of(since)) for name, since in found]

    async def nodes(self) -> list[Node]:
        async def ask(client: Any) -> Any:
            if not isinstance(client, RedisCluster):
                return {self.store.address.shown: await client.info()}
            await client.initialize()
            return {
                node.name: await client.execute_command("INFO", target_nodes=node) for node in client.get_primaries()
            }

        return [_node(name, info) for name, info in (await self.store.run_repeatable(ask)).items()]

    # Mending

    async def mend(self, queue: OpenQueue, partition: int, members: Sequence[bytes]) -> list[bool]:
        """The script checks each job again before it changes it. Returns which it changed."""
        mended: list[bool] = []
        for first in range(0, len(members), PAGE):
            answer = await self.store.change(
                "audit_mend", queue, partition, msgpack.texts(members[first : first + PAGE])
            )
            mended += map(bool, codes_of(answer[1]))
        return mended

    async def forget(self, queue: OpenQueue, partition: int, sessions: Sequence[Session]) -> int:
        forget, dropped = script("audit_forget"), 0
        keys = queue.keys_of(forget, partition)
        for first in range(0, len(sessions), PAGE):
            items = msgpack.texts([part for s in sessions[first : first + PAGE] for part in (s.key, s.mark)])
            dropped += int(await self.store.run_repeatable(lambda c, i=items: forget(c, keys, [i])))  # type: ignore[misc]
        return dropped


def _page_of(widest: int) -> int:
    """How many entries a page may have if the largest value has so many bytes."""
    return max(10, min(PAGE, PAGE_BYTES // max(widest, 1)))


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
    """Cached, because making a flag takes longer than the look."""
    return JobPresence(code)
