"""What all rows of `tocsin bench` share: a measured number with its bar, and the helpers that measure."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import Callable

from msgspec import Struct

from tocsin.store.store import Store

# A payload of 200 bytes once it is encoded.
PAYLOAD = "x" * 195


class Measure(Struct, frozen=True):
    """A measured number and the bar that it must reach. `at_least`: more is better; otherwise less is."""

    what: str
    value: float
    unit: str
    bar: float | None = None
    at_least: bool = True

    @property
    def good(self) -> bool | None:
        if self.bar is None:
            return None
        return self.value >= self.bar if self.at_least else self.value <= self.bar


async def commands_sent(store: Store, seconds: float) -> float:
    """Commands per second of all clients. Uses MONITOR, because the server's counters include commands of scripts."""
    sent = 0
    with contextlib.suppress(TimeoutError):
        # A cluster client has no monitor, but the bench always has a single embedded server.
        async with asyncio.timeout(seconds), store.client.monitor() as monitor:  # type: ignore[union-attr]
            async for command in monitor.listen():
                sent += command["client_type"] != "lua"
    return sent / seconds


def own_cpu() -> float:
    """Seconds of processor time that this process has used so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else float("inf")


async def until(condition: Callable[[], bool], pause: float = 0.002) -> None:
    while not condition():
        await asyncio.sleep(pause)
