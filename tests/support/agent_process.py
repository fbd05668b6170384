"""A worker process whose program has agents: `python -m tests.support.agent_process ORDER`, where ORDER is JSON.

Its `agents` are by name the interval in seconds, the chore that each round is, and what that chore is given; new
ones are registered over `spread` seconds.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.worker_handlers import CHORES, declare
from tests.support.worker_process import work_as_told
from tocsin import Run, Tocsin
from tocsin.upkeep.agent_registrar import RegistrationRules

# What a fleet is told to start workers of this program; `agents` are the test's to add.
CREW: dict[str, Any] = {
    "program": "tests.support.agent_process",
    "queues": ["agents", "default"],
    "concurrency": 100,
    "spread": 0,
}

Agents = Mapping[str, tuple[float, str, Any]]


def _round(chore: Callable[..., Any], given: Any) -> Callable[..., Any]:
    async def on_the_loop(run: Run) -> None:
        await chore(given, run)

    def in_a_thread(run: Run) -> None:
        chore(given, run)

    return on_the_loop if inspect.iscoroutinefunction(chore) else in_a_thread


async def work(order: dict[str, Any]) -> None:
    app = Tocsin(order["url"], prefix=order["prefix"], hash_tag=order["hash_tag"])
    declare(app, order["handlers"], None)
    for name, (every, chore, given) in order["agents"].items():
        app.agent(every=every, name=name)(_round(CHORES[chore], given))
    order["settings"] |= {"reconcile": RegistrationRules(jitter_s=order["spread"])}
    async with app:
        await work_as_told(app, order)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    if sys.platform == "linux":
        # PR_SET_PDEATHSIG: not to outlive a test run that was killed.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    given = json.loads(sys.argv[1])
    if os.getppid() == given["parent"]:
        asyncio.run(work(given))
