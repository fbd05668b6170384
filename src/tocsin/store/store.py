"""The store: one server and one namespace on it. Opens and closes, and puts together the parts that talk to Redis.

What each part does is in `transitions` (changes) and `views` (reads); both take a store.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import Mapping
from typing import Any

from redis.exceptions import RedisError

from tocsin.model.clock import Clock, ServerClock
from tocsin.model.errors import QueueRepartitioned, StoreChanged, StoreError
from tocsin.model.queue import Queue
from tocsin.store.calls import Calls
from tocsin.store.connection.address import parse
from tocsin.store.connection.client import open_client
from tocsin.store.connection.pool import ConnectionSettings
from tocsin.store.connection.server_check import check_server
from tocsin.store.embedded.server import EmbeddedServer
from tocsin.store.keys import Keys
from tocsin.store.open_queue import LARGEST_BATCH, Call, OpenQueue
from tocsin.store.queue_directory import QueueDirectory
from tocsin.store.sessions import SessionPool, end_sessions
from tocsin.store.transitions.put_batcher import PutBatcher

__all__ = ["LARGEST_BATCH", "Call", "OpenQueue", "Store"]

# How many outcomes of jobs that nobody named are kept of a queue.
RESULTS_MAX = 100_000
# How long close() waits for the server to forget our sessions.
CLOSE_S = 2.0


class Store(Calls):
    def __init__(
        self,
        url: str | EmbeddedServer,
        *,
        prefix: str = "",
        hash_tag: str = "",
        names: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        connections: ConnectionSettings | None = None,
        results_max: int = RESULTS_MAX,
    ) -> None:
        self._embedded = url if isinstance(url, EmbeddedServer) else None
        address = parse(url.url if isinstance(url, EmbeddedServer) else url)
        super().__init__(address, Keys(prefix, hash_tag, names), clock or ServerClock(), self.revive_server)
        self.connections = connections or ConnectionSettings()
        self.queues = QueueDirectory(self)
        self.sessions = SessionPool()
        self.putter = PutBatcher(self.change)
        self._results_max = results_max

    async def open(self) -> None:
        """Connect and refuse what cannot be used. Raises StoreUnavailable or StoreRefused."""
        if self._embedded:
            await asyncio.to_thread(self._embedded.start)
        self.client = open_client(self.address, self.connections)
        self.client.script_reloader = self.scripts
        try:
            await check_server(self.client, self.address)
            await self.run_once(self.scripts.load_all)
            await self.refill_idle_connections()
        except BaseException:
            await self.client.aclose()
            raise

    async def close(self) -> None:
        if self.client is not None:
            with contextlib.suppress(StoreError, RedisError, OSError):
                await asyncio.wait_for(self._end_sessions(), CLOSE_S)
            await self.client.aclose()
        if self._embedded and threading.main_thread().is_alive():
            await asyncio.to_thread(self._embedded.close)
        elif self._embedded:
            # The interpreter is exiting, and starts no more threads.
            self._embedded.close()

    async def refill_idle_connections(self) -> None:
        """Open idle connections again that were lost. Raises StoreUnavailable."""
        await self.run_once(lambda client: client.refill_idle_connections())

    async def revive_server(self) -> None:
        """Start an embedded server again that has died. Other servers are not ours to start."""
        if self._embedded:
            await asyncio.to_thread(self._embedded.ensure)

    async def open_queue(self, queue: Queue) -> OpenQueue:
        """Raises InvalidConfig if the queue differs from what Redis holds."""
        return await self.queues.open(queue)

    async def find_queue(self, name: str) -> OpenQueue | None:
        return await self.queues.find(name)

    async def reopen(self, queue: OpenQueue) -> None:
        """After StoreChanged. Raises QueueRepartitioning while the queue is being repartitioned."""
        await self.queues.reopen(queue)

    async def change(self, name: str, queue: OpenQueue, where: int | str | bytes, *args: Any) -> list[Any]:
        """A program's change, repeated under one seq until it is answered, for a while. `where`: the job that it is
        about, or a partition. Of a partition it raises QueueRepartitioned if the queue has other partitions by now and
        the change was not made; a job is looked for in its new one."""
        while True:
            with self.sessions.borrow() as (session, seq):
                call = queue.call(name, queue.find_partition(where), session, seq, args)
                try:
                    return await self._retry_while_away(self.call, call)  # type: ignore[no-any-return]
                except StoreChanged:
                    await self.queues.reopen_patiently(queue)
                if call.layout != queue.layout and (answer := await self.find_kept_answer(call)):
                    return answer
                try:
                    return await self._retry_while_away(self.call, call)  # type: ignore[no-any-return]
                except QueueRepartitioned:
                    if isinstance(where, int):
                        raise

    def most_unnamed(self, queue: OpenQueue) -> int:
        """How many outcomes of jobs that nobody named each of its partitions keeps."""
        return math.ceil(self._results_max / queue.partitions)

    async def _end_sessions(self) -> None:
        names = self.sessions.names()
        if names:
            for queue in self.queues.opened():
                await end_sessions(self, queue, names)
