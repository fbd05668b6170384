"""Handlers: the functions that this process can run, by name, and how long each takes."""

from __future__ import annotations

import copy
import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Literal, Protocol

from msgspec import Struct

from tocsin.model.durations import Millis
from tocsin.model.errors import InvalidArgument
from tocsin.model.job import Retry
from tocsin.model.record import handler_digest
from tocsin.telemetry.handler_metrics import HandlerTally

Executor = Literal["loop", "thread", "process"]
UNKNOWN_S = 1.0
_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class NotStarted(Exception):
    """The target could not begin, because this machine lacks something. Nothing has happened, so another worker may
    try."""


class TryLater(NotStarted):
    """The receiver takes no more for now. Nothing has happened; the run is released for some seconds."""

    def __init__(self, why: str, delay: float, *, is_trouble: bool = False) -> None:
        """`is_trouble`: this machine lacks something, so it is logged."""
        super().__init__(why)
        self.delay = delay
        self.is_trouble = is_trouble


class Deliver(Protocol):
    """How runs reach their targets. Every target satisfies this."""

    # Whether cancelling the runner really ends the run.
    stoppable: bool

    def deliver(self, unit: Any) -> Awaitable[Any]:
        """Execute the unit and return its result. A batch returns None or one outcome per run."""


class Handler:
    """A function that jobs name, with its defaults. Calling a handler calls the function."""

    def __init__(
        self,
        name: str,
        fn: Callable[..., Any],
        *,
        executor: Executor,
        queue: str,
        timeout: Millis,
        retry: Retry | None = None,
        batch: int | None = None,
        keep: int | None = None,
    ) -> None:
        self.name = name
        self.fn = fn
        self.executor = executor
        self.queue = queue
        self.timeout = timeout
        self.retry = retry
        self.batch = batch
        # Seconds; None: the default.
        self.keep = keep
        self.digest = handler_digest(name)
        self.signature = inspect.signature(fn)
        self.wants_run = "run" in self.signature.parameters
        # Known calls that fit: how many positional arguments, and which names. `bind()` is slow.
        self._fits: set[tuple[Any, ...]] = set()
        self._few_shapes = not any(each.kind in _ANY_NUMBER for each in self.signature.parameters.values())
        # Mean seconds of a run. Nothing is claimed ahead for a handler until some runs were measured.
        self.mean = UNKNOWN_S
        # Counts the outcomes of its runs; each worker gives its handlers their own.
        self.tally = HandlerTally()
        # For a process: computes the arguments from the unit, if the record does not have them.
        self.process_args: Callable[[Any], tuple[Any, ...]] | None = None
        self.deliver: Callable[[Any], Awaitable[Any]] = _not_placed
        self.stoppable = True
        self.__wrapped__ = fn
        self.__doc__ = fn.__doc__
        self.__name__ = getattr(fn, "__name__", name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def bind(self, *args: Any, **kwargs: Any) -> Bound:
        """The handler with its arguments, checked now: for arguments whose names clash with options."""
        return Bound(handler=self, args=args, kwargs=self.check(args, kwargs))

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Raise InvalidArgument unless the function can be called like this."""
        if self.batch is not None:
            return kwargs
        shape = (len(args), *kwargs)
        if shape in self._fits:
            return kwargs
        if self.wants_run and "run" in kwargs:
            raise InvalidArgument(f"{self.name} gets its run from the worker: leave run= out")
        try:
            given, named = with_run(self.signature, args, kwargs, None)
            self.signature.bind(*given, **named)
        except TypeError as error:
            raise InvalidArgument(f"{self.name} cannot be called with these arguments: {error}") from None
        if self._few_shapes:
            self._fits.add(shape)
        return kwargs

    def set_delivery(self, target: Deliver) -> None:
        """Where runs go. A worker sets this for its own copies. It stores the method itself, because this is the hot
        path."""
        self.deliver = target.deliver
        self.stoppable = target.stoppable

    def __repr__(self) -> str:
        return f"<handler {self.name}>"


def with_run(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any], run: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, with the run added where the function takes it."""
    if "run" not in signature.parameters:
        return args, kwargs
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in signature.parameters.values() if parameter.kind in by_position]
    at = names.index("run") if "run" in names else len(args) + 1
    if len(args) >= at:
        return (*args[:at], run, *args[at:]), kwargs
    return args, {**kwargs, "run": run}


def _not_placed(unit: Any) -> Awaitable[Any]:
    raise RuntimeError("no worker has taken this handler yet")


class Bound(Struct, frozen=True):
    """A handler with its arguments."""

    handler: Handler
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Catalog:
    """Handlers by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, Handler] = {}

    def add(self, handler: Handler) -> None:
        known = self.by_name.get(handler.name)
        if known is not None and known.fn is not handler.fn:
            raise InvalidArgument(f"there is a handler named {handler.name!r} already: give one of them name=")
        self.by_name[handler.name] = handler

    def get(self, name: str) -> Handler | None:
        return self.by_name.get(name)

    def __iter__(self) -> Iterator[Handler]:
        return iter(self.by_name.values())

    def __len__(self) -> int:
        return len(self.by_name)

    def copy(self) -> Catalog:
        """A worker's own copies: each worker has its own targets and its own measurements."""
        copied = Catalog()
        copied.by_name = {name: copy.copy(handler) for name, handler in self.by_name.items()}
        return copied

    def names(self) -> list[str]:
        return sorted(self.by_name)

    def digests(self) -> list[int]:
        return [handler.digest for handler in self.by_name.values()]


def name_of(fn: Callable[..., Any]) -> str:
    """module.qualname. `__main__` becomes the name of its file, so that a worker that imports the file agrees."""
    module = fn.__module__
    if module in ("__main__", "__mp_main__"):
        main = sys.modules[module]
        spec = getattr(main, "__spec__", None)
        if spec is not None and spec.name not in ("__main__", "__mp_main__"):
            module = spec.name.removesuffix(".__main__")
        elif file := getattr(main, "__file__", None):
            module = os.path.splitext(os.path.basename(file))[0]
    return f"{module}.{fn.__qualname__}"
