"""What a program declares: queues, handlers and agents. Nothing here talks to Redis."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

from tocsin.app import job_options
from tocsin.engine.failure_reports import FailureHook
from tocsin.engine.handlers import Catalog, Executor, Handler, name_of
from tocsin.model.durations import Duration, seconds
from tocsin.model.errors import InvalidArgument, did_you_mean
from tocsin.model.ids import check_queue_name
from tocsin.model.job import DEFAULT_TIMEOUT, Retry, check_keep, check_timeout
from tocsin.model.queue import AGENTS_QUEUE, DEFAULT_QUEUE, Queue, queue_from_code
from tocsin.model.trigger import Every
from tocsin.resilience.classify import Classifier


class DeclaredAgent(Struct, frozen=True):
    """A job declared in code with a fixed interval. It runs for ever, one run at a time."""

    handler: Handler
    every: Every
    error_interval: Duration | None
    # None: the handler's own.
    timeout: Duration | None = None


class Declarations:
    """Decorators fill it while modules are imported; the app reads it when it opens."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.agents: dict[str, DeclaredAgent] = {}
        self.classifier = Classifier()
        self.failure_hooks: list[FailureHook] = []
        self.queues: dict[str, Queue] = {
            DEFAULT_QUEUE: Queue(DEFAULT_QUEUE),
            AGENTS_QUEUE: Queue(AGENTS_QUEUE, partitions=1),
        }

    def queue(self, name: str, order: str, partitions: int | None, settings: dict[str, Any]) -> Queue:
        if name == AGENTS_QUEUE:
            raise InvalidArgument(f"the queue {AGENTS_QUEUE!r} is the agents' own: choose another name")
        self.queues[name] = queue_from_code(check_queue_name(name), order, partitions, settings)
        return self.queues[name]

    def known_queue(self, name: str) -> Queue:
        """Raises InvalidArgument for a queue that is not declared."""
        found = self.queues.get(name) if isinstance(name, str) else None
        if found is None:
            check_queue_name(name)
            raise InvalidArgument(
                f"queue {name!r} is not declared: add app.queue({name!r}); {did_you_mean(name, self.queues)}"
            )
        return found

    def refuse_queue(self, name: str) -> None:
        """Raise InvalidArgument for a declared queue."""
        if name in self.queues:
            raise InvalidArgument(f"queue {name!r} is declared on this app: choose another name")

    def handler(
        self,
        fn: Callable[..., Any],
        *,
        name: str | None,
        queue: str | None,
        timeout: Duration | None,
        retry: Retry | None,
        executor: Literal["thread", "process"] | None,
        batch: int | None,
        keep: Duration | None = None,
    ) -> Handler:
        if not callable(fn):
            raise InvalidArgument(f"@app.job() decorates functions, not {fn!r}")
        if batch is not None and (not isinstance(batch, int) or isinstance(batch, bool) or not 1 <= batch <= 1000):
            raise InvalidArgument(f"batch must be a whole number from 1 to 1000, not {batch!r}")
        handler = Handler(
            name or name_of(fn),
            fn,
            executor=_executor(fn, executor),
            queue=check_queue_name(queue or DEFAULT_QUEUE),
            timeout=check_timeout(DEFAULT_TIMEOUT if timeout is None else timeout),
            retry=None if retry is None else job_options.check_retry(retry),
            batch=batch,
            keep=None if keep is None else check_keep(keep),
        )
        job_options.check_parameters(handler.name, handler.signature.parameters)
        self.catalog.add(handler)
        return handler

    def agent(
        self,
        every: Duration,
        error_interval: Duration | None,
        *,
        timeout: Duration | None,
        name: str | None,
        executor: Literal["thread", "process"] | None,
    ) -> Callable[[Callable[..., Any]], Handler]:
        """A decorator that makes a function an agent."""
        interval = Every(every)
        if error_interval is not None:
            seconds(error_interval, "error_interval")

        def declare(function: Callable[..., Any]) -> Handler:
            handler = self.handler(
                function, name=name, queue=AGENTS_QUEUE, timeout=timeout, retry=None, executor=executor, batch=None
            )
            self.agents[handler.name] = DeclaredAgent(handler, interval, error_interval)
            return handler

        return declare

    def refuse_agent(self, name: str) -> None:
        """Raise InvalidArgument for a declared agent."""
        if name in self.agents:
            raise InvalidArgument(f"{name!r} is declared with @app.agent on this app: choose another name")

    def on_failure(self, fn: FailureHook) -> FailureHook:
        if not callable(fn):
            raise InvalidArgument(f"app.on_failure takes a function of a run, an error and a FollowUp, not {fn!r}")
        self.failure_hooks.append(fn)
        return fn


def _executor(fn: Callable[..., Any], wanted: str | None) -> Executor:
    is_async = inspect.iscoroutinefunction(fn)
    if wanted is None:
        return "loop" if is_async else "thread"
    return check_executor(wanted, is_async=is_async)


def check_executor(wanted: str, *, is_async: bool) -> Executor:
    if wanted not in ("thread", "process"):
        raise InvalidArgument(f"there is no executor {wanted!r}; {did_you_mean(str(wanted), ('thread', 'process'))}")
    if is_async:
        raise InvalidArgument(f"an async function runs on the event loop: make it a plain def for executor={wanted!r}")
    return "process" if wanted == "process" else "thread"
