"""What a move of a queue carries from partition to partition: how it is packed, and where each piece belongs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tocsin.model import msgpack
from tocsin.model.ids import partition_of_key
from tocsin.store.formats import is_kept_session, job_of_entry, kept_session, upstream_of_watcher


def home_of_watcher(watcher: bytes, partitions: int) -> int:
    """With the job that it watches (lua/lib/endings.lua)."""
    return partition_of_key(upstream_of_watcher(watcher), partitions)


def home_of_entry(entry: bytes, partitions: int) -> int:
    """Of an outbox: with the job that ended, or that waits. What names none is kept in the partition that every queue
    has."""
    job = job_of_entry(entry)
    return partition_of_key(job, partitions) if job else 0


def kept_name(session: bytes, epoch: bytes) -> bytes:
    """Under which partition 0 keeps what a session last did. One that was kept by an earlier move has it already."""
    return session if is_kept_session(session) else kept_session(session, epoch)


def packed_values(member: bytes, values: Sequence[bytes | None]) -> list[bytes]:
    """A job and what a partition has of it, as lua/member_write.lua takes it."""
    return [msgpack.text(member), *(msgpack.FALSE if value is None else msgpack.text(value) for value in values)]


def flat(pairs: dict[Any, Any]) -> list[Any]:
    return [part for pair in pairs.items() for part in pair]


def pages(items: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    return (items[first : first + size] for first in range(0, len(items), size))
