"""The declaring half of `Tocsin`: queues, jobs and agents, before anything is connected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, overload

from tocsin.app.declarations import Declarations, DeclaredAgent
from tocsin.engine.failure_reports import FailureHook
from tocsin.engine.handlers import Handler
from tocsin.model.durations import Duration, seconds
from tocsin.model.errors import InvalidArgument
from tocsin.model.job import Retry
from tocsin.model.queue import AGENTS_QUEUE, Queue
from tocsin.model.trigger import Every
from tocsin.resilience.classify import ClassifyFunction


class DeclaringCalls:
    """What may be said while modules are imported."""

    def __init__(self, registry: Declarations | None) -> None:
        self._registry = registry or Declarations()

    def queue(
        self,
        name: str,
        *,
        order: str = "due",
        partitions: int | None = None,
        max_active: int | None = None,
        rate: str | None = None,
        tenant_max_active: int | None = None,
        tenant_rate: str | None = None,
        aging: Duration | None = None,
    ) -> Queue:
        """Declare a queue. Its order and partitions live in Redis and must be declared the same everywhere; partitions
        and limits hold until an operator changes them. None: no limit, and strict priorities."""
        settings = {
            "max_active": max_active, "rate": rate, "tenant_max_active": tenant_max_active,
            "tenant_rate": tenant_rate, "aging": aging,
        }  # fmt: skip
        return self._registry.queue(name, order, partitions, settings)

    @overload
    def job(self, fn: Callable[..., Any]) -> Handler: ...

    @overload
    def job(
        self,
        *,
        queue: str | None = None,
        timeout: Duration | None = None,
        retry: Retry | None = None,
        name: str | None = None,
        executor: Literal["thread", "process"] | None = None,
        batch: int | None = None,
        keep: Duration | None = None,
    ) -> Callable[[Callable[..., Any]], Handler]: ...

    def job(
        self,
        fn: Callable[..., Any] | None = None,
        *,
        queue: str | None = None,
        timeout: Duration | None = None,
        retry: Retry | None = None,
        name: str | None = None,
        executor: Literal["thread", "process"] | None = None,
        batch: int | None = None,
        keep: Duration | None = None,
    ) -> Any:
        """Make a function a handler that jobs can name. `keep`: how long outcomes of its one-shots are kept."""

        def declare(function: Callable[..., Any]) -> Handler:
            return self._registry.handler(
                function,
                name=name,
                queue=queue,
                timeout=timeout,
                retry=retry,
                executor=executor,
                batch=batch,
                keep=keep,
            )

        return declare if fn is None else declare(fn)

    def agent(
        self,
        *,
        every: Duration,
        error_interval: Duration | None = None,
        timeout: Duration | None = None,
        name: str | None = None,
        executor: Literal["thread", "process"] | None = None,
    ) -> Callable[[Callable[..., Any]], Handler]:
        """Make a function an agent: workers register it, and it runs for ever, one at a time."""
        interval = Every(every)
        if error_interval is not None:
            seconds(error_interval, "error_interval")

        def declare(function: Callable[..., Any]) -> Handler:
            handler = self._registry.handler(
                function, name=name, queue=AGENTS_QUEUE, timeout=timeout, retry=None, executor=executor, batch=None
            )
            self._registry.agents[handler.name] = DeclaredAgent(handler, interval, error_interval)
            return handler

        return declare

    def classify(self, fn: ClassifyFunction) -> ClassifyFunction:
        """Make a function a judge of failures: from an exception to a FailureClass, its name, or None to pass it on."""
        self._registry.classifier.add(fn)
        return fn

    def on_failure(self, fn: FailureHook) -> FailureHook:
        """Call a function after each failed attempt with the run, the error and what follows: for Sentry and the like.
        A plain function holds up the event loop while it runs; an `async def` does not."""
        if not callable(fn):
            raise InvalidArgument(f"app.on_failure takes a function of a run, an error and a FollowUp, not {fn!r}")
        self._registry.failure_hooks.append(fn)
        return fn

    def refuse_declared(self, name: str) -> None:
        """For patterns that keep a queue of their own: workers of this app must not serve it."""
        if name in self._registry.queues:
            raise InvalidArgument(f"queue {name!r} is declared on this app: choose another name")
