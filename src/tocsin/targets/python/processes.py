"""Runs handlers in processes, so that they can be killed.

Parent and child exchange msgpack, never pickled objects: the child imports the handler by name.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import multiprocessing
import os
import sys
import threading
import traceback
from typing import Any

import pebble

from tocsin.engine.handlers import Handler, NotStarted, with_run
from tocsin.engine.work_item import WorkItem
from tocsin.model import msgpack
from tocsin.model.errors import TocsinError
from tocsin.model.record import decode_header, decode_spec
from tocsin.model.run import Claim, Run


class ProcessFailure(TocsinError):
    """A handler failed in its process; the message is its error and traceback."""


class Processes:
    """A pool of spawned processes, started when first needed. Runs wait while all processes are busy."""

    def __init__(self) -> None:
        self._pool: pebble.ProcessPool | None = None

    async def run(self, handler: Handler, namespace: str, unit: WorkItem) -> Any:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            workers = max(2, os.cpu_count() or 2)
            self._pool = pebble.ProcessPool(max_workers=workers, context=context, initializer=_end_with_the_worker)
        fields = [_fields(claim) for claim, _ in unit.all()]
        args = None if handler.process_args is None else handler.process_args(unit)
        message = msgpack.encode(
            (
                handler.fn.__module__,
                handler.fn.__qualname__,
                handler.batch is not None,
                namespace,
                fields,
                args,
            )
        )
        try:
            future = self._pool.schedule(_execute, args=(message,))
        except (RuntimeError, OSError) as error:
            raise NotStarted(f"no process could be started: {error}") from error
        try:
            answer = await asyncio.wrap_future(future)
        except pebble.ProcessExpired as error:
            raise ProcessFailure(f"the process of {handler.name} died (exit code {error.exitcode})") from None
        return _unwrap(answer)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.stop()  # type: ignore[no-untyped-call]
            self._pool.join()


def _fields(claim: Claim) -> list[Any]:
    return [getattr(claim, name) for name in claim.__struct_fields__]


def _unwrap(answer: bytes) -> Any:
    kind, value, trace = msgpack.decode(answer)
    if kind == "result":
        return value
    if kind == "outcomes":
        return [ProcessFailure(text) if failed else outcome for failed, outcome, text in value]
    raise type(kind, (ProcessFailure,), {"__module__": "tocsin"})(f"{value}\n\nin its process:\n{trace}")


def _end_with_the_worker() -> None:
    """In the child: end when the worker is killed. By then other workers have its runs."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, name="tocsin parent", daemon=True).start()


def _execute(message: bytes) -> bytes:
    """Run the handler, in the child."""
    module, qualname, batch, namespace, fields, own_args = msgpack.decode(message)
    try:
        fn = resolve(module, qualname)
        runs = [_run(Claim(*values), namespace) for values in fields]
        if batch:
            outcomes = fn(runs)
            if isinstance(outcomes, (list, tuple)):
                return msgpack.encode(("outcomes", [_outcome(outcome) for outcome in outcomes], ""))
            return msgpack.encode(("result", _storable(outcomes), ""))
        run = runs[0]
        own = (run.args, run.kwargs) if own_args is None else (tuple(own_args), {})
        args, kwargs = with_run(inspect.signature(fn), *own, run)
        return msgpack.encode(("result", _storable(fn(*args, **kwargs)), ""))
    except Exception as error:
        return msgpack.encode((type(error).__name__, str(error), traceback.format_exc()))


def _outcome(outcome: Any) -> tuple[bool, Any, str]:
    if isinstance(outcome, BaseException):
        return True, None, f"{type(outcome).__name__}: {outcome}"
    return False, _storable(outcome), ""


def _storable(value: Any) -> Any:
    """None for a result that msgpack cannot encode: the run succeeded all the same."""
    try:
        msgpack.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
    return value


def resolve(module: str, qualname: str) -> Any:
    found: Any = sys.modules.get(module) or importlib.import_module(module)
    for name in qualname.split("."):
        found = getattr(found, name)
    return found.fn if isinstance(found, Handler) else found


def _run(claim: Claim, namespace: str) -> Run:
    def extend(run: Run, seconds: float) -> Any:
        raise ProcessFailure("a run in a process cannot be extended from inside: give it a longer timeout")

    return Run(claim, decode_header(claim.record), decode_spec(claim.record), namespace, extend)
