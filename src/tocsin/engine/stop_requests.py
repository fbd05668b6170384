"""Stop requests: mail to workers whose runs another run replaces (overlap "cancel_other")."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from tocsin.model.errors import StoreError
from tocsin.store.transitions.fleet import Fleet


class StopRequests:
    """Collected while answers are read, posted when there is time to wait for the server."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._collected: list[tuple[str, dict[str, Any]]] = []

    def add(self, runs: Sequence[Any]) -> None:
        """`runs`: member, owner and token of each run to stop, one after the other."""
        for member, owner, token in zip(*[iter(runs)] * 3, strict=True):
            to, run = (name.decode(errors="replace") for name in (owner, member))
            self._collected.append((to, {"cancel": run, "token": token}))

    async def post(self) -> None:
        """If a request is lost, its worker finds out later that it no longer holds the run."""
        requests, self._collected = self._collected, []
        for owner, message in requests:
            with contextlib.suppress(StoreError):
                await self._fleet.post(owner, message)
