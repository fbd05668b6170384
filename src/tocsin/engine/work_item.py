"""A work item, or unit: what one runner executes at a time, a run or a batch of them."""

from __future__ import annotations

from msgspec import Struct

from tocsin.engine.handlers import Handler
from tocsin.engine.served_queue import ServedQueue
from tocsin.model.job import Spec
from tocsin.model.run import Claim, Run


class WorkItem(Struct, eq=False, weakref=False, gc=False):
    """One permit's worth of work."""

    claim: Claim
    spec: Spec
    handler: Handler
    served: ServedQueue
    # In monotonic seconds: when it was claimed, and when it must end unless it is extended.
    taken: float
    deadline: float
    # The other runs of a batch; None for a single run.
    others: list[tuple[Claim, Spec]] | None = None
    # Whether one of its runs was recovered before.
    recovered: bool = False
    run: Run | None = None
    runs: list[Run] | None = None

    def all(self) -> list[tuple[Claim, Spec]]:
        return [(self.claim, self.spec), *(self.others or ())]

    def size(self) -> int:
        return 1 if self.others is None else 1 + len(self.others)

    def ends_at(self) -> float:
        """When it must end, in monotonic seconds. A batch ends as a whole, so the run that was extended furthest
        decides."""
        if self.run is not None:
            return self.run.extended_until or self.deadline
        return max([self.deadline, *(run.extended_until or 0.0 for run in self.runs or ())])

    def is_overdue(self, now: float) -> bool:
        """A batch has up to 1000 runs: look at each only when the batch may be overdue."""
        return (self.run is not None or self.deadline <= now) and self.ends_at() <= now

    def set_cancelled(self) -> None:
        if self.run is not None:
            self.run.cancelled = True
        for run in self.runs or ():
            run.cancelled = True
