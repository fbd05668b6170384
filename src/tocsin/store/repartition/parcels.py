"""What a move of a queue carries from partition to partition: how it is packed, and where each piece belongs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tocsin.model import codec
from tocsin.model.ids import partition_of_key
from tocsin.store.open_queue import kept_session


def home_of_watcher(watcher: bytes, partitions: int) -> int:
    """With the job that it watches (lua/lib/outbox.lua)."""
    return partition_of_key(watcher.partition(b"\0")[0], partitions)


def home_of_entry(entry: bytes, partitions: int) -> int:
    """Of an outbox: with the job that ended, or that waits. What names none is kept in the partition that every queue
    has."""
    _, named, rest = entry.partition(b"\0")
    return partition_of_key(rest.partition(b"\0")[0], partitions) if named else 0


def kept_name(session: bytes, epoch: bytes) -> bytes:
    """Under which partition 0 keeps what a session last did. One that was kept by an earlier move has it already."""
    return session if b"|" in session else kept_session(session.decode(errors="replace"), epoch)


def packed_values(member: bytes, values: Sequence[bytes | None]) -> list[bytes]:
    """A job and what a partition has of it, as lua/repartition_write.lua takes it."""
    return [codec.text(member), *(b"\xc2" if value is None else codec.text(value) for value in values)]


def flat(pairs: dict[Any, Any]) -> list[Any]:
    return [part for pair in pairs.items() for part in pair]


def texts(parts: Sequence[bytes]) -> bytes:
    return codec.array(len(parts), map(codec.text, parts))


def pages(items: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    return (items[first : first + size] for first in range(0, len(items), size))
