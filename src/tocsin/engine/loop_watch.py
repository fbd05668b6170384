"""The loop watch: notices when a handler blocks the event loop, and logs where.

A coroutine that calls `time.sleep`, a blocking client or a long computation keeps everything else in the process from
running: other runs, claims, outcomes, timeouts. The pass of this part marks that the loop turns; a thread looks at the
mark. If the mark is old, the thread logs the stack of the loop while it is still blocked. If the thread was not running
either, the whole process stood still (stopped, suspended, or short of memory), and no handler is to blame.
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import traceback
from collections.abc import Callable

from tocsin.model.clock import monotonic
from tocsin.telemetry.logs import get_logger
from tocsin.telemetry.metrics import Counters

log = get_logger("tocsin.loop")

# A loop that has not turned for this long is blocked.
BLOCKED_S = 1.0
# How often the loop marks that it turns, and the thread looks.
LOOK_S = 0.25
# For this long after a blockage, failures and delays count as its consequence.
WAKING_S = 2.0
# For this long after a blockage the worker is degraded.
RECENT_S = 60.0
LONGEST_STACK = 4000


class LoopWatch:
    """`step` is the loop's pass, `look` the thread's; `start` and `stop` are the thread around it."""

    name = "watch"

    def __init__(
        self,
        tally: Counters,
        running: Callable[[asyncio.Task[object] | None], str],
        now: Callable[[], float] = monotonic,
    ) -> None:
        """`running` returns the handler that a task is executing, '' if none."""
        self.wake = asyncio.Event()
        self._tally = tally
        self._running = running
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        # When the loop last turned, and when the thread last looked. Before the start neither means anything.
        self._turned = math.inf
        self._looked: float | None = None
        # When the thread last found that it had not been running for a while.
        self._stood_still = -math.inf
        # When the blockage began that the last warning was about, and which handler caused it.
        self._warned_of: float | None = None
        self._culprit = ""
        # When the last blockage or standstill ended. Of the last blockages, when each ended and how long it was.
        self._woke = -math.inf
        self._recent: list[tuple[float, float]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # On the event loop

    async def step(self) -> float:
        before, self._turned = self._turned, self._now()
        if (lasted := self._turned - before) >= BLOCKED_S:
            self._woke = self._turned
            if self._is_standstill(before):
                log.warning("the process stood still: stopped, suspended or swapped out", seconds=round(lasted, 1))
            else:
                self._note_blockage(lasted)
        return LOOK_S

    def _is_standstill(self, since: float) -> bool:
        """Whether the thread was not running either."""
        return self._looked is not None and (self._stood_still >= since or self._turned - self._looked >= BLOCKED_S)

    def _note_blockage(self, lasted: float) -> None:
        self._recent = [*self._recent[-99:], (self._turned, lasted)]
        self._tally.loop_blocked += 1
        self._tally.loop_blocked_s += lasted
        log.warning("the event loop goes on after it was blocked", seconds=round(lasted, 1), handler=self._culprit)
        self._culprit = ""

    # From any thread

    def blocked_for(self) -> float:
        """Seconds for which the loop has been blocked by now; 0.0 if it is not."""
        gap = self._gap()
        return gap if gap >= BLOCKED_S and self._stood_still < self._turned else 0.0

    def blocked_by(self) -> str:
        """The handler that blocks the loop, if known."""
        return self._culprit

    def longest(self) -> float:
        """Seconds of the longest blockage within the last minute, including one that goes on."""
        now = self._now()
        return max([self.blocked_for(), *(lasted for ended, lasted in self._recent if now - ended < RECENT_S)])

    def is_waking(self) -> bool:
        """Whether the loop stood still until a moment ago, which explains late or cut-off calls."""
        return self._gap() >= BLOCKED_S or self._now() - self._woke < WAKING_S

    def _gap(self) -> float:
        """Seconds since the loop last turned, while it is watched."""
        return 0.0 if self._stop.is_set() else self._now() - self._turned

    # The thread

    def look(self) -> None:
        """Warn, once per blockage, while it goes on."""
        now, before = self._now(), self._looked
        self._looked = now
        if before is not None and now - before >= BLOCKED_S:
            # The loop could not turn either: give it until the next look.
            self._stood_still = now
            return
        turned = self._turned
        if now - max(turned, self._stood_still) < BLOCKED_S or self._warned_of == turned:
            return
        self._warned_of = turned
        self._culprit = self._running(asyncio.current_task(self._loop))
        log.warning(
            "the event loop is blocked: nothing else runs in this process",
            handler=self._culprit,
            seconds=round(now - turned, 1),
            stack=_stack_of(self._loop_thread),
        )

    def start(self) -> None:
        self._turned = self._now()
        self._thread = threading.Thread(target=self._run, name="tocsin watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            self.look()


def _stack_of(thread: int) -> str:
    """Where the thread is, the innermost call last: names and lines of code, no values."""
    frame = sys._current_frames().get(thread)
    return "" if frame is None else "".join(traceback.format_stack(frame))[-LONGEST_STACK:]
