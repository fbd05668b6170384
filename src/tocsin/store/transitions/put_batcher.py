"""Puts that wait at the same time go together.

A partition has at most one call in flight from here. A put that finds none is sent at once, by its own caller. Puts
that come meanwhile wait, and the next call carries all of them in the order in which they came. So a lone put costs one
round trip, and a burst costs one for each LARGEST_BATCH puts, however many callers there are.

Nobody fails for waiting in a long line. A put fails with the call that carried it. If the server was away during all of
the patience of a call, those that waited at least as long fail with it.
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

# How many a put has for job_put.lua.
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
    # In msgpack, as job_put.lua reads them.
    fields: bytes
    answer: asyncio.Future[Answer]


class PutBatcher:
    """The puts of one store."""

    def __init__(self, change: ChangeCall) -> None:
        self._change = change
        # A place is here as long as a call is in flight there.
        self._lines: dict[Place, deque[WaitingPut]] = {}
        self._carriers: set[asyncio.Task[None]] = set()
        self._quiet = asyncio.Event()
        self._quiet.set()

    def put(self, queue: OpenQueue, member: str, fields: bytes) -> Awaitable[Answer]:
        """To be awaited at once. No coroutine for those that wait: with 100 000 of them the garbage collector would
        take longer than the puts."""
        line = self._lines.get((queue.name, queue.layout, queue.partition_of(member)))
        if line is None:
            return self._put_alone(queue, member, fields)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        line.append(WaitingPut(member, fields, answer))
        return answer

    async def _put_alone(self, queue: OpenQueue, member: str, fields: bytes) -> Answer:
        place = (queue.name, queue.layout, queue.partition_of(member))
        if place in self._lines:
            # Another began since this coroutine was made.
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
            # With its event loop, and perhaps before it began.
            self._end(place)
        else:
            self._go_on(queue, place)

    def _end(self, place: Place) -> None:
        _cancel(self._lines.pop(place))
        if not self._lines:
            self._quiet.set()

    async def _carry(self, queue: OpenQueue, place: Place) -> None:
        """One call after the other, until nobody waits at this place."""
        line, alone = self._lines[place], 0
        while line:
            batch = _take(line, 1 if alone else LARGEST_BATCH)
            alone = max(alone - 1, 0)
            if batch and not await self._send(queue, place, batch):
                # One of them may be the reason: the others must not fail for it.
                line.extendleft(reversed(batch))
                alone = len(batch)

    async def _send(self, queue: OpenQueue, place: Place, batch: list[WaitingPut]) -> bool:
        """False: nothing was put, and each of them is to be tried alone."""
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
            # Whatever it is, the callers must see it: this task has nobody else to raise it to.
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
        """The queue has other partitions by now, and these were not put."""
        for one in batch:
            place = (queue.name, queue.layout, queue.partition_of(one.member))
            if place in self._lines:
                self._lines[place].append(one)
            else:
                self._begin(place, deque([one]))
                self._go_on(queue, place)


def _passing(error: Exception) -> bool:
    """Whether the reason is the server or the queue, and not what was put."""
    return isinstance(error, (StoreUnavailable, QueueRepartitioning)) and not isinstance(error, StoreFull)


def _take(line: deque[WaitingPut], most: int) -> list[WaitingPut]:
    """The next to go together, without those whose callers gave up. Each member is in it once: a script reads what is
    stored before it writes, so the second put of a member must come in a later call."""
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
