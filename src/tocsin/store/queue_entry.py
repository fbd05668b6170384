"""How a queue is registered in Redis: its order, its number of partitions, and a change of them that is under way."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from tocsin.model import msgpack
from tocsin.model.errors import RecordUnreadable
from tocsin.model.queue import Queue


class RepartitionUnderWay(Struct, frozen=True):
    """A change of partitions: how many there will be, and the name of the change."""

    to: int
    move: str


class QueueEntry(Struct, frozen=True, omit_defaults=True):
    """`move` is the name of the queue's last change of partitions, '' if there was none."""

    order: str
    partitions: int
    move: str = ""
    moving: RepartitionUnderWay | None = None

    def queue(self, name: str) -> Queue:
        """Raises RecordUnreadable for an order that this version does not know."""
        try:
            return msgspec.convert({"name": name, "order": self.order, "partitions": self.partitions}, Queue)
        except msgpack.UNREADABLE as error:
            raise _unreadable(error) from error


_decoder = msgspec.msgpack.Decoder(QueueEntry)


def decode_entry(raw: bytes) -> QueueEntry:
    """Raises RecordUnreadable for bytes that this version did not write."""
    try:
        return _decoder.decode(raw)
    except msgpack.UNREADABLE as error:
        raise _unreadable(error) from error


def encode_entry(entry: QueueEntry) -> bytes:
    return msgpack.encode(entry)


def _unreadable(error: Exception) -> RecordUnreadable:
    return RecordUnreadable(
        f"the entry of a queue in the register cannot be read ({error}): it is damaged, or a newer version wrote it; "
        "`tocsin doctor` names the queue"
    )
