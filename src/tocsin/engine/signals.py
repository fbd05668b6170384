"""Signals: what the parts of the engine report to each other without knowing each other."""

from __future__ import annotations

from typing import Protocol

from tocsin.engine.served_queue import ServedQueue
from tocsin.store.store import OpenQueue


class Signals(Protocol):
    """worker/signals.py has the object behind it. No call waits."""

    def work_due(self, queue: OpenQueue, partition: int) -> None:
        """Work may be due that no worker knows of: claim here, and wake an idle worker too."""

    def due_earlier(self, served: ServedQueue, partition: int) -> None:
        """An outcome made work due earlier than the fetcher last heard."""

    def others_wait(self, queue: OpenQueue, partition: int) -> None:
        """Jobs that ended there have dependents: carry the news to them."""

    def parked(self, queue: OpenQueue, partition: int) -> None:
        """A claim found jobs whose handler this worker does not have, and parked them."""

    def queue_changed(self, served: ServedQueue) -> None:
        """A queue was opened again: it has other partitions, or its server lost its data."""

    def claim_lost(self, member: str) -> None:
        """An outcome was not written, because this worker no longer holds the claim."""

    def room_free(self) -> None:
        """Permits came free that the fetcher waits for."""

    def outcomes_pile_up(self) -> None:
        """So many outcomes are not written that no run should start."""

    def outcomes_written(self) -> None:
        """Runs may start again."""
