"""Processes that die between two of their calls to the server."""

from __future__ import annotations

from typing import Any

import pytest

from tocsin.store.repartition import repartition
from tocsin.store.store import Store


class Killed(BaseException):
    """What kill -9 looks like from inside: nothing of what follows is done."""


class DyingStore(Store):
    """Dies after so many changes."""

    left = 10**9

    async def change(self, *args: Any) -> list[Any]:
        if self.left == 0:
            raise Killed
        self.left -= 1
        return await super().change(*args)


class DyingRepartition:
    """Counts the calls of a move, and ends it before one of them, or after it as if its reply were lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.dies_at = -1
        self.after = False
        # Counts only these, if it is set.
        self.only = ""
        honest = repartition.Repartition._call

        async def call(move: repartition.Repartition, name: str, *args: Any) -> Any:
            counts = self.only in ("", name)
            self.calls += [name] * counts
            dies = counts and len(self.calls) - 1 == self.dies_at
            if dies and not self.after:
                raise Killed
            answer = await honest(move, name, *args)
            if dies:
                raise Killed
            return answer

        monkeypatch.setattr(repartition.Repartition, "_call", call)
