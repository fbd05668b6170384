"""Batches puts: those that wait at the same time go in one call.

Each partition has at most one call in flight from here. A put that finds none is sent at once, by its own caller. Puts
that come meanwhile wait, and the next call carries all of them, in order. So a lone put costs one round trip, and a
burst costs one per LARGEST_BATCH puts, however many callers there are.

No put fails because the line is long. A put fails with the call that carried it. If the server was away for all of a
call's patience, the puts that waited at least as long fail with that call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Iterable
from typing import Any, Protocol, TypeAlias

import msgspec

from tocsin.model import msgpack
from tocsin.model.durations import Millis
from tocsin.model.errors import QueueRepartitioned, QueueRepartitioning, StoreFull, StoreUnavailable
from tocsin.store.formats import codes_of
from tocsin.store.open_queue import LARGEST_BATCH, LARGEST_BYTES, OpenQueue

# The number of values of a put in the arguments of job_put.lua.
FIELDS = 6

# The code of one put, and the due time to ring the bell for, or -1.
Answer: TypeAlias = tuple[int, Millis]
# A queue, its layout, a partition.
Place: TypeAlias = tuple[str, str, int]


class ChangeCall(Protocol):
    def __call__(self, name: str, queue: OpenQueue, where: int, *args: Any) -> Awaitable[list[Any]]: ...


class WaitingPut(msgspec.Struct, gc=False):
    """A put that waits for its turn."""

    member: str
    # In msgpack, for job_put.lua.
    fields: bytes
    answer: asyncio.Future[Answer]


class PutBatcher:
    """The puts of one store."""

    def __init__(self, change: ChangeCall) -> None:
        self._change = change
        # The puts that wait, by place. A place is here as long as it has a call in flight.
        self._lines: dict[Place, deque[WaitingPut]] = {}
        self._carriers: set[asyncio.Task[None]] = set()
        self._quiet = asyncio.Event()
        self._quiet.set()

    def put(self, queue: OpenQueue, member: str, fields: bytes) -> Awaitable[Answer]:
        """To be awaited at once. A put that waits is a future and not a coroutine: with 100 000 coroutines the garbage
        collector would take longer than the puts."""
        line = self._lines.get((queue.name, queue.layout, queue.partition_of(member)))
        if line is None:
            return self._put_alone(queue, member, fields)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        line.append(WaitingPut(member, fields, answer))
        return answer

    async def _put_alone(self, queue: OpenQueue, member: str, fields: bytes) -> Answer:
        place = (queue.name, queue.layout, queue.partition_of(member))
        if place in self._lines:
            # Another call began since this coroutine was made.
            return await self.put(queue, member, fields)
        self._begin(place, deque())
        try:
            _, codes, head = await self._change("job_put", queue, place[2], msgpack.array(FIELDS, [fields]))
            return codes_of(codes)[0], int(head)
        except QueueRepartitioned:
            pass
        finally:
            self._go_on(queue, place)
        return await self.put(queue, member, fields)

    async def quiet(self) -> None:
        """Wait until no put is under way."""
        await self._quiet.wait()

    def _begin(self, place: Place, line: deque[WaitingPut]) -> None:
        self._lines[place] = line
        self._quiet.clear()

    def _go_on(self, queue: OpenQueue, place: Place) -> None:
        """The call in flight has ended."""
        line = self._lines[place]
        while line and line[0].answer.done():
            line.popleft()
        if line:
            carrier = asyncio.ensure_future(self._carry(queue, place))
            self._carriers.add(carrier)
            carrier.add_done_callback(lambda done: self._carried(queue, place, done))
        else:
            self._end(place)

    def _carried(self, queue: OpenQueue, place: Place, carrier: asyncio.Task[None]) -> None:
        self._carriers.discard(carrier)
        if carrier.cancelled():
            # The event loop was closed, perhaps before this task began.
            self._end(place)
        else:
            self._go_on(queue, place)

    def _end(self, place: Place) -> None:
        _cancel(self._lines.pop(place))
        if not self._lines:
            self._quiet.set()

    async def _carry(self, queue: OpenQueue, place: Place) -> None:
        """Send one call after the other, until no put waits at this place."""
        line, alone = self._lines[place], 0
        while line:
            batch = _take(line, 1 if alone else LARGEST_BATCH)
            alone = max(alone - 1, 0)
            if batch and not await self._send(queue, place, batch):
                # One put may be the reason. The others must not fail because of it, so each is sent alone.
                line.extendleft(reversed(batch))
                alone = len(batch)

    async def _send(self, queue: OpenQueue, place: Place, batch: list[WaitingPut]) -> bool:
        """False: nothing was put, and each put must be tried alone."""
        line = self._lines[place]
        waited_as_long = len(line)
        try:
            queue.raise_if_repartitioned(place[1])
            items = msgpack.array(FIELDS * len(batch), [one.fields for one in batch])
            _, codes, head = await self._change("job_put", queue, place[2], items)
        except QueueRepartitioned:
            self._readdress(queue, [*batch, *line])
            line.clear()
        except Exception as error:
            # Callers must see any error: this task has no other place to raise it.
            if _passing(error):
                _fail([*batch, *(line.popleft() for _ in range(waited_as_long))], error)
            elif len(batch) == 1:
                _fail(batch, error)
            else:
                return False
        except asyncio.CancelledError:
            _cancel(batch)
            raise
        else:
            _answer(batch, codes, int(head))
        return True

    def _readdress(self, queue: OpenQueue, batch: Iterable[WaitingPut]) -> None:
        """The queue was repartitioned, and these were not put: send each to its new partition."""
        for one in batch:
            place = (queue.name, queue.layout, queue.partition_of(one.member))
            if place in self._lines:
                self._lines[place].append(one)
            else:
                self._begin(place, deque([one]))
                self._go_on(queue, place)


def _passing(error: Exception) -> bool:
    """Whether the reason is the server or the queue, and not the puts."""
    return isinstance(error, (StoreUnavailable, QueueRepartitioning)) and not isinstance(error, StoreFull)


def _take(line: deque[WaitingPut], most: int) -> list[WaitingPut]:
    """The next batch, without puts whose callers gave up. A member is in it only once: the script reads all before it
    writes, so a second put of the member must go in a later call."""
    batch: list[WaitingPut] = []
    members: set[str] = set()
    size = 0
    while line and len(batch) < most and size < LARGEST_BYTES and line[0].member not in members:
        one = line.popleft()
        if not one.answer.done():
            batch.append(one)
            members.add(one.member)
            size += len(one.fields)
    return batch


def _answer(batch: list[WaitingPut], codes: bytes, head: Millis) -> None:
    for one, code in zip(batch, codes_of(codes), strict=True):
        if not one.answer.done():
            one.answer.set_result((code, head))


def _fail(batch: list[WaitingPut], error: Exception) -> None:
    for one in batch:
        if not one.answer.done():
            one.answer.set_exception(error)


def _cancel(batch: Iterable[WaitingPut]) -> None:
    for one in batch:
        one.answer.cancel()
