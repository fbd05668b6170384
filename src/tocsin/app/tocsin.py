"""`Tocsin`, the object that a program holds: it checks what a call is given and passes it to the part that does it."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Self, overload

from tocsin.app import job_options
from tocsin.app.blocking import BlockingApp, BlockingHandle
from tocsin.app.bulk_control import Removed
from tocsin.app.connection import AppConnection
from tocsin.app.declarations import Declarations
from tocsin.app.dependencies import check_after
from tocsin.app.handle import Handle
from tocsin.app.job_options import OneShotOptions, define_job, policy
from tocsin.app.lookup import job_filter
from tocsin.app.parts import AppParts, build_parts
from tocsin.app.rows import Kind, bulk_schedule, rows_of
from tocsin.app.run_worker import build_worker, run_worker
from tocsin.config import Config
from tocsin.engine.failure_reports import FailureHook
from tocsin.engine.handlers import Bound, Handler
from tocsin.inspection.why.answer import Explanation
from tocsin.model.clock import Clock
from tocsin.model.durations import Duration
from tocsin.model.errors import TocsinError
from tocsin.model.ids import check_job_id
from tocsin.model.job import Job, Retry, Stage
from tocsin.model.queue import Queue
from tocsin.model.run import Run
from tocsin.model.target import Target
from tocsin.model.trigger import Trigger, check_trigger
from tocsin.resilience.classify import ClassifyFunction
from tocsin.store.repartition.repartition import Progress, RepartitionResult
from tocsin.store.store import Store
from tocsin.store.views.events import Decision, PastRun
from tocsin.store.views.job_selection import unseen
from tocsin.worker import GRACE_S, Worker, WorkerSettings
from tocsin.worker.settings import settings_of


class Tocsin:
    """Declare queues, jobs and agents on it; then, inside `async with app:`, enqueue, schedule, look and work."""

    def __init__(
        self, url: str | None = None, *, data: str | Path | None = None, prefix: str | None = None,
        hash_tag: str | None = None, config: Config | str | Path | None = None, clock: Clock | None = None,
        registry: Declarations | None = None,
    ) -> None:  # fmt: skip
        """What is not given here is as the configuration says: the file `config`, or the `Config` itself."""
        self.declarations = registry or Declarations()
        self._connection = AppConnection(url, data, config, prefix=prefix, hash_tag=hash_tag, clock=clock)
        self._open_parts: AppParts | None = None
        # Connections belong to one event loop. So the blocking calls have an app of their own, with the same handlers.
        self.sync = BlockingApp(self.with_same_declarations)

    # Declaring: allowed before the app is open

    def queue(
        self, name: str, *, order: str = "due", partitions: int | None = None, max_active: int | None = None,
        rate: str | None = None, tenant_max_active: int | None = None, tenant_rate: str | None = None,
        aging: Duration | None = None,
    ) -> Queue:  # fmt: skip
        """Declare a queue. Its order and partitions live in Redis and must be declared the same everywhere; partitions
        and limits hold until an operator changes them. None: no limit, and strict priorities."""
        settings = {
            "max_active": max_active, "rate": rate, "tenant_max_active": tenant_max_active,
            "tenant_rate": tenant_rate, "aging": aging,
        }  # fmt: skip
        return self.declarations.queue(name, order, partitions, settings)

    @overload
    def job(self, fn: Callable[..., Any]) -> Handler: ...

    @overload
    def job(
        self, *, queue: str | None = None, timeout: Duration | None = None, retry: Retry | None = None,
        name: str | None = None, executor: Literal["thread", "process"] | None = None, batch: int | None = None,
        keep: Duration | None = None,
    ) -> Callable[[Callable[..., Any]], Handler]: ...  # fmt: skip

    def job(
        self, fn: Callable[..., Any] | None = None, *, queue: str | None = None, timeout: Duration | None = None,
        retry: Retry | None = None, name: str | None = None, executor: Literal["thread", "process"] | None = None,
        batch: int | None = None, keep: Duration | None = None,
    ) -> Any:  # fmt: skip
        """Make a function a handler that jobs can name. `keep`: how long outcomes of its one-shots are kept."""
        declare = functools.partial(
            self.declarations.handler, name=name, queue=queue, timeout=timeout, retry=retry, executor=executor,
            batch=batch, keep=keep,
        )  # fmt: skip
        return declare if fn is None else declare(fn)

    def agent(
        self, *, every: Duration, error_interval: Duration | None = None, timeout: Duration | None = None,
        name: str | None = None, executor: Literal["thread", "process"] | None = None,
    ) -> Callable[[Callable[..., Any]], Handler]:  # fmt: skip
        """Make a function an agent: workers register it, and it runs for ever, one at a time."""
        return self.declarations.agent(every, error_interval, timeout=timeout, name=name, executor=executor)

    def classify(self, fn: ClassifyFunction) -> ClassifyFunction:
        """Let a function classify failures: from an exception to a FailureClass, its name, or None for no opinion."""
        self.declarations.classifier.add(fn)
        return fn

    def on_failure(self, fn: FailureHook) -> FailureHook:
        """Call a function after each failed attempt with the run, the error and what follows: for Sentry and the like.
        A plain function holds up the event loop while it runs; an `async def` does not."""
        return self.declarations.on_failure(fn)

    def refuse_declared(self, name: str) -> None:
        """Raise InvalidArgument if the queue is declared: workers of this app would take from it."""
        self.declarations.refuse_queue(name)

    # Opening and closing

    def with_same_declarations(self, **changes: Any) -> Self:
        """An app with the same declarations on another server or in another namespace."""
        return type(self)(**self._connection.arguments(changes), registry=self.declarations)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect. Raises StoreUnavailable or StoreRefused with what to do."""
        if self._open_parts is not None:
            raise TocsinError("this app is open already")
        limits = job_options.limits_of(self.config)
        self._open_parts = build_parts(await self._connection.open(), self.declarations, limits)

    async def close(self) -> None:
        """Disconnect when the puts under way have ended."""
        if self._open_parts is not None:
            try:
                await self._open_parts.close()
            finally:
                self._open_parts = None

    @property
    def config(self) -> Config:
        """Read when first needed. Raises InvalidConfig with all that is wrong."""
        return self._connection.config

    @property
    def store(self) -> Store:
        return self._parts.store

    @property
    def _parts(self) -> AppParts:
        if self._open_parts is None:
            raise TocsinError("the app is not open: use `async with app:` around this call, or app.sync")
        return self._open_parts

    # Putting

    async def enqueue(
        self, what: Handler | Bound | Target, *args: Any, id: str | None = None, at: datetime | None = None,
        delay: Duration | None = None, priority: str | None = None, tenant: str | None = None,
        queue: str | None = None, retry: Retry | None = None, timeout: Duration | None = None,
        criticality: int = 0, if_exists: str = "ignore", keep: Duration | None = None, cost: int = 1,
        after: Iterable[str | Handle | BlockingHandle] = (), on_upstream_failure: str = "cancel", **kwargs: Any,
    ) -> Handle:  # fmt: skip
        """A one-shot job, due now, after a delay or at a time, but not before the jobs in `after` have succeeded."""
        parts = self._parts
        return await parts.writer.enqueue(
            define_job(
                what, args, kwargs, retry=retry, timeout=timeout, tenant=tenant, cost=cost, priority=priority,
                queue=queue, policy=policy(criticality=criticality), limits=parts.limits,
            ),
            id, OneShotOptions(at, delay, if_exists, keep), check_after(after, on_upstream_failure),
        )  # fmt: skip

    async def enqueue_many(
        self, what: Handler | Bound | Kind, rows: Iterable[Any] | AsyncIterable[Any], *,
        ids: Iterable[str] | None = None, at: datetime | None = None, delay: Duration | None = None,
        priority: str | None = None, tenant: str | None = None, queue: str | None = None, retry: Retry | None = None,
        timeout: Duration | None = None, criticality: int = 0, if_exists: str = "ignore", keep: Duration | None = None,
        cost: int = 1, after: Iterable[str | Handle | BlockingHandle] = (), on_upstream_failure: str = "cancel",
    ) -> int:  # fmt: skip
        """One-shot jobs in bulk: rows are argument tuples or mappings. Returns how many were new.

        If the server fails half-way, `written` of the StoreError says how many rows it has."""
        parts = self._parts
        first = rows_of(
            what, parts.limits, retry=retry, timeout=timeout, tenant=tenant, cost=cost, priority=priority,
            queue=queue, policy=policy(criticality=criticality),
        )  # fmt: skip
        options, waits = OneShotOptions(at, delay, if_exists, keep), check_after(after, on_upstream_failure)
        return await parts.writer.enqueue_many(first, rows, ids, options, waits)

    async def schedule(
        self, what: Handler | Bound | Target, trigger: Trigger, *args: Any, id: str | None = None,
        overlap: str = "skip", misfire: str = "coalesce", grace: Duration | None = None,
        catch_up: Duration | None = None, criticality: int = 0, jitter: Duration | None = None,
        starts: datetime | None = None, ends: datetime | None = None, tenant: str | None = None,
        priority: str | None = None, queue: str | None = None, retry: Retry | None = None,
        timeout: Duration | None = None, if_exists: str = "update", **kwargs: Any,
    ) -> Handle:  # fmt: skip
        """A recurring job. The same definition again changes nothing; a changed one keeps its due time if it can."""
        parts = self._parts
        rules = policy(
            overlap=overlap, misfire=misfire, grace=grace, catch_up=catch_up, criticality=criticality,
            jitter=jitter, starts=starts, ends=ends,
        )  # fmt: skip
        job = define_job(
            what, args, kwargs, trigger=check_trigger(trigger), retry=retry, timeout=timeout, tenant=tenant,
            priority=priority, queue=queue, policy=rules, limits=parts.limits,
        )  # fmt: skip
        job_id = job_options.default_schedule_id(job.handler, what) if id is None else check_job_id(id)
        return await parts.writer.schedule(job, job_id, job_options.schedule_mode(if_exists))

    async def schedule_many(
        self, what: Handler | Bound | Kind, rows: Iterable[Any] | AsyncIterable[Any], **given: Any
    ) -> int:
        """Recurring jobs in bulk: rows are (id, trigger, args), options as for `schedule`. How many were new."""
        parts = self._parts
        return await parts.writer.schedule_many(bulk_schedule(what, given, parts.limits), rows)

    async def register_agents(self) -> None:
        """Put the agents of this program. New ones are due now; those that Redis has already keep their due time."""
        await self._parts.agents.register()

    def handle(self, id: str, queue: str | None = None) -> Handle:
        """The handle of a job that another program put, or that was put before. This asks the server nothing yet."""
        return self._parts.writer.handle(id, queue)

    # Changing

    async def update(self, id: str, *, queue: str | None = None, **changes: Any) -> bool:
        """Change parts of a job's definition. A changed trigger counts from now. False if there is no such job."""
        return await self._parts.writer.update(id, queue, changes)

    async def remove(self, id: str, *, queue: str | None = None) -> bool:
        """False if there is no such job. A running job is removed when its run ends."""
        return await self._parts.jobs.remove(id, queue)

    async def pause(self, id: str, *, queue: str | None = None) -> bool:
        return await self._parts.jobs.pause(id, queue)

    async def resume(self, id: str, replay: bool = False, *, queue: str | None = None) -> bool:
        """Back in line: one-shots at their time, recurring jobs at their next, or with `replay` at the missed one."""
        return await self._parts.jobs.resume(id, replay, queue)

    async def fire(self, id: str, *, queue: str | None = None) -> Run:
        """Run it once more, now, without touching its cadence. Raises UnknownJob."""
        return await self._parts.jobs.fire(id, queue)

    async def backfill(
        self, id: str, start: datetime, end: datetime, overlap: str = "allow", limit: int | None = None, *,
        queue: str | None = None,
    ) -> int:  # fmt: skip
        """Run the missed occurrences from `start` up to, not including, `end`, each a run of its own. How many."""
        return await self._parts.jobs.backfill(id, start, end, overlap, limit, queue)

    async def cancel(self, run_id: str, *, queue: str | None = None) -> bool:
        """Cancel a waiting one-shot, or ask the worker of a run to stop it. False if there is nothing to cancel."""
        return await self._parts.jobs.cancel(run_id, queue)

    async def reprioritize(self, id: str, priority: str, *, queue: str | None = None) -> bool:
        """Move a job in its line, keeping its age. False if there is no such job."""
        return await self.update(id, queue=queue, priority=priority)

    def dead(self, *, queue: str | None = None) -> AsyncIterator[Job]:
        return self.jobs(queue=queue, stage=Stage.DEAD)

    async def retry_dead(self, id: str, *, queue: str | None = None) -> bool:
        """Give a dead job another life, with all its retries. False if it is not dead."""
        return await self._parts.jobs.retry_dead(id, queue)

    async def drop_dead(self, id: str, *, queue: str | None = None) -> bool:
        return await self._parts.jobs.drop_dead(id, queue)

    async def unpark(self, id: str, *, queue: str | None = None) -> bool:
        """Try a parked job again. False if it is not parked."""
        return await self._parts.jobs.unpark(id, queue)

    # Looking

    async def get(self, id: str, *, queue: str | None = None) -> Job | None:
        found = await self._parts.lookup.find(id, queue)
        return None if found is None else found[1]

    def jobs(
        self, *, queue: str | None = None, tenant: str | None = None, stage: str | Stage | None = None,
        name: str | None = None, due_before: datetime | None = None, due_after: datetime | None = None,
    ) -> AsyncIterator[Job]:  # fmt: skip
        """Jobs stage by stage, in the order in which they run, read page by page."""
        wanted = job_filter(tenant, name, due_before, due_after)
        return self._parts.lookup.walk(queue, None if stage is None else job_options.check_stage(stage), wanted)

    def runs(self, id: str | None = None, *, queue: str | None = None) -> AsyncIterator[PastRun]:
        """Attempts that ended lately, newest first, as far back as the queues' events reach."""
        return self._parts.lookup.runs(id, queue)

    def decisions(self, id: str | None = None, *, queue: str | None = None) -> AsyncIterator[Decision]:
        """What became of each tick of a schedule, newest first: ran, coalesced or skipped, and why."""
        return self._parts.lookup.decisions(id, queue)

    async def next_runs(self, id: str, n: int = 5, *, queue: str | None = None) -> list[datetime]:
        """The next due times, in the zone of its trigger."""
        return await self._parts.lookup.next_runs(id, n, queue)

    async def why(self, id: str, *, queue: str | None = None) -> Explanation:
        """What a job is doing and why it is not running, in plain words. May listen for heartbeats for two seconds."""
        return await self._parts.explainer.ask(id, queue)

    # Many jobs

    async def count_jobs(
        self, *, queue: str | None = None, tenant: str | None = None, stage: str | Stage | None = None,
        name: str | None = None, due_before: datetime | None = None, due_after: datetime | None = None,
    ) -> int:  # fmt: skip
        """How many jobs `jobs` would list."""
        return await self._parts.bulk.count(queue, stage, job_filter(tenant, name, due_before, due_after))

    async def remove_many(
        self, *, queue: str | None = None, tenant: str | None = None, stage: str | Stage | None = None,
        name: str | None = None, due_before: datetime | None = None, due_after: datetime | None = None,
        progress: Progress = unseen,
    ) -> Removed:  # fmt: skip
        """Remove all jobs that match. Running jobs are removed when their runs end."""
        wanted = job_filter(tenant, name, due_before, due_after)
        return await self._parts.bulk.remove(queue, stage, wanted, progress)

    async def retry_dead_many(
        self, *, queue: str | None = None, tenant: str | None = None, name: str | None = None,
        progress: Progress = unseen,
    ) -> int:  # fmt: skip
        """Give all matching jobs that are dead now another life, with all their retries. Returns how many."""
        return await self._parts.bulk.retry_dead(queue, job_filter(tenant, name), progress)

    async def drop_dead_many(
        self, *, queue: str | None = None, tenant: str | None = None, name: str | None = None,
        progress: Progress = unseen,
    ) -> int:  # fmt: skip
        """Remove all dead jobs that match. Returns how many."""
        return await self._parts.bulk.drop_dead(queue, job_filter(tenant, name), progress)

    # Queues

    async def queue_update(
        self, name: str, *, weights: Mapping[str, float | None] | None = None, **settings: Any
    ) -> bool:
        """Change a queue's limits (None: no limit) and the weights of tenants. False if there is no such queue."""
        return await self._parts.queues.update(name, weights, settings)

    async def pause_queue(self, name: str) -> bool:
        """Workers claim nothing more from it; what runs goes on. False if it was paused, or there is no such queue."""
        return await self._parts.queues.pause(name)

    async def resume_queue(self, name: str) -> bool:
        return await self._parts.queues.resume(name)

    async def repartition_queue(
        self, name: str, partitions: int, progress: Progress = lambda done, total: None
    ) -> RepartitionResult:
        """Give a live queue another number of partitions. If the call is interrupted, call it again."""
        return await self._parts.queues.repartition(name, partitions, progress)

    async def purge_queue(self, name: str, progress: Progress = unseen) -> Removed:
        """Remove all jobs of a queue. Its settings stay, and so do the outcomes of jobs that have ended."""
        return await self._parts.bulk.purge_queue(name, progress)

    async def delete_queue(self, name: str, *, force: bool = False) -> None:
        """Delete an empty queue with its settings and all that it remembers. Raises InvalidArgument while it has jobs
        and, unless forced, while live workers serve it: they would create it anew."""
        await self._parts.queues.delete(name, force=force)

    # Working

    async def worker(
        self, *, queues: Iterable[str] | Mapping[str, int] | None = None, concurrency: int | None = None,
        shard: Callable[[str], bool] | None = None, settings: WorkerSettings | None = None,
    ) -> Worker:  # fmt: skip
        """A worker that is not started yet, for programs that run its passes themselves. What is not given here is as
        the configuration says. Queues that have work share the permits, by their weights if `queues` gives some.
        `shard` returns whether an agent is this worker's."""
        parts, settings = self._parts, settings or settings_of(self.config, shard)
        return await build_worker(parts.store, self.declarations, parts.agents, settings, queues, concurrency)

    async def work(
        self, *, queues: Iterable[str] | Mapping[str, int] | None = None, concurrency: int | None = None,
        until: Literal["stopped", "idle"] = "stopped", grace: Duration = GRACE_S,
        shard: Callable[[str], bool] | None = None, signals: bool = False,
    ) -> None:  # fmt: skip
        """Be a worker until this call is cancelled, or until nothing is due and nothing is working. With `signals`
        SIGTERM and SIGINT stop it, too; without, they are left to the program."""
        build = functools.partial(self.worker, queues=queues, concurrency=concurrency, shard=shard)
        await run_worker(build, until, grace, signals=signals)
