"""Waiting for what real time brings."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

from tocsin.model.clock import monotonic
from tocsin.worker import Worker


def until(condition: Callable[[], object], what: str, *, within: float = 10.0) -> None:
    """Look again every 10 ms, without an event loop; the deadline is there to fail the test, not to pace it."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within:g} s: {what}")
        time.sleep(0.01)


async def eventually(condition: Callable[[], Any], what: str, *, within: float = 10.0) -> Any:
    """Look again every few ms until it holds; the deadline is there to fail the test, not to pace it."""
    deadline = monotonic() + within
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        if monotonic() > deadline:
            raise AssertionError(f"not within {within:g} s: {what}")
        await asyncio.sleep(0.003)


async def run_dry(worker: Worker) -> None:
    """Passes of the fetcher and the finisher, until there is nothing more to claim for this worker."""
    await asyncio.to_thread(worker.heart.beat)
    while True:
        claimed = worker.fetcher.claimed
        rest = await worker.fetcher.step()
        while worker.pool.busy or not worker.finisher.idle():
            await asyncio.sleep(0)
            await worker.finisher.step()
        # With few permits a pass asks only some of the partitions.
        if worker.fetcher.claimed == claimed and rest > 0:
            return


class Gate:
    """Runs that wait inside their handler until the test lets them go on."""

    def __init__(self) -> None:
        self.inside: list[Any] = []
        self.most = 0
        self.passed = 0
        self._open = asyncio.Event()
        self._tickets = 0

    async def enter(self, who: Any = None) -> None:
        self.inside.append(who)
        self.most = max(self.most, len(self.inside))
        try:
            while not self._open.is_set() and not self._tickets:
                await asyncio.sleep(0.001)
            self._tickets = max(0, self._tickets - 1)
        finally:
            self.inside.remove(who)
        self.passed += 1

    def open(self) -> None:
        self._open.set()

    def let_go(self, n: int) -> None:
        self._tickets += n
