"""What the tests of the receiver share: work that can be watched, and patience."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tocsin.receive import Once, StillRunning

KEY = "9f86d081884c7d659a2feaa0c55ad015"

OnceMaker = Callable[..., Once]


class Work:
    """Counts its effects; works until it is let go."""

    def __init__(self, *answers: Any) -> None:
        self.effects = 0
        self.started = asyncio.Event()
        self.go_on = asyncio.Event()
        self._answers = list(answers)

    async def quickly(self) -> Any:
        self.effects += 1
        answer = self._answers.pop(0) if self._answers else self.effects
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def slowly(self) -> Any:
        self.started.set()
        await self.go_on.wait()
        return await self.quickly()


async def tried(once: Once, key: str, work: Any, **options: Any) -> Any:
    """Until nobody else is at it."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await once(key, work, **options)
            except StillRunning:
                await asyncio.sleep(0.01)
