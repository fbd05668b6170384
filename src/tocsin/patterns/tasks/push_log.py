"""Logs the tasks that a scheduler pushed: each task in a line of its own, under load only their number."""

from __future__ import annotations

import asyncio

from tocsin.model.clock import monotonic
from tocsin.model.run import Run
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.taskscheduler")

# Each window of WINDOW_S seconds logs the first IN_FULL tasks in full, and the others as one line with their number.
IN_FULL = 20
WINDOW_S = 1.0


class PushLog:
    """Used on the event loop of the scheduler only."""

    def __init__(self) -> None:
        self._since = -WINDOW_S
        self._in_full = self._more = 0
        self._closing: asyncio.TimerHandle | None = None

    def pushed(self, run: Run) -> None:
        now = monotonic()
        if now - self._since >= WINDOW_S:
            self.close()
            self._since = now
        if self._in_full < IN_FULL:
            self._in_full += 1
            log.info("task pushed", schedule=run.job_id, task=run.id, user=run.tenant, due=run.due.isoformat())
            return
        self._more += 1
        if self._closing is None:
            wait = self._since + WINDOW_S - now
            self._closing = asyncio.get_running_loop().call_later(wait, self.close)

    def close(self) -> None:
        """Log the number of tasks that were not logged in full, and begin a new window."""
        if self._closing is not None:
            self._closing.cancel()
        if self._more:
            log.info("more tasks pushed", tasks=self._more)
        self._in_full = self._more = 0
        self._closing = None
