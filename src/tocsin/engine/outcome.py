"""The shapes that an outcome takes on its way to the server.

A runner, or a part that settles a run without executing it, reports an `EndedRun`. A `Decision` (decide.py) says what
becomes of its job. A settle item, the bytes that the server gets, waits for its turn in the outcome queue and leaves in
a `PendingCall`.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from tocsin.engine.decide import Decision
from tocsin.engine.served_queue import ServedQueue
from tocsin.model.delivery import DeliveryFailed
from tocsin.model.failure_class import FailureClass
from tocsin.model.job import Failure, Spec
from tocsin.model.run import Claim
from tocsin.store.store import Call
from tocsin.store.transitions.settle import Item

# A queue, a partition and a verb. At most one call of each is on its way, so that repeating calls keeps their order.
Place = tuple[str, int, str]


class EndedRun(Struct, gc=False):
    """A run that has ended, or that will not be executed, and whose outcome is not written yet."""

    served: ServedQueue
    claim: Claim
    # None: its record cannot be read, or was not read.
    spec: Spec | None
    # "decided": without executing it; see `decision`.
    how: Literal["succeeded", "failed", "cancelled", "decided"]
    result: Any = None
    error: bytes = b""
    decision: Decision | None = None
    kind: FailureClass = FailureClass.UNKNOWN
    # How the delivery failed, if the run went to a target outside this process.
    failure: DeliveryFailed | None = None
    # The exception that the handler raised, if it did.
    cause: BaseException | None = None
    # Why the next due time of the job cannot be computed.
    stuck: Failure | None = None


class PendingCall(Struct, frozen=True):
    """A call that settles claims and is not answered yet."""

    place: Place
    served: ServedQueue
    call: Call
    items: list[Item]
    # How often its one item was tried after the server had refused it (refused_outcomes.py); 0: a first try.
    tries: int = 0
