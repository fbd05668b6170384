"""What a repartition carries from partition to partition: how it is packed, and where each piece belongs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tocsin.model import msgpack
from tocsin.model.ids import partition_of_key
from tocsin.store.formats import is_kept_session, job_of_entry, kept_session, upstream_of_watcher


def home_of_watcher(watcher: bytes, partitions: int) -> int:
    """The partition of the job that it watches."""
    return partition_of_key(upstream_of_watcher(watcher), partitions)


def home_of_entry(entry: bytes, partitions: int) -> int:
    """The partition of the job that an entry of the outbox is about. Garbage that names none goes to partition 0, which
    every queue has."""
    job = job_of_entry(entry)
    return partition_of_key(job, partitions) if job else 0


def kept_name(session: bytes, epoch: bytes) -> bytes:
    """The name under which partition 0 keeps the last call of a session. A session that an earlier repartition kept has
    such a name already."""
    return session if is_kept_session(session) else kept_session(session, epoch)


def packed_values(member: bytes, values: Sequence[bytes | None]) -> list[bytes]:
    """A job and all that a partition has of it, for lua/repartition_write.lua."""
    return [msgpack.text(member), *(msgpack.FALSE if value is None else msgpack.text(value) for value in values)]


def flat(pairs: dict[Any, Any]) -> list[Any]:
    return [part for pair in pairs.items() for part in pair]


def pages(items: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    return (items[first : first + size] for first in range(0, len(items), size))
