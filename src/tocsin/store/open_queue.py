"""A queue as this process has it open: its partitions, their keys and epochs; and a script call on one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from tocsin.model.errors import QueueRepartitioned, StoreChanged, StoreError
from tocsin.model.ids import partition_of, partition_of_key
from tocsin.model.queue import Queue
from tocsin.store.keys import Keys
from tocsin.store.queue_entry import QueueEntry, RepartitionUnderWay
from tocsin.store.scripts.script import Script, script

# A script takes at most this many items, and about twice this many bytes, so that it never holds the server for long.
LARGEST_BATCH = 1000
LARGEST_BYTES = 2 * 1024 * 1024
# The answers of a script that changed nothing.
WRONG_EPOCH = -1
STALE_SEQ = -2


class OpenQueue:
    """A queue as this process found it: its settings, and the keys and epoch of each partition. It changes in place
    when the queue is repartitioned, so all who hold it see that."""

    def __init__(self, queue: Queue, keys: Keys, epochs: list[bytes], layout: str = "") -> None:
        self.queue = queue
        self.name = queue.name
        self.partitions = queue.partitions
        # Partitions that no longer exist keep their keys at the end: a walk that began before needs them.
        self.keys = [keys.partition(queue.name, p) for p in range(queue.partitions)]
        self.epochs = epochs
        # The name of the repartition that made these partitions; '' if the queue was created with them.
        self.layout = layout
        # The epochs of earlier layouts that this process knew.
        self.former: dict[str, list[bytes]] = {}
        # The repartition that was under way when an audit looked. All others wait for its end instead.
        self.moving: RepartitionUnderWay | None = None
        self._names = keys
        # The settings that this process has declared.
        self.declared: dict[str, str] = {}
        self._key_lists: dict[tuple[str, int], list[str]] = {}

    def script(self, name: str) -> Script:
        """The form of the script for the order of this queue."""
        return script(name, self.queue.order)

    def keys_of(self, what: Script, partition: int) -> list[str]:
        known = self._key_lists.get((what.name, partition))
        if known is None:
            known = [self.keys[partition][key] for key in what.keys]
            self._key_lists[what.name, partition] = known
        return known

    def partition_of(self, member: str) -> int:
        return 0 if self.partitions == 1 else partition_of(member, self.partitions)

    def partition_of_key(self, key: bytes) -> int:
        return 0 if self.partitions == 1 else partition_of_key(key, self.partitions)

    def find_partition(self, where: int | str | bytes) -> int:
        """A partition itself, or that of a job."""
        if isinstance(where, int):
            return where
        return self.partition_of(where) if isinstance(where, str) else self.partition_of_key(where)

    def raise_if_repartitioned(self, layout: str) -> None:
        """For a caller that found a partition under `layout` and then waited. Raises QueueRepartitioned."""
        if layout != self.layout:
            raise QueueRepartitioned(f"queue {self.name!r} was repartitioned: nothing was done, try again")

    def call(self, name: str, partition: int, session: str, seq: int, args: Sequence[Any]) -> Call:
        return Call(self.script(name), self, partition, session, seq, args, self.layout)

    def adopt_partitions(self, entry: QueueEntry, epochs: list[bytes]) -> None:
        """Take over the partitions of the register's entry, and these epochs."""
        if entry.move != self.layout:
            self.former[self.layout] = self.epochs
            self.layout, self.partitions = entry.move, entry.partitions
            self.queue = replace(self.queue, partitions=entry.partitions)
            self.keys += [self._names.partition(self.name, p) for p in range(len(self.keys), entry.partitions)]
            self.epochs = []
        # A partition that no longer exists has no epoch, so a call on it raises StoreChanged.
        self.epochs[:] = epochs + [b""] * (len(self.keys) - len(epochs))


class Call(msgspec.Struct, frozen=True):
    """One script call on one partition. Repeating it is safe as long as session and seq stay. OpenQueue.call makes it;
    a call on a partition of another layout is never sent."""

    script: Script
    queue: OpenQueue
    partition: int
    session: str
    seq: int
    args: Sequence[Any]
    layout: str

    def checked(self, answer: list[Any]) -> list[Any]:
        """The answer of a call that was made. Raises an error that says why it was not."""
        if answer[0] == WRONG_EPOCH:
            raise StoreChanged(
                f"partition {self.partition} of queue {self.queue.name!r} is not the one that was opened: "
                "the server was wiped, restored or replaced"
            )
        if answer[0] == STALE_SEQ:
            raise StoreError(f"a later call of session {self.session} was answered before: this one was refused")
        return answer
