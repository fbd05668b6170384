"""Several reads of one partition, answered at one instant."""

from __future__ import annotations

from typing import Any

from tocsin.model import msgpack
from tocsin.store.scripts.script import script
from tocsin.store.store import Store


class CombinedRead:
    """Collects reads, and sends them as one script: a full Redis refuses even transactions that only read."""

    def __init__(self) -> None:
        self._keys: list[str] = []
        self._items: list[bytes] = []

    def ask(self, command: str, key: str, *args: str | bytes | int) -> None:
        words = [word if isinstance(word, bytes) else str(word).encode() for word in (command, *args)]
        self._keys.append(key)
        self._items.append(msgpack.array(len(words), [msgpack.text(word) for word in words]))

    async def answers(self, store: Store) -> list[Any]:
        """The answers of the server; scores are bytes. Raises StoreUnavailable."""
        if not self._keys:
            return []
        read, items = script("partition_read"), msgpack.array(len(self._items), self._items)
        return list(await store.run_repeatable(lambda c: read(c, self._keys, [items])))
