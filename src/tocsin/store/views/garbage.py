"""Garbage: finds and clears what somebody else wrote into Tocsin's keys and no version of Tocsin can have written.

Scripts and other readers just pass over it. The doctor looks for it here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import msgspec

from tocsin.model import msgpack
from tocsin.model.durations import LATEST_MS
from tocsin.model.errors import RecordUnreadable
from tocsin.model.queue import ORDERS
from tocsin.store.keys import BANDS, COUNTERS, TURNS, TYPES
from tocsin.store.numbers import is_whole, whole
from tocsin.store.queue_entry import QueueEntry, decode_entry, encode_entry
from tocsin.store.scripts.script import script
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.fleet import WorkerInfo
from tocsin.store.views import wrong_types

# Entries of one page: the server looks at so many in less than a millisecond.
PAGE = 500
# Fields of `meta` that are numbers, beside `seq`.
NUMBERS = (
    *COUNTERS, "fence", "widest", "max_active", "every", "burst", "spent", "capped", "aging", "claimed_before_cap",
    "tenant_max_active", "tenant_every", "tenant_burst", "v0", "v1", "v2", "v3", "v4",
)  # fmt: skip
# The check of lua/garbage_page.lua for each key. `waiting` and `working` are rescored instead (store/views/strays.py).
_HASHES = ("results", "errors", "needs", "sessions", "tenants", "weights")
_CHECKS = {
    **{base: base for base in (*_HASHES, "watchers", "outbox")},
    "waiting": "line",
    **dict.fromkeys(("working", "paused", "parked", "dead", "done", "unnamed", "blocked"), "times"),
    **dict.fromkeys(TURNS, "tags"),
}
_FLEET_CHECKS = {"buried": "times", "hosts": "times", "outages": "outages"}
_RESCORED = ("waiting", "working")

# The base of a key, and some of its entries.
Some = tuple[str, list[bytes]]


class Garbage:
    def __init__(self, store: Store, most: int | None = None) -> None:
        """`most`: how many entries of each key to look at; None: all."""
        self._store = store
        self._most = most

    async def misused(self, kept: Iterable[tuple[str, str]], *, mend: bool) -> tuple[dict[str, str], set[str]]:
        """`kept`: keys, and the types that they should have. Returns those of another type, with that; and those that
        were set aside."""
        wanted = dict(kept)
        found = await self._store.run_repeatable(lambda c: wrong_types.misused(c, wanted))
        mended: set[str] = set()
        for key in found if mend else ():
            if await self._store.run_repeatable(lambda c, k=key: wrong_types.set_aside(c, k, wanted[k])):  # type: ignore[misc]
                mended.add(key)
        return found, mended

    async def in_partition(self, queue: OpenQueue, partition: int, *, mend: bool) -> AsyncIterator[Some]:
        """The garbage in each key, page by page, with the key's base. `mend` drops it, or makes it due now; except in
        `waiting` and `working`."""
        ready = "names" if queue.queue.order == "fair" else "times"
        for base, check in (_CHECKS | dict.fromkeys(BANDS, ready)).items():
            mends = mend and base not in _RESCORED
            async for some in self._pages(queue.keys[partition][base], base, check, mends):
                yield base, some

    async def in_fleet(self, *, mend: bool) -> AsyncIterator[Some]:
        keys = self._store.keys.fleet()
        for base, check in _FLEET_CHECKS.items():
            async for some in self._pages(keys[base], base, check, mend):
                yield base, some

    async def _pages(self, key: str, base: str, check: str, mend: bool) -> AsyncIterator[list[bytes]]:
        look, clock, cursor = script("garbage_page"), self._store.clock.override(), b"0"
        size = await self._store.run_repeatable(lambda c: c.hlen(key) if TYPES[base] == "hash" else c.zcard(key))
        # A cursor might never end while new entries are added.
        left = 2 * size + PAGE if self._most is None else self._most
        while size and left > 0:
            args = ["" if clock is None else clock, check, cursor, PAGE, "1" if mend else ""]
            cursor, found, looked = await self._store.run_repeatable(lambda c, a=args: look(c, [key], a))  # type: ignore[misc]
            if found:
                yield found
            left = left - int(looked) if cursor != b"0" else 0

    async def settings(self, queue: OpenQueue, partition: int, *, mend: bool) -> list[str]:
        """The fields of `meta` that should be numbers, or name an order, and do not."""
        look, clock = script("settings_mend"), self._store.clock.override()
        names, orders = msgpack.encode(list(NUMBERS)), msgpack.encode(list(ORDERS))
        about = ["" if clock is None else clock, queue.queue.order, queue.partitions, names, orders]
        keys = [queue.keys[partition]["meta"]]
        found = await self._store.run_repeatable(lambda c: look(c, keys, [*about, "1" if mend else ""]))
        return [field.decode() for field in found]

    async def unseal(self, queue: OpenQueue, partition: int) -> bool:
        """Open a partition that is sealed although the queue is not being repartitioned. A repartition is in the
        register from before it seals until it has opened all partitions, so the register is read last."""
        meta = queue.keys[partition]["meta"]
        epoch, sealed = await self._store.run_repeatable(lambda c: c.hmget(meta, ["epoch", "sealed"]))
        raw = await self._store.run_repeatable(lambda c: c.hget(self._store.keys.fleet()["queues"], queue.name))
        if sealed is None or epoch is None or raw is None or decode_entry(raw).moving is not None:
            return False
        args = [sealed, epoch, queue.partitions]
        return bool(await self._store.run_repeatable(lambda c: script("partition_unseal")(c, [meta], args)))

    # Workers

    async def workers(self) -> dict[bytes, bytes | None]:
        """The names of workers with unreadable entries, and their counters."""
        keys = self._store.keys.fleet()

        async def ask(client: Any) -> Any:
            async with client.pipeline(transaction=False) as pipe:
                for base in ("workers", "beats"):
                    pipe.hgetall(keys[base])
                pipe.zrange(keys["pulses"], 0, -1, withscores=True)
                return await pipe.execute()

        abouts, beats, scores = await self._store.run_repeatable(ask)
        pulses = dict(scores)
        return {
            name: beats.get(name)
            for name in sorted({*abouts, *beats, *pulses})
            if not _is_worker(name, abouts.get(name), beats.get(name), pulses.get(name, 0.0))
        }

    async def bury(self, worker: bytes, counter: bytes | None) -> None:
        """Declare a garbled worker dead, unless its counter has moved. A worker then brings back its runs; one that
        never beat has none."""
        clock = self._store.clock.override()
        if counter is None:
            await self._store.run_fleet_script(script("worker_leave"), worker)
        else:
            # We do not bring back its runs, so hold the burial for 0 ms: the next worker that beats takes it over.
            await self._store.run_fleet_script(
                script("worker_bury"), "" if clock is None else clock, worker, counter, 0
            )

    # The register

    async def mend_register(self, name: str) -> bool:
        """Write the unreadable entry of a queue again from what its first partition says, or remove it if that says
        nothing. Does nothing if a newer version may have written it, or if the queue is being repartitioned."""
        key = self._store.keys.fleet()["queues"]
        found: dict[bytes, bytes] = await self._store.run_repeatable(lambda c: c.hgetall(key))
        field = next((field for field in found if field.decode(errors="replace") == name), None)
        if field is None or _may_be_newer(raw := found[field]):
            return False
        meta = self._store.keys.partition(name, 0)["meta"]
        order, partitions, sealed = await self._store.run_repeatable(
            lambda c: c.hmget(meta, ["order", "partitions", "sealed"])
        )
        if sealed is not None:
            return False
        entry = _entry(name, order, partitions)
        if entry is None:
            gone: Any = await self._store.run_fleet_script(script("queue_forget"), field, raw)
            return bool(gone)
        written = encode_entry(entry)
        return bool(await self._store.run_fleet_script(script("queue_register"), field, raw, written) == written)


def _is_worker(name: bytes, about: bytes | None, counter: bytes | None, pulse: float) -> bool:
    try:
        name.decode()
        msgspec.msgpack.decode(about or b"", type=WorkerInfo)
    except msgpack.UNREADABLE:
        return False
    return is_whole(counter) and 0 <= pulse <= LATEST_MS


def _may_be_newer(raw: bytes) -> bool:
    try:
        found = msgpack.decode(raw)
    except msgpack.UNREADABLE:
        return False
    return isinstance(found, dict) and {"order", "partitions"} <= found.keys()


def _entry(name: str, order: bytes | None, partitions: bytes | None) -> QueueEntry | None:
    try:
        entry = QueueEntry((order or b"").decode(), whole(partitions))
        entry.queue(name)
    except (*msgpack.UNREADABLE, RecordUnreadable):
        return None
    return entry
