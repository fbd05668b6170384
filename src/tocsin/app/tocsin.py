"""`Tocsin`: the object that a program holds."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

from msgspec.structs import replace

from tocsin.app import agents, job_options
from tocsin.app.blocking import BlockingHandle
from tocsin.app.bulk import Bulk
from tocsin.app.bulk_control import BulkControl
from tocsin.app.dependencies import check_after
from tocsin.app.handle import Handle
from tocsin.app.job_control import shift_of
from tocsin.app.job_update import changed
from tocsin.app.rows import Kind, rows_of, schedules
from tocsin.app.run_worker import serve
from tocsin.engine.handlers import Bound, Handler
from tocsin.model.durations import Duration, Millis, epoch_ms
from tocsin.model.errors import InvalidArgument, TocsinError
from tocsin.model.ids import check_job_id, check_member, extra_member, new_id, parse_run_id
from tocsin.model.job import Retry, Stage
from tocsin.model.outcome import CONFLICT, EDIT, MISSING, NEW
from tocsin.model.queue import AGENTS_QUEUE, check_shares
from tocsin.model.record import encode_record
from tocsin.model.run import Claim, Run
from tocsin.model.target import Target
from tocsin.model.trigger import Trigger, check_trigger
from tocsin.store.store import LARGEST_BATCH, OpenQueue
from tocsin.store.transitions.jobs import PutItem
from tocsin.store.transitions.queue_settings import open_and_declare
from tocsin.triggers.recurrence import occurrences, tick_from
from tocsin.upkeep.agent_ownership import Ownership
from tocsin.upkeep.agent_registrar import AgentRegistrar, RegistrationRules
from tocsin.worker import GRACE_S, Worker, WorkerSettings
from tocsin.worker.settings import settings_of


class Tocsin(BulkControl):
    """Declare queues, jobs and agents on it; then, inside `async with app:`, enqueue, schedule, look and work."""

    # Putting

    async def enqueue(
        self,
        what: Handler | Bound | Target,
        *args: Any,
        id: str | None = None,
        at: datetime | None = None,
        delay: Duration | None = None,
        priority: str | None = None,
        tenant: str | None = None,
        queue: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        criticality: int = 0,
        if_exists: str = "ignore",
        keep: Duration | None = None,
        cost: int = 1,
        after: Iterable[str | Handle | BlockingHandle] = (),
        on_upstream_failure: str = "cancel",
        **kwargs: Any,
    ) -> Handle:
        """A one-shot job, now, after a delay or at a time, and not before those in `after` have succeeded."""
        waits = check_after(after, on_upstream_failure)
        rules = job_options.policy(criticality=criticality)
        planned = job_options.plan(
            what, args, kwargs, retry=retry, timeout=timeout, tenant=tenant, cost=cost, priority=priority, policy=rules,
            **self._limits,
        )  # fmt: skip
        where = await self._queue_for(planned.handler, queue, priority)
        put = job_options.one_shot(planned, id, new_id(), at, delay, if_exists, keep, self._default_keep)
        # In a burst many wait here: the less each holds, the less the garbage collector has to look at.
        del planned, rules, args, kwargs
        answer = self._dependents.put(where, put, waits) if waits else self._jobs.put(where, put)
        return self._handle_of(where, put, await answer)

    async def enqueue_many(
        self,
        what: Handler | Bound | Kind,
        rows: Iterable[Any] | AsyncIterable[Any],
        *,
        ids: Iterable[str] | None = None,
        at: datetime | None = None,
        delay: Duration | None = None,
        priority: str | None = None,
        tenant: str | None = None,
        queue: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        criticality: int = 0,
        if_exists: str = "ignore",
        keep: Duration | None = None,
        cost: int = 1,
        after: Iterable[str | Handle | BlockingHandle] = (),
        on_upstream_failure: str = "cancel",
    ) -> int:
        """One-shot jobs in bulk: rows are argument tuples or mappings. How many were new.

        If the server fails half-way, `written` of the StoreError says how many rows it has.
        """
        waits = check_after(after, on_upstream_failure)
        rules = job_options.policy(criticality=criticality)
        first = rows_of(
            what, retry=retry, timeout=timeout, tenant=tenant, cost=cost, priority=priority, policy=rules,
            **self._limits,
        )  # fmt: skip
        where = await self._queue_for(first.handler, queue, priority)
        names = None if ids is None else iter(ids)
        make = first.one_shots(at, delay, if_exists, keep, named=ids is not None)

        def put(row: Any) -> PutItem:
            return make(new_id() if names is None else _next_id(names), row)

        send = await self._dependents.bulk(where, waits) if waits else (None, LARGEST_BATCH)
        return await Bulk(self._jobs, where, self._ringer.ring, *send).put_all(rows, put)

    async def schedule(
        self,
        what: Handler | Bound | Target,
        trigger: Trigger,
        *args: Any,
        id: str | None = None,
        overlap: str = "skip",
        misfire: str = "coalesce",
        grace: Duration | None = None,
        catch_up: Duration | None = None,
        criticality: int = 0,
        jitter: Duration | None = None,
        starts: datetime | None = None,
        ends: datetime | None = None,
        tenant: str | None = None,
        priority: str | None = None,
        queue: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        if_exists: str = "update",
        **kwargs: Any,
    ) -> Handle:
        """A recurring job. The same definition again changes nothing; a changed one keeps its due time if it can."""
        rules = job_options.policy(
            overlap=overlap, misfire=misfire, grace=grace, catch_up=catch_up, criticality=criticality,
            jitter=jitter, starts=starts, ends=ends,
        )  # fmt: skip
        planned = job_options.plan(
            what, args, kwargs, trigger=check_trigger(trigger), retry=retry, timeout=timeout,
            tenant=tenant, priority=priority, policy=rules, **self._limits,
        )  # fmt: skip
        where = await self._queue_for(planned.handler, queue, priority)
        member = job_options.own_name(planned.handler, what) if id is None else check_job_id(id)
        mode = job_options.mode_of(if_exists, ("update", "ignore", "replace"))
        job_options.check_tries(planned.spec, member, self.config.schedules.retry_exceeds_interval)
        job_options.warn_if_odd(planned.spec.trigger, member)
        put = job_options.recurring(planned, member, self._now(), mode)
        return self._handle_of(where, put, await self._jobs.put(where, put))

    async def schedule_many(
        self, what: Handler | Bound | Kind, rows: Iterable[Any] | AsyncIterable[Any], **given: Any
    ) -> int:
        """Recurring jobs in bulk: rows are (id, trigger, args), options as for `schedule`. How many were new."""
        exceeding = self.config.schedules.retry_exceeds_interval
        make, handler, queue, priority = schedules(what, given, exceeding, self._limits)
        where = await self._queue_for(handler, queue, priority)
        return await Bulk(self._jobs, where, self._ringer.ring).put_all(rows, lambda row: make(row, self._now()))

    async def register_agents(self) -> None:
        """Put the agents of this program, new ones for now; those that are there keep their due time."""
        where = await self.store.open_queue(self._registry.queues[AGENTS_QUEUE])
        clock, ring = self.store.clock, self._ringer.ring

        def nobody_asks(*_: object) -> None:
            """No worker is here to claim them."""

        await AgentRegistrar(
            self.store, where, self._agents, Ownership(), nobody_asks, nobody_asks, clock, ring, RegistrationRules()
        ).step()

    @functools.cached_property
    def _declared_agents(self) -> Mapping[str, PutItem]:
        return agents.DeclaredAgents(self._registry.agents)

    def _agents(self) -> Mapping[str, PutItem]:
        return self._declared_agents

    def _handle_of(self, where: OpenQueue, put: PutItem, answer: tuple[int, Millis]) -> Handle:
        code, head = answer
        if head >= 0:
            self._ringer.ring(where, where.partition_of(put.member))
        return Handle(put.member, code == NEW, where.name, self._lookup, self._cancel)

    def handle(self, id: str, queue: str | None = None) -> Handle:
        """The handle of a job that somebody else put, or that was put before. Nothing is asked until the handle is."""
        return Handle(check_member(id), False, queue, self._lookup, self._cancel)

    async def _queue_for(self, handler: Handler, name: str | None, priority: str | None) -> OpenQueue:
        declared = self._registry.known_queue(name or handler.queue)
        job_options.check_order(declared, priority)
        return await open_and_declare(self.store, declared)

    def _now(self) -> Millis:
        return int(self.store.clock.server_ms())

    # Changing

    async def update(self, id: str, *, queue: str | None = None, **changes: Any) -> bool:
        """Change some of a job's definition. A changed trigger counts from now. False if there is none."""
        while True:
            found = await self._lookup.find(id, queue)
            if found is None:
                return False
            where, job = found
            job_options.check_order(where.queue, changes.get("priority"))
            job_options.check_longest(changes.get("target"), self._longest_delivery)
            header, spec, due, relative = changed(job, changes, self._registry, self._now())
            if changes.keys() & {"trigger", "retry"}:
                job_options.check_tries(spec, id, self.config.schedules.retry_exceeds_interval)
            if "trigger" in changes:
                job_options.warn_if_odd(spec.trigger, id)
            record = encode_record(header, spec, self._largest_arguments)
            put = PutItem(id, record, due, relative, EDIT, job.version)
            code, head = await self._jobs.put(where, put)
            if head >= 0:
                self._ringer.ring(where, where.partition_of(id))
            if code != CONFLICT:
                return code != MISSING

    async def remove(self, id: str, *, queue: str | None = None) -> bool:
        """False if there is none. One that is running is removed when its run ends."""
        found = await self._lookup.find(id, queue)
        return found is not None and await self._jobs.delete(found[0], id)

    async def pause(self, id: str, *, queue: str | None = None) -> bool:
        found = await self._lookup.find(id, queue)
        return found is not None and await self._jobs.pause(found[0], id)

    async def resume(self, id: str, replay: bool = False, *, queue: str | None = None) -> bool:
        """Back in line: one-shots at their time, recurring jobs at their next, or with `replay` at the missed one."""
        while True:
            found = await self._lookup.find(id, queue)
            if found is None:
                return False
            where, job = found
            due: Millis | None = 0
            if job.recurring and not replay and job.stage is Stage.PAUSED:
                due = tick_from(job.spec, job.due_ms, self._now(), shift_of(job))
            if due is None:
                # Its end passed while it was paused: there is nothing left of it to resume.
                return await self._jobs.delete(where, id, only="paused")
            code, head = await self._jobs.resume(where, id, job.version, due)
            if head >= 0:
                self._ringer.ring(where, where.partition_of(id))
            if code != CONFLICT:
                return code != 0

    async def fire(self, id: str, *, queue: str | None = None) -> Run:
        """Run it now as well, without touching its cadence. Raises UnknownJob."""
        where, job = await self._lookup.must_find(id, queue)
        [due] = await self._fire(where, id, [0])
        member, partition = extra_member(id, due), where.partition_of(id)
        claim = Claim(where.name, partition, member.encode(), 0, due, 1, 0, False, due + job.header.timeout, b"")
        return Run(claim, job.header, job.spec, self.store.keys.prefix, _not_running)

    async def backfill(
        self,
        id: str,
        start: datetime,
        end: datetime,
        overlap: str = "allow",
        limit: int | None = None,
        *,
        queue: str | None = None,
    ) -> int:
        """Run the missed occurrences from `start` up to, not including, `end`, each a run of its own. How many."""
        if overlap != "allow":
            raise InvalidArgument(f"overlap must be 'allow' here, not {overlap!r}")
        most = job_options.check_limit(limit)
        where, job = await self._lookup.must_find(id, queue)
        first, last = epoch_ms(start, "start"), min(epoch_ms(end, "end"), self._now() + 1)
        own = job.due_ms if job.stage is not Stage.PAUSED else None
        if own is not None and job.spec.rules.misfire == "all":
            last = min(last, own)
        # What the job will run itself is not missed: it would run twice, under one run id.
        found = occurrences(job.spec, job.due_ms, first, last, most + 2, shift_of(job))
        dues = [due for due in found if due != own]
        if limit is None and len(dues) > most:
            raise InvalidArgument(f"these are more than {most} runs: give a shorter span, or a limit")
        del dues[most:]
        return sum([len(await self._fire(where, id, dues[i : i + 1000])) for i in range(0, len(dues), 1000)])

    async def _fire(self, where: OpenQueue, job_id: str, dues: list[Millis]) -> list[Millis]:
        added = await self._jobs.fire(where, job_id, dues)
        self._ringer.ring(where, where.partition_of(job_id))
        return added

    async def cancel(self, run_id: str, *, queue: str | None = None) -> bool:
        """Cancel a waiting one-shot, or ask the worker of a run to stop it. False if there is nothing to cancel."""
        at_rest, others = await self._lookup.apart(queue)
        return await self._cancel_run(at_rest, run_id) or await self._cancel_run(
            await self._lookup.opened(others), run_id
        )

    async def _cancel_run(self, queues: list[OpenQueue], run_id: str) -> bool:
        job_id, due = parse_run_id(run_id)
        for where in queues:
            # The last is the run that replaces others.
            for member in (job_id, extra_member(job_id, due), extra_member(job_id, 0)):
                if await self._cancel_in(where, member, due):
                    return True
        return False

    async def _cancel(self, job_id: str, queue: str) -> bool:
        return any([await self._cancel_in(where, job_id, 0) for where in await self._lookup.queues(queue)])

    async def _cancel_in(self, where: OpenQueue, member: str, due: Millis) -> bool:
        code, owner, token = await self._jobs.cancel(where, member, due)
        if code == 2 and owner:
            await self._fleet.post(owner, {"cancel": member, "token": token})
        return code > 0

    async def reprioritize(self, id: str, priority: str, *, queue: str | None = None) -> bool:
        """Move a job in its line, keeping its age. False if there is none."""
        return await self.update(id, queue=queue, priority=priority)

    # Working

    async def worker(
        self,
        *,
        queues: Iterable[str] | Mapping[str, int] | None = None,
        concurrency: int | None = None,
        shard: Callable[[str], bool] | None = None,
        settings: WorkerSettings | None = None,
    ) -> Worker:
        """A worker that is not started yet, for those who run its passes themselves. As the configuration says, unless
        told otherwise. Queues that have work share the permits, by their weights if `queues` gives some. `shard` tells
        whether an agent is this worker's."""
        settings = settings or settings_of(self.config, shard)
        if concurrency is not None:
            settings = replace(settings, concurrency=concurrency)
        if isinstance(queues, Mapping):
            settings = replace(settings, weights=check_shares(queues))
        names = list(self._registry.queues) if queues is None else list(queues)
        if not self._registry.agents and queues is None:
            names.remove(AGENTS_QUEUE)
        opened = [await open_and_declare(self.store, self._registry.known_queue(name)) for name in names]
        declared = self._registry
        worker = Worker(
            self.store, opened, declared.catalog, settings, self._agents, declared.classifier, declared.failure_hooks
        )
        if worker.reconciler is not None:
            await worker.reconciler.register()
        return worker

    async def work(
        self,
        *,
        queues: Iterable[str] | Mapping[str, int] | None = None,
        concurrency: int | None = None,
        until: Literal["stopped", "idle"] = "stopped",
        grace: Duration = GRACE_S,
        shard: Callable[[str], bool] | None = None,
        signals: bool = False,
    ) -> None:
        """Be a worker until this call is cancelled, or until nothing is due and nothing is working. With `signals`
        SIGTERM and SIGINT stop it, too; without, they are left to the program."""
        await serve(self, queues, concurrency, until, grace, shard, signals=signals)


def _next_id(names: Any) -> str:
    try:
        return check_job_id(next(names))
    except StopIteration:
        raise InvalidArgument("there are fewer ids than rows") from None


def _not_running(run: Run, seconds: float) -> Any:
    raise TocsinError(f"run {run.id!r} is not running here: only its handler can extend it")
