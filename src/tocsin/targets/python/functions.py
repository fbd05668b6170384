"""Python functions: on the event loop, in threads, in killable processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tocsin.engine.handlers import Deliver, Handler, with_run
from tocsin.engine.work_item import WorkItem
from tocsin.model.job import Spec
from tocsin.model.run import Claim, Run
from tocsin.targets.python.processes import Processes
from tocsin.targets.python.threads import Threads

MakeRun = Callable[[WorkItem, Claim, Spec], Run]


class OnLoop:
    """`async def`, on the event loop; stopped by cancellation."""

    stoppable = True

    def __init__(self, handler: Handler, make_run: MakeRun) -> None:
        self._fn = handler.fn
        self._wants_run = handler.wants_run
        self._signature = handler.signature
        self._batch = handler.batch
        self._special = handler.wants_run or handler.batch is not None
        self._make_run = make_run

    def deliver(self, unit: WorkItem) -> Awaitable[Any]:
        """Hot path: return the handler's own coroutine, with no wrapper around it."""
        if not self._special:
            spec = unit.spec
            return self._fn(*spec.args, **spec.kwargs)  # type: ignore[no-any-return]
        return self.call(unit)  # type: ignore[no-any-return]

    def call(self, unit: WorkItem) -> Any:
        if self._batch is not None:
            unit.runs = [self._make_run(unit, claim, spec) for claim, spec in unit.all()]
            return self._fn(unit.runs)
        if self._wants_run:
            unit.run = self._make_run(unit, unit.claim, unit.spec)
            args, kwargs = with_run(self._signature, unit.spec.args, unit.spec.kwargs, unit.run)
            return self._fn(*args, **kwargs)
        return self._fn(*unit.spec.args, **unit.spec.kwargs)


class InThread(OnLoop):
    """Plain `def`, in a thread. Nothing can stop a thread: the handler must check `run.cancelled`."""

    stoppable = False

    def __init__(self, handler: Handler, make_run: MakeRun, threads: Threads) -> None:
        super().__init__(handler, make_run)
        self._threads = threads

    def deliver(self, unit: WorkItem) -> Awaitable[Any]:
        return asyncio.wrap_future(self._threads.submit(lambda: self.call(unit)))


class InProcess:
    """Plain `def`, in a process of a pool; stopped by killing the process."""

    stoppable = True

    def __init__(self, handler: Handler, namespace: str, processes: Processes) -> None:
        self._handler = handler
        self._namespace = namespace
        self._processes = processes

    def deliver(self, unit: WorkItem) -> Awaitable[Any]:
        return self._processes.run(self._handler, self._namespace, unit)


def target_for(handler: Handler, make_run: MakeRun, namespace: str, threads: Threads, processes: Processes) -> Deliver:
    if handler.executor == "process":
        return InProcess(handler, namespace, processes)
    if handler.executor == "thread":
        return InThread(handler, make_run, threads)
    return OnLoop(handler, make_run)
