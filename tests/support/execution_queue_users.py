"""What the tests of the execution queue share: events, loops over its calls, and other processes that use it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.python_path import PYTHON_PATH
from tocsin import Tocsin
from tocsin.patterns import ExecutionQueue


def event(execution_id: Any, priority: Any = "normal", **more: Any) -> dict[str, Any]:
    return {"execution_id": execution_id, "priority": priority, "user_id": "ada", "payload": {"n": 1}, **more}


async def enqueue_all(executions: ExecutionQueue, *names: str, priority: str = "normal") -> list[int | None]:
    return [await executions.enqueue(event(name, priority)) for name in names]


async def schedule_all(executions: ExecutionQueue, max_active: int = 1000) -> list[str]:
    """What `try_schedule_from_queue` of the seed does: until there is nothing more to have."""
    got = []
    while (found := await executions.try_schedule(max_active)) is not None:
        got.append(found[0])
    return got


async def status(executions: ExecutionQueue) -> tuple[int, int]:
    found = await executions.get_queue_status()
    return found["queue_depth"], found["active_count"]


class Child:
    """A process that asks for executions when it is told to, and holds them."""

    def __init__(self, running: asyncio.subprocess.Process) -> None:
        self._running = running

    def go(self) -> None:
        assert self._running.stdin is not None
        self._running.stdin.write(b"\n")

    async def got(self) -> list[str]:
        return json.loads(await self.line())  # type: ignore[no-any-return]

    async def line(self) -> str:
        assert self._running.stdout is not None
        return (await asyncio.wait_for(self._running.stdout.readline(), 30)).decode().strip()


@asynccontextmanager
async def process(url: str, app: Tocsin, callers: int, max_active: int) -> AsyncIterator[Child]:
    """In the app's namespace. At the end it is killed, as a machine dies: nothing is handed back."""
    order = [url, app.store.keys.prefix, str(callers), str(max_active)]
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.execution_queue_process", *order,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
    )  # fmt: skip
    child = Child(running)
    try:
        assert await child.line() == "ready"
        yield child
    finally:
        running.kill()
        await running.wait()
