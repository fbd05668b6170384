"""Runs in hand: which claims of a partition this worker still works on."""

from __future__ import annotations

from collections.abc import Mapping

from tocsin.engine.incarnation import Incarnation
from tocsin.engine.outcome_queue import OutcomeQueue
from tocsin.engine.runner_pool import RunnerPool
from tocsin.engine.served_queue import ServedQueue
from tocsin.store.store import OpenQueue
from tocsin.upkeep.unheld_runs import HeldByWorker


class RunsInHand:
    def __init__(
        self, served: Mapping[str, ServedQueue], pool: RunnerPool, outcomes: OutcomeQueue, incarnation: Incarnation
    ) -> None:
        self._served = served
        self._pool = pool
        self._outcomes = outcomes
        self._incarnation = incarnation

    def of(self, queue: OpenQueue, partition: int) -> HeldByWorker | None:
        """None while runs are on their way from the fetcher to the pool."""
        served = self._served[queue.name]
        if served.coming:
            return None
        keys = self._pool.keys_in_hand(served) | self._outcomes.keys_in_hand(served)
        return HeldByWorker(keys, self._incarnation.runs.asking(queue.name, partition))
