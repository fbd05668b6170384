"""The built-in handlers, for requests, messages and programs: no program declares them."""

from __future__ import annotations

from typing import Any

from tocsin.engine.handlers import Handler
from tocsin.model.durations import Millis, ceil_ms
from tocsin.model.job import DEFAULT_TIMEOUT, check_timeout
from tocsin.model.queue import DEFAULT_QUEUE
from tocsin.model.target import MESSAGE, NAMES, SUBPROCESS, Target, name_of

# A run may take this much longer than its delivery, for starting it and for writing its outcome.
SLACK_S = 10.0


async def _delivered(*fields: Any) -> None:
    raise RuntimeError("targets are delivered by a worker, not called")


_HANDLERS = {
    name: Handler(name, _delivered, executor="loop", queue=DEFAULT_QUEUE, timeout=check_timeout(DEFAULT_TIMEOUT))
    for name in NAMES
}


def handler_for(target: Target) -> Handler:
    return _HANDLERS[name_of(target)]


def handler_named(name: str) -> Handler | None:
    return _HANDLERS.get(name)


def how_to_enable(name: str) -> str | None:
    """What the operator must do if no worker has this built-in handler; None for a handler that every worker has."""
    if name == SUBPROCESS:
        return "list the program in `subprocess.allow` of a worker, and restart it (docs/guide/programs.md)"
    broker = next((broker for broker, known in MESSAGE.items() if known == name), None)
    if broker is None:
        return None
    return f"install tocsin[{broker}] where the workers run, and restart them: they lack the client of {broker}"


def timeout_of(target: Target) -> Millis:
    """The timeout of a run whose caller gives none."""
    return ceil_ms(max(DEFAULT_TIMEOUT, target.timeout + SLACK_S))
