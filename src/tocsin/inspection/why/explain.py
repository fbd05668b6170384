"""Gathers the facts about a job in few reads, and explains them. Changes and creates nothing."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from tocsin.inspection.why.answer import Explanation, Reason, at, typed
from tocsin.inspection.why.facts import Facts, SeenWorkers
from tocsin.inspection.why.stages import explain
from tocsin.model.durations import Millis, moment
from tocsin.model.errors import InvalidArgument, RecordUnreadable
from tocsin.model.host import host_of
from tocsin.model.http import Http
from tocsin.model.ids import check_member, extra_member, job_of, parse_run_id
from tocsin.model.job import Job, Stage
from tocsin.model.message import Message
from tocsin.model.outcome import Outcome
from tocsin.model.target import target_of
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions import fleet
from tocsin.store.transitions.dependencies import DependencyWait, Outbox
from tocsin.store.transitions.host_outages import HostOutage, HostOutages
from tocsin.store.views import position
from tocsin.store.views.audit import AuditReader
from tocsin.store.views.blocked_jobs import BlockedJobs, UnheardEnd
from tocsin.store.views.events import PastRun, past_runs
from tocsin.store.views.jobs import JobReader
from tocsin.upkeep import silent_workers

# How often to gather the facts if the job changes meanwhile.
TRIES = 4


class FoundJob(Struct, frozen=True):
    """A job that exists, or the kept outcome of one that has ended."""

    queue: OpenQueue
    job: Job | None
    outcome: Outcome | None


class JobExplainer:
    """Explains the jobs of one namespace."""

    def __init__(self, store: Store, patience_s: float = silent_workers.PATIENCE_S) -> None:
        """`patience_s`: how long to wait for a heartbeat."""
        self._store = store
        self._patience_s = patience_s
        self._reader = AuditReader(store)
        self._jobs = JobReader(store)
        self._fleet = fleet.Fleet(store)
        self._outbox = Outbox(store)
        self._waits = BlockedJobs(store)
        self._hosts = HostOutages(store)

    async def ask(self, job_id: str, queue: str | None = None) -> Explanation:
        """Explain a job by its id, an extra run by its member name, or a run by its run id. Raises InvalidArgument if
        there is no such queue."""
        check_member(job_id)
        queues = await self._reader.named(queue)
        workers = SeenWorkers(await self._fleet.workers())
        tries = TRIES
        while True:
            hits = await self._find(queues, job_id)
            if len(hits) != 1 or hits[0].job is None:
                return await self._explain_missing(job_id, queues, hits)
            facts = await self._gather(hits[0].queue, hits[0].job, workers)
            if workers.silent is None and facts.needs_heartbeats:
                # Waiting for heartbeats takes a while, so read the job again after it.
                workers = SeenWorkers(*await silent_workers.find_silent(self._fleet, self._patience_s))
                continue
            tries -= 1
            if not tries or not await self._has_changed(hits[0].queue, facts):
                return explain(facts)

    async def _gather(self, queue: OpenQueue, job: Job, workers: SeenWorkers) -> Facts:
        now = await self._reader.now()
        wait = await self._outbox.wait_of(queue, job.id) if job.stage is Stage.BLOCKED else None
        return Facts(
            job=job,
            order=queue.queue.order,
            partition=queue.partition_of(job.id),
            partitions=queue.partitions,
            position=await position.read_position(self._store, queue, job, now),
            fleet=workers,
            now=now,
            wait=wait,
            lost_waits=[] if wait is None else await self._lost_waits(queue, job, wait),
            outage=await self._outage(job),
        )

    async def _lost_waits(self, queue: OpenQueue, job: Job, wait: DependencyWait) -> list[UnheardEnd]:
        queues, _ = await self._reader.queues()
        where = {each.name: each for each in queues}
        return await self._waits.unheard(queue, queue.partition_of(job.id), {job.id.encode(): wait}, where)

    async def _outage(self, job: Job) -> HostOutage | None:
        try:
            target = target_of(job.spec)
        except RecordUnreadable:
            return None
        return await self._hosts.find(host_of(target.url)) if isinstance(target, Http | Message) else None

    async def _has_changed(self, queue: OpenQueue, facts: Facts) -> bool:
        """True if the job has changed since it was read, so that the other facts may not belong to it."""
        job = await self._jobs.get(queue, facts.job.id)
        return job is None or (job.stage, job.due_ms, job.attempt) != (
            facts.job.stage,
            facts.job.due_ms,
            facts.job.attempt,
        )

    async def _find(self, queues: list[OpenQueue], job_id: str) -> list[FoundJob]:
        """Find the job. Reads of queues that are being repartitioned must wait, so those are searched last."""
        settled = [queue for queue in queues if queue.moving is None]
        moving = [queue for queue in queues if queue.moving is not None]
        return await self._find_in(settled, job_id) or await self._find_in(moving, job_id)

    async def _find_in(self, queues: list[OpenQueue], job_id: str) -> list[FoundJob]:
        """Find the job in these queues. Jobs that exist go before kept outcomes, and ids before run ids."""
        found = await asyncio.gather(*(self._in(queue, job_id) for queue in queues))
        hits = [hit for hit in found if hit is not None]
        if not hits:
            hits = await self._find_run(queues, job_id)
        return [hit for hit in hits if hit.job is not None] or hits

    async def _find_run(self, queues: list[OpenQueue], run_id: str) -> list[FoundJob]:
        try:
            job_id, due = parse_run_id(run_id)
        except InvalidArgument:
            return []
        extra = await asyncio.gather(*(self._in(queue, extra_member(job_id, due)) for queue in queues))
        if any(extra):
            return [hit for hit in extra if hit is not None]
        own = await asyncio.gather(*(self._in(queue, job_id) for queue in queues))
        return [hit for hit in own if hit is not None and hit.job is not None and hit.job.due_ms == due]

    async def _in(self, queue: OpenQueue, member: str) -> FoundJob | None:
        job, outcome = await asyncio.gather(self._jobs.get(queue, member), self._jobs.outcome(queue, member))
        return None if job is None and outcome is None else FoundJob(queue, job, outcome)

    # Ids that no job has, or several

    async def _explain_missing(self, job_id: str, queues: list[OpenQueue], hits: list[FoundJob]) -> Explanation:
        now = await self._reader.now()
        if len(hits) > 1:
            return _several(job_id, [hit.queue.name for hit in hits])
        if hits and hits[0].outcome is not None:
            return _done(job_id, hits[0].queue.name, hits[0].outcome, now)
        last = [run for run in await asyncio.gather(*(self._last_run(queue, job_id) for queue in queues)) if run]
        if last:
            return _gone(job_id, max(last, key=lambda run: run.ended_ms), now)
        return _unknown(job_id, queues)

    async def _last_run(self, queue: OpenQueue, job_id: str) -> PastRun | None:
        """The job's last run, as far back as the queue's events reach."""
        async for run in past_runs(self._store, queue, queue.partition_of(job_id)):
            if run.job_id == job_of(job_id):
                return run
        return None


def _several(job_id: str, queues: list[str]) -> Explanation:
    choices = tuple(f"tocsin why {typed(job_id)} --queue {typed(queue)}" for queue in queues)
    says = f"it exists in the queues {', '.join(queues)}: say which one is meant"
    return Explanation(job_id, None, [Reason("several", says, {"queues": queues}, choices)])


def _done(job_id: str, queue: str, outcome: Outcome, now: Millis) -> Explanation:
    says = f"it is done: it {_ended(outcome.name)} at {at(outcome.at, now)}"
    return Explanation(job_id, queue, [Reason("done", says, {"outcome": outcome.name, "at": moment(outcome.at)})])


def _gone(job_id: str, run: PastRun, now: Millis) -> Explanation:
    says = f"it no longer exists; its last run {_ended(run.outcome)} at {at(run.ended_ms, now)}"
    facts = {"outcome": run.outcome, "at": moment(run.ended_ms), "run": run.id}
    do = "to keep its outcome, give it an id or `keep` when you enqueue it"
    return Explanation(job_id, run.queue, [Reason("gone", says, facts, (do,))])


def _ended(outcome: str) -> str:
    return {"skipped": "was skipped", "cancelled": "was cancelled"}.get(outcome, outcome)


def _unknown(job_id: str, queues: list[OpenQueue]) -> Explanation:
    names = [queue.name for queue in queues]
    where = f" in {', '.join(names)}" if names else ", and no queue is registered yet"
    says = f"there is no such job{where}: it never existed, was removed, or has ended and its outcome was not kept"
    return Explanation(job_id, None, [Reason("unknown", says, {"queues": names}, ("tocsin jobs list",))], known=False)
