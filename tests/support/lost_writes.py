"""A server that loses its last writes: after a failover to a replica that lags, or a power loss."""

from __future__ import annotations

from tocsin.store.store import Store


class Snapshot:
    """All that a queue has on the server, to be put back as a server does that has lost its last writes."""

    def __init__(self, store: Store, queue: str = "default") -> None:
        self._store, self._queue = store, queue
        self._kept: dict[str, bytes | None] = {}

    async def take(self) -> None:
        queue = await self._store.find_queue(self._queue)
        assert queue is not None
        for keys in queue.keys:
            for key in keys.values():
                self._kept[key] = await self._store.client.dump(key)

    async def put_back(self) -> None:
        for key, value in self._kept.items():
            await self._store.client.delete(key)
            if value is not None:
                await self._store.client.restore(key, 0, value)
