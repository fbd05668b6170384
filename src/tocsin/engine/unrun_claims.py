"""Unrun claims: what was claimed and will not run here is released.

There are two kinds. A claim was answered after this worker began a new life: an outcome under the former name would be
refused. Or an answer was lost and the queue repartitioned since: the claim may have been made, but nobody saw it.
"""

from __future__ import annotations

from tocsin.engine.decide import Release
from tocsin.engine.finisher import Finisher
from tocsin.engine.incarnation import Incarnation
from tocsin.engine.outcome import EndedRun
from tocsin.engine.served_queue import ServedQueue
from tocsin.engine.signals import Signals
from tocsin.model.errors import StoreError, StoreUnavailable
from tocsin.model.run import Claim
from tocsin.store.store import Call
from tocsin.store.transitions.held_runs import HeldRuns
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.fetch")


class UnrunClaims:
    """Part of the fetcher's pass."""

    def __init__(
        self,
        held: HeldRuns,
        served: list[ServedQueue],
        incarnation: Incarnation,
        finisher: Finisher,
        signals: Signals,
    ) -> None:
        self._held = held
        self._served = served
        self._incarnation = incarnation
        self._finisher = finisher
        self._signals = signals
        # The queue, the former name and the claims made in it.
        self._former: list[tuple[ServedQueue, str, list[Claim]]] = []

    def add_former(self, served: ServedQueue, owner: str, claims: list[Claim]) -> None:
        self._former.append((served, owner, claims))

    async def release_former(self) -> None:
        """Release what was claimed under a former name. `UnheldRuns` finds what cannot be released now."""
        while self._former:
            served, owner, claims = former = self._former.pop()
            try:
                released = await self._held.release_all(served.queue, owner, claims)
            except StoreUnavailable:
                self._former.append(former)
                raise
            except StoreError as error:
                log.warning(
                    "cannot release runs that were claimed in a former name", queue=served.name, error=str(error)
                )
                continue
            for partition in released:
                self._signals.work_due(served.queue, partition)

    async def release_unseen(self) -> None:
        if not self._incarnation.runs.unanswered:
            return
        for served in self._served:
            served.follow()
            for call in self._incarnation.runs.unanswered_claims(served.queue):
                await self._release_unseen(served, call)

    async def _release_unseen(self, served: ServedQueue, call: Call) -> None:
        for key, token in await self._incarnation.runs.read_unseen_claims(call):
            claim = Claim(served.name, 0, key, token, 0, 1, 0, False, 0, bytes(2))
            self._finisher.add(EndedRun(served, claim, None, "decided", decision=Release()))
