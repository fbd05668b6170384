"""What a task scheduler pushed, in the log: each task by itself, and under load as a number."""

from __future__ import annotations

import asyncio

from tocsin.model.clock import monotonic
from tocsin.model.run import Run
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.taskscheduler")

# So many lines in each window of so many seconds are written in full; then one line with the number of the others.
IN_FULL = 20
WINDOW_S = 1.0


class PushLog:
    """On the event loop of the scheduler."""

    def __init__(self) -> None:
        self._since = -WINDOW_S
        self._told = self._more = 0
        self._closing: asyncio.TimerHandle | None = None

    def pushed(self, run: Run) -> None:
        now = monotonic()
        if now - self._since >= WINDOW_S:
            self.close()
            self._since = now
        if self._told < IN_FULL:
            self._told += 1
            log.info("task pushed", schedule=run.job_id, task=run.id, user=run.tenant, due=run.due.isoformat())
            return
        self._more += 1
        if self._closing is None:
            wait = self._since + WINDOW_S - now
            self._closing = asyncio.get_running_loop().call_later(wait, self.close)

    def close(self) -> None:
        """Write the number of those that were not told, and begin anew."""
        if self._closing is not None:
            self._closing.cancel()
        if self._more:
            log.info("more tasks pushed", tasks=self._more)
        self._told = self._more = 0
        self._closing = None
