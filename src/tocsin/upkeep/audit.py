"""The audit: checks invariants 1 and 2, drift and sizes on a live server, page by page.

A page of ids comes from a cursor, so it may be old when it arrives. Whether something is wrong with one of them is
decided from one look at all of its keys at one instant: transitions are scripts, so between two of them every job
is in order, and one that moves while we look is never reported.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable

from msgspec import Struct

from tocsin.model.codec import decode_header
from tocsin.model.durations import Millis
from tocsin.model.errors import RecordUnreadable
from tocsin.model.ids import partition_of
from tocsin.store.fleet import Fleet
from tocsin.store.keys import STAGE_KEYS
from tocsin.store.store import OpenQueue
from tocsin.store.survey import LARGEST_ERROR, LARGEST_RESULT, Node, Session, Settings, Survey
from tocsin.upkeep import hearts
from tocsin.upkeep.findings import Finding, Findings, diagnose

# A worker beats every 2 s; one that is silent for this long has missed two.
PATIENCE_S = 4.5
# A worker that lives is in the fleet; one that just joined may not have been when we looked. A program may be quiet
# for long: workers forget those that have not called for a day, some time after that.
WORKER_SESSION_MS = 60_000
PROGRAM_SESSION_MS = 26 * 3_600_000
# Recovery looks at one partition a second, 30 s after the deadline.
OVERDUE_MS = 120_000
BURIAL_MS = 60_000
NEARLY_FULL = 0.9

_WORKER = re.compile(r".+:\d+:[0-9a-f]+\.\d+")


class QueueSize(Struct, frozen=True):
    name: str
    order: str
    partitions: int
    counts: dict[str, int]
    bytes: int | None


class Report(Struct, frozen=True):
    findings: list[Finding]
    queues: list[QueueSize]
    nodes: list[Node]
    workers: list[str]

    @property
    def wrong(self) -> bool:
        """Something is broken, and was not mended."""
        return any(finding.level == "wrong" and finding.left for finding in self.findings)


class Audit:
    """One audit of one namespace. With `repair` what is provably safe to mend is mended on the way."""

    def __init__(
        self,
        survey: Survey,
        fleet: Fleet,
        *,
        repair: bool = False,
        progress: Callable[[int, int], None] = lambda done, total: None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._survey = survey
        self._fleet = fleet
        self._repair = repair
        self._progress = progress
        self._patience_s = patience_s
        self._findings = Findings()

    async def run(self) -> Report:
        # Hearts take their time: they are listened to meanwhile.
        listening = asyncio.ensure_future(hearts.listen(self._fleet, self._patience_s))
        try:
            nodes = await self._look_at_servers()
            queues, garbled = await self._survey.queues()
            self._findings.add("unreadable-queue", "", *garbled)
            await self._look_at_jobs(queues)
            sizes = [await self._size(queue) for queue in queues]
            workers, silent = await listening
        finally:
            listening.cancel()
        self._findings.add("silent-worker", "", *sorted(silent))
        await self._look_at_burials()
        return Report(self._findings.all(), sizes, nodes, [worker.id for worker in workers])

    async def _look_at_jobs(self, queues: list[OpenQueue]) -> None:
        alive = {worker.id for worker in await self._fleet.workers()}
        total, done = sum(queue.partitions for queue in queues), 0
        for queue in queues:
            if queue.moving is not None:
                # A job may be in two partitions now, the old one and the new.
                self._findings.add("moving", queue.name, f"to {queue.moving.to} partitions")
                done += queue.partitions
                continue
            for partition in range(queue.partitions):
                self._progress(done, total)
                await self.step(queue, partition, alive)
                done += 1
        self._progress(done, total)

    async def step(self, queue: OpenQueue, partition: int, alive: set[str]) -> None:
        """One partition."""
        settings = await self._survey.settings(queue, partition)
        # An epoch that nobody has lets no script change anything.
        queue.epochs.append(settings.epoch or b"")
        met = False
        seen: set[bytes] = set()
        async for page in self._ids(queue, partition, settings):
            met = met or bool(page)
            await self._check(queue, partition, page, seen)
        if settings.epoch is None:
            # It may have been opened while we looked.
            settings = await self._survey.settings(queue, partition)
        self._compare(queue, partition, settings, met)
        async for sessions in self._survey.sessions(queue, partition):
            await self._check_sessions(queue, partition, sessions, alive)

    async def _ids(self, queue: OpenQueue, partition: int, settings: Settings) -> AsyncIterator[list[bytes]]:
        """Every id that the partition mentions anywhere."""
        async for records in self._survey.fields(queue, partition, "jobs", settings.widest):
            self._check_records(queue, partition, records)
            yield list(records)
        for base, widest in (("claims", 512), ("errors", LARGEST_ERROR), ("results", LARGEST_RESULT)):
            async for fields in self._survey.fields(queue, partition, base, widest):
                yield list(fields)
        for base in (*STAGE_KEYS, "done"):
            async for members in self._survey.members(queue, partition, base):
                yield members

    def _check_records(self, queue: OpenQueue, partition: int, records: dict[bytes, bytes]) -> None:
        for member, record in records.items():
            name = _name(member)
            if partition_of(name, queue.partitions) != partition:
                self._findings.add("wrong-partition", queue.name, name)
            try:
                decode_header(record)
            except RecordUnreadable:
                self._findings.add("unreadable-record", queue.name, name)

    async def _check(self, queue: OpenQueue, partition: int, page: list[bytes], seen: set[bytes]) -> None:
        found: dict[bytes, str] = {}
        for member, standing in zip(page, await self._survey.look(queue, partition, page), strict=True):
            kind = diagnose(standing)
            if kind is not None and member not in seen:
                seen.add(member)
                found[member] = kind
        mended = await self._mend(queue, partition, list(found))
        for member, kind in found.items():
            self._findings.add(kind, queue.name, _name(member), mended=member in mended)

    async def _mend(self, queue: OpenQueue, partition: int, members: list[bytes]) -> set[bytes]:
        if not self._repair or not members or not queue.epochs[partition]:
            return set()
        codes = await self._survey.mend(queue, partition, members)
        tried = [member for member, code in zip(members, codes, strict=True) if code]
        if tried:
            await self._fleet.ring(queue, partition)
        standings = await self._survey.look(queue, partition, tried)
        return {member for member, standing in zip(tried, standings, strict=True) if diagnose(standing) is None}

    def _compare(self, queue: OpenQueue, partition: int, settings: Settings, has_jobs: bool) -> None:
        where = f"partition {partition}"
        if settings.epoch is None:
            # A partition that nobody has used yet has no settings either.
            if has_jobs:
                self._findings.add("no-settings", queue.name, where)
        elif (settings.order, settings.partitions) != (queue.queue.order, queue.partitions):
            self._findings.add("settings", queue.name, where)
        if settings.sealed:
            self._findings.add("sealed", queue.name, where)

    async def _check_sessions(self, queue: OpenQueue, partition: int, sessions: list[Session], alive: set[str]) -> None:
        now = await self._survey.now()
        stale = [session for session in sessions if is_stale(session, alive, now)]
        if stale:
            mended = await self._survey.forget(queue, partition, stale) if self._repair else 0
            names = (session.name for session in stale)
            self._findings.add("stale-session", queue.name, *names, mended=mended)

    async def _size(self, queue: OpenQueue) -> QueueSize:
        counts = await self._survey.counts(queue, await self._survey.now() - OVERDUE_MS)
        for kind in ("parked", "dead", "overdue"):
            self._findings.add(kind, queue.name, count=counts[kind])
        rings = await self._survey.bell(queue)
        if rings > queue.partitions:
            self._findings.add("bell", queue.name, f"{rings} for {queue.partitions} partitions")
        return QueueSize(queue.name, queue.queue.order, queue.partitions, counts, await self._survey.memory(queue))

    async def _look_at_servers(self) -> list[Node]:
        nodes = await self._survey.nodes()
        for node in nodes:
            if not node.aof:
                self._findings.add("no-aof", "", node.name)
            if node.write_errors:
                self._findings.add("write-errors", node.name, *node.write_errors)
            if node.max_bytes and node.used_bytes > node.max_bytes * NEARLY_FULL:
                self._findings.add("memory", "", f"{node.name}: {node.used_bytes} of {node.max_bytes} bytes")
        return nodes

    async def _look_at_burials(self) -> None:
        now = await self._survey.now()
        late = [name for name, since in await self._survey.buried() if now - since > BURIAL_MS]
        self._findings.add("buried", "", *late)


def is_stale(session: Session, alive: set[str], now: Millis) -> bool:
    """Nobody will call under this name again. A worker's name ends with its incarnation and never comes back."""
    owner = session.name.rpartition(":")[0]
    if owner in alive:
        return False
    limit = WORKER_SESSION_MS if _WORKER.fullmatch(owner) else PROGRAM_SESSION_MS
    return now - session.at > limit


def _name(member: bytes) -> str:
    return member.decode(errors="replace")
