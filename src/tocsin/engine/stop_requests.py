"""Letters: workers are asked to stop runs that others replace."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tocsin.model.errors import StoreError

Tell = Callable[[str, dict[str, Any]], Awaitable[None]]


class StopRequests:
    """Written while answers are read, posted when there is time to wait for the server."""

    def __init__(self, tell: Tell | None) -> None:
        """None: nobody is told."""
        self._tell = tell
        self._written: list[tuple[str, dict[str, Any]]] = []

    def write(self, runs: Sequence[Any]) -> None:
        """member, owner, token of each run that is to be stopped."""
        for member, owner, token in zip(*[iter(runs)] * 3, strict=True):
            to, run = (name.decode(errors="replace") for name in (owner, member))
            self._written.append((to, {"cancel": run, "token": token}))

    async def post(self) -> None:
        """A worker that does not hear of it ends the run by itself, later."""
        tell, letters, self._written = self._tell, self._written, []
        if tell is None:
            return
        for owner, message in letters:
            with contextlib.suppress(StoreError):
                await tell(owner, message)
