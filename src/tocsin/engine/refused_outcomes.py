"""Refused outcomes: the server refused a call, so its outcomes are tried again one by one.

Trying each alone keeps a bad outcome from taking others with it. Each is tried once a pass, three times in all. Then
the worker gives up: the run of a job comes back when its deadline has passed; the run of an agent, whose deadline
nobody watches closely, is released by this worker after a while.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence

from msgspec import Struct

from tocsin.engine.outcome import PendingCall, Place
from tocsin.engine.served_queue import ServedQueue
from tocsin.model.clock import Clock
from tocsin.model.errors import NodeUnavailable, StoreError, StoreUnavailable
from tocsin.store.store import LARGEST_BATCH
from tocsin.store.transitions.settle import Item, key_of
from tocsin.telemetry.metrics import Counters

MOST_TRIES = 3
# One call after the other, so a pass makes no more than this.
MOST_PER_PASS = 200
# How long after giving up the run of an agent is released; as often as agents are registered again.
AGENT_RELEASED_S = 30.0
# How many runs are remembered as given up.
MOST_GIVEN_UP = 5 * LARGEST_BATCH


def evidence_in(answers: Sequence[object]) -> Sequence[object] | None:
    """What tries of single outcomes say about the server, for its breaker. One refused outcome is probably at fault
    itself; if all of several are refused, the server is. None: nothing, because a node of the cluster is away."""
    answers = [answer for answer in answers if not isinstance(answer, NodeUnavailable)]
    errors = [answer for answer in answers if isinstance(answer, StoreError)]
    if any(isinstance(error, StoreUnavailable) for error in errors):
        return errors
    if len(errors) < len(answers):
        return []
    return errors if len(errors) > 1 else None


class RefusedOutcome(Struct, frozen=True):
    served: ServedQueue
    # The layout of the queue that its place belongs to.
    layout: str
    item: Item
    # How often it was tried alone.
    tries: int = 0


class GivenUp(Struct, frozen=True):
    queue: str
    key: bytes
    # Until when this worker keeps the claim, in monotonic seconds.
    until: float


class RefusedOutcomes:
    """Outcomes to try again, and runs whose outcomes were given up."""

    def __init__(self, clock: Clock, tally: Counters) -> None:
        self._clock = clock
        self._tally = tally
        self._waiting: dict[Place, deque[RefusedOutcome]] = {}
        self._given_up: deque[GivenUp] = deque(maxlen=MOST_GIVEN_UP)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def refuse(self, call: PendingCall) -> list[Item]:
        """The server refused this call. Returns the items that were tried often enough."""
        served = call.served
        if call.tries:
            self._tally.recovery[False] += 1
        if call.tries >= MOST_TRIES:
            self._tally.retry_exhausted += len(call.items)
            until = self._clock.monotonic() + AGENT_RELEASED_S if served.timetable is not None else math.inf
            self._given_up.extend(GivenUp(served.name, key_of(item), until) for item in call.items)
            return call.items
        again = [RefusedOutcome(served, call.call.layout, item, call.tries) for item in call.items]
        self._waiting.setdefault(call.place, deque()).extend(again)
        return []

    def saved(self, call: PendingCall) -> None:
        """The server has written the outcomes of this call."""
        if not call.tries:
            return
        self._tally.recovery[True] += 1
        timetable = call.served.timetable
        for item in call.items if timetable is not None else ():
            # Its due time was a guess while it was refused.
            member = key_of(item).decode(errors="replace")
            if timetable is not None and member in timetable:
                timetable.expect(member, 0.0)

    def places(self) -> Collection[Place]:
        return self._waiting.keys()

    def due(
        self, busy: Collection[Place], send_again: Callable[[ServedQueue, str, list[Item]], None]
    ) -> Iterator[tuple[Place, RefusedOutcome]]:
        """What to try in this pass, each once. `busy` may change while this runs. If a queue was repartitioned, its
        outcomes go to `send_again` instead, like new ones."""
        room = MOST_PER_PASS
        for place, waiting in list(self._waiting.items()):
            for _ in range(min(room, len(waiting))):
                if place in busy:
                    break
                room -= 1
                refused = waiting.popleft()
                if refused.layout == refused.served.queue.layout:
                    yield place, refused
                else:
                    send_again(refused.served, place[2], [refused.item])
            if not waiting:
                self._waiting.pop(place, None)

    def items(self, served: ServedQueue | None = None) -> list[Item]:
        """Items to try again, of one queue or of all."""
        return [each.item for some in self._waiting.values() for each in some if served in (None, each.served)]

    def given_up(self, queue: str) -> set[bytes]:
        """Runs whose claims this worker keeps for now: if they ran again at once, they would be refused again."""
        now = self._clock.monotonic()
        return {each.key for each in self._given_up if each.queue == queue and now < each.until}

    def forget(self) -> None:
        self._waiting.clear()
