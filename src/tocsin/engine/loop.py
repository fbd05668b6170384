"""The loop: runs one part again and again. A part is a passive object with one bounded pass; tests call the pass."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Protocol

from tocsin.model.errors import StoreFull, StoreUnavailable
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.loop")

# The first rest after a failed pass, and the longest.
SHORTEST_REST_S = 0.1
LONGEST_REST_S = 1.0


class Part(Protocol):
    """Something that is done again and again."""

    name: str
    wake: asyncio.Event

    async def step(self) -> float:
        """One bounded pass. Returns seconds to rest before the next, unless `wake` is set first; 0: there is more to
        do."""


async def repeat(
    part: Part,
    stop: asyncio.Event,
    longest: float | None = None,
    is_waking: Callable[[], bool] = lambda: False,
    is_failing: Callable[[], bool] = lambda: False,
    held: Callable[[], float] = lambda: 0.0,
) -> None:
    """Run passes until `stop`. A failed pass is logged once, and tried again after a rest: no part ever dies.

    `longest`: cut off a pass that takes more than so many seconds, and begin the next. `is_waking`: whether the event
    loop was blocked until a moment ago, so that time limits passed meanwhile. `is_failing`: whether nothing has
    succeeded since the last failure; then a pass that found nothing to do, or was held back by a breaker, is no
    recovery. `held`: for how many seconds the part must leave the server alone; called again whenever the part is
    woken."""
    failures = 0
    while not stop.is_set():
        part.wake.clear()
        if (wait_s := held()) > 0:
            await wait(part.wake, wait_s)
            continue
        try:
            async with asyncio.timeout(longest):
                rest = await part.step()
            if failures and not is_failing():
                log.info("recovered", part=part.name, failed_passes=failures)
                failures = 0
        except Exception as error:
            rest = min(SHORTEST_REST_S * 2 ** min(failures, 10), LONGEST_REST_S)
            _log_failure(part, error, failures, is_waking())
            failures += 1
        await wait(part.wake, rest)


def _log_failure(part: Part, error: Exception, failures: int, is_waking: bool) -> None:
    if failures:
        return
    if isinstance(error, TimeoutError | StoreUnavailable) and is_waking:
        log.warning("pass cut off because the event loop stood still, trying again", part=part.name)
    elif isinstance(error, TimeoutError) and not isinstance(error, StoreUnavailable):
        log.warning("pass cut off because it did not end, trying again", part=part.name)
    elif isinstance(error, StoreFull):
        log.warning("server is full, trying again", part=part.name, error=str(error))
    elif isinstance(error, StoreUnavailable):
        log.warning("server away, trying again", part=part.name, error=str(error))
    else:
        log.error("pass failed, trying again", part=part.name, exc_info=error)


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel until they have ended: redis-py uses asyncio.wait_for, which may swallow a cancellation in Python 3.11."""
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=0.1)


async def wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event or the time, whichever comes first; other tasks get at least one turn."""
    if seconds <= 0 or event.is_set():
        await asyncio.sleep(0)
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
