"""Deleting a queue that has no jobs: its partitions, with all outcomes and events, then its entry in the register.

The register has a note like that of a repartition to 0 partitions, and the partitions are sealed in its name. So no job
can be put between the check and the deletion, and a command that was killed half-way can be run again and goes on.

A program that still has the queue open, and calls it again, finds another epoch and creates the queue again.
"""

from __future__ import annotations

import secrets
from typing import Any

from msgspec.structs import replace

from tocsin.model.errors import InvalidArgument, StoreChanged, StoreUnavailable
from tocsin.store.keys import BANDS, STAGE_KEYS
from tocsin.store.open_queue import OpenQueue
from tocsin.store.queue_entry import QueueEntry, RepartitionUnderWay, decode_entry, encode_entry
from tocsin.store.repartition.replicas import MOST_BEGINNINGS, NodeReplaced, Replicas
from tocsin.store.scripts.script import script
from tocsin.store.store import Store
from tocsin.store.views.jobs import stage_counts


async def delete(store: Store, name: str) -> None:
    """Raises InvalidArgument if the queue has jobs, and leaves it as it was."""
    raw = await store.run_repeatable(lambda c: c.hget(store.keys.fleet()["queues"], name))
    if raw is None:
        return
    entry = decode_entry(raw)
    if entry.moving is None:
        entry = replace(entry, moving=RepartitionUnderWay(0, secrets.token_hex(8)))
        raw = await _register(store, name, raw, entry)
    elif entry.moving.to:
        raise InvalidArgument(
            f"queue {name!r} is being repartitioned: end that first, with "
            f"`tocsin queues repartition {name} {entry.moving.to}`"
        )
    for _ in range(MOST_BEGINNINGS):
        try:
            await _Deletion(store, name, raw, entry).run()
        except NodeReplaced:
            continue
        store.queues.forget(name)
        return
    raise StoreUnavailable(
        f"nodes were replaced {MOST_BEGINNINGS} times while queue {name!r} was deleted: run the same command again "
        "when the servers are at rest"
    )


async def _register(store: Store, name: str, expected: bytes, wanted: QueueEntry) -> bytes:
    found: bytes = await store.run_fleet_script(script("queue_register"), name, expected, encode_entry(wanted), "1")
    if decode_entry(found) != wanted:
        raise StoreChanged(f"queue {name!r} was changed by somebody else at this moment: look at it and try again")
    return found


class _Deletion:
    """The steps after the note in the register. Any of them may have been done before."""

    def __init__(self, store: Store, name: str, raw: bytes, entry: QueueEntry) -> None:
        assert entry.moving is not None
        self._store = store
        self._name = name
        self._raw = raw
        self._entry = entry
        self._move = entry.moving.move
        self._queue = OpenQueue(entry.queue(name), store.keys, [])
        self._replicas = Replicas(store)

    async def run(self) -> None:
        await self._confirm()
        epochs = [await self._epoch(partition) for partition in range(self._entry.partitions)]
        for partition, epoch in enumerate(epochs):
            if not await self._call("partition_seal", partition, epoch, self._entry.order, self._entry.partitions):
                raise StoreChanged(f"queue {self._name!r} was changed by somebody else at this moment: try again")
        await self._confirm()
        jobs = sum((await stage_counts(self._store, self._queue, (*STAGE_KEYS, *BANDS))).values())
        if jobs:
            await self._give_up(epochs)
            raise InvalidArgument(f"queue {self._name!r} has {jobs} jobs: purge it first, or wait until they have run")
        for partition in range(self._entry.partitions):
            if not await self._call("partition_delete", partition):
                raise StoreChanged(f"partition {partition} of queue {self._name!r} is not as we left it: try again")
        # If a failover brought a partition back after the queue left the register, it would stay sealed for ever.
        await self._confirm()
        bell = self._store.keys.bell(self._name)
        await self._store.run_repeatable(lambda c: c.delete(bell))
        await self._store.run_fleet_script(script("queue_forget"), self._name, self._raw)

    async def _confirm(self) -> None:
        """Let the replicas confirm the writes so far (replicas.py). Raises NodeReplaced."""
        keys = [each["meta"] for each in self._queue.keys]
        await self._replicas.confirm([self._store.keys.fleet()["queues"], *keys])

    async def _epoch(self, partition: int) -> bytes:
        meta = self._queue.keys[partition]["meta"]
        return await self._store.run_repeatable(lambda c: c.hget(meta, "epoch")) or b""

    async def _give_up(self, epochs: list[bytes]) -> None:
        for partition, epoch in enumerate(epochs):
            # A partition that did not exist has no epoch: it was created to be sealed.
            await self._call("partition_unseal", partition, epoch or secrets.token_hex(8), self._entry.partitions)
        await _register(self._store, self._name, self._raw, replace(self._entry, moving=None))

    async def _call(self, name: str, partition: int, *args: Any) -> bool:
        what = script(name)
        keys = self._queue.keys_of(what, partition)
        return bool(await self._store.run_repeatable(lambda c: what(c, keys, [self._move, *args])))
