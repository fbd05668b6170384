"""Executes one run of an agent, on the event loop, in a thread or in a process, and calls its instrumentation."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from msgspec import Struct, structs

from tocsin.app.declarations import check_executor
from tocsin.engine.handlers import Executor, Handler, with_run
from tocsin.engine.work_item import WorkItem
from tocsin.model.clock import Clock
from tocsin.model.errors import InvalidArgument
from tocsin.model.job import DEFAULT_TIMEOUT, check_timeout
from tocsin.model.queue import AGENTS_QUEUE
from tocsin.model.run import Run
from tocsin.patterns.agent import Agent, Instrumentation
from tocsin.targets.python.processes import resolve
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.agents")


class Scheduled(Struct, frozen=True):
    """An agent with its execution and its instrumentation."""

    agent: Agent
    execution: Handler
    instrumentation: Instrumentation | None

    def call(self, run: Run) -> Any:
        args, kwargs = with_run(self.execution.signature, (self.agent,), {}, run)
        return self.execution.fn(*args, **kwargs)

    def call_plain(self, run: Run) -> None:
        result = self.call(run)
        if inspect.iscoroutine(result):
            result.close()
            raise TypeError(f"the execution of agent {run.job_id!r} is no `async def` and returned a coroutine")

    @contextmanager
    def instrumented(self, clock: Clock) -> Iterator[None]:
        """Calls the instrumentation before and after the run inside."""
        self._instrument("started", self.agent)
        began = clock.monotonic()
        try:
            yield
        except BaseException as error:
            self._instrument("failed", self.agent, error, (clock.monotonic() - began) * 1000)
            raise
        self._instrument("completed", self.agent, (clock.monotonic() - began) * 1000)

    def _instrument(self, method: str, *facts: Any) -> None:
        if self.instrumentation is None:
            return
        try:
            getattr(self.instrumentation, method)(*facts)
        except Exception:
            log.error("instrumentation failed, the run goes on", agent=self.agent.type, method=method, exc_info=True)


def execution_of(name: str, execution: Any, wanted: str | None, usual: str | None) -> Handler:
    """The handler of an agent. `wanted` is the executor that it must have, `usual` the default for plain functions."""
    function = getattr(execution, "execute_agent", execution)
    if not callable(function):
        raise InvalidArgument(f"an execution is a function or has execute_agent, not {execution!r:.100}")
    on_loop = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    executor: Executor = "loop"
    if wanted is not None or not on_loop:
        executor = check_executor(wanted or usual or "thread", is_async=on_loop)
    if executor == "process":
        path_of(function)
    return handler(name, function, executor)


def handler(name: str, fn: Callable[..., Any], executor: Executor) -> Handler:
    return Handler(name, fn, executor=executor, queue=AGENTS_QUEUE, timeout=check_timeout(DEFAULT_TIMEOUT))


class AgentDelivery:
    """Sends a run to the executor of its agent. All processes share the record of the agent, but each chooses its own
    executors. So the record names one handler, and the choice is made here."""

    stoppable = True

    def __init__(self, on_loop: Handler, others: Mapping[str, Handler], executor_of: Callable[[str], str]) -> None:
        """`others`: the handlers of the other executors, by executor."""
        self._deliver = on_loop.deliver
        self._others = others
        self._executor_of = executor_of

    def deliver(self, unit: WorkItem) -> Awaitable[Any]:
        handler = self._others.get(self._executor_of(unit.claim.job_id))
        if handler is None:
            return self._deliver(unit)
        # Code that stops the run asks its handler whether that is possible.
        unit.handler = handler
        return handler.deliver(unit)


# In a process


class InstrumentedProcess:
    """Runs agents in a process. Instrumentation is called here, because the process does not have it."""

    stoppable = True

    def __init__(self, in_process: Handler, scheduled: Callable[[str], Scheduled], clock: Clock) -> None:
        self._deliver = in_process.deliver
        self._scheduled = scheduled
        self._clock = clock

    async def deliver(self, unit: WorkItem) -> Any:
        with self._scheduled(unit.claim.job_id).instrumented(self._clock):
            return await self._deliver(unit)


def arguments_for(scheduled: Scheduled) -> tuple[Any, ...]:
    """The arguments of `execute_in_process`: the process has neither our objects nor our schedule."""
    fields = structs.asdict(scheduled.agent).items()
    plain = {name: value.total_seconds() if isinstance(value, timedelta) else value for name, value in fields}
    return *path_of(scheduled.execution.fn), plain


def execute_in_process(run: Run, module: str, path: str, agent: Mapping[str, Any]) -> None:
    """Runs in the child process."""
    execution = handler(run.job_id, resolve(module, path), "process")
    Scheduled(Agent(**agent), execution, None).call_plain(run)


def path_of(function: Callable[..., Any]) -> tuple[str, str]:
    """The module and the name by which a new process finds a function or an object's method."""
    for module, path in _paths(function):
        try:
            if module in sys.modules and resolve(module, path) == function:
                return module, path
        except AttributeError:
            continue
    raise InvalidArgument(
        f"executor='process' runs {function!r:.100} in a process that imports it by its name: give a function of a "
        f"module, or execute_agent of an object that its module holds under a name"
    )


def _paths(function: Any) -> Iterator[tuple[str, str]]:
    if hasattr(function, "__qualname__"):
        yield function.__module__, function.__qualname__
    owner, method = getattr(function, "__self__", function), getattr(function, "__name__", "")
    module = type(owner).__module__
    for name, value in list(vars(sys.modules[module]).items()) if module in sys.modules else ():
        if value is owner:
            yield module, f"{name}.{method}" if method else name
