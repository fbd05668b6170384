"""A scheduler of tasks: pushes a task into a task queue, once, whenever the cron expression of a schedule says so.

Schedules are recurring jobs in a queue of their own. Any number of schedulers share them without a lock: one of them
claims an occurrence like any other run, and puts its task under an id that is derived from the occurrence. Repeating
that after a crash or a lost answer changes nothing. So no occurrence is pushed twice, and none is left out.
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
# The most occurrences that one call pushes.
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

    Schedules can be added, changed and listed whether it runs or not. While it runs it pushes due tasks, and works for
    the queue: it calls the handler, unless another worker of the app takes the task first.
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
        """`check_interval`: the longest sleep between two passes; a schedule that it knows wakes it when it is due.
        `lock_timeout`: how long the push of one occurrence may take before it is stopped and tried again; a schedule
        keeps the one of the scheduler that added it. `settings`: of the workers, by default the app's configuration.

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
        self._schedules_queue = Queue(queue.schedules, partitions=1)
        self._handler = self._handler_for(self._app)
        self._recorder = StatisticsRecorder()
        self._state = State.STOPPED
        self._turn = threading.Lock()
        self._background: BackgroundWorkers | None = None
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
        """Returns its id. It is due first at the next time that its expression says, counted from now."""
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
        """Change cron_expression, timezone, user_id, priority, payload or is_active. False if it does not exist.

        A change never fires a schedule: a new time counts from now, and occurrences that passed while the schedule was
        not active are not made up for. An occurrence that is being pushed meanwhile keeps the old values.
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
        # Pause before the change and resume after it, so that a schedule cannot fire in between.
        if active is False and not await app.pause(schedule_id, queue=where.name):
            return False
        now = int(app.store.clock.server_ms())
        found = await task_schedules.revise(
            app.store, where, schedule_id, lambda job: task_schedules.changes_of(job, wanted, now),
            app.config.limits.arguments_bytes,
        )  # fmt: skip
        return found and (not active or await app.resume(schedule_id, queue=where.name))

    async def _mend(self, app: Tocsin, where: OpenQueue, job: Job, wanted: dict[str, Any]) -> bool:
        """Rebuild a schedule that was set aside from what can still be read of it and the given changes."""
        saved = ScheduleRecord.of(await _record(app, where, job.id))
        if saved.task is None:
            raise RecordUnreadable(f"schedule {job.id!r} cannot be read any more: remove it and add it again")
        now = int(app.store.clock.server_ms())
        cron = Cron(wanted.get("cron_expression", saved.expression), wanted.get("timezone", saved.timezone))
        pushes = {name: wanted[name] for name in ("priority", "payload") if name in wanted}
        stored = replace(saved.task, updated=now, **pushes)
        put = self._put(job.id, cron, wanted.get("user_id", saved.user_id), stored, now, EDIT)
        code, head = await Jobs(app.store).put(where, put)
        await task_schedules.ring(app.store, where, head)
        return code != MISSING

    def remove_schedule(self, schedule_id: str) -> bool:
        """False if it does not exist. While an occurrence is being pushed, the schedule is removed after the push."""
        removed = bool(self._app.sync.remove(schedule_id, queue=self._schedules_queue.name))
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
        """All schedules, or those of a user, or those that are or are not active. The next due first."""
        found: dict[str, Schedule] = self._app.sync.run(self._all)
        fitting = (
            schedule
            for schedule in found.values()
            if user_id in (None, schedule.user_id) and is_active in (None, schedule.is_active)
        )
        return sorted(fitting, key=lambda each: (each.next_run or datetime.max.replace(tzinfo=UTC), each.schedule_id))

    async def _all(self, app: Tocsin) -> dict[str, Schedule]:
        """Reads the records and not the stages, so that a schedule that changes its stage meanwhile is not missed."""
        where, jobs = await self._opened(app), Jobs(app.store)
        found: dict[str, Schedule] = {}
        async for page in jobs.walk(where, 0):
            for job in await jobs.get_all(where, 0, page):
                if EXTRA not in job.id:
                    found[job.id] = await _shown(app, where, job)
        return found

    def _put(self, schedule_id: str, cron: Cron, user_id: str, stored: StoredTask, now: int, mode: int) -> PutItem:
        return task_schedules.put_of(
            self._handler, schedule_id, cron, user_id, stored, timeout=self._lock_timeout, pause=self.check_interval,
            now=now, mode=mode, largest=self._app.config.limits.arguments_bytes,
        )  # fmt: skip

    async def _opened(self, app: Tocsin) -> OpenQueue:
        return await app.store.open_queue(self._schedules_queue)

    # Life

    @property
    def state(self) -> State:
        return self._state

    def start(self) -> None:
        """Return when it works. Raises what kept it from that; then it is stopped as before."""
        with self._turn:
            self._refuse_unless(State.STOPPED, "start")
            self._state = State.STARTING
        workers = BackgroundWorkers(f"scheduler {self.scheduler_id}", self._app, self._workers, self._failed)
        self._background = workers
        self._recorder.on_critical = lambda error: self._fail(workers, error)
        try:
            workers.begin()
        except BaseException:
            self._state = State.STOPPED
            raise
        with self._turn:
            # Unless it has failed meanwhile.
            if self._state is State.STARTING:
                self._recorder.began()
                self._state = State.RUNNING
        log.info("scheduler started", scheduler=self.scheduler_id)

    def stop(self, timeout: Duration = 30) -> str:
        """Push nothing more, let runs end for `timeout`, and hand over the rest. Returns, within a second of the
        timeout, "graceful", "forced" if something had to be cut off, or "already stopped"."""
        wait = seconds(timeout, "timeout")
        with self._turn:
            if self._state is State.STOPPED:
                log.info("scheduler already stopped", scheduler=self.scheduler_id)
                return ALREADY_STOPPED
            self._refuse_unless(State.RUNNING, "stop")
            assert self._background is not None
            self._background.refuse_own_thread()
            self._state = State.STOPPING
        log.info("scheduler stopping", scheduler=self.scheduler_id, timeout=wait)
        try:
            how = GRACEFUL if self._background.end(wait) else FORCED
        finally:
            self._recorder.ended()
            self._state = State.STOPPED
        log.info("scheduler stopped", scheduler=self.scheduler_id, how=how)
        return how

    def statistics(self) -> Statistics:
        return self._recorder.statistics(self._state.value)

    def _refuse_unless(self, state: State, call: str) -> None:
        if self._state is not state:
            raise TocsinError(f"scheduler {self.scheduler_id!r} is {self._state}: {call}() is for one that is {state}")

    def _fail(self, workers: BackgroundWorkers, error: StoreError) -> None:
        """End the scheduler because of an error that a retry cannot mend. Called on the workers' thread. Until the
        workers have ended, start() and stop() are refused."""
        with self._turn:
            if self._state is State.RUNNING:
                self._state = State.ERROR
                log.error("critical error, the scheduler ends", scheduler=self.scheduler_id, error=str(error))
        workers.fail(error)

    def _failed(self, error: BaseException) -> None:
        """Called at the end of the workers' thread, when they end because of an error."""
        with self._turn:
            if self._state is State.STOPPING:
                # stop() waits for the thread and does the rest.
                return
            self._recorder.critical(error)
            self._recorder.ended()
            self._state = State.STOPPED
        log.error("scheduler stopped: mend what is wrong and start it again", scheduler=self.scheduler_id)

    # Its workers

    async def _workers(self, app: Tocsin) -> list[Worker]:
        return [await self.worker(app), await app.worker(queues=[self.queue.name], settings=self._settings_for(app))]

    def _settings_for(self, app: Tocsin) -> WorkerSettings:
        return replace(self._settings or settings_of(app.config), name=self.scheduler_id)

    async def worker(self, app: Tocsin) -> Worker:
        """The worker that pushes due tasks, not started yet, for programs that run its passes themselves."""
        # The retry policy of the schedule decides when a push is tried again, whatever kind of failure it was.
        off = BackoffSettings(enabled=False)
        settings = replace(self._settings_for(app), poll_s=self.check_interval, backoff=off)
        catalog = Catalog()
        catalog.add(self._handler_for(app))
        worker = Worker(app.store, [await self._opened(app)], catalog, settings, on_claims=self._recorder.saw)
        self._recorder.tally = worker.tally
        return worker

    def _handler_for(self, app: Tocsin) -> Handler:
        async def push(runs: list[Run]) -> list[BaseException | None]:
            return await self._push_in_time(app, runs)

        return Handler(
            HANDLER, push, executor="loop", queue=self._schedules_queue.name, timeout=self._lock_timeout, batch=BATCH
        )

    async def _push_in_time(self, app: Tocsin, runs: list[Run]) -> list[BaseException | None]:
        began = monotonic()
        try:
            return await self._push(app, runs)
        except asyncio.CancelledError:
            deadline = min(epoch_ms(run.deadline) for run in runs)
            if runs[0].cancelled and app.store.clock.server_ms() >= deadline:
                self._recorder.pushes_timed_out(runs)
            raise
        finally:
            self._recorder.processed(monotonic() - began)

    async def _push(self, app: Tocsin, runs: list[Run]) -> list[BaseException | None]:
        """Push the tasks of all occurrences in one call. Returns an error or None for each, so that only those that
        failed are repeated."""
        tasks = [await self._task_of(app, run) for run in runs]
        due = [(run, task) for run, task in zip(runs, tasks, strict=True) if task is not None]
        errors = await self.queue.put_all(app, [(task, run.due) for run, task in due])
        failed = {run: error for (run, _), error in zip(due, errors, strict=True) if error is not None}
        self._recorder.pushes_failed(failed)
        pushed = [run for run, _ in due if run not in failed]
        try:
            await self._note(app, pushed)
        except StoreError as error:
            failed |= dict.fromkeys(pushed, error)
        else:
            for run in pushed:
                self._recorder.push_succeeded(run)
        return [failed.get(run) for run in runs]

    async def _task_of(self, app: Tocsin, run: Run) -> Task | None:
        """None for a schedule that cannot be read; it is paused."""
        try:
            stored = task_schedules.read_stored_task(run.args[0] if run.args else None)
        except RecordUnreadable as error:
            self._recorder.malformed(run.job_id, str(error))
            await app.pause(run.job_id, queue=run.queue)
            return None
        return Task(run.tenant or "", stored.priority, stored.payload, run.id)

    async def _note(self, app: Tocsin, runs: list[Run]) -> None:
        """Write when the schedules ran last. If that fails, the push is repeated, which is harmless, and then this."""
        if not runs:
            return
        dues = {run.job_id: epoch_ms(run.due) for run in sorted(runs, key=lambda run: run.due)}
        try:
            await task_schedules.note_all(app.store, await self._opened(app), dues, int(app.store.clock.server_ms()))
        except StoreError as error:
            self._recorder.redis_error(error)
            raise


def _check_id(scheduler_id: Any) -> str:
    """The id becomes part of the names of workers and is shown as the owner of claims."""
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
    """The bytes in Redis, even if they are no readable job; empty if they are gone."""
    found: bytes | None = await app.store.run_repeatable(lambda client: client.hget(where.keys[0]["jobs"], schedule_id))
    return found or b""
