"""The doctor audits a live server page by page: invariants 1, 2 and 4, drift, and sizes.

A page of ids comes from a cursor, so it may be old when it arrives. Each job is therefore judged by one look at all of
its keys at the same instant. Transitions are scripts, so between two of them every job is in order, and the audit never
reports a job because it moved meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Collection

from msgspec import Struct

from tocsin.inspection.doctor_garbage import GarbageAudit
from tocsin.inspection.doctor_lines import LineAudit
from tocsin.inspection.findings import Finding, Findings, diagnose
from tocsin.model.durations import Millis
from tocsin.model.errors import QueueRepartitioned, QueueRepartitioning, RecordUnreadable
from tocsin.model.ids import partition_of
from tocsin.model.queue import AGENTS_QUEUE, outgrown
from tocsin.model.record import read_record
from tocsin.store.keys import STAGE_KEYS
from tocsin.store.store import OpenQueue
from tocsin.store.transitions.fleet import Fleet
from tocsin.store.views.audit import LARGEST_WAIT, AuditReader, Node, PartitionMeta, Session
from tocsin.store.views.audit_line import FairLineReader
from tocsin.store.views.blocked_jobs import BlockedJobs, readable_waits
from tocsin.store.views.garbage import Garbage
from tocsin.store.views.strays import StrayReader
from tocsin.upkeep import silent_workers
from tocsin.upkeep.outbox_carrier import LONGEST_CARRY, OutboxCarrier

# A worker sends a heartbeat every 2 s, so one that is silent for this long has missed two.
PATIENCE_S = 4.5
# A live worker is in the fleet, except one that joined after we read the fleet. Programs may be quiet for long: workers
# remove the sessions of programs that have not called for a day, some time after that day.
WORKER_SESSION_MS = 60_000
PROGRAM_SESSION_MS = 26 * 3_600_000
# The reaper checks one partition a second, and brings runs back 30 s after their deadline.
OVERDUE_MS = 120_000
# Runs of agents may go on past their deadline. The orphan cleanup looks every 5 minutes for runs that are 10 minutes
# past it.
AGENTS_OVERDUE_MS = 1_020_000
# The runs of a dead worker should be back within this time.
RECOVERY_MS = 60_000
NEARLY_FULL = 0.9

_WORKER = re.compile(r".+:\d+:[0-9a-f]+\.\d+")


class QueueSize(Struct, frozen=True):
    name: str
    order: str
    partitions: int
    counts: dict[str, int]
    bytes: int | None


class DoctorReport(Struct, frozen=True):
    findings: list[Finding]
    queues: list[QueueSize]
    nodes: list[Node]
    workers: list[str]

    @property
    def wrong(self) -> bool:
        """True if something is broken and was not repaired."""
        return any(finding.level == "wrong" and finding.left for finding in self.findings)


class Doctor:
    """One audit of one namespace. With `repair` it also repairs what is provably safe to repair."""

    def __init__(
        self,
        reader: AuditReader,
        fleet: Fleet,
        *,
        queues: Collection[str] | None = None,
        repair: bool = False,
        progress: Callable[[int, int], None] = lambda done, total: None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`queues`: check only the jobs of these. `progress` gets how many entries were checked, and of how many."""
        self._reader = reader
        self._only = queues
        self._fleet = fleet
        self._repair = repair
        self._progress = progress
        self._patience_s = patience_s
        self._findings = Findings()
        self._queues: dict[str, OpenQueue] = {}
        self._checked, self._total = 0, 0
        self._waits = BlockedJobs(reader.store)
        self._line_audit = LineAudit(FairLineReader(reader), fleet, self._findings, repair=repair)
        garbage, strays = Garbage(reader.store, reader.most), StrayReader(reader.store)
        self._garbage = GarbageAudit(garbage, strays, reader.store.keys, self._findings, repair=repair)

    async def run(self) -> DoctorReport:
        nodes = await self._check_servers()
        if await self._garbage.fleet_keys():
            # The rest of the audit needs the register and the workers.
            return DoctorReport(self._findings.all(), [], nodes, [])
        # Waiting for heartbeats takes a while, so it runs beside the audit.
        heartbeats = asyncio.ensure_future(silent_workers.find_silent(self._fleet, self._patience_s))
        try:
            every, garbled = await self._reader.queues()
            await self._garbage.register(garbled)
            self._queues = {queue.name: queue for queue in every}
            named = [queue for queue in every if self._only is None or queue.name in self._only]
            # A queue whose keys hold the wrong type of data cannot be checked. The others can.
            queues = [queue for queue in named if not await self._garbage.queue_keys(queue)]
            await self._check_queues(queues)
            sizes = [await self._size(queue) for queue in queues]
            workers, silent = await heartbeats
        finally:
            heartbeats.cancel()
        self._findings.add("silent-worker", "", *sorted(worker.shown for worker in workers if worker.id in silent))
        await self._garbage.fleet()
        await self._garbage.workers(self._patience_s)
        await self._check_recoveries()
        alive = [worker.shown for worker in workers if worker.id not in silent]
        return DoctorReport(self._findings.all(), sizes, nodes, alive)

    async def _check_queues(self, queues: list[OpenQueue]) -> None:
        alive = {worker.id for worker in await self._fleet.workers()}
        layouts = {queue.name: queue.layout for queue in queues if queue.moving is None}
        for queue in queues:
            for partition in range(queue.partitions if queue.moving is None else 0):
                self._total += await self._reader.entries(queue, partition)
        for queue in queues:
            if queue.moving is not None:
                # While a queue is repartitioned, a job may be in its old partition and in its new one.
                to = f"to {queue.moving.to} partitions" if queue.moving.to else "being deleted"
                self._findings.add("moving", queue.name, to)
                continue
            # A call may fail because the queue was repartitioned meanwhile. `_retract` reports that.
            with contextlib.suppress(QueueRepartitioned, QueueRepartitioning):
                for partition in range(queue.partitions):
                    await self.step(queue, partition, alive)
        self._progress(self._total, self._total)
        await self._retract(layouts)

    def _show(self, checked: int) -> None:
        """Report progress. The total is an estimate, because jobs come and go during the audit."""
        self._checked += checked
        self._progress(min(self._checked, self._total), self._total)

    async def _retract(self, layouts: dict[str, str]) -> None:
        """Drop the findings of queues that were repartitioned during the audit, because they may be wrong."""
        queues, _ = await self._reader.queues()
        moved = [q.name for q in queues if q.name in layouts and (q.moving or q.layout != layouts[q.name])]
        for name in moved:
            self._findings.forget(where=name)
            self._findings.add("moved", name, name)
        if moved:
            # Blocked jobs of other queues may have been looked up among the watchers of these.
            self._findings.forget(kind="unheard-wait")

    async def step(self, queue: OpenQueue, partition: int, alive: set[str]) -> None:
        """Check one partition."""
        settings = await self._reader.settings(queue, partition)
        # A partition without an epoch gets b"" here. No partition has that epoch, so no script changes anything.
        queue.epochs.append(settings.epoch or b"")
        await self._garbage.partition(queue, partition)
        if self._repair:
            settings = await self._reader.settings(queue, partition)
        has_jobs = False
        # Jobs whose place in line is wrong are reported once, by that finding.
        seen = await self._line_audit.places(queue, partition)
        async for page in self._ids(queue, partition, settings):
            has_jobs = has_jobs or bool(page)
            await self._check(queue, partition, page, seen)
        await self._line_audit.tenants(queue, partition)
        await self._line_audit.cap(queue, partition)
        if settings.epoch is None:
            # A worker may have opened the partition meanwhile.
            settings = await self._reader.settings(queue, partition)
        await self._compare(queue, partition, settings, has_jobs)
        async for waits in self._reader.fields(queue, partition, "needs", LARGEST_WAIT):
            await self._check_waits(queue, partition, waits)
        async for sessions in self._reader.sessions(queue, partition):
            await self._check_sessions(queue, partition, sessions, alive)

    async def _ids(self, queue: OpenQueue, partition: int, settings: PartitionMeta) -> AsyncIterator[list[bytes]]:
        """Yield pages of every id that the partition mentions anywhere."""
        async for records in self._reader.fields(queue, partition, "jobs", settings.widest):
            self._check_records(queue, partition, records)
            yield list(records)
            self._show(len(records))
        # Ids with a record were yielded above.
        async for members, checked in self._reader.without_record(queue, partition):
            yield members
            self._show(checked)

    def _check_records(self, queue: OpenQueue, partition: int, records: dict[bytes, bytes]) -> None:
        for member, record in records.items():
            name = _name(member)
            if partition_of(name, queue.partitions) != partition:
                self._findings.add("wrong-partition", queue.name, name)
            try:
                read_record(record)
            except RecordUnreadable:
                self._findings.add("unreadable-record", queue.name, name)

    async def _check(self, queue: OpenQueue, partition: int, page: list[bytes], seen: set[bytes]) -> None:
        found: dict[bytes, str] = {}
        for member, presence in zip(page, await self._reader.look(queue, partition, page), strict=True):
            kind = diagnose(presence)
            if kind is not None and member not in seen:
                seen.add(member)
                found[member] = kind
        mended = await self._mend(queue, partition, list(found))
        for member, kind in found.items():
            self._findings.add(kind, queue.name, _name(member), mended=member in mended)

    async def _check_waits(self, queue: OpenQueue, partition: int, waits: dict[bytes, bytes]) -> None:
        """Find blocked jobs that nothing would unblock when the jobs they wait for end."""
        found = await self._waits.unheard(queue, partition, readable_waits(waits), self._queues)
        stuck = list(dict.fromkeys(each.member for each in found))
        if not stuck:
            return
        mended = 0
        if self._repair and queue.epochs[partition]:
            # Jobs that belong to another partition are the finding "wrong-partition".
            here = [member for member in stuck if queue.partition_of_key(member) == partition]
            mended = await self._renew_waits(queue, partition, here)
        self._findings.add("unheard-wait", queue.name, *map(_name, stuck), mended=mended)

    async def _renew_waits(self, queue: OpenQueue, partition: int, members: list[bytes]) -> int:
        """Write the outbox entries of these jobs again and carry them, because no worker may be running. Returns how
        many of the jobs were blocked."""
        store, due = self._reader.store, set[tuple[OpenQueue, int]]()
        renewed = await self._reader.outbox.renew(queue, members)
        carrier = OutboxCarrier(store, store.clock, lambda *where: due.add(where))
        carrier.note_filled(queue, partition)
        for _ in range(LONGEST_CARRY):
            if not await carrier.carry_some():
                break
        for where in due:
            await self._fleet.ring(*where)
        return renewed

    async def _mend(self, queue: OpenQueue, partition: int, members: list[bytes]) -> set[bytes]:
        if not self._repair or not members or not queue.epochs[partition]:
            return set()
        codes = await self._reader.mend(queue, partition, members)
        tried = [member for member, code in zip(members, codes, strict=True) if code]
        if tried:
            await self._fleet.ring(queue, partition)
        after = await self._reader.look(queue, partition, tried)
        return {member for member, presence in zip(tried, after, strict=True) if diagnose(presence) is None}

    async def _compare(self, queue: OpenQueue, partition: int, settings: PartitionMeta, has_jobs: bool) -> None:
        where = f"partition {partition}"
        if settings.epoch is None:
            # An unused partition has no settings either.
            if has_jobs:
                self._findings.add("no-settings", queue.name, where)
        elif (settings.order, settings.partitions) != (queue.queue.order, queue.partitions):
            self._findings.add("settings", queue.name, where)
        if settings.sealed:
            await self._garbage.sealed(queue, partition)

    async def _check_sessions(self, queue: OpenQueue, partition: int, sessions: list[Session], alive: set[str]) -> None:
        now = await self._reader.now()
        stale = [session for session in sessions if is_stale(session, alive, now)]
        if stale:
            mended = await self._reader.forget(queue, partition, stale) if self._repair else 0
            names = (session.name for session in stale)
            self._findings.add("stale-session", queue.name, *names, mended=mended)

    async def _size(self, queue: OpenQueue) -> QueueSize:
        overdue = AGENTS_OVERDUE_MS if queue.name == AGENTS_QUEUE else OVERDUE_MS
        counts = await self._reader.counts(queue, await self._reader.now() - overdue)
        for kind in ("parked", "dead", "overdue"):
            self._findings.add(kind, queue.name, count=counts[kind])
        if queue.name == AGENTS_QUEUE:
            late = await self._reader.due_before(queue, await self._reader.now() - AGENTS_OVERDUE_MS)
            self._findings.add("late-agents", queue.name, count=late)
        jobs = sum(counts[stage] for stage in STAGE_KEYS)
        if advice := outgrown(queue.queue, jobs // queue.partitions):
            self._findings.add("outgrown", queue.name, advice)
        rings = await self._reader.bell(queue)
        if rings > queue.partitions:
            self._findings.add("bell", queue.name, f"{rings} for {queue.partitions} partitions")
        return QueueSize(queue.name, queue.queue.order, queue.partitions, counts, await self._reader.memory(queue))

    async def _check_servers(self) -> list[Node]:
        nodes = await self._reader.nodes()
        for node in nodes:
            if not node.aof:
                self._findings.add("no-aof", "", node.name)
            if node.write_errors:
                self._findings.add("write-errors", node.name, *node.write_errors)
            if node.max_bytes and node.used_bytes > node.max_bytes * NEARLY_FULL:
                self._findings.add("memory", "", f"{node.name}: {node.used_bytes} of {node.max_bytes} bytes")
        return nodes

    async def _check_recoveries(self) -> None:
        now = await self._reader.now()
        late = [name for name, since in await self._reader.buried() if now - since > RECOVERY_MS]
        self._findings.add("buried", "", *late)


def is_stale(session: Session, alive: set[str], now: Millis) -> bool:
    """True if nobody will call under this name again. A worker's name ends with its incarnation and is never reused."""
    owner = session.name.rpartition(":")[0]
    if owner in alive:
        return False
    limit = WORKER_SESSION_MS if _WORKER.fullmatch(owner) else PROGRAM_SESSION_MS
    return now - session.at > limit


def _name(member: bytes) -> str:
    return member.decode(errors="replace")
