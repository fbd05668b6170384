"""The rescue: outcomes that the server refused are tried again, each alone, so that a bad one takes no other with it.

Each is tried once a pass, so many times. Then its claim is given up: the run of a job comes back when its deadline is
over; that of an agent, whose deadline nobody watches closely, is released by this worker after a while.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterator, Sequence

from msgspec import Struct

from tocsin.engine.served_queue import ServedQueue
from tocsin.engine.work_item import PendingCall
from tocsin.model.clock import Clock
from tocsin.model.errors import NodeUnavailable, StoreError, StoreUnavailable
from tocsin.store.store import LARGEST_BATCH
from tocsin.store.transitions.settle import Item, key_of
from tocsin.telemetry.metrics import Counters

# A queue, a partition and a verb: one call of each is on its way at most.
Place = tuple[str, int, str]

MOST_TRIES = 3
# One after the other, so no more than this in a pass.
MOST_PER_PASS = 200
# How long after it was given up the run of an agent is released; as often as agents are reconciled.
AGENT_RELEASED_S = 30.0
# So many runs are remembered as given up.
MOST_GIVEN_UP = 5 * LARGEST_BATCH


def evidence_in(answers: Sequence[object]) -> Sequence[object] | None:
    """What tries of single outcomes say about the server, for its breaker. That it refuses a single one is the fault of
    that one; that it refuses all of several is not. None: nothing, as one node of a cluster that is away."""
    answers = [answer for answer in answers if not isinstance(answer, NodeUnavailable)]
    errors = [answer for answer in answers if isinstance(answer, StoreError)]
    if any(isinstance(error, StoreUnavailable) for error in errors):
        return errors
    if len(errors) < len(answers):
        return []
    return errors if len(errors) > 1 else None


class RefusedOutcome(Struct, frozen=True):
    lane: ServedQueue
    # The layout of the queue that its place belongs to.
    layout: str
    item: Item
    # How often it was tried alone.
    tries: int = 0


class GivenUp(Struct, frozen=True):
    queue: str
    key: bytes
    # In monotonic seconds; then it is no longer ours to hold.
    until: float


class RefusedOutcomes:
    """What was refused and is to be tried again, and what was given up."""

    def __init__(self, clock: Clock, tally: Counters) -> None:
        self._clock = clock
        self._tally = tally
        self._waiting: dict[Place, deque[RefusedOutcome]] = {}
        self._given_up: deque[GivenUp] = deque(maxlen=MOST_GIVEN_UP)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def refuse(self, place: Place, sent: PendingCall) -> list[Item]:
        """The server refused a call. Those of its outcomes that were tried often enough."""
        if sent.tries:
            self._tally.recovery[False] += 1
        if sent.tries >= MOST_TRIES:
            self._tally.retry_exhausted += len(sent.items)
            until = self._clock.monotonic() + AGENT_RELEASED_S if sent.lane.timetable is not None else math.inf
            self._given_up.extend(GivenUp(sent.lane.name, key_of(item), until) for item in sent.items)
            return sent.items
        again = [RefusedOutcome(sent.lane, sent.call.layout, item, sent.tries) for item in sent.items]
        self._waiting.setdefault(place, deque()).extend(again)
        return []

    def saved(self, sent: PendingCall) -> None:
        """The server has written down the outcomes of a call."""
        if not sent.tries:
            return
        self._tally.recovery[True] += 1
        timetable = sent.lane.timetable
        for item in sent.items if timetable is not None else ():
            # When it was refused, its next time was only a guess.
            member = key_of(item).decode(errors="replace")
            if timetable is not None and member in timetable:
                timetable.expect(member, 0.0)

    def places(self) -> Collection[Place]:
        return self._waiting.keys()

    def due(self, busy: Collection[Place], unsent: set[ServedQueue]) -> Iterator[tuple[Place, RefusedOutcome]]:
        """Those to try in this pass, each once. `busy` may change on the way. Where a queue has other partitions by
        now, its outcomes are sent like new ones: the lane is added to `unsent`."""
        room = MOST_PER_PASS
        for place, waiting in list(self._waiting.items()):
            for _ in range(min(room, len(waiting))):
                if place in busy:
                    break
                room -= 1
                refused = waiting.popleft()
                if refused.layout == refused.lane.queue.layout:
                    yield place, refused
                    continue
                refused.lane.follow()
                refused.lane.send_again(place[2], [refused.item])
                unsent.add(refused.lane)
            if not waiting:
                self._waiting.pop(place, None)

    def items(self, lane: ServedQueue | None = None) -> list[Item]:
        """Those that are to be tried again, of one lane or of all."""
        return [each.item for some in self._waiting.values() for each in some if lane in (None, each.lane)]

    def given_up(self, queue: str) -> set[bytes]:
        """Runs that this worker lets nobody have yet: run again at once, their outcomes would be refused again."""
        now = self._clock.monotonic()
        return {each.key for each in self._given_up if each.queue == queue and now < each.until}

    def forget(self) -> None:
        self._waiting.clear()
