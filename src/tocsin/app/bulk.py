"""Puts millions of rows: consumes them lazily and sends them in batches per partition, a few batches at a time."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from typing import Any

from tocsin.model.durations import Millis
from tocsin.model.errors import StoreError
from tocsin.model.ids import partition_of
from tocsin.model.outcome import NEW
from tocsin.store.open_queue import LARGEST_BYTES
from tocsin.store.store import LARGEST_BATCH, OpenQueue
from tocsin.store.transitions.jobs import Jobs, PutItem

# The most batches that are sent and not answered yet.
IN_FLIGHT = 4
# Rows of a plain iterable after which other tasks get a turn: a few milliseconds.
TURN_AFTER = 500


class Bulk:
    """Collects puts by partition, and sends the batch of a partition when it is full."""

    def __init__(
        self,
        jobs: Jobs,
        queue: OpenQueue,
        ring: Callable[[OpenQueue, int], None],
        put_many: Callable[[list[PutItem]], Awaitable[tuple[bytes, Millis]]] | None = None,
        batch: int = LARGEST_BATCH,
    ) -> None:
        """`put_many` puts a batch; None: as Jobs does."""
        self.new = 0
        # How many rows the server has acknowledged.
        self.written = 0
        self._put_many = put_many or functools.partial(jobs.put_many, queue)
        self._batch = batch
        self._queue = queue
        # The number of partitions now. If the queue is repartitioned meanwhile, the rows of one batch belong to several
        # partitions, and `put_many` finds the right one for each.
        self._partitions = queue.partitions
        self._ring = ring
        self._puts: list[list[PutItem]] = [[] for _ in range(queue.partitions)]
        self._members: list[set[str]] = [set() for _ in range(queue.partitions)]
        self._bytes = [0] * queue.partitions
        self._sending: set[asyncio.Task[None]] = set()

    async def put_all(self, rows: Iterable[Any] | AsyncIterable[Any], make: Callable[[Any], PutItem]) -> int:
        """Put what `make` makes of each row. Returns how many were new."""
        try:
            if isinstance(rows, AsyncIterable):
                async for row in rows:
                    await self._add(make(row))
            else:
                for n, row in enumerate(rows, 1):
                    await self._add(make(row))
                    if n % TURN_AFTER == 0:
                        await asyncio.sleep(0)
            return await self._flush()
        except StoreError as error:
            await self._count_rest()
            error.written = self.written
            error.args = (f"{error}; {self.written} rows were written before the call stopped",)
            raise
        finally:
            for task in self._sending:
                task.cancel()
            await asyncio.gather(*self._sending, return_exceptions=True)

    async def _add(self, put: PutItem) -> None:
        partition = partition_of(put.member, self._partitions)
        if put.member in self._members[partition]:
            # The same id a second time: its put must find the first one written.
            await self._send(partition)
            await self._wait_for(0)
        self._puts[partition].append(put)
        self._members[partition].add(put.member)
        self._bytes[partition] += len(put.record)
        if len(self._puts[partition]) >= self._batch or self._bytes[partition] >= LARGEST_BYTES:
            await self._send(partition)

    async def _flush(self) -> int:
        for partition, puts in enumerate(self._puts):
            if puts:
                await self._send(partition)
        await self._wait_for(0)
        return self.new

    async def _count_rest(self) -> None:
        """Wait for the batches that were under way when one failed: rows of theirs that are written count too."""
        rest, self._sending = self._sending, set()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _send(self, partition: int) -> None:
        puts, self._puts[partition] = self._puts[partition], []
        self._members[partition] = set()
        self._bytes[partition] = 0
        # Queues that serve in the order of arrival must get the batches one after the other.
        await self._wait_for(IN_FLIGHT - 1 if self._queue.queue.order == "due" else 0)
        self._sending.add(asyncio.create_task(self._put(partition, puts)))

    async def _put(self, partition: int, puts: list[PutItem]) -> None:
        codes, head = await self._put_many(puts)
        self.written += len(puts)
        self.new += codes.count(NEW)
        if head >= 0 and self._queue.partitions == self._partitions:
            self._ring(self._queue, partition)
        elif head >= 0:
            for each in {self._queue.partition_of(put.member) for put in puts}:
                self._ring(self._queue, each)

    async def _wait_for(self, most: int) -> None:
        while len(self._sending) > most:
            done, self._sending = await asyncio.wait(self._sending, return_when=asyncio.FIRST_COMPLETED)
            # Ask every task for its error: asyncio logs errors that are never retrieved.
            failed = [error for error in [task.exception() for task in done] if error is not None]
            if failed:
                raise failed[0]
