"""A lane: a queue as one worker serves it."""

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
from tocsin.store.transitions.settle import Item, key_of

if TYPE_CHECKING:
    from tocsin.engine.work_item import WorkItem

# A partition that gave this many runs at once and has no more due is asked again after this long, not run by run.
BUSY = 8
PACE_MS = 4.0


class ServedQueue:
    """When each partition has work next, on the server's clock in ms, and what of it this worker has in hand."""

    def __init__(self, queue: OpenQueue, agenda: Agenda | None = None, weight: int = 1) -> None:
        self.queue = queue
        # Which jobs to claim, by id, where this worker may not run all of them.
        self.timetable: AgentTimetable | None = None
        self.name = queue.name
        # Queues that have work share the permits in proportion to their weights.
        self.weight = weight
        # Units claimed and not ended; of these, how many are inside their handlers, and those that wait for a runner.
        self.busy = 0
        self.running = 0
        self.line: deque[WorkItem] = deque()
        # How many more units it may start before the turn goes to the next queue.
        self.turn_left = weight
        # Partitions that a pass is asking at the moment, and for how many runs; runs claimed and not handed out yet.
        self.asked: dict[int, int] = {}
        self.coming = 0
        # Whether the last answer ended with a run that was recovered before: more of them may follow.
        self.brings_recovered = False
        # Partitions to ask now.
        self.ripe: set[int] = set()
        # Where the next fallback poll looks.
        self.turn = 0
        # What ran here in this and the last interval; the slowest decides how much is fetched ahead.
        self.handlers: set[Handler] = set()
        self._before: set[Handler] = set()
        self._declared: set[Handler] = set()
        self._agenda = agenda or Agenda()
        self._agenda.serve(self)
        self._begin()

    def _begin(self) -> None:
        """Nothing is known of any partition of the queue."""
        queue = self.queue
        # Which of the queue's layouts all this is about.
        self.layout = queue.layout
        # The queue is being repartitioned, and this worker waits for the end of it.
        self.still = False
        # 0: ask now. Infinity: nothing known, a bell or the fallback poll will tell.
        self.next_due: list[float] = []
        # How many more were due when each partition was asked last.
        self.left = [0] * queue.partitions
        # Partitions for which a bell rang after they were asked: the answer on its way may not know what for.
        self._rung: set[int] = set()
        # Due times that we heard of after their partition was asked.
        self._heard: dict[int, float] = {}
        # Partitions to be asked until nothing comes: what is parked comes a few at a time, unannounced.
        self._unsure = set(range(queue.partitions))
        # Outcomes not sent yet, by verb and partition.
        self.unsent: dict[tuple[str, int], list[Item]] = {}
        self.expect_all([0.0] * queue.partitions)

    def follow(self) -> None:
        """Where the queue was given other partitions: begin anew with these. What is unsent goes where its job is."""
        if self.layout == self.queue.layout:
            return
        unsent = self.unsent
        self._begin()
        for (verb, _), items in unsent.items():
            self.send_again(verb, items)

    def send_again(self, verb: str, items: list[Item]) -> None:
        for item in items:
            self.unsent.setdefault((verb, self.queue.partition_of_key(key_of(item))), []).append(item)

    def partition_of(self, claim: Claim) -> int:
        """Where its job is by now, if the queue was ever repartitioned; otherwise the claim knows."""
        return self.queue.partition_of_key(claim.key)

    # When there is work

    def expect_all(self, dues: list[float]) -> None:
        """Of all partitions, and nothing else counts."""
        self._agenda.drop(self)
        self.next_due = dues
        for partition in range(len(dues)):
            self._agenda.note(self, partition)

    def stand_still(self, until: float) -> bool:
        """Ask nothing before then. Whether that is new."""
        self.expect_all([until] * len(self.next_due))
        was, self.still = self.still, True
        return not was

    def expect(self, partition: int, due: float) -> bool:
        """Whether that is sooner than was known."""
        if partition >= len(self.next_due):
            return False
        self._heard[partition] = min(due, self._heard.get(partition, due))
        sooner = due < self.next_due[partition]
        if sooner:
            self._set(partition, due)
        return sooner

    def hear(self, partition: int) -> None:
        if partition >= len(self.next_due):
            # Of a layout that is over, or that we do not know yet: any partition that we ask will tell.
            partition = 0
        self._rung.add(partition)
        self._set(partition, 0.0)
        if self.timetable is not None:
            self.timetable.doubt()

    def look(self, partition: int) -> None:
        """Something may be parked there that this worker knows."""
        self._unsure.add(partition if partition < len(self.next_due) else 0)
        self.hear(partition)

    def look_in_turn(self) -> None:
        """At the next partition: the fallback for a bell that was lost."""
        self.turn = (self.turn + 1) % len(self.next_due)
        if not self.still:
            self.look(self.turn)

    def ask(self, partition: int, limit: int) -> None:
        self.asked[partition] = limit
        self._agenda.picked(self, partition)
        self._rung.discard(partition)
        self._heard.pop(partition, None)

    def is_asked_by(self, partition: int, time: float) -> bool:
        """Whether it is being asked, or will be by then."""
        return partition in self.asked or (partition < len(self.next_due) and self.next_due[partition] <= time)

    def answered(self, partition: int) -> None:
        """With nothing that could be learned. What was known before counts again."""
        self.asked.pop(partition, None)
        if partition < len(self.next_due):
            self._agenda.note(self, partition)

    def put_off(self, partition: int, until: float) -> None:
        """Its node is away. Ask nothing of it before then, unless something is heard."""
        self.asked.pop(partition, None)
        if partition < len(self.next_due):
            self._set(partition, until)

    def learn(self, partition: int, next_due: float, now: float, came: int) -> None:
        """An answer, with as many runs as `came`."""
        self.asked.pop(partition, None)
        self.still = False
        if not came:
            self._unsure.discard(partition)
        # The server may have answered this before it did what we heard of since we asked.
        next_due = min(next_due, self._heard.get(partition, next_due))
        if next_due > now and (partition in self._rung or partition in self._unsure):
            next_due = 0.0
        if came >= BUSY and now < next_due < now + PACE_MS:
            # Under load a few milliseconds make one call of what would be many small ones.
            next_due = now + PACE_MS
        self._set(partition, next_due)

    def _set(self, partition: int, due: float) -> None:
        self.next_due[partition] = due
        self._agenda.note(self, partition)

    def postpone(self, partition: int, due: float) -> None:
        """It is to be asked, but not before then, whatever rings."""
        if partition < len(self.next_due):
            self._agenda.picked(self, partition)
            self._set(partition, due)

    def rest(self, partition: int) -> None:
        """Ask nothing of it until something is heard."""
        self.ripe.discard(partition)
        self.next_due[partition] = math.inf

    def plan(self, due: float) -> None:
        """When the timetable has work next."""
        if due != self.next_due[0]:
            self._agenda.drop(self)
            self._set(0, due)

    def log_answer(self, verb: str, lost: Collection[bytes]) -> None:
        """The server has settled what a call was about, but for those that were lost. Steps of agents are logged."""
        if self.timetable is not None:
            self.timetable.log_answer(verb, lost)

    def forget_dues(self) -> None:
        """What was known is no longer true: ask everywhere."""
        for partition in range(len(self.next_due)):
            self.look(partition)

    # How much of it is in hand, and how long it takes

    @property
    def taken(self) -> int:
        """Units of ours, and runs that are on their way to become some."""
        return self.busy + self.coming + sum(self.asked.values())

    def age(self) -> None:
        """Another interval: a slow handler that is seen no more does not count for ever."""
        self._before, self.handlers = self.handlers or self._before, set()

    def slowest(self) -> float:
        """Mean seconds of the slowest handler seen here lately."""
        return max((handler.mean for handler in self.handlers | self._before), default=UNKNOWN_S)

    def batch(self) -> int:
        """How many runs one permit takes here."""
        return min((handler.batch or 1 for handler in self.handlers | self._before or self._declared), default=1)

    def expect_handlers(self, handlers: set[Handler]) -> None:
        """Those that are declared for this queue: what it takes is known before the first run."""
        self._declared = handlers
