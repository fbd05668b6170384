"""Definitions: what a program may do to jobs, and see of them."""

from __future__ import annotations

import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from tocsin.model import codec
from tocsin.model.durations import Millis
from tocsin.model.errors import QueueRepartitioned, RecordUnreadable, UnknownJob
from tocsin.model.job import Failure, Header, Job, Spec, Stage
from tocsin.store import suspect_scores
from tocsin.store.keys import BANDS, STAGE_KEYS
from tocsin.store.numbers import time_of
from tocsin.store.store import LARGEST_BATCH, OpenQueue, Store
from tocsin.store.transitions.by_partition import spread
from tocsin.store.transitions.put_batcher import FIELDS
from tocsin.store.views import line

IGNORE, REPLACE, POSTPONE, UPDATE, EDIT, EDIT_IN_LINE = range(6)
UNCHANGED, NEW, CHANGED, REMEMBERED, CONFLICT, MISSING = range(6)

_CLAIM = struct.Struct(">QQIHBB")
# Above the due time stands the place in line, see lua/lib/claim.lua.
DUE_MASK = (1 << 48) - 1
# In a queue of order `due` its first byte counts successes that the record lacks, see lua/lib/order_due.lua.
_UNCOUNTED = 56
_PUT_INTENT = 4
# In the order of lua/lib/moved_keys_due.lua. The last is of fair queues only.
HASHES = ("jobs", "claims", "errors", "results", "needs", "spots")
_SETS = ("waiting", "working", "paused", "parked", "dead", "done", "blocked", "unnamed")
# In the order of the codes in lua/lib/outcome.lua.
OUTCOMES = ("failed", "succeeded", "skipped", "cancelled")
# It has ended, and somebody garbled how.
UNKNOWN = "unknown"


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
        """Of its due time, as lua/job_put.lua numbers them."""
        return b"\x01" if self.relative else b"\x02" if self.now_if_past else b"\x00"


class ClaimEntry(msgspec.Struct, frozen=True):
    """What `claims` holds of an unfinished run."""

    token: int
    due: Millis
    attempt: int
    recoveries: int
    intent: int
    owner: str
    pending: bytes | None
    uncounted: int = 0


class Outcome(msgspec.Struct, frozen=True):
    """How a remembered one-shot ended."""

    name: str
    at: Millis
    result: Any
    # False: it is only remembered because others wait for it, without what came of it.
    kept: bool = True
    # Why what it returned could not be kept.
    lost: str = ""


def due_by(now: Millis) -> str:
    """The bound of all scores that are due, whatever they tell below their millisecond."""
    return f"({now + 1}"


def read_entry(raw: bytes) -> ClaimEntry:
    """Raises struct.error for what is none, as lua/lib/claim.lua does."""
    token, due, attempt, recoveries, intent, size = _CLAIM.unpack_from(raw)
    end = _CLAIM.size + size
    after_tenant = end + 1 + (raw[end] if len(raw) > end else 255)
    if len(raw) < after_tenant + (16 if intent & _PUT_INTENT else 0):
        raise struct.error("a claim is longer")
    pending = raw[after_tenant + 16 :] if intent & _PUT_INTENT else None
    owner = raw[_CLAIM.size : end].decode(errors="replace")
    return ClaimEntry(token, due & DUE_MASK, attempt, recoveries, intent, owner, pending, due >> _UNCOUNTED)


def entry_of(raw: bytes | None) -> ClaimEntry | None:
    """None also for garbage: a job is shown without what cannot be read of it."""
    try:
        return None if raw is None else read_entry(raw)
    except struct.error:
        return None


def record_of(header: Header, spec: Spec, largest: int = sys.maxsize) -> bytes:
    """`largest`: bytes, for arguments that a caller has just given; those of a job that exists were let in before."""
    return codec.encode_header(header) + codec.encode_spec(spec, largest)


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
        """A digit for each, and the due time to ring for."""
        codes, heads = bytearray(len(puts)), []
        async for _, some, answer in spread(self._store, "job_put", queue, puts, _key_of_put, _packed_puts):
            for n, code in zip(some, answer[1], strict=True):
                codes[n] = code
            heads.append(int(answer[2]))
        return bytes(codes), min((head for head in heads if head >= 0), default=-1)

    async def delete(self, queue: OpenQueue, member: str, only: str = "") -> bool:
        answer = await self._change("job_delete", queue, member, only, codec.encode([member]))
        if answer[2]:
            await self._carry(queue, queue.partition_of(member))
        return bool(answer[1] != b"0")

    async def delete_many(self, queue: OpenQueue, members: Sequence[bytes], only: str = "") -> bytes:
        """A digit for each: 0 no such job, 1 removed, 2 running, and removed when its run ends."""

        def packed(some: Sequence[bytes]) -> list[Any]:
            return [only, *_packed_members(some)]

        codes, told = bytearray(len(members)), set[int]()
        async for partition, some, answer in spread(self._store, "job_delete", queue, members, bytes, packed):
            for n, code in zip(some, answer[1], strict=True):
                codes[n] = code
            told |= {partition} if answer[2] else set()
        for partition in told:
            await self._carry(queue, partition)
        return bytes(codes)

    async def pause(self, queue: OpenQueue, member: str) -> bool:
        return bool((await self._change("job_pause", queue, member, member))[1])

    async def resume(self, queue: OpenQueue, member: str, expected: int, due: Millis) -> tuple[int, Millis]:
        answer = await self._change("job_resume", queue, member, member, expected, due)
        return int(answer[1]), int(answer[2])

    async def cancel(self, queue: OpenQueue, member: str, due: Millis = 0) -> tuple[int, str, int]:
        """0 nothing to cancel, 1 cancelled, 2 asked; then who was asked, and the token of its claim."""
        most = self._store.most_unnamed(queue)
        answer = await self._change("job_cancel", queue, member, member, due, most)
        if answer[4]:
            await self._carry(queue, queue.partition_of(member))
        return int(answer[1]), answer[2].decode(errors="surrogateescape"), int(answer[3])

    async def fire(self, queue: OpenQueue, member: str, dues: list[Millis]) -> list[Millis]:
        """Add extra runs (0: now) and return when each is due. Raises UnknownJob."""
        answer = await self._change("job_fire", queue, member, member, codec.encode(dues))
        if not answer[1]:
            raise UnknownJob(member)
        return [int(due) for due in answer[2]]

    async def revive(self, queue: OpenQueue, member: str) -> bool:
        return bool((await self._change("job_revive", queue, member, codec.encode([member])))[1] == b"1")

    async def revive_many(self, queue: OpenQueue, members: Sequence[bytes]) -> bytes:
        """A digit for each: 0 not dead, 1 revived."""
        codes = bytearray(len(members))
        async for _, some, answer in spread(self._store, "job_revive", queue, members, bytes, _packed_members):
            for n, code in zip(some, answer[1], strict=True):
                codes[n] = code
        return bytes(codes)

    async def unpark(self, queue: OpenQueue, member: str) -> bool:
        return bool((await self._change("job_unpark", queue, member, member))[1])

    async def pause_queue(self, queue: OpenQueue, pause: bool) -> bool:
        """Whether it was otherwise before, in any partition."""
        wish, changed = "1" if pause else "", False
        while True:
            layout = queue.layout
            try:
                for partition in range(queue.partitions):
                    queue.expect(layout)
                    changed |= bool((await self._store.change("queue_pause", queue, partition, wish))[1])
                return changed
            except QueueRepartitioned:
                continue

    async def _change(self, name: str, queue: OpenQueue, member: str, *args: Any) -> list[Any]:
        return await self._store.change_job(name, queue, member, *args)

    # Looking

    async def get(self, queue: OpenQueue, member: str) -> Job | None:
        while True:
            found = await self.get_all(queue, queue.partition_of(member), [member.encode()])
            if found or not await self._store.catch_up(queue):
                return found[0] if found else None

    async def get_all(self, queue: OpenQueue, partition: int, members: list[bytes]) -> list[Job]:
        """Those of the named members that exist, read together; unreadable ones with an empty spec."""
        read, jobs, left = queue.script("job_read"), list[Job](), members
        keys = queue.keys_of(read, partition)
        # A script, because a full Redis 6.2 refuses transactions, also those that only read. Fewer jobs may come than
        # were asked for, if they are large.
        while left:
            args = _packed_members(left[:LARGEST_BATCH])
            columns = await self._store.read(lambda c, a=args: read(c, keys, a))  # type: ignore[misc]
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

        counts = await self._store.read(ask)
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
                        pipe.zcount(keys["waiting"], "-inf", due_by(now))
                        pipe.hget(keys["meta"], "paused")
                        pipe.zcard(keys["working"])
                        pipe.exists(*(keys[band] for band in BANDS))
                        # What is to be carried may set others free.
                        pipe.zcard(keys["outbox"])
                return await pipe.execute()

        found = zip(*[iter(await self._store.read(ask))] * 5, strict=True)
        # What waits in a paused queue is due for nobody.
        return any(
            working or outbox or ((due or ready) and not paused) for due, paused, working, ready, outbox in found
        )

    async def held(self, queue: OpenQueue, member: str) -> ClaimEntry | None:
        """The claim under which somebody holds it now."""
        claims = queue.keys[queue.partition_of(member)]["claims"]
        raw = await self._store.read(lambda c: c.hget(claims, member))
        entry = entry_of(raw)
        return entry if entry and entry.token else None

    async def outcome(self, queue: OpenQueue, member: str) -> Outcome | None:
        """How a one-shot ended, while it is remembered."""
        while True:
            key = queue.keys[queue.partition_of(member)]["results"]
            raw = await self._store.read(lambda c, k=key: c.hget(k, member))  # type: ignore[misc]
            if raw is not None or not await self._store.catch_up(queue):
                return None if raw is None else _as_outcome(raw)

    async def walk(self, queue: OpenQueue, partition: int) -> AsyncIterator[list[bytes]]:
        """Every member that has a record, in pages, in no order."""
        key, cursor = queue.keys[partition]["jobs"], 0
        while True:
            cursor, page = await self._store.read(
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
    return [codec.array(FIELDS * len(puts), parts)]


def _packed_members(members: Sequence[bytes]) -> list[bytes]:
    return [codec.array(len(members), map(codec.text, members))]


def _packed(put: PutItem) -> list[bytes]:
    return [
        codec.text(put.member.encode()),
        codec.integer(put.due),
        put.kind,
        bytes((put.mode,)),
        codec.integer(put.expected),
        codec.text(put.record),
    ]


def _as_jobs(queue: OpenQueue, members: Sequence[bytes], columns: list[Any]) -> list[Job]:
    """Those that stand anywhere, of what lua/job_read.lua has of them."""
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
    """As lua/lib/moved_keys_due.lua has them, with what lua/lib/moved_keys_*.lua adds."""
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
    entry = entry_of(claim)
    failure = codec.decode_failure(error) if error else None
    try:
        current = (entry.pending if entry and entry.pending else record) or b""
        header, spec = codec.read_record(current)
    except RecordUnreadable as unreadable:
        header, spec = Header(recurring=False, timeout=0, handler=0), Spec(name="?")
        failure = failure or Failure(error=str(unreadable))
    at = time_of(suspect_scores.not_before(score) if stage is Stage.WAITING else score)
    if queue.queue.order == "due":
        uncounted = entry.uncounted if entry else int((score - at) * 16) if at <= score < at + 1 else 0
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


def _as_outcome(raw: bytes) -> Outcome:
    if len(raw) < 9 or raw[0] >= len(OUTCOMES):
        return Outcome(UNKNOWN, 0, None, lost="how it ended is garbled")
    name, at, result = OUTCOMES[raw[0]], int.from_bytes(raw[1:9], "big"), raw[9:]
    try:
        if result[:1] == codec.NO_RESULT:
            lost = str(codec.decode(result[1:])) if len(result) > 1 else ""
            return Outcome(name, at, None, kept=bool(lost), lost=lost)
        if codec.is_nested_deeper(result, codec.MOST_LEVELS):
            return Outcome(name, at, None, lost=f"it is nested more than {codec.MOST_LEVELS} levels deep")
        return Outcome(name, at, codec.decode(result) if result else None)
    except codec.UNREADABLE as error:
        return Outcome(name, at, None, lost=f"it cannot be read: {error}")
