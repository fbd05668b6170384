"""Definitions: what a program may do to jobs, and see of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from tocsin.model import msgpack
from tocsin.model.durations import Millis
from tocsin.model.errors import QueueRepartitioned, RecordUnreadable, UnknownJob
from tocsin.model.job import Failure, Header, Job, Spec, Stage
from tocsin.model.outcome import IGNORE, Outcome
from tocsin.model.record import decode_failure, read_record
from tocsin.store.formats import (
    ClaimEntry,
    claim_entry_or_none,
    codes_of,
    decode_outcome,
    due_score_bound,
    not_before,
    uncounted_in,
)
from tocsin.store.keys import BANDS, STAGE_KEYS
from tocsin.store.numbers import time_of
from tocsin.store.store import LARGEST_BATCH, OpenQueue, Store
from tocsin.store.transitions.by_partition import change_by_partition
from tocsin.store.transitions.put_batcher import FIELDS
from tocsin.store.views import line

# In the order of lua/lib/members.lua. The last is of fair queues only.
HASHES = ("jobs", "claims", "errors", "results", "needs", "spots")
_SETS = ("waiting", "working", "paused", "parked", "dead", "done", "blocked", "unnamed")
# The kinds of due time, as lua/job_put.lua numbers them.
_ABSOLUTE, _RELATIVE, _NOW_IF_PAST = map(msgpack.small, range(3))
# The codes of delete_many and of revive_many; 0 for a job that they left alone.
REMOVED, RUNNING = 1, 2
REVIVED = 1


class PutItem(msgspec.Struct, frozen=True, gc=False):
    """One job to put. `due` is a time, or with `relative` a delay on the server's clock; with `now_if_past` a time that
    has passed is now, so that nobody goes before those who wait by naming one."""

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


class Jobs:
    """The definitions of all queues."""

    def __init__(self, store: Store, carry: Callable[[OpenQueue, int], Awaitable[None]] | None = None) -> None:
        """`carry`: tells those who wait for what ended here; without it workers find out by themselves."""
        self._store = store
        self._carry = carry or _left_to_workers

    def put(self, queue: OpenQueue, put: PutItem) -> Awaitable[tuple[int, Millis]]:
        """One job, with others that are put at the same time: its code, and the due time to ring for, or -1."""
        return self._store.putter.put(queue, put.member, b"".join(_packed(put)))

    async def put_many(self, queue: OpenQueue, puts: Sequence[PutItem]) -> tuple[bytes, Millis]:
        """The code of each, and the due time to ring for."""
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

        codes, told = bytearray(len(members)), set[int]()
        async for partition, some, answer in change_by_partition(
            self._store, "job_delete", queue, members, bytes, packed
        ):
            for n, code in zip(some, codes_of(answer[1]), strict=True):
                codes[n] = code
            told |= {partition} if answer[2] else set()
        for partition in told:
            await self._carry(queue, partition)
        return bytes(codes)

    async def pause(self, queue: OpenQueue, member: str) -> bool:
        return bool((await self._store.change("job_pause", queue, member, member))[1])

    async def resume(self, queue: OpenQueue, member: str, expected: int, due: Millis) -> tuple[int, Millis]:
        answer = await self._store.change("job_resume", queue, member, member, expected, due)
        return int(answer[1]), int(answer[2])

    async def cancel(self, queue: OpenQueue, member: str, due: Millis = 0) -> tuple[int, str, int]:
        """0 nothing to cancel, 1 cancelled, 2 asked; then who was asked, and the token of its claim."""
        most = self._store.most_unnamed(queue)
        answer = await self._store.change("job_cancel", queue, member, member, due, most)
        if answer[4]:
            await self._carry(queue, queue.partition_of(member))
        return int(answer[1]), answer[2].decode(errors="surrogateescape"), int(answer[3])

    async def fire(self, queue: OpenQueue, member: str, dues: list[Millis]) -> list[Millis]:
        """Add extra runs (0: now) and return when each is due. Raises UnknownJob."""
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
        """Whether it was otherwise before, in any partition."""
        wish, changed = "1" if pause else "", False
        while True:
            layout = queue.layout
            try:
                for partition in range(queue.partitions):
                    queue.raise_if_repartitioned(layout)
                    changed |= bool((await self._store.change("queue_pause", queue, partition, wish))[1])
                return changed
            except QueueRepartitioned:
                continue

    # Looking

    async def get(self, queue: OpenQueue, member: str) -> Job | None:
        while True:
            found = await self.get_all(queue, queue.partition_of(member), [member.encode()])
            if found or not await self._store.queues.refresh_if_repartitioned(queue):
                return found[0] if found else None

    async def get_all(self, queue: OpenQueue, partition: int, members: list[bytes]) -> list[Job]:
        """Those of the named members that exist, read together; unreadable ones with an empty spec."""
        read, jobs, left = queue.script("member_read"), list[Job](), members
        keys = queue.keys_of(read, partition)
        # A script, because a full Redis 6.2 refuses transactions, also those that only read. Fewer jobs may come than
        # were asked for, if they are large.
        while left:
            args = [msgpack.texts(left[:LARGEST_BATCH])]
            columns = await self._store.run_repeatable(lambda c, a=args: read(c, keys, a))  # type: ignore[misc]
            some, left = left[: len(columns[0])], left[len(columns[0]) :]
            jobs += _as_jobs(queue, some, columns)
        return jobs

    async def count(self, queue: OpenQueue, stages: Iterable[str] = STAGE_KEYS) -> dict[str, int]:
        wanted = list(stages)

        async def ask(client: Any) -> Any:
            async with client.pipeline(transaction=False) as pipe:
                for keys in queue.keys:
                    for stage in wanted:
                        pipe.zcard(keys[stage])
                return await pipe.execute()

        counts = await self._store.run_repeatable(ask)
        return {stage: sum(counts[i :: len(wanted)]) for i, stage in enumerate(wanted)}

    async def ready_counts(self, queue: OpenQueue) -> list[int]:
        """How many are due and in line, by band, in a queue of another order than `due`."""
        return await line.counts(self._store, queue)

    async def position(self, queue: OpenQueue, member: str) -> int | None:
        """How many of its queue of order `priority` go before it; None if it is not in line."""
        return await line.position(self._store, queue, member)

    async def any_due_or_working(self, queues: list[OpenQueue]) -> bool:
        now = await self._store.now()

        async def ask(client: Any) -> Any:
            async with client.pipeline(transaction=False) as pipe:
                for queue in queues:
                    for keys in queue.keys:
                        pipe.zcount(keys["waiting"], "-inf", due_score_bound(now))
                        pipe.hget(keys["meta"], "paused")
                        pipe.zcard(keys["working"])
                        pipe.exists(*(keys[band] for band in BANDS))
                        # What is to be carried may set others free.
                        pipe.zcard(keys["outbox"])
                return await pipe.execute()

        found = zip(*[iter(await self._store.run_repeatable(ask))] * 5, strict=True)
        # What waits in a paused queue is due for nobody.
        return any(
            working or outbox or ((due or ready) and not paused) for due, paused, working, ready, outbox in found
        )

    async def held(self, queue: OpenQueue, member: str) -> ClaimEntry | None:
        """The claim under which somebody holds it now."""
        claims = queue.keys[queue.partition_of(member)]["claims"]
        raw = await self._store.run_repeatable(lambda c: c.hget(claims, member))
        entry = claim_entry_or_none(raw)
        return entry if entry and entry.token else None

    async def outcome(self, queue: OpenQueue, member: str) -> Outcome | None:
        """How a one-shot ended, while it is remembered."""
        while True:
            key = queue.keys[queue.partition_of(member)]["results"]
            raw = await self._store.run_repeatable(lambda c, k=key: c.hget(k, member))  # type: ignore[misc]
            if raw is not None or not await self._store.queues.refresh_if_repartitioned(queue):
                return None if raw is None else decode_outcome(raw)

    async def walk(self, queue: OpenQueue, partition: int) -> AsyncIterator[list[bytes]]:
        """Every member that has a record, in pages, in no order."""
        key, cursor = queue.keys[partition]["jobs"], 0
        while True:
            cursor, page = await self._store.run_repeatable(
                lambda c, at=cursor: c.hscan(key, at, count=LARGEST_BATCH)  # type: ignore[misc]
            )
            yield list(page)
            if not cursor:
                return


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


def _as_jobs(queue: OpenQueue, members: Sequence[bytes], columns: list[Any]) -> list[Job]:
    """Those that stand anywhere, of what lua/member_read.lua has of them."""
    known = dict(zip(columns_of(queue.queue.order), columns, strict=True))
    standing: dict[str, Sequence[float | None]] = {
        stage: [None if raw is None else float(raw) for raw in known[stage]] for stage in STAGE_KEYS
    }
    standing["ready"] = line.dues(known, len(members))
    jobs = []
    for i, member in enumerate(members):
        for stage, scores in standing.items():
            score = scores[i]
            if score is not None:
                about = (known[base][i] for base in ("jobs", "claims", "errors"))
                jobs.append(_as_job(queue, member, Stage(stage), score, *about))
                break
    return jobs


def columns_of(order: str) -> list[str]:
    """As lua/lib/members.lua has them, with what lua/lib/places_*.lua adds."""
    hashes = [base for base in HASHES if base != "spots" or order == "fair"]
    return [*hashes, *_SETS, *(BANDS if order == "priority" else ())]


def _as_job(
    queue: OpenQueue,
    member: bytes,
    stage: Stage,
    score: float,
    record: bytes | None,
    claim: bytes | None,
    error: bytes | None,
) -> Job:
    entry = claim_entry_or_none(claim)
    failure = decode_failure(error) if error else None
    try:
        current = (entry.pending if entry and entry.pending else record) or b""
        header, spec = read_record(current)
    except RecordUnreadable as unreadable:
        header, spec = Header(recurring=False, timeout=0, handler=0), Spec(name="?")
        failure = failure or Failure(error=str(unreadable))
    at = time_of(not_before(score) if stage is Stage.WAITING else score)
    if queue.queue.order == "due":
        uncounted = entry.uncounted if entry else uncounted_in(score)
        header = replace(header, succeeded=header.succeeded + uncounted, attempts=header.attempts + uncounted)
    return Job(
        id=member.decode(errors="replace"),
        queue=queue.name,
        spec=spec,
        header=header,
        stage=stage,
        due_ms=entry.due if entry else at,
        attempt=entry.attempt if entry else 1,
        recoveries=entry.recoveries if entry else 0,
        not_before_ms=at if stage in (Stage.WAITING, Stage.BLOCKED) else None,
        owner=entry.owner or None if entry else None,
        failure=failure,
    )
