"""A scheduler of tasks: what a cron expression says is due is pushed into a task queue, once, by one of any number.

Each schedule is a recurring job of a queue of its own, beside the tasks. There is no lock: an occurrence is claimed as
any run is, and what its claim is for is to put a task under an id that is the occurrence's. Whoever repeats that, after
a crash or a lost answer, changes nothing; so none is pushed twice, and none is passed over.
"""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from msgspec.structs import replace

from tocsin.app import Tocsin
from tocsin.app.job_options import check_tenant, warn_if_odd
from tocsin.engine.handlers import Catalog, Handler
from tocsin.model.clock import monotonic
from tocsin.model.durations import Duration, epoch_ms, seconds
from tocsin.model.errors import InvalidArgument, RecordUnreadable, StoreError, TocsinError
from tocsin.model.ids import EXTRA, check_queue_name, new_id
from tocsin.model.job import PRIORITIES, Job, check_priority, check_timeout
from tocsin.model.outcome import EDIT, IGNORE, MISSING
from tocsin.model.queue import Queue
from tocsin.model.run import Run
from tocsin.model.trigger import Cron
from tocsin.patterns.background_workers import BackgroundWorkers
from tocsin.patterns.tasks import schedules as task_schedules
from tocsin.patterns.tasks.queue import Task, TaskQueue, check_user
from tocsin.patterns.tasks.schedules import Schedule, ScheduleRecord, StoredTask
from tocsin.patterns.tasks.statistics import Statistics, StatisticsRecorder
from tocsin.resilience.backoff import BackoffSettings
from tocsin.store.store import OpenQueue
from tocsin.store.transitions.jobs import Jobs, PutItem
from tocsin.telemetry.logs import get_logger
from tocsin.worker import Worker, WorkerSettings
from tocsin.worker.settings import settings_of

log = get_logger("tocsin.taskscheduler")

HANDLER = "tocsin.patterns.TaskScheduler"
# Occurrences that are pushed together.
BATCH = 200
GRACEFUL, FORCED, ALREADY_STOPPED = "graceful", "forced", "already stopped"


class State(StrEnum):
    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ERROR = "error"


class TaskScheduler:
    """Any number of processes may have one for the same queue, each under its own id. All calls block.

    Schedules can be added, changed and listed whether it runs or not. While it runs it pushes what is due, and works
    for the queue: its handler is called here, unless another worker of the app was quicker.
    """

    def __init__(
        self,
        queue: TaskQueue,
        scheduler_id: str,
        check_interval: Duration = 60,
        lock_timeout: Duration = 300,
        *,
        settings: WorkerSettings | None = None,
    ) -> None:
        """`check_interval`: the longest sleep between two passes; a schedule that is known wakes it when it is due.
        `lock_timeout`: how long the push of one occurrence may take before it is stopped and tried again; that of the
        scheduler which adds a schedule holds for it.
        Without settings its workers are as the app's configuration says.

        Raises InvalidArgument, or StoreError if the server of the queue does not answer.
        """
        if not isinstance(queue, TaskQueue):
            raise InvalidArgument(f"a scheduler pushes into a TaskQueue(app, name, handler), not {queue!r:.100}")
        self.scheduler_id = _check_id(scheduler_id)
        self.check_interval = seconds(check_interval, "check_interval")
        if self.check_interval < 0.001:
            raise InvalidArgument(f"check_interval must be at least 1 ms, not {check_interval!r}")
        self._lock_timeout = check_timeout(lock_timeout)
        self.queue = queue
        self._settings = settings
        self._app = queue.app
        self._place = Queue(queue.schedules, partitions=1)
        self._handler = self._handler_for(self._app)
        self._book = StatisticsRecorder()
        self._state = State.STOPPED
        self._turn = threading.Lock()
        self._shift: BackgroundWorkers | None = None
        queue.ping()
        self._app.sync.run(self._ping)
        log.info("scheduler ready", scheduler=self.scheduler_id, queue=queue.name)

    async def _ping(self, app: Tocsin) -> None:
        await self._opened(app)
        await app.store.run_repeatable(lambda client: client.ping())

    # Schedules

    def add_schedule(
        self, cron_expr: str, user_id: str, priority: str = "normal", payload: Any = None, timezone: str = "UTC"
    ) -> str:
        """Its id. It is due first at the next time its expression says, counted from now."""
        cron, user = Cron(cron_expr, timezone), _user(user_id)
        band, schedule_id = PRIORITIES[check_priority(priority)], new_id()

        async def add(app: Tocsin) -> None:
            where, now = await self._opened(app), int(app.store.clock.server_ms())
            put = self._put(schedule_id, cron, user, StoredTask(band, payload, now, now), now, IGNORE)
            _, head = await Jobs(app.store).put(where, put)
            await task_schedules.ring(app.store, where, head)

        self._app.sync.run(add)
        log.info("schedule added", schedule=schedule_id, cron=cron_expr, timezone=timezone)
        warn_if_odd(cron, schedule_id)
        return schedule_id

    def update_schedule(self, schedule_id: str, **changes: Any) -> bool:
        """Change cron_expression, timezone, user_id, priority, payload or is_active. False if there is none.

        Nothing fires because it was changed: another time counts from now, and what passed while a schedule was not
        active is not made up for. An occurrence that is being pushed meanwhile goes by what it was.
        """
        task_schedules.check_changes(changes)
        wanted = dict(changes)
        active = wanted.pop("is_active", None)
        if "priority" in wanted:
            wanted["priority"] = PRIORITIES[check_priority(wanted["priority"])]
        if "user_id" in wanted:
            _user(wanted["user_id"])
        if "cron_expression" in wanted or "timezone" in wanted:
            Cron(wanted.get("cron_expression", "* * * * *"), wanted.get("timezone", "UTC"))
        found = bool(self._app.sync.run(lambda app: self._update(app, schedule_id, wanted, active)))
        if found and "cron_expression" in wanted:
            warn_if_odd(Cron(wanted["cron_expression"]), schedule_id)
        return found

    async def _update(self, app: Tocsin, schedule_id: str, wanted: dict[str, Any], active: bool | None) -> bool:
        where, jobs = await self._opened(app), Jobs(app.store)
        job = await jobs.get(where, schedule_id)
        if job is None:
            return False
        if not task_schedules.is_readable(job):
            return (active is False and not wanted) or await self._mend(app, where, job, wanted)
        # One that is to rest does so before it could fire by its new definition; one that is to go on, after.
        if active is False and not await app.pause(schedule_id, queue=where.name):
            return False
        now = int(app.store.clock.server_ms())
        found = await task_schedules.revise(
            app.store, where, schedule_id, lambda job: task_schedules.changes_of(job, wanted, now),
            app.config.limits.arguments_bytes,
        )  # fmt: skip
        return found and (not active or await app.resume(schedule_id, queue=where.name))

    async def _mend(self, app: Tocsin, where: OpenQueue, job: Job, wanted: dict[str, Any]) -> bool:
        """One that was set aside begins anew, if what can still be read of it and what is given make a schedule."""
        saved = ScheduleRecord.of(await _record(app, where, job.id))
        if saved.plan is None:
            raise RecordUnreadable(f"schedule {job.id!r} cannot be read any more: remove it and add it again")
        now = int(app.store.clock.server_ms())
        cron = Cron(wanted.get("cron_expression", saved.expression), wanted.get("timezone", saved.timezone))
        pushes = {name: wanted[name] for name in ("priority", "payload") if name in wanted}
        plan = replace(saved.plan, updated=now, **pushes)
        put = self._put(job.id, cron, wanted.get("user_id", saved.user_id), plan, now, EDIT)
        code, head = await Jobs(app.store).put(where, put)
        await task_schedules.ring(app.store, where, head)
        return code != MISSING

    def remove_schedule(self, schedule_id: str) -> bool:
        """False if there is none. One that is being pushed is removed when that has ended; it does not come back."""
        removed = bool(self._app.sync.remove(schedule_id, queue=self._place.name))
        if removed:
            log.info("schedule removed", schedule=schedule_id)
        return removed

    def get_schedule(self, schedule_id: str) -> Schedule | None:
        async def get(app: Tocsin) -> Schedule | None:
            where = await self._opened(app)
            job = await Jobs(app.store).get(where, schedule_id)
            return None if job is None else await _shown(app, where, job)

        found: Schedule | None = self._app.sync.run(get)
        return found

    def list_schedules(self, user_id: str | None = None, is_active: bool | None = None) -> list[Schedule]:
        """Those of a user, and those that are or are not active; all where nothing is said. The next due first."""
        found: dict[str, Schedule] = self._app.sync.run(self._all)
        fitting = (
            schedule
            for schedule in found.values()
            if user_id in (None, schedule.user_id) and is_active in (None, schedule.is_active)
        )
        return sorted(fitting, key=lambda each: (each.next_run or datetime.max.replace(tzinfo=UTC), each.schedule_id))

    async def _all(self, app: Tocsin) -> dict[str, Schedule]:
        """By their records: one that goes from stage to stage meanwhile is not missed."""
        where, jobs = await self._opened(app), Jobs(app.store)
        found: dict[str, Schedule] = {}
        async for page in jobs.walk(where, 0):
            for job in await jobs.get_all(where, 0, page):
                if EXTRA not in job.id:
                    found[job.id] = await _shown(app, where, job)
        return found

    def _put(self, schedule_id: str, cron: Cron, user_id: str, plan: StoredTask, now: int, mode: int) -> PutItem:
        return task_schedules.put_of(
            self._handler, schedule_id, cron, user_id, plan, self._lock_timeout, self.check_interval, now, mode,
            self._app.config.limits.arguments_bytes,
        )  # fmt: skip

    async def _opened(self, app: Tocsin) -> OpenQueue:
        return await app.store.open_queue(self._place)

    # Life

    @property
    def state(self) -> State:
        return self._state

    def start(self) -> None:
        """Until it works. Raises what keeps it from that; then it is stopped as before."""
        with self._turn:
            self._refuse_unless(State.STOPPED, "start")
            self._state = State.STARTING
        shift = BackgroundWorkers(f"scheduler {self.scheduler_id}", self._app, self._workers, self._failed)
        self._shift = shift
        self._book.on_critical = lambda error: self._fail(shift, error)
        try:
            shift.begin()
        except BaseException:
            self._state = State.STOPPED
            raise
        with self._turn:
            # It may have failed already.
            if self._state is State.STARTING:
                self._book.began()
                self._state = State.RUNNING
        log.info("scheduler started", scheduler=self.scheduler_id)

    def stop(self, timeout: Duration = 30) -> str:
        """Push nothing more, let what runs end for `timeout`, hand the rest over at once; "graceful", "forced" if
        something had to be cut off, or "already stopped". Returns within a second of the timeout."""
        wait = seconds(timeout, "timeout")
        with self._turn:
            if self._state is State.STOPPED:
                log.info("scheduler already stopped", scheduler=self.scheduler_id)
                return ALREADY_STOPPED
            self._refuse_unless(State.RUNNING, "stop")
            assert self._shift is not None
            self._shift.refuse_own_thread()
            self._state = State.STOPPING
        log.info("scheduler stopping", scheduler=self.scheduler_id, timeout=wait)
        try:
            how = GRACEFUL if self._shift.end(wait) else FORCED
        finally:
            self._book.ended()
            self._state = State.STOPPED
        log.info("scheduler stopped", scheduler=self.scheduler_id, how=how)
        return how

    def statistics(self) -> Statistics:
        return self._book.statistics(self._state.value)

    def _refuse_unless(self, state: State, call: str) -> None:
        if self._state is not state:
            raise TocsinError(f"scheduler {self.scheduler_id!r} is {self._state}: {call}() is for one that is {state}")

    def _fail(self, shift: BackgroundWorkers, error: StoreError) -> None:
        """On its thread: what happened cannot be mended by trying again. Until all has ended, calls are refused."""
        with self._turn:
            if self._state is State.RUNNING:
                self._state = State.ERROR
                log.error("critical error, the scheduler ends", scheduler=self.scheduler_id, error=str(error))
        shift.fail(error)

    def _failed(self, error: BaseException) -> None:
        """Its thread ends."""
        with self._turn:
            if self._state is State.STOPPING:
                # Whoever stops it waits for the thread.
                return
            self._book.critical(error)
            self._book.ended()
            self._state = State.STOPPED
        log.error("scheduler stopped: mend what is wrong and start it again", scheduler=self.scheduler_id)

    # What runs in it

    async def _workers(self, app: Tocsin) -> list[Worker]:
        return [await self.worker(app), await app.worker(queues=[self.queue.name], settings=self._settings_for(app))]

    def _settings_for(self, app: Tocsin) -> WorkerSettings:
        return replace(self._settings or settings_of(app.config), name=self.scheduler_id)

    async def worker(self, app: Tocsin) -> Worker:
        """The worker that pushes what is due, not started yet, for those who run its passes themselves."""
        # A push is tried again as its schedule says, whatever kind of failure it was.
        off = BackoffSettings(enabled=False)
        settings = replace(self._settings_for(app), poll_s=self.check_interval, backoff=off)
        catalog = Catalog()
        catalog.add(self._handler_for(app))
        worker = Worker(app.store, [await self._opened(app)], catalog, settings)
        worker.fetcher.on_answers = self._book.saw
        self._book.tally = worker.tally
        return worker

    def _handler_for(self, app: Tocsin) -> Handler:
        async def push(runs: list[Run]) -> list[BaseException | None]:
            return await self._push_in_time(app, runs)

        return Handler(HANDLER, push, executor="loop", queue=self._place.name, timeout=self._lock_timeout, batch=BATCH)

    async def _push_in_time(self, app: Tocsin, runs: list[Run]) -> list[BaseException | None]:
        began = monotonic()
        try:
            return await self._push(app, runs)
        except asyncio.CancelledError:
            deadline = min(epoch_ms(run.deadline) for run in runs)
            if runs[0].cancelled and app.store.clock.server_ms() >= deadline:
                self._book.pushes_timed_out(runs)
            raise
        finally:
            self._book.processed(monotonic() - began)

    async def _push(self, app: Tocsin, runs: list[Run]) -> list[BaseException | None]:
        """The tasks of all occurrences in one call. How each ended: one that failed is no reason to repeat another."""
        tasks = [await self._task_of(app, run) for run in runs]
        due = [(run, task) for run, task in zip(runs, tasks, strict=True) if task is not None]
        errors = await self.queue.put_all(app, [(task, run.due) for run, task in due])
        failed = {run: error for (run, _), error in zip(due, errors, strict=True) if error is not None}
        self._book.pushes_failed(failed)
        pushed = [run for run, _ in due if run not in failed]
        try:
            await self._note(app, pushed)
        except StoreError as error:
            failed |= dict.fromkeys(pushed, error)
        else:
            for run in pushed:
                self._book.push_succeeded(run)
        return [failed.get(run) for run in runs]

    async def _task_of(self, app: Tocsin, run: Run) -> Task | None:
        """None for a schedule that cannot be read: it is put to rest."""
        try:
            plan = task_schedules.read_plan(run.args[0] if run.args else None)
        except RecordUnreadable as error:
            self._book.malformed(run.job_id, str(error))
            await app.pause(run.job_id, queue=run.queue)
            return None
        return Task(run.tenant or "", plan.priority, plan.payload, run.id)

    async def _note(self, app: Tocsin, runs: list[Run]) -> None:
        """When they ran last. If that cannot be written, the push is repeated with it, which changes nothing."""
        if not runs:
            return
        dues = {run.job_id: epoch_ms(run.due) for run in sorted(runs, key=lambda run: run.due)}
        try:
            await task_schedules.note_all(app.store, await self._opened(app), dues, int(app.store.clock.server_ms()))
        except StoreError as error:
            self._book.redis_error(error)
            raise


def _check_id(scheduler_id: Any) -> str:
    """Part of the names of workers, and shown as the owner of claims."""
    try:
        return check_queue_name(scheduler_id)
    except InvalidArgument:
        raise InvalidArgument(
            f"a scheduler_id has 1 to 100 of A-Z a-z 0-9 _ . - and tells this process from others, not {scheduler_id!r}"
        ) from None


def _user(user_id: Any) -> str:
    return check_tenant(check_user(user_id))


async def _shown(app: Tocsin, where: OpenQueue, job: Job) -> Schedule:
    if task_schedules.is_readable(job):
        return task_schedules.schedule_of(job)
    return task_schedules.unreadable_schedule(job, await _record(app, where, job.id))


async def _record(app: Tocsin, where: OpenQueue, schedule_id: str) -> bytes:
    """As it stands in Redis, also where it is no job; empty if it is gone."""
    found: bytes | None = await app.store.run_repeatable(lambda client: client.hget(where.keys[0]["jobs"], schedule_id))
    return found or b""
