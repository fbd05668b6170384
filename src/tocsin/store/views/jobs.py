"""Jobs as Redis holds them: one, many, all of a partition; how many are in each stage; how a remembered one ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from tocsin.model import msgpack
from tocsin.model.errors import RecordUnreadable
from tocsin.model.job import Failure, Header, Job, Spec, Stage
from tocsin.model.outcome import Outcome
from tocsin.model.record import decode_failure, read_record
from tocsin.store.formats import (
    ClaimEntry,
    claim_entry_or_none,
    decode_outcome,
    due_score_bound,
    not_before,
    uncounted_in,
)
from tocsin.store.keys import BANDS, STAGE_KEYS
from tocsin.store.numbers import time_of
from tocsin.store.store import LARGEST_BATCH, OpenQueue, Store
from tocsin.store.views import line

# The keys that have something of a job, in the order of lib/moved_keys_due.lua. Only fair queues have the last hash.
HASHES = ("jobs", "claims", "errors", "results", "needs", "spots")
_SETS = ("waiting", "working", "paused", "parked", "dead", "done", "blocked", "unnamed")


async def stage_counts(store: Store, queue: OpenQueue, sets: Iterable[str] = STAGE_KEYS) -> dict[str, int]:
    """How many jobs are in each of these sorted sets, over all partitions."""
    wanted = list(sets)

    async def ask(client: Any) -> Any:
        async with client.pipeline(transaction=False) as pipe:
            for keys in queue.keys:
                for base in wanted:
                    pipe.zcard(keys[base])
            return await pipe.execute()

    found = await store.run_repeatable(ask)
    return {base: sum(found[i :: len(wanted)]) for i, base in enumerate(wanted)}


class JobReader:
    """Reads jobs, and changes nothing."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, queue: OpenQueue, member: str) -> Job | None:
        while True:
            found = await self.get_all(queue, queue.partition_of(member), [member.encode()])
            if found or not await self._store.queues.refresh_if_repartitioned(queue):
                return found[0] if found else None

    async def get_all(self, queue: OpenQueue, partition: int, members: list[bytes]) -> list[Job]:
        """The jobs with these ids that exist, read at one instant. Unreadable ones have an empty spec."""
        read, jobs, left = queue.script("job_read"), list[Job](), members
        keys = queue.keys_of(read, partition)
        # A script, because a full Redis 6.2 refuses even transactions that only read. It may answer with fewer jobs
        # than asked for, if they are large.
        while left:
            args = [msgpack.texts(left[:LARGEST_BATCH])]
            columns = await self._store.run_repeatable(lambda c, a=args: read(c, keys, a))  # type: ignore[misc]
            some, left = left[: len(columns[0])], left[len(columns[0]) :]
            jobs += _as_jobs(queue, some, columns)
        return jobs

    async def count(self, queue: OpenQueue, sets: Iterable[str] = STAGE_KEYS) -> dict[str, int]:
        return await stage_counts(self._store, queue, sets)

    async def ready_counts(self, queue: OpenQueue) -> list[int]:
        """How many jobs are due and in line, by band, in a queue of order `priority` or `fair`."""
        return await line.counts(self._store, queue)

    async def position(self, queue: OpenQueue, member: str) -> int | None:
        """How many jobs are before this one in its queue of order `priority`; None if it is not in line."""
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
                        # An entry that is carried may unblock jobs.
                        pipe.zcard(keys["outbox"])
                return await pipe.execute()

        found = zip(*[iter(await self._store.run_repeatable(ask))] * 5, strict=True)
        # In a paused queue nothing is due.
        return any(
            working or outbox or ((due or ready) and not paused) for due, paused, working, ready, outbox in found
        )

    async def held(self, queue: OpenQueue, member: str) -> ClaimEntry | None:
        """The claim under which a worker holds it now."""
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


def _as_jobs(queue: OpenQueue, members: Sequence[bytes], columns: list[Any]) -> list[Job]:
    """The jobs that are in some stage. `columns`: the answer of lua/job_read.lua."""
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
    """The keys in lua/lib/moved_keys_due.lua, and those that lua/lib/moved_keys_*.lua adds."""
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
