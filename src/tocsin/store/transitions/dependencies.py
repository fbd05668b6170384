"""What waits for what: blocked jobs, those who watch a job, and the outbox between partitions.

An effect on another partition is an entry in the outbox of the first, an idempotent script at the second, then the
removal of the entry. So whoever dies in between leaves an entry, and anybody may carry it again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from tocsin.model import codec
from tocsin.model.durations import Millis
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.by_partition import spread
from tocsin.store.transitions.jobs import PutItem
from tocsin.store.views.read_together import CombinedRead

# Entries of one page, and watchers of one job that are told in one pass.
PAGE = 100
# Told to a dependent whose upstream nobody knows, beside the outcomes.
UNKNOWN = 4
# Answers of dependency_watch that are no outcome.
WATCHING, LATER, RECURRING, GONE = "w", "l", "r", "g"
IS_WORKING = 6
# How an entry of an outbox ends that tells of an end: with one of the outcomes of lua/lib/outbox.lua.
_ENDS = tuple(b"\0%d" % outcome for outcome in range(4))


class Upstream(msgspec.Struct, frozen=True, order=True):
    """A job that another waits for."""

    queue: str
    id: str

    @property
    def source(self) -> str:
        return f"{self.queue}\0{self.id}"


class DependencyWait(msgspec.Struct, frozen=True):
    """What a blocked job waits for. `life` tells this wait from any other of the same id."""

    life: str
    anyway: bool
    upstreams: Sequence[Upstream]

    def encode(self) -> bytes:
        return codec.encode([self.life, int(self.anyway), *(upstream.source for upstream in self.upstreams)])

    def entry(self, member: str, upstream: Upstream) -> bytes:
        """As dependency_block writes it into the outbox."""
        return f"W\0{member}\0{self.life}\0{upstream.source}".encode()

    def entries(self, member: str) -> list[bytes]:
        return [self.entry(member, upstream) for upstream in self.upstreams]

    def watcher(self, queue: str, member: str) -> str:
        return f"{queue}\0{member}\0{self.life}"


class UpstreamEnd(msgspec.Struct, frozen=True):
    """To a blocked job: how one ended that it waits for."""

    member: bytes
    life: bytes
    source: bytes
    outcome: int


class UnblockReply(msgspec.Struct, frozen=True):
    """What came of tellings in one partition."""

    partition: int
    codes: bytes
    # When the first that went in line is due, or -1.
    head: Millis
    # Whether others wait for one that ended.
    to_carry: bool


def is_end(entry: bytes) -> bool:
    """Whether an entry of an outbox says that a job has ended (lua/lib/outbox.lua)."""
    return entry[:2] == b"E\0" and entry.count(b"\0") == 2 and entry[-2:] in _ENDS


def is_ask(entry: bytes) -> bool:
    """Whether an entry of an outbox asks to let a job be told of an end."""
    return entry[:2] == b"W\0" and entry.count(b"\0") == 4


def is_watcher(watcher: bytes) -> bool:
    return watcher.count(b"\0") == 3


def read_wait(raw: bytes) -> DependencyWait | None:
    """None if it is none of ours."""
    try:
        life, anyway, *sources = msgspec.msgpack.decode(raw, type=list[str | int])
        pairs = [str(source).partition("\0") for source in sources]
    except codec.UNREADABLE:
        return None
    return DependencyWait(str(life), bool(anyway), [Upstream(queue, upstream) for queue, _, upstream in pairs])


class Outbox:
    """The scripts and reads that carrying is made of.

    Each change goes to the partitions that its jobs belong to when it is made. What was read before may be of a queue
    that was repartitioned since: scripts look again where they change something."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # Changing

    async def block(self, queue: OpenQueue, puts: Sequence[tuple[PutItem, DependencyWait]]) -> bytes:
        """Put jobs that wait for others: a digit for each."""
        codes = bytearray(len(puts))
        async for _, some, answer in spread(self._store, "dependency_block", queue, puts, _key_of_put, _packed_puts):
            for n, code in zip(some, answer[1], strict=True):
                codes[n] = code
        return bytes(codes)

    async def watch(self, queue: OpenQueue, pairs: Sequence[tuple[bytes, bytes]]) -> str:
        """For each (upstream, watcher): a letter of those above, or the digit of the outcome that it had."""
        codes = [""] * len(pairs)
        async for _, some, answer in spread(self._store, "dependency_watch", queue, pairs, _first, _packed_pairs):
            for n, code in zip(some, answer[1].decode(), strict=True):
                codes[n] = code
        return "".join(codes)

    async def unblock(
        self, queue: OpenQueue, tellings: Sequence[UpstreamEnd], carried: Sequence[bytes] = ()
    ) -> AsyncIterator[UnblockReply]:
        """What came of it, partition by partition. `carried`: entries of outboxes of this queue that are done with when
        the tellings to their jobs are made: each goes with or after those."""
        items: list[UpstreamEnd | bytes] = [*tellings, *carried]
        async for partition, _, answer in spread(
            self._store, "dependency_unblock", queue, items, _key_of_item, _packed_items
        ):
            yield UnblockReply(partition, answer[1], int(answer[2]), bool(answer[3]))

    async def end_watch(self, queue: OpenQueue, told: Sequence[tuple[bytes, bytes, Sequence[bytes]]]) -> dict[int, int]:
        """(entry, upstream, watchers that were told) of ends. By partition, how many of them have watchers left."""
        left: dict[int, int] = {}
        async for partition, _, answer in spread(self._store, "dependency_end", queue, told, _upstream, _packed_ends):
            left[partition] = left.get(partition, 0) + int(answer[1])
        return left

    async def renew(self, queue: OpenQueue, members: Sequence[bytes]) -> int:
        """Ask anew for what these wait for. How many were blocked."""
        renewed = 0
        async for _, _, answer in spread(self._store, "dependency_renew", queue, members, bytes, _packed_members):
            renewed += answer[1].count(b"1")
        return renewed

    # Looking

    async def page(self, queue: OpenQueue, partition: int, at: int = 0) -> list[bytes]:
        key = queue.keys[partition]["outbox"]
        return list(await self._store.read(lambda c: c.zrange(key, at, at + PAGE - 1)))

    async def watchers(self, queue: OpenQueue, partition: int, ends: Sequence[bytes]) -> list[list[bytes]]:
        """The first who wait for each of these ends. None for one that was carried meanwhile: who watches then waits
        for a later job of the same id."""
        keys = queue.keys[partition]
        together = CombinedRead()
        for end in ends:
            upstream = end.split(b"\0")[1]
            together.ask("ZSCORE", keys["outbox"], end)
            first, last = b"[" + upstream + b"\0", b"(" + upstream + b"\1"
            together.ask("ZRANGEBYLEX", keys["watchers"], first, last, "LIMIT", 0, PAGE)
        found = await together.answers(self._store)
        return [[] if there is None else list(some) for there, some in zip(found[::2], found[1::2], strict=True)]

    async def filled(
        self, places: Sequence[tuple[OpenQueue, int]], base: str = "outbox"
    ) -> list[tuple[OpenQueue, int]]:
        """Those that have something to carry; with `needs`, those that have blocked jobs."""

        async def ask(client: Any) -> Any:
            async with client.pipeline(transaction=False) as pipe:
                for queue, partition in places:
                    pipe.exists(queue.keys[partition][base])
                return await pipe.execute()

        found = await self._store.read(ask) if places else []
        return [place for place, some in zip(places, found, strict=True) if some]

    async def wait_of(self, queue: OpenQueue, member: str) -> DependencyWait | None:
        """What a blocked job waits for."""
        key = queue.keys[queue.partition_of(member)]["needs"]
        raw = await self._store.read(lambda c: c.hget(key, member))
        return None if raw is None else read_wait(raw)


def _key_of_put(item: tuple[PutItem, DependencyWait]) -> bytes:
    return item[0].member.encode()


def _packed_puts(puts: Sequence[tuple[PutItem, DependencyWait]]) -> list[bytes]:
    parts = [part for put, wait in puts for part in _packed(put, wait)]
    return [codec.array(len(parts), parts)]


def _packed(put: PutItem, wait: DependencyWait) -> list[bytes]:
    return [
        codec.text(put.member.encode()),
        codec.integer(put.due),
        put.kind,
        bytes((put.mode,)),
        codec.text(put.record),
        codec.text(wait.encode()),
    ]


def _first(pair: tuple[bytes, bytes]) -> bytes:
    return pair[0]


def _packed_pairs(pairs: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    return [_texts([part for pair in pairs for part in pair])]


def _key_of_item(item: UpstreamEnd | bytes) -> bytes:
    """The job that is told, or that an entry belongs to."""
    return item.member if isinstance(item, UpstreamEnd) else item.split(b"\0")[1]


def _packed_items(items: Sequence[UpstreamEnd | bytes]) -> list[bytes]:
    tellings = [item for item in items if isinstance(item, UpstreamEnd)]
    parts = [part for telling in tellings for part in _packed_telling(telling)]
    return [codec.array(len(parts), parts), _texts([item for item in items if isinstance(item, bytes)])]


def _packed_telling(telling: UpstreamEnd) -> list[bytes]:
    texts = (telling.member, telling.life, telling.source)
    return [*map(codec.text, texts), bytes((telling.outcome,))]


def _upstream(told: tuple[bytes, bytes, Sequence[bytes]]) -> bytes:
    return told[1]


def _packed_ends(told: Sequence[tuple[bytes, bytes, Sequence[bytes]]]) -> list[bytes]:
    items = [_texts([entry, upstream, *watchers]) for entry, upstream, watchers in told]
    return [codec.array(len(items), items)]


def _packed_members(members: Sequence[bytes]) -> list[bytes]:
    return [_texts(members)]


def _texts(texts: Sequence[bytes]) -> bytes:
    return codec.array(len(texts), map(codec.text, texts))
