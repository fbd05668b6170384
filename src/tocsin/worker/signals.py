"""Worker signals: passes news from one part of a worker to the parts that act on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tocsin.engine.served_queue import ServedQueue
from tocsin.store.store import OpenQueue

if TYPE_CHECKING:
    from tocsin.worker.build import WorkerParts


class WorkerSignals:
    """Parts are built with this object before all of them exist; `connect` then makes the signals arrive.

    engine/signals.py says what the engine's signals mean. The others come from upkeep and from the heartbeat."""

    _parts: WorkerParts

    def connect(self, parts: WorkerParts) -> None:
        self._parts = parts

    # From the engine

    def work_due(self, queue: OpenQueue, partition: int) -> None:
        parts = self._parts
        # A bell alone would not do: a worker that is stopped may be the one that hears it.
        if queue.name in parts.served:
            parts.served[queue.name].mark_due(partition)
            parts.fetcher.wake.set()
        parts.ringer.ring(queue, partition)

    def due_earlier(self, served: ServedQueue, partition: int) -> None:
        parts = self._parts
        if not parts.quiet.is_set():
            parts.fetcher.wake.set()
        elif served.timetable is None:
            # This worker claims nothing more, but what it has freed may be what keeps the work back.
            served.rest(partition)
            parts.ringer.ring(served.queue, partition)

    def others_wait(self, queue: OpenQueue, partition: int) -> None:
        self._parts.upkeep.outbox_carrier.note_filled(queue, partition)

    def parked(self, queue: OpenQueue, partition: int) -> None:
        self._parts.parked_notifier.note_parked(queue.name, partition)

    def queue_changed(self, served: ServedQueue) -> None:
        served.forget_dues()
        self.register_again()

    def claim_lost(self, member: str) -> None:
        self._parts.failures.claim_lost(member)
        self.writes_lost()

    def room_free(self) -> None:
        self._parts.fetcher.wake.set()

    def outcomes_pile_up(self) -> None:
        self._parts.pool.hold()

    def outcomes_written(self) -> None:
        self._parts.pool.go_on()

    # From upkeep and the heartbeat

    def recovered(self, queue: OpenQueue, partition: int) -> None:
        """Runs were brought back. Some may have ended instead, because a person had cancelled them."""
        self.others_wait(queue, partition)
        self.work_due(queue, partition)

    def unheld_released(self, queue: OpenQueue, partition: int, keys: Sequence[bytes]) -> None:
        """Release of runs that no worker was running. Their outcomes are lost, and with them the due times they set."""
        timetable = self._parts.served[queue.name].timetable
        for member in [key.decode(errors="replace") for key in keys]:
            if timetable is not None and member in timetable:
                timetable.expect(member, 0.0)
        self.recovered(queue, partition)

    def agents_changed(self) -> None:
        """The timetable of the agents' queue has other agents or other times."""
        self._parts.fetcher.wake.set()

    def leads(self) -> None:
        """This worker was elected: begin what only the leader does."""
        upkeep = self._parts.upkeep
        for part in (
            upkeep.orphan_cleaner,
            upkeep.unregistered_agents,
            upkeep.replanner,
            upkeep.outcome_expiry,
            upkeep.stuck_dependents,
        ):
            if part is not None:
                part.wake.set()

    def register_again(self) -> None:
        """The server was emptied or replaced, or may have been: register what the program declares."""
        if self._parts.upkeep.reconciler is not None:
            self._parts.upkeep.reconciler.start_over()

    def writes_lost(self) -> None:
        """The server may have lost its last writes: outcomes of this worker, and news for blocked jobs."""
        self._parts.upkeep.unheld_runs.hurry()
        self._parts.upkeep.stuck_dependents.hurry()

    def nodes_changed(self) -> None:
        """A node of the cluster is back, or another took its place: it may have lost its last writes."""
        self._parts.upkeep.unheld_runs.hurry()
        self._parts.upkeep.outbox_carrier.wake.set()
        self._parts.fetcher.wake.set()
        self._parts.finisher.wake.set()
