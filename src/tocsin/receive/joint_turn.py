"""The turns of one request, which begin and end together.

A request has one turn under each secret that signed it. While a sender changes its secret it signs with both, so what
was done under the old one is found by a repetition under the new one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from typing import Self

from tocsin.model.durations import Duration
from tocsin.model.errors import KeyReused, StillRunning, TurnLost
from tocsin.receive.caller_scope import MemoryKey
from tocsin.receive.once import Once
from tocsin.receive.turn import Turn


class JointTurn:
    """As a context, like `Turn`."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns = turns

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.free()

    async def answer(self, answer: bytes) -> None:
        """Remember it under all. Raise TurnLost if one of them was lost to another."""
        # All of it, also when the caller is cancelled meanwhile: the work is done.
        await asyncio.shield(self._answer(answer))

    async def _answer(self, answer: bytes) -> None:
        lost: TurnLost | None = None
        for turn in self._turns:
            try:
                await turn.answer(answer)
            except TurnLost as error:
                lost = error
        if lost is not None:
            raise lost

    async def free(self) -> None:
        for turn in self._turns:
            await turn.free()


async def begin(once: Once, key: str, places: Iterable[MemoryKey], wait: Duration) -> bytes | JointTurn:
    """The packed answer in one of the places, or the turns in all."""
    answer: bytes | None = None
    async with contextlib.AsyncExitStack() as held:
        turns = []
        # In the same order for everybody: two requests that need the same turns must not wait for each other.
        for place in sorted(places):
            try:
                found = await once.begin(key, wait=0 if answer else wait, digest=place.digest, place=place.name)
            except (StillRunning, KeyReused):
                if answer is None:
                    raise
                continue
            if isinstance(found, bytes):
                answer = found
            else:
                turns.append(await held.enter_async_context(found))
        if answer is not None:
            with contextlib.suppress(TurnLost):
                await JointTurn(turns).answer(answer)
            return answer
        held.pop_all()
        return JointTurn(turns)
