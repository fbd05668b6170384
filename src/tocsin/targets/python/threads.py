"""Runs plain functions in threads: one thread per permit in use, reused, and none of them delays an exit.

The standard executor joins its threads when the interpreter ends, so one stuck handler would keep a worker from
exiting. The default executor of asyncio has only six threads on two cores.
"""

from __future__ import annotations

import contextvars
import itertools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from tocsin.engine.handlers import NotStarted

_Job = tuple["Future[Any]", contextvars.Context, Callable[[], Any]]


class Threads:
    """Starts another thread whenever none is idle."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._numbers = itertools.count(1)

    def submit(self, fn: Callable[[], Any]) -> Future[Any]:
        """Raises NotStarted if the system has no thread left; then `fn` is never called."""
        future: Future[Any] = Future()
        if not self._idle.acquire(blocking=False):
            name = f"tocsin thread {next(self._numbers)}"
            try:
                threading.Thread(target=self._work, name=name, daemon=True).start()
            except (RuntimeError, MemoryError) as error:
                raise NotStarted(f"no thread could be started: {error}") from error
        self._jobs.put((future, contextvars.copy_context(), fn))
        return future

    def _work(self) -> None:
        while True:
            future, context, fn = self._jobs.get()
            if future.set_running_or_notify_cancel():
                try:
                    result = context.run(fn)
                except (StopIteration, GeneratorExit) as error:
                    # A future refuses StopIteration, and a coroutine takes GeneratorExit for its own end.
                    failure = RuntimeError(f"the handler raised {type(error).__name__}")
                    failure.__cause__ = error
                    future.set_exception(failure)
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            # An idle thread must not keep the run's objects alive.
            del future, context, fn
            self._idle.release()
