"""A queue of tasks that treats users fairly: push a task, and the handler gets it when it is its user's turn.

Users are tenants of a queue of order `fair`: higher priorities first, within a priority the users in turn, and each
user's tasks in the order in which they came. Tasks are jobs of the app like any other, so every worker of the app runs
them: `app.work()`, `tocsin worker`, or a `TaskScheduler` that is started.
"""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from tocsin.app import Tocsin
from tocsin.app.job_options import JobLimits, OneShotOptions, define_job, one_shot
from tocsin.engine.handlers import Handler
from tocsin.model.durations import Duration
from tocsin.model.errors import InvalidArgument, StoreError, TocsinError
from tocsin.model.ids import check_queue_name
from tocsin.model.job import Retry
from tocsin.model.run import Run
from tocsin.patterns.tasks.schedules import ring
from tocsin.store.transitions.jobs import Jobs, PutItem
from tocsin.store.transitions.queue_settings import open_and_declare

NAME = "tocsin.patterns.TaskQueue"
# The queue of a task queue's schedules has its name with this suffix.
SCHEDULES = ".schedules"
_FIELDS = ("user_id", "priority", "payload", "task_id")


class Task(Struct, frozen=True):
    """What a user wants done. The handler gets the id of the run as `task_id`; it is the same for every attempt."""

    user_id: str
    priority: str = "normal"
    payload: Any = None
    # When pushing: empty, or an id under which pushing the task again changes nothing.
    task_id: str = ""

    @classmethod
    def create(cls, user_id: str, priority: str = "normal", payload: Any = None) -> Task:
        return cls(user_id, priority, payload)


class TaskQueue:
    """Any number of processes may push to and work for the same name.

    `handler` is called with a Task: an `async def` on the event loop of its worker, a plain function in a thread. To
    return is success; one that raises is tried again as `retry` says, and is a dead letter then.
    """

    def __init__(
        self,
        app: Tocsin,
        name: str,
        handler: Callable[[Task], Any],
        *,
        timeout: Duration | None = None,
        retry: Retry | None = None,
    ) -> None:
        if not isinstance(app, Tocsin):
            raise InvalidArgument(f"a task queue belongs to an app, TaskQueue(app, name, handler), not to {app!r:.100}")
        if not callable(handler):
            raise InvalidArgument(f"the handler of a task queue is a function of a task, not {handler!r:.100}")
        self.name = check_queue_name(name)
        self.schedules = check_queue_name(name + SCHEDULES)
        for own in (self.name, self.schedules):
            app.refuse_declared(own)
        self.app = app
        # Declare the handler first: if it is refused, no queue was declared.
        declare = app.job(name=f"{NAME}.{name}", queue=name, timeout=timeout, retry=retry)
        self._handler: Handler = declare(_taking_runs(handler))
        self._queue = app.queue(name, order="fair")

    def push(self, task: Task | Mapping[str, Any] | Any) -> str:
        """Put a task, or anything with its fields, in line. Returns the id of its job; the `task_id` that the handler
        gets begins with it."""
        fields = _fields_of(task)
        put = self.app.sync.enqueue(
            self._handler,
            fields["payload"],
            id=fields["task_id"] or None,
            tenant=check_user(fields["user_id"]),
            priority=fields["priority"],
        )
        return str(put.id)

    def ping(self) -> bool:
        """True if the server answers and has the queue as it is declared here. Raises StoreError or InvalidConfig."""
        return bool(self.app.sync.run(self._ping))

    async def _ping(self, app: Tocsin) -> bool:
        await open_and_declare(app.store, self._queue)
        return bool(await app.store.run_repeatable(lambda client: client.ping()))

    async def put_all(self, app: Tocsin, tasks: Sequence[tuple[Task, datetime]]) -> list[TocsinError | None]:
        """Put all tasks in one call, for schedulers on their own event loop. A task whose id was put before changes
        nothing. Returns for each task the error that kept it from being put."""
        puts, errors = list[PutItem](), list[TocsinError | None]()
        for task, at in tasks:
            try:
                puts.append(self._put_of(app, task, at))
                errors.append(None)
            except TocsinError as error:
                errors.append(error)
        try:
            where = await app.store.open_queue(self._queue)
            _, head = await Jobs(app.store).put_many(where, puts)
            await ring(app.store, where, head)
        except StoreError as error:
            return [kept or error for kept in errors]
        return errors

    def _put_of(self, app: Tocsin, task: Task, at: datetime) -> PutItem:
        job = define_job(
            self._handler, (task.payload,), {}, tenant=check_user(task.user_id), priority=task.priority,
            limits=JobLimits(app.config.limits.arguments_bytes),
        )  # fmt: skip
        return one_shot(job, task.task_id, "", OneShotOptions(at=at), 0)


def check_user(user_id: Any) -> str:
    """A user follows the rules of tenants, but is required here."""
    if not isinstance(user_id, str) or not user_id:
        raise InvalidArgument(f"a task belongs to a user: user_id is text of 1 to 250 bytes, not {user_id!r:.100}")
    return user_id


def _taking_runs(handler: Callable[[Task], Any]) -> Callable[..., Any]:
    """The handler in the form in which jobs call it."""

    def task_of(payload: Any, run: Run) -> Task:
        return Task(run.tenant or "", run.priority, payload, run.id)

    async def on_loop(payload: Any, run: Run) -> Any:
        return await handler(task_of(payload, run))

    def in_thread(payload: Any, run: Run) -> Any:
        return handler(task_of(payload, run))

    is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
    return on_loop if is_async else in_thread


def _fields_of(task: Any) -> dict[str, Any]:
    if isinstance(task, Mapping):
        unknown = [name for name in task if name not in _FIELDS]
        if unknown:
            raise InvalidArgument(f"a task has no {unknown[0]!r}; it has {', '.join(_FIELDS)}")
        given = dict(task)
    else:
        given = {name: getattr(task, name) for name in _FIELDS if hasattr(task, name)}
    if "user_id" not in given:
        raise InvalidArgument(
            f"a task is a Task, or has user_id, priority and payload; {reprlib.repr(task)} has no user_id"
        )
    return {"priority": None, "payload": None, "task_id": ""} | given
