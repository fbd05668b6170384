"""Dependencies: blocked jobs, the watchers of a job, and the outbox between partitions.

An effect on another partition takes three steps: an entry in the outbox of the first partition, an idempotent script at
the second, then the removal of the entry. A process that dies in between leaves the entry, and any other may carry it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from tocsin.model import msgpack
from tocsin.model.durations import Millis
from tocsin.store.formats import (
    codes_of,
    decode_source,
    encode_ask,
    encode_watcher,
    job_of_entry,
    members_under,
    source_of,
)
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.by_partition import change_by_partition
from tocsin.store.transitions.jobs import PutItem
from tocsin.store.views.read_together import CombinedRead

# Entries of one page, and watchers of one job that one pass unblocks.
PAGE = 100
# In the place of an outcome, for a job whose upstream nobody knows.
UPSTREAM_UNKNOWN = 4
# Answers of dependency_watch that are no outcome: the watcher was added; ask again later, an earlier end is on its way;
# the job recurs; no such job.
WATCHING, LATER, RECURRING, GONE = "w", "l", "r", "g"


class Upstream(msgspec.Struct, frozen=True, order=True):
    """A job that another waits for."""

    queue: str
    id: str

    @property
    def source(self) -> str:
        return source_of(self.queue.encode(), self.id.encode()).decode()


class DependencyWait(msgspec.Struct, frozen=True):
    """What a blocked job waits for. `life` tells this wait apart from others of the same job id."""

    life: str
    anyway: bool
    upstreams: Sequence[Upstream]

    def encode(self) -> bytes:
        return msgpack.encode([self.life, int(self.anyway), *(upstream.source for upstream in self.upstreams)])

    def entry(self, member: str, upstream: Upstream) -> bytes:
        """The entry that dependency_block writes into the outbox."""
        return encode_ask(member, self.life, upstream.source)

    def entries(self, member: str) -> list[bytes]:
        return [self.entry(member, upstream) for upstream in self.upstreams]

    def watcher(self, queue: str, member: str) -> bytes:
        return encode_watcher(queue.encode(), member.encode(), self.life.encode())


class UpstreamEnd(msgspec.Struct, frozen=True):
    """The end of an upstream, on its way to a blocked job."""

    member: bytes
    life: bytes
    source: bytes
    outcome: int


class UnblockReply(msgspec.Struct, frozen=True):
    """The answer of dependency_unblock in one partition."""

    partition: int
    codes: bytes
    # When the first job that was unblocked is due, or -1.
    head: Millis
    # Whether a job that ended here is watched by others.
    to_carry: bool


def read_wait(raw: bytes) -> DependencyWait | None:
    """None for garbage."""
    try:
        life, anyway, *sources = msgspec.msgpack.decode(raw, type=list[str | int])
        pairs = [decode_source(str(source)) for source in sources]
    except msgpack.UNREADABLE:
        return None
    return DependencyWait(str(life), bool(anyway), [Upstream(queue, upstream) for queue, upstream in pairs])


class Outbox:
    """The calls of the outbox carrier.

    Each change goes to the partitions where its jobs are at that time. What was read before may be out of date, because
    the queue was repartitioned, so scripts check again before they change anything."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # Changing

    async def block(self, queue: OpenQueue, puts: Sequence[tuple[PutItem, DependencyWait]]) -> bytes:
        """Put jobs that wait for others. The code of each put."""
        codes = bytearray(len(puts))
        async for _, some, answer in change_by_partition(
            self._store, "dependency_block", queue, puts, _key_of_put, _packed_puts
        ):
            for n, code in zip(some, codes_of(answer[1]), strict=True):
                codes[n] = code
        return bytes(codes)

    async def watch(self, queue: OpenQueue, pairs: Sequence[tuple[bytes, bytes]]) -> str:
        """For each (upstream, watcher): one of the letters above, or the digit of the upstream's outcome."""
        codes = [""] * len(pairs)
        async for _, some, answer in change_by_partition(
            self._store, "dependency_watch", queue, pairs, _first, _packed_pairs
        ):
            for n, code in zip(some, answer[1].decode(), strict=True):
                codes[n] = code
        return "".join(codes)

    async def unblock(
        self, queue: OpenQueue, tellings: Sequence[UpstreamEnd], carried: Sequence[bytes] = ()
    ) -> AsyncIterator[UnblockReply]:
        """Pass these ends on to the jobs that wait, partition by partition. `carried`: entries of this queue's outboxes
        to remove; each is removed with the ends of its job, or after them."""
        items: list[UpstreamEnd | bytes] = [*tellings, *carried]
        async for partition, _, answer in change_by_partition(
            self._store, "dependency_unblock", queue, items, _key_of_item, _packed_items
        ):
            yield UnblockReply(partition, answer[1], int(answer[2]), bool(answer[3]))

    async def end_watch(self, queue: OpenQueue, told: Sequence[tuple[bytes, bytes, Sequence[bytes]]]) -> dict[int, int]:
        """Remove watchers that got their end. `told`: (entry, upstream, watchers). Returns, by partition, how many of
        the ends have watchers left."""
        left: dict[int, int] = {}
        async for partition, _, answer in change_by_partition(
            self._store, "dependency_end", queue, told, _upstream, _packed_ends
        ):
            left[partition] = left.get(partition, 0) + int(answer[1])
        return left

    async def renew(self, queue: OpenQueue, members: Sequence[bytes]) -> int:
        """Let these jobs ask again for what they wait for. Returns how many were blocked."""
        renewed = 0
        async for _, _, answer in change_by_partition(
            self._store, "dependency_renew", queue, members, bytes, _packed_members
        ):
            renewed += answer[1].count(b"1")
        return renewed

    # Looking

    async def page(self, queue: OpenQueue, partition: int, at: int = 0) -> list[bytes]:
        key = queue.keys[partition]["outbox"]
        return list(await self._store.run_repeatable(lambda c: c.zrange(key, at, at + PAGE - 1)))

    async def watchers(self, queue: OpenQueue, partition: int, ends: Sequence[bytes]) -> list[list[bytes]]:
        """The first watchers of each of these ends. None for an end that was carried meanwhile: watchers found
        then wait for a later job of the same id."""
        keys = queue.keys[partition]
        together = CombinedRead()
        for end in ends:
            together.ask("ZSCORE", keys["outbox"], end)
            first, last = members_under(job_of_entry(end))
            together.ask("ZRANGEBYLEX", keys["watchers"], first, last, "LIMIT", 0, PAGE)
        found = await together.answers(self._store)
        return [[] if there is None else list(some) for there, some in zip(found[::2], found[1::2], strict=True)]

    async def non_empty(
        self, places: Sequence[tuple[OpenQueue, int]], base: str = "outbox"
    ) -> list[tuple[OpenQueue, int]]:
        """The partitions that have something to carry; with `needs`, those that have blocked jobs."""

        async def ask(client: Any) -> Any:
            async with client.pipeline(transaction=False) as pipe:
                for queue, partition in places:
                    pipe.exists(queue.keys[partition][base])
                return await pipe.execute()

        found = await self._store.run_repeatable(ask) if places else []
        return [place for place, some in zip(places, found, strict=True) if some]

    async def wait_of(self, queue: OpenQueue, member: str) -> DependencyWait | None:
        """What a blocked job waits for."""
        key = queue.keys[queue.partition_of(member)]["needs"]
        raw = await self._store.run_repeatable(lambda c: c.hget(key, member))
        return None if raw is None else read_wait(raw)


def _key_of_put(item: tuple[PutItem, DependencyWait]) -> bytes:
    return item[0].member.encode()


def _packed_puts(puts: Sequence[tuple[PutItem, DependencyWait]]) -> list[bytes]:
    parts = [part for put, wait in puts for part in _packed(put, wait)]
    return [msgpack.array(len(parts), parts)]


def _packed(put: PutItem, wait: DependencyWait) -> list[bytes]:
    return [
        msgpack.text(put.member.encode()),
        msgpack.integer(put.due),
        put.kind,
        msgpack.small(put.mode),
        msgpack.text(put.record),
        msgpack.text(wait.encode()),
    ]


def _first(pair: tuple[bytes, bytes]) -> bytes:
    return pair[0]


def _packed_pairs(pairs: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    return [msgpack.texts([part for pair in pairs for part in pair])]


def _key_of_item(item: UpstreamEnd | bytes) -> bytes:
    """The job that gets an end, or that an entry belongs to."""
    return item.member if isinstance(item, UpstreamEnd) else job_of_entry(item)


def _packed_items(items: Sequence[UpstreamEnd | bytes]) -> list[bytes]:
    tellings = [item for item in items if isinstance(item, UpstreamEnd)]
    parts = [part for telling in tellings for part in _packed_telling(telling)]
    return [msgpack.array(len(parts), parts), msgpack.texts([item for item in items if isinstance(item, bytes)])]


def _packed_telling(telling: UpstreamEnd) -> list[bytes]:
    texts = (telling.member, telling.life, telling.source)
    return [*map(msgpack.text, texts), msgpack.small(telling.outcome)]


def _upstream(told: tuple[bytes, bytes, Sequence[bytes]]) -> bytes:
    return told[1]


def _packed_ends(told: Sequence[tuple[bytes, bytes, Sequence[bytes]]]) -> list[bytes]:
    items = [msgpack.texts([entry, upstream, *watchers]) for entry, upstream, watchers in told]
    return [msgpack.array(len(items), items)]


def _packed_members(members: Sequence[bytes]) -> list[bytes]:
    return [msgpack.texts(members)]
