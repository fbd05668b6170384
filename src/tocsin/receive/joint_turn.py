"""The turns of one request, which begin and end together.

A request has one turn under each secret that signed it. While a sender changes its secret it signs with both, so a
later repetition that is signed with the new secret alone still finds the answer.
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
    """A context manager, like `Turn`."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns = turns

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.free()

    async def answer(self, answer: bytes) -> None:
        """Remember the answer under all keys. Raise TurnLost if another caller has taken one of them."""
        # Shielded: the work is done, so its answer is remembered even if the caller is cancelled.
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


async def begin(once: Once, key: str, memory_keys: Iterable[MemoryKey], wait: Duration) -> bytes | JointTurn:
    """The packed answer under one of the memory keys, or the turns of all."""
    answer: bytes | None = None
    async with contextlib.AsyncExitStack() as held:
        turns = []
        # Always in the same order: two requests that need the same turns must not wait for each other.
        for each in sorted(memory_keys):
            try:
                found = await once.begin(key, wait=0 if answer else wait, digest=each.digest, place=each.name)
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
