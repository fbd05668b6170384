"""A unit: what one runner executes at a time, a run or a batch of them; and the lane that it came from."""

from __future__ import annotations

from tocsin.engine.catalog import Handler
from tocsin.model.job import Spec
from tocsin.model.run import Claim, Run
from tocsin.store.store import OpenQueue


class Lane:
    """A queue as this worker serves it: when each partition has work next, on the server's clock in ms."""

    def __init__(self, queue: OpenQueue) -> None:
        self.queue = queue
        self.name = queue.name
        # 0: ask now. Infinity: nothing known, a bell or the fallback poll will tell.
        self.next_due: list[float] = [0.0] * queue.partitions
        self.turn = 0
        # Units claimed and not ended.
        self.busy = 0
        # What ran here lately; its slowest decides how much is fetched ahead.
        self.handlers: set[Handler] = set()

    def expect(self, partition: int, due: float) -> None:
        if due < self.next_due[partition]:
            self.next_due[partition] = due

    def slowest(self) -> float | None:
        """Mean seconds of the slowest handler seen here; None while one of them is unknown."""
        slowest = 0.0
        for handler in self.handlers:
            if handler.mean is None:
                return None
            slowest = max(slowest, handler.mean)
        return slowest if self.handlers else None

    def batch(self) -> int:
        """How many runs one permit takes here."""
        return min((handler.batch or 1 for handler in self.handlers), default=1)


class Unit:
    """One permit's worth of work."""

    __slots__ = ("claim", "deadline", "handler", "lane", "others", "run", "runs", "spec", "taken")

    def __init__(self, claim: Claim, spec: Spec, handler: Handler, lane: Lane, taken: float, deadline: float) -> None:
        self.claim = claim
        self.spec = spec
        self.handler = handler
        self.lane = lane
        # Monotonic seconds: when it was claimed, and when it must end.
        self.taken = taken
        self.deadline = deadline
        # The rest of a batch.
        self.others: list[tuple[Claim, Spec]] = []
        self.run: Run | None = None
        self.runs: list[Run] = []

    def all(self) -> list[tuple[Claim, Spec]]:
        return [(self.claim, self.spec), *self.others]

    def set_cancelled(self) -> None:
        if self.run is not None:
            self.run.cancelled = True
        for run in self.runs:
            run.cancelled = True
