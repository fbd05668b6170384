"""What the workers of these tests run, and the diary in which they write down what they did.

The diary is a file that each line is appended to at once: it outlives a killed worker, and needs no server, so it
tells the truth also about the time in which the server was away.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tocsin import Run, Tocsin
from tocsin.engine.handlers import Handler

FOLDER = "TOCSIN_CHAOS_FOLDER"
LOOK_S = 0.005


@functools.cache
def _folder() -> Path:
    return Path(os.environ[FOLDER])


@functools.cache
def _diary() -> int:
    return os.open(_folder() / "diary", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(what: str, run: Run | None = None, **facts: Any) -> None:
    # time.monotonic() is the machine's: times of different processes can be compared.
    facts |= {"what": what, "pid": os.getpid(), "at": time.monotonic()}
    if run is not None:
        facts |= {"run": run.id, "attempt": run.attempt, "recoveries": run.recoveries, "token": run.token}
    os.write(_diary(), json.dumps(facts).encode() + b"\n")


@contextlib.contextmanager
def noted(run: Run) -> Iterator[None]:
    note("start", run)
    try:
        yield
    except asyncio.CancelledError:
        note("cancelled", run)
        raise
    note("end", run)


def is_open(gate: str) -> bool:
    """For all, or for this process alone."""
    return any((_folder() / name).exists() for name in (f"gate-{gate}", f"gate-{gate}-{os.getpid()}"))


async def nap(seconds: float, run: Run) -> None:
    with noted(run):
        await asyncio.sleep(seconds)


async def linger(gate: str, run: Run) -> None:
    """Until the test opens the gate."""
    with noted(run):
        while not is_open(gate):
            await asyncio.sleep(LOOK_S)


def wait(gate: str, run: Run) -> None:
    """In a thread, which nothing can stop; it notes when it is told to."""
    told = False
    with noted(run):
        while not is_open(gate):
            if run.cancelled and not told:
                note("told", run)
                told = True
            time.sleep(LOOK_S)


def toil(gate: str, run: Run) -> None:
    """In a process."""
    with noted(run):
        while not is_open(gate):
            time.sleep(LOOK_S)


async def stubborn(run: Run) -> None:
    """Takes no notice of its cancellation."""
    note("start", run)
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


async def deadly(run: Run) -> None:
    note("start", run)
    os._exit(9)


async def tick(run: Run) -> None:
    """An agent."""
    note("start", run)


async def patrol(run: Run) -> None:
    """An agent whose round ends when the test opens the gate."""
    await linger("patrol", run)


async def knows_f(run: Run) -> None:
    note("start", run, handler="f")


async def knows_g(run: Run) -> None:
    note("start", run, handler="g")


CHORES: dict[str, Callable[..., Any]] = {
    "nap": nap,
    "linger": linger,
    "wait": wait,
    "toil": toil,
    "stubborn": stubborn,
    "deadly": deadly,
    "f": knows_f,
    "g": knows_g,
}
ORDINARY = ("nap", "linger", "wait", "toil", "stubborn", "deadly")


def declare(app: Tocsin, names: tuple[str, ...] | list[str], agent_every: float | None) -> dict[str, Handler]:
    """The queue `line` has one partition, the default one 16."""
    app.queue("line", partitions=1)
    if agent_every is not None:
        app.agent(every=agent_every, name="tick")(tick)
        app.agent(every=agent_every, name="patrol")(patrol)
    executors = {"wait": "thread", "toil": "process"}
    return {name: app.job(name=name, executor=executors.get(name))(CHORES[name]) for name in names}
