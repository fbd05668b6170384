"""Jobs: what a program may do to them. views/jobs.py reads them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from tocsin.model import msgpack
from tocsin.model.durations import Millis
from tocsin.model.errors import QueueRepartitioned, UnknownJob
from tocsin.model.outcome import IGNORE
from tocsin.store.formats import (
    codes_of,
)
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.by_partition import change_by_partition
from tocsin.store.transitions.put_batcher import FIELDS
from tocsin.store.views.jobs import JobReader

# The kinds of due time, as lua/job_put.lua numbers them.
_ABSOLUTE, _RELATIVE, _NOW_IF_PAST = map(msgpack.small, range(3))
# The codes of delete_many and of revive_many; 0 for a job that they left alone.
REMOVED, RUNNING = 1, 2
REVIVED = 1


class PutItem(msgspec.Struct, frozen=True, gc=False):
    """One job to put. `due` is a time, or with `relative` a delay on the server's clock. With `now_if_past`, a time in
    the past counts as now, so that a caller cannot jump the line by naming one."""

    member: str
    record: bytes
    due: Millis
    relative: bool = False
    mode: int = IGNORE
    expected: int = 0
    now_if_past: bool = False

    @property
    def kind(self) -> bytes:
        """The kind of due time."""
        return _RELATIVE if self.relative else _NOW_IF_PAST if self.now_if_past else _ABSOLUTE


class Jobs(JobReader):
    """What a program may do to jobs, and all that it may read of them."""

    def __init__(self, store: Store, carry: Callable[[OpenQueue, int], Awaitable[None]] | None = None) -> None:
        """`carry`: passes the end of a job on to the jobs that wait for it. Without it, workers find the end."""
        super().__init__(store)
        self._carry = carry or _left_to_workers

    def put(self, queue: OpenQueue, put: PutItem) -> Awaitable[tuple[int, Millis]]:
        """One job, sent together with others that are put at the same time. Returns its code, and the due time to ring
        the bell for, or -1."""
        return self._store.putter.put(queue, put.member, b"".join(_packed(put)))

    async def put_many(self, queue: OpenQueue, puts: Sequence[PutItem]) -> tuple[bytes, Millis]:
        """The code of each, and the due time to ring the bell for, or -1."""
        codes, heads = bytearray(len(puts)), []
        async for _, some, answer in change_by_partition(
            self._store, "job_put", queue, puts, _key_of_put, _packed_puts
        ):
            for n, code in zip(some, codes_of(answer[1]), strict=True):
                codes[n] = code
            heads.append(int(answer[2]))
        return bytes(codes), min((head for head in heads if head >= 0), default=-1)

    async def delete(self, queue: OpenQueue, member: str, only: str = "") -> bool:
        answer = await self._store.change("job_delete", queue, member, only, msgpack.encode([member]))
        if answer[2]:
            await self._carry(queue, queue.partition_of(member))
        return bool(answer[1] != b"0")

    async def delete_many(self, queue: OpenQueue, members: Sequence[bytes], only: str = "") -> bytes:
        """A code for each: 0 no such job, REMOVED, or RUNNING: it is removed when its run ends."""

        def packed(some: Sequence[bytes]) -> list[Any]:
            return [only, msgpack.texts(some)]

        codes, ended = bytearray(len(members)), set[int]()
        async for partition, some, answer in change_by_partition(
            self._store, "job_delete", queue, members, bytes, packed
        ):
            for n, code in zip(some, codes_of(answer[1]), strict=True):
                codes[n] = code
            ended |= {partition} if answer[2] else set()
        for partition in ended:
            await self._carry(queue, partition)
        return bytes(codes)

    async def pause(self, queue: OpenQueue, member: str) -> bool:
        return bool((await self._store.change("job_pause", queue, member, member))[1])

    async def resume(self, queue: OpenQueue, member: str, expected: int, due: Millis) -> tuple[int, Millis]:
        answer = await self._store.change("job_resume", queue, member, member, expected, due)
        return int(answer[1]), int(answer[2])

    async def cancel(self, queue: OpenQueue, member: str, due: Millis = 0) -> tuple[int, str, int]:
        """0 nothing to cancel, 1 cancelled, 2 its worker must do it; then that worker, and the token of its claim."""
        most = self._store.most_unnamed(queue)
        answer = await self._store.change("job_cancel", queue, member, member, due, most)
        if answer[4]:
            await self._carry(queue, queue.partition_of(member))
        return int(answer[1]), answer[2].decode(errors="surrogateescape"), int(answer[3])

    async def fire(self, queue: OpenQueue, member: str, dues: list[Millis]) -> list[Millis]:
        """Add extra runs (0: now). Returns when each is due. Raises UnknownJob."""
        answer = await self._store.change("job_fire", queue, member, member, msgpack.encode(dues))
        if not answer[1]:
            raise UnknownJob(member)
        return [int(due) for due in answer[2]]

    async def revive(self, queue: OpenQueue, member: str) -> bool:
        return bool((await self._store.change("job_revive", queue, member, msgpack.encode([member])))[1] == b"1")

    async def revive_many(self, queue: OpenQueue, members: Sequence[bytes]) -> bytes:
        """A code for each: 0 not dead, or REVIVED."""
        codes = bytearray(len(members))
        async for _, some, answer in change_by_partition(
            self._store, "job_revive", queue, members, bytes, _packed_members
        ):
            for n, code in zip(some, codes_of(answer[1]), strict=True):
                codes[n] = code
        return bytes(codes)

    async def unpark(self, queue: OpenQueue, member: str) -> bool:
        return bool((await self._store.change("job_unpark", queue, member, member))[1])

    async def pause_queue(self, queue: OpenQueue, pause: bool) -> bool:
        """Returns whether this changed anything in any partition."""
        wanted, changed = "1" if pause else "", False
        while True:
            layout = queue.layout
            try:
                for partition in range(queue.partitions):
                    queue.raise_if_repartitioned(layout)
                    changed |= bool((await self._store.change("queue_pause", queue, partition, wanted))[1])
                return changed
            except QueueRepartitioned:
                continue


async def _left_to_workers(queue: OpenQueue, partition: int) -> None:
    pass


def _key_of_put(put: PutItem) -> bytes:
    return put.member.encode()


def _packed_puts(puts: Sequence[PutItem]) -> list[bytes]:
    parts = [part for put in puts for part in _packed(put)]
    return [msgpack.array(FIELDS * len(puts), parts)]


def _packed_members(members: Sequence[bytes]) -> list[bytes]:
    return [msgpack.texts(members)]


def _packed(put: PutItem) -> list[bytes]:
    return [
        msgpack.text(put.member.encode()),
        msgpack.integer(put.due),
        put.kind,
        msgpack.small(put.mode),
        msgpack.integer(put.expected),
        msgpack.text(put.record),
    ]
