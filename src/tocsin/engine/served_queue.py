"""A served queue: when each partition of a queue has work next, and how much of it this worker has in hand."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from typing import TYPE_CHECKING

from tocsin.engine.agenda import Agenda
from tocsin.engine.agent_timetable import AgentTimetable
from tocsin.engine.handlers import UNKNOWN_S, Handler
from tocsin.model.run import Claim
from tocsin.store.store import OpenQueue

if TYPE_CHECKING:
    from tocsin.engine.work_item import WorkItem

# A partition that gave this many runs at once and has no more due is asked again after this long, not run by run.
BUSY = 8
PACE_MS = 4.0


class ServedQueue:
    """A queue as one worker serves it. Due times are ms of the server's clock."""

    def __init__(
        self,
        queue: OpenQueue,
        agenda: Agenda | None = None,
        weight: int = 1,
        *,
        timetable: AgentTimetable | None = None,
        handlers: Collection[Handler] = (),
    ) -> None:
        """`timetable`: which jobs to claim, by id, where this worker may not run all of them. `handlers`: those that
        are declared for this queue; they say what a permit takes before the first run."""
        self.queue = queue
        self.timetable = timetable
        self.name = queue.name
        # Queues that have work share the permits in proportion to their weights.
        self.weight = weight
        # Units claimed and not ended; how many of them are inside their handlers; and those that wait for a runner.
        self.busy = 0
        self.running = 0
        self.line: deque[WorkItem] = deque()
        # How many more units may start before the turn goes to the next queue.
        self.turn_left = weight
        # Partitions that a pass is asking, and for how many runs; and how many runs are claimed and not handed out yet.
        self.asked: dict[int, int] = {}
        self.coming = 0
        # Whether the last reply ended with a recovered run: more of them may follow.
        self.brings_recovered = False
        # Partitions to ask now.
        self.ripe: set[int] = set()
        # The partition that the last fallback poll looked at.
        self.turn = 0
        # Handlers that ran here in this interval and the last; the slowest decides how much is claimed ahead.
        self.handlers: set[Handler] = set()
        self._before: set[Handler] = set()
        self._declared = frozenset(handlers)
        self._agenda = agenda or Agenda()
        self._agenda.serve(self)
        self._begin()

    def _begin(self) -> None:
        """Nothing is known about any partition."""
        queue = self.queue
        # The layout of the queue that all this is about.
        self.layout = queue.layout
        # The queue is being repartitioned, and this worker waits for the end of that.
        self.still = False
        # 0: ask now. Infinity: unknown, until a bell or the fallback poll.
        self.next_due: list[float] = []
        # How many more runs were due when each partition was asked last.
        self.left = [0] * queue.partitions
        # Partitions for which a bell rang after they were asked: the reply on its way may be older than the bell.
        self._rung: set[int] = set()
        # Due times that we heard of after their partition was asked.
        self._heard: dict[int, float] = {}
        # Partitions to ask until nothing comes: parked jobs come a few at a time, without a bell.
        self._unsure = set(range(queue.partitions))
        self.expect_all([0.0] * queue.partitions)

    def follow(self) -> None:
        """Begin anew if the queue has other partitions than before."""
        if self.layout != self.queue.layout:
            self._begin()

    def partition_of(self, claim: Claim) -> int:
        """Where its job is now, if the queue was ever repartitioned; otherwise the claim knows."""
        return self.queue.partition_of_key(claim.key)

    # When work is due

    def expect_all(self, dues: list[float]) -> None:
        """Set the due times of all partitions, and forget every other."""
        self._agenda.drop(self)
        self.next_due = dues
        for partition in range(len(dues)):
            self._agenda.note(self, partition)

    def wait_until(self, until: float) -> bool:
        """Ask nothing before then, because the queue is being repartitioned. Returns whether that is new."""
        self.expect_all([until] * len(self.next_due))
        was, self.still = self.still, True
        return not was

    def expect(self, partition: int, due: float) -> bool:
        """Work is due there at this time. Returns whether that is earlier than was known."""
        if partition >= len(self.next_due):
            return False
        self._heard[partition] = min(due, self._heard.get(partition, due))
        sooner = due < self.next_due[partition]
        if sooner:
            self._set(partition, due)
        return sooner

    def mark_due(self, partition: int) -> None:
        if partition >= len(self.next_due):
            # The layout is outdated, or newer than ours: asking any partition will show it.
            partition = 0
        self._rung.add(partition)
        self._set(partition, 0.0)
        if self.timetable is not None:
            self.timetable.recheck_all()

    def mark_due_or_parked(self, partition: int) -> None:
        """Jobs may be parked there whose handler this worker has."""
        self._unsure.add(partition if partition < len(self.next_due) else 0)
        self.mark_due(partition)

    def look_in_turn(self) -> None:
        """Look at the next partition: the fallback for a lost bell."""
        self.turn = (self.turn + 1) % len(self.next_due)
        if not self.still:
            self.mark_due_or_parked(self.turn)

    def note_asked(self, partition: int, limit: int) -> None:
        self.asked[partition] = limit
        self._agenda.picked(self, partition)
        self._rung.discard(partition)
        self._heard.pop(partition, None)

    def is_asked_by(self, partition: int, time: float) -> bool:
        """Whether a pass is asking it, or will by then."""
        return partition in self.asked or (partition < len(self.next_due) and self.next_due[partition] <= time)

    def answered(self, partition: int) -> None:
        """The reply said nothing about due times, so the earlier one counts again."""
        self.asked.pop(partition, None)
        if partition < len(self.next_due):
            self._agenda.note(self, partition)

    def put_off(self, partition: int, until: float) -> None:
        """Its node is away. Ask nothing before then, unless we hear of it."""
        self.asked.pop(partition, None)
        if partition < len(self.next_due):
            self._set(partition, until)

    def note_reply(self, partition: int, next_due: float, now: float, came: int) -> None:
        """A reply with `came` runs."""
        self.asked.pop(partition, None)
        self.still = False
        if not came:
            self._unsure.discard(partition)
        # The server may have sent this reply before it did what we heard of since we asked.
        next_due = min(next_due, self._heard.get(partition, next_due))
        if next_due > now and (partition in self._rung or partition in self._unsure):
            next_due = 0.0
        if came >= BUSY and now < next_due < now + PACE_MS:
            # Under load, waiting a few milliseconds turns many small calls into one.
            next_due = now + PACE_MS
        self._set(partition, next_due)

    def _set(self, partition: int, due: float) -> None:
        self.next_due[partition] = due
        self._agenda.note(self, partition)

    def postpone(self, partition: int, due: float) -> None:
        """Ask this partition, but not before then, whatever rings."""
        if partition < len(self.next_due):
            self._agenda.picked(self, partition)
            self._set(partition, due)

    def rest(self, partition: int) -> None:
        """Ask nothing of this partition until we hear of it."""
        self.ripe.discard(partition)
        self.next_due[partition] = math.inf

    def plan(self, due: float) -> None:
        """Set when the timetable has work next."""
        if due != self.next_due[0]:
            self._agenda.drop(self)
            self._set(0, due)

    def forget_dues(self) -> None:
        """The due times may be wrong: ask every partition."""
        for partition in range(len(self.next_due)):
            self.mark_due_or_parked(partition)

    # How much of it is in hand, and how long it takes

    @property
    def taken(self) -> int:
        """Units in hand, and runs that are on their way here."""
        return self.busy + self.coming + sum(self.asked.values())

    def forget_old_handlers(self) -> None:
        """Another interval begins: a slow handler that no longer runs must not count for ever."""
        self._before, self.handlers = self.handlers or self._before, set()

    def slowest(self) -> float:
        """Mean seconds of the slowest handler that ran here lately."""
        return max((handler.mean for handler in self.handlers | self._before), default=UNKNOWN_S)

    def batch(self) -> int:
        """How many runs one permit takes here."""
        return min((handler.batch or 1 for handler in self.handlers | self._before or self._declared), default=1)
