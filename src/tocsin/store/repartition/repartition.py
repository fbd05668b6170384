"""Repartitioning: gives a live queue another number of partitions, and loses nothing.

One command, in steps that can each be repeated, so it may be killed at any line and run again:

1. Note the repartition in the register, under a name of its own. From now on no process opens the queue.
2. Seal the partitions, old and new, in that name. From now on only this repartition changes them: other processes get
   an error that the queue changed, and wait.
3. Move the jobs, in pages: read all that the old partition has of a job, write it into the new one, remove it from the
   old one. Writing the same again changes nothing. A job whose partition stays the same is not touched.
4. Move watchers and entries of the outbox, in pages, each with the job that it is about.
5. Keep the last call of each session in partition 0, so that a call whose reply was lost before the sealing is not made
   a second time afterwards.
6. Give the new partitions their epochs and unseal them. Delete the partitions that no longer exist: they are empty.
7. Write the new number into the register and remove the note. Processes that waited open the new partitions.

All scripts here change only what is sealed in the name of their repartition. So a command that was stopped, and goes on
after another one has finished the same repartition, changes nothing.

Where a step relies on an earlier one, the replicas of the nodes confirm the earlier one first (replicas.py). If a node
was replaced meanwhile, by a failover or a restart, the repartition begins again: writes since the last confirmation may
be lost, and nothing was removed because of them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tocsin.model import msgpack
from tocsin.model.errors import InvalidArgument, StoreChanged, StoreUnavailable, did_you_mean
from tocsin.model.ids import partition_of_key
from tocsin.model.queue import AGENTS_QUEUE, COUNTED, MOST_PARTITIONS
from tocsin.store.keys import COUNTERS
from tocsin.store.numbers import whole
from tocsin.store.queue_entry import QueueEntry, RepartitionUnderWay, decode_entry, encode_entry
from tocsin.store.repartition.parcels import (
    flat,
    home_of_entry,
    home_of_watcher,
    kept_name,
    packed_values,
    pages,
)
from tocsin.store.repartition.replicas import MOST_BEGINNINGS, NodeReplaced, Replicas
from tocsin.store.scripts.script import Script, script
from tocsin.store.store import LARGEST_BATCH, Store
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.repartition")

PAGE = LARGEST_BATCH
# Sessions of one page. Their answers are large.
SESSIONS = 50
# The fields of `meta` that belong to one partition. All others are settings of the queue.
_OWN = {"epoch", "sealed", "partitions", "seq", "fence", "widest", "walk", "placed", "spent", "capped", *COUNTERS}
_OWN |= {f"v{band}" for band in range(5)}
_GROWING = (b"seq", b"fence", b"widest")

# How many jobs were looked at, and of how many.
Progress = Callable[[int, int], None]


class RepartitionResult(Struct, frozen=True):
    """What a repartition did, or the rest of one that was begun before."""

    queue: str
    before: int
    after: int
    moved: int
    resumed: bool


async def repartition(
    store: Store, name: str, partitions: int, progress: Progress = lambda done, total: None
) -> RepartitionResult:
    """Give the queue so many partitions, or finish a repartition that was begun. Raises InvalidArgument."""
    if not isinstance(partitions, int) or isinstance(partitions, bool) or not 1 <= partitions <= MOST_PARTITIONS:
        raise InvalidArgument(f"partitions must be a whole number from 1 to {MOST_PARTITIONS}, not {partitions!r}")
    if name == AGENTS_QUEUE:
        raise InvalidArgument("the agents' queue has one partition, and keeps it: workers claim agents by their ids")
    raw = await _registered(store, name)
    if raw is None:
        known = await store.queues.names()
        raise InvalidArgument(f"there is no queue {name!r}" + (f"; {did_you_mean(name, known)}" if known else ""))
    entry = decode_entry(raw)
    resumed = entry.moving is not None
    if entry.moving is None:
        if entry.partitions == partitions:
            return RepartitionResult(name, partitions, partitions, 0, False)
        await _refuse_limits(store, name, partitions)
        # Refuse if replicas lag: the queue would stand still half-way.
        await Replicas(store).confirm(_keys_of(store, name, max(entry.partitions, partitions)))
        raw, entry = await _note(store, name, raw, entry, partitions)
    elif entry.moving.to == 0:
        raise InvalidArgument(f"queue {name!r} is being deleted: end that with `tocsin queues delete {name}`")
    elif entry.moving.to != partitions:
        raise InvalidArgument(
            f"queue {name!r} is being given {entry.moving.to} partitions: end that first, with "
            f"`tocsin queues repartition {name} {entry.moving.to}`"
        )
    move = Repartition(store, name, raw, entry, progress)
    await move.run()
    return RepartitionResult(name, entry.partitions, partitions, move.moved, resumed)


async def _registered(store: Store, name: str) -> bytes | None:
    raw: bytes | None = await store.run_repeatable(lambda c: c.hget(store.keys.fleet()["queues"], name))
    return raw


def _keys_of(store: Store, name: str, partitions: int) -> list[str]:
    """The key of the register, and one key of each partition."""
    return [store.keys.fleet()["queues"], *(store.keys.partition(name, p)["meta"] for p in range(partitions))]


async def _note(store: Store, name: str, raw: bytes, entry: QueueEntry, partitions: int) -> tuple[bytes, QueueEntry]:
    """Note the repartition in the register. Raises StoreChanged if another process was quicker."""
    noted = replace(entry, moving=RepartitionUnderWay(partitions, secrets.token_hex(8)))
    found = await _register(store, name, raw, noted)
    if decode_entry(found) != noted:
        raise StoreChanged(f"queue {name!r} was changed by somebody else at this moment: look at it and try again")
    return found, noted


async def _register(store: Store, name: str, expected: bytes, wanted: QueueEntry) -> bytes:
    """Write an entry if the register has the expected one. Returns the entry that it has then."""
    found: bytes = await store.run_fleet_script(script("queue_register"), name, expected, encode_entry(wanted))
    return found


async def _refuse_limits(store: Store, name: str, partitions: int) -> None:
    meta = store.keys.partition(name, 0)["meta"]
    limits = await store.run_repeatable(lambda c: c.hmget(meta, COUNTED))
    found = [setting for setting, value in zip(COUNTED, limits, strict=True) if value is not None]
    if found and partitions > 1:
        raise InvalidArgument(
            f"queue {name!r} has {' and '.join(found)}, which needs one partition to be counted in: take it off first, "
            f"with app.queue_update({name!r}, {found[0]}=None)"
        )


class Repartition:
    """The steps after the note in the register. Any of them may have been done before."""

    def __init__(self, store: Store, name: str, raw: bytes, entry: QueueEntry, progress: Progress) -> None:
        assert entry.moving is not None
        self.moved = 0
        self._store = store
        self._name = name
        self._raw = raw
        self._entry = entry
        self._progress = progress
        self._move = entry.moving.move
        self._old, self._new = entry.partitions, entry.moving.to
        self._all = max(self._old, self._new)
        self._keys = [store.keys.partition(name, p) for p in range(self._all)]
        self._looked, self._total = 0, 0
        self._replicas = Replicas(store)

    async def run(self) -> None:
        for _ in range(MOST_BEGINNINGS):
            try:
                return await self._run()
            except NodeReplaced as replaced:
                log.warning("begins anew to repartition", queue=self._name, because=str(replaced))
                self._replicas, self._looked, self._total = Replicas(self._store), 0, 0
        raise StoreUnavailable(
            f"nodes were replaced {MOST_BEGINNINGS} times while queue {self._name!r} was repartitioned: run the same "
            "command again when the servers are at rest; nothing is lost, and it goes on"
        )

    async def _run(self) -> None:
        # The first confirmation: from now on we notice when a node is replaced.
        await self._confirm_all()
        after = QueueEntry(self._entry.order, self._new, self._move)
        registered = await _registered(self._store, self._name)
        if registered is not None and decode_entry(registered) == after:
            return
        if registered != self._raw:
            raise StoreChanged(
                f"queue {self._name!r} is not registered as this command left it: a failover undid its beginning, or "
                "somebody else changed it; `tocsin queues list` shows how it stands, then try again"
            )
        if not await self._is_opened():
            await self._seal()
            await self._confirm_all()
            try:
                # A limit may have been set since the first check.
                await _refuse_limits(self._store, self._name, self._new)
            except InvalidArgument:
                await self._give_up()
                raise
            await self._prepare()
            await self._move_jobs()
            await self._move_waits()
            await self._keep_sessions()
            await self._join_counters()
            await self._confirm_all()
        for partition in range(self._new):
            await self._may("partition_unseal", partition, self._epoch(partition), self._new)
        for partition in range(self._new, self._old):
            await self._must("repartition_drop", partition)
        await self._confirm_all()
        await _register(self._store, self._name, self._raw, after)
        await self._confirm_all()

    # Replicas

    async def _confirm_all(self) -> None:
        await self._replicas.confirm(_keys_of(self._store, self._name, self._all))

    async def _confirm(self, partitions: Iterable[int]) -> None:
        """Let the replicas of these partitions confirm what was written. Raises NodeReplaced."""
        await self._replicas.confirm(self._keys[partition]["meta"] for partition in partitions)

    # Sealing

    async def _is_opened(self) -> bool:
        """Whether an earlier run has opened a new partition: then nothing is left to be moved."""
        return any(epoch == self._epoch(p) for p, epoch in enumerate(await self._epochs()) if p < self._new)

    async def _epochs(self) -> list[bytes]:
        metas = [keys["meta"] for keys in self._keys]
        found = [await self._store.run_repeatable(lambda c, m=meta: c.hget(m, "epoch")) for meta in metas]  # type: ignore[misc]
        return [epoch or b"" for epoch in found]

    def _epoch(self, partition: int) -> bytes:
        return f"{self._move}.{partition}".encode()

    async def _seal(self) -> None:
        for partition, epoch in enumerate(await self._epochs()):
            await self._must("partition_seal", partition, epoch, self._entry.order, self._old)

    async def _give_up(self) -> None:
        """Undo all: the old partitions still have their jobs, and get their own epochs back."""
        for partition, epoch in enumerate((await self._epochs())[: self._old]):
            await self._may("partition_unseal", partition, epoch, self._old)
        for partition in range(self._old, self._new):
            await self._may("repartition_drop", partition)
        await self._confirm_all()
        await _register(self._store, self._name, self._raw, replace(self._entry, moving=None))
        await self._confirm_all()

    # Settings

    async def _prepare(self) -> None:
        """Give new partitions the settings of partition 0, and all partitions the greatest seq and fence, so that
        versions and tokens keep growing."""
        metas = await self._metas()
        most = {name: b"%d" % max(_number(meta, name.decode()) for meta in metas) for name in _GROWING}
        settings = {
            field: value
            for field, value in metas[0].items()
            if field.decode(errors="replace") not in _OWN and not field.startswith(b"joined:")
        }
        weights = await self._store.run_repeatable(lambda c: c.hgetall(self._keys[0]["weights"]))
        for partition in range(self._new):
            is_new = partition >= self._old
            fields = msgpack.texts(flat({**settings, **most} if is_new else most))
            await self._must("repartition_prepare", partition, fields, msgpack.encode([]))
            for page in pages(list(weights.items()) if is_new else [], PAGE):
                await self._must("repartition_prepare", partition, msgpack.encode([]), msgpack.texts(flat(dict(page))))

    async def _join_counters(self) -> None:
        """Add the counters of partitions that no longer exist to partition 0, so that the sums stay the same."""
        for partition, meta in enumerate((await self._metas())[: self._old]):
            if partition >= self._new:
                counts = [part for name in COUNTERS if _number(meta, name) for part in (name, _number(meta, name))]
                await self._must("repartition_join", 0, partition, msgpack.encode(counts))

    async def _metas(self) -> list[dict[bytes, bytes]]:
        return [await self._store.run_repeatable(lambda c, k=keys["meta"]: c.hgetall(k)) for keys in self._keys]  # type: ignore[misc]

    # Jobs

    async def _move_jobs(self) -> None:
        for keys in self._keys[: self._old]:
            self._total += await self._store.run_repeatable(lambda c, k=keys["jobs"]: c.hlen(k))  # type: ignore[misc]
        for partition in range(self._old):
            async for number, page in self._members(partition):
                leaving = [member for member in page if partition_of_key(member, self._new) != partition]
                for some in pages(leaving, PAGE):
                    await self._move_page(partition, some)
                if number == 1:
                    self._looked = min(self._looked + len(page), self._total)
                    self._progress(self._looked, self._total)

    async def _members(self, partition: int) -> AsyncIterator[tuple[int, list[bytes]]]:
        """Every id in any key of the partition, key by key from `jobs` on. Ids that stay come once for each key that
        has them."""
        number, more = 0, 1
        while more:
            number, cursor = number + 1, b"0"
            while True:
                cursor, page, more = await self._call("repartition_page", partition, number, cursor, PAGE)
                yield number, page
                if cursor == b"0":
                    break

    async def _move_page(self, partition: int, members: Sequence[bytes]) -> None:
        while members:
            columns = await self._call("job_read", partition, msgpack.texts(members))
            rows: dict[int, list[bytes]] = {}
            # The answer may have fewer jobs than asked for, if they are large.
            some = members[: len(columns[0])]
            for member, *values in zip(some, *columns, strict=True):
                rows.setdefault(partition_of_key(member, self._new), []).extend(packed_values(member, values))
            now = await self._store.now()
            await asyncio.gather(
                *(
                    self._must("repartition_write", to, msgpack.array(len(row), row), now=now)
                    for to, row in rows.items()
                )
            )
            await self._confirm(rows)
            # If a failover undoes the removal, the repartition begins again before the partition is opened.
            await self._must("repartition_remove", partition, msgpack.texts(some), now=now)
            self.moved += len(some)
            members = members[len(some) :]

    # Watchers and the outbox

    async def _move_waits(self) -> None:
        for partition in range(self._old):
            for base, home in (("watchers", home_of_watcher), ("outbox", home_of_entry)):
                async for page in self._entries(partition, base):
                    leaving: dict[int, list[bytes]] = {}
                    for entry in page:
                        leaving.setdefault(home(entry, self._new), []).append(entry)
                    leaving.pop(partition, None)
                    for to, some in leaving.items():
                        await self._must("repartition_waits", to, base, msgpack.texts(some), msgpack.texts([]))
                    if leaving:
                        await self._confirm(leaving)
                    for some in leaving.values():
                        await self._must("repartition_waits", partition, base, msgpack.texts([]), msgpack.texts(some))

    async def _entries(self, partition: int, base: str) -> AsyncIterator[Sequence[bytes]]:
        key, cursor = self._keys[partition][base], 0
        while True:
            cursor, found = await self._store.run_repeatable(
                lambda c, at=cursor: c.zscan(key, at, count=PAGE)  # type: ignore[misc]
            )
            for page in pages([entry for entry, _ in found], PAGE):
                yield page
            if not cursor:
                return

    # Sessions

    async def _keep_sessions(self) -> None:
        """Under the epoch of their partition. Sessions that an earlier repartition kept stay."""
        for partition, epoch in enumerate((await self._epochs())[: self._old]):
            key, cursor = self._keys[partition]["sessions"], 0
            while True:
                cursor, page = await self._store.run_repeatable(
                    lambda c, k=key, at=cursor: c.hscan(k, at, count=SESSIONS)  # type: ignore[misc]
                )
                for some in pages(list(page.items()), SESSIONS):
                    kept = {kept_name(session, epoch): last for session, last in some}
                    await self._must("session_keep", 0, msgpack.texts(flat(kept)))
                if not cursor:
                    break

    # Calls

    async def _must(self, name: str, partition: int, *args: Any, now: int | None = None) -> None:
        if not await self._may(name, partition, *args, now=now):
            raise StoreChanged(
                f"partition {partition} of queue {self._name!r} is not as this command left it: somebody else may have "
                "ended the same change; `tocsin queues list` shows how it stands"
            )

    async def _may(self, name: str, partition: int, *args: Any, now: int | None = None) -> bool:
        """Change a partition. Returns False if it is not sealed in our name."""
        before = [] if now is None else [now]
        return bool(await self._call(name, partition, *before, self._move, *args))

    async def _call(self, name: str, partition: int, *args: Any) -> Any:
        what: Script = script(name, self._entry.order)
        keys = [self._keys[partition][key] for key in what.keys]
        return await self._store.run_repeatable(lambda c: what(c, keys, args))


def _number(meta: dict[bytes, bytes], name: str) -> int:
    return whole(meta.get(name.encode()))
