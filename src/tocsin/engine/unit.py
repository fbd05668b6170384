"""A unit: what one runner executes at a time, a run or a batch of them; and the lane that it came from."""

from __future__ import annotations

from msgspec import Struct

from tocsin.engine.catalog import UNKNOWN_S, Handler
from tocsin.engine.timetable import Timetable
from tocsin.model.job import Spec
from tocsin.model.run import Claim, Run
from tocsin.store.runs import VERBS, Item, key_of
from tocsin.store.store import Call, OpenQueue

# A partition that gave this many runs at once and has no more due is asked again after this long, not run by run.
BUSY = 8
PACE_MS = 4.0


class Lane:
    """A queue as this worker serves it: when each partition has work next, on the server's clock in ms."""

    def __init__(self, queue: OpenQueue, timetable: Timetable | None = None) -> None:
        self.queue = queue
        # Which jobs to claim, by id, where this worker may not run all of them.
        self.timetable = timetable
        self.name = queue.name
        # Units claimed and not ended.
        self.busy = 0
        # Where the next fallback poll looks, and where the next claim begins.
        self.turn = 0
        self.start = 0
        # What ran here in this and the last interval; the slowest decides how much is fetched ahead.
        self.handlers: set[Handler] = set()
        self._before: set[Handler] = set()
        self._begin()

    def _begin(self) -> None:
        """Nothing is known of any partition of the queue."""
        queue = self.queue
        # Which of the queue's layouts all this is about.
        self.layout = queue.layout
        # The queue is being repartitioned, and this worker waits for the end of it.
        self.still = False
        # 0: ask now. Infinity: nothing known, a bell or the fallback poll will tell.
        self.next_due: list[float] = [0.0] * queue.partitions
        # How many more were due when each partition was asked last.
        self.left = [0] * queue.partitions
        # Partitions for which a bell rang after they were asked: the answer on its way may not know what for.
        self._rung: set[int] = set()
        # Due times that we heard of after their partition was asked.
        self._heard: dict[int, float] = {}
        # Partitions to be asked until nothing comes: what is parked comes a few at a time, unannounced.
        self._unsure = set(range(queue.partitions))
        # Outcomes not sent yet, by verb and partition.
        self.unsent: dict[str, list[list[Item]]] = {verb: [[] for _ in self.next_due] for verb in VERBS}

    def follow(self) -> None:
        """Where the queue was given other partitions: begin anew with these. What is unsent goes where its job is."""
        if self.layout == self.queue.layout:
            return
        unsent = self.unsent
        self._begin()
        for verb, partitions in unsent.items():
            self.send_again(verb, [item for items in partitions for item in items])

    def send_again(self, verb: str, items: list[Item]) -> None:
        for item in items:
            self.unsent[verb][self.queue.partition_of_key(key_of(item))].append(item)

    def partition_of(self, claim: Claim) -> int:
        """Where its job is by now, if the queue was ever repartitioned; otherwise the claim knows."""
        return self.queue.partition_of_key(claim.key)

    def stand_still(self, until: float) -> bool:
        """Ask nothing before then. Whether that is new."""
        self.next_due = [until] * len(self.next_due)
        was, self.still = self.still, True
        return not was

    def expect(self, partition: int, due: float) -> bool:
        """Whether that is sooner than was known."""
        if partition >= len(self.next_due):
            return False
        self._heard[partition] = min(due, self._heard.get(partition, due))
        sooner = due < self.next_due[partition]
        if sooner:
            self.next_due[partition] = due
        return sooner

    def hear(self, partition: int) -> None:
        if partition >= len(self.next_due):
            # Of a layout that is over, or that we do not know yet: any partition that we ask will tell.
            partition = 0
        self._rung.add(partition)
        self.next_due[partition] = 0.0
        if self.timetable is not None:
            self.timetable.doubt()

    def look(self, partition: int) -> None:
        """Something may be parked there that this worker knows."""
        self._unsure.add(partition if partition < len(self.next_due) else 0)
        self.hear(partition)

    def ask(self, partition: int) -> None:
        self._rung.discard(partition)
        self._heard.pop(partition, None)

    def learn(self, partition: int, next_due: float, now: float, came: int) -> None:
        """An answer, with as many runs as `came`."""
        self.still = False
        if not came:
            self._unsure.discard(partition)
        # The server may have answered this before it did what we heard of since we asked.
        next_due = min(next_due, self._heard.get(partition, next_due))
        again = partition in self._rung or partition in self._unsure
        self.next_due[partition] = 0.0 if again and next_due > now else next_due
        if came >= BUSY and now < self.next_due[partition] < now + PACE_MS:
            # Under load a few milliseconds make one call of what would be many small ones.
            self.next_due[partition] = now + PACE_MS

    def age(self) -> None:
        """Another interval: a slow handler that is seen no more does not count for ever."""
        self._before, self.handlers = self.handlers or self._before, set()

    def forget_dues(self) -> None:
        """What was known is no longer true: ask everywhere."""
        for partition in range(len(self.next_due)):
            self.look(partition)

    def slowest(self) -> float:
        """Mean seconds of the slowest handler seen here lately."""
        return max((handler.mean for handler in self.handlers | self._before), default=UNKNOWN_S)

    def batch(self) -> int:
        """How many runs one permit takes here."""
        return min((handler.batch or 1 for handler in self.handlers | self._before), default=1)


class Unit(Struct, eq=False, weakref=False, gc=False):
    """One permit's worth of work."""

    claim: Claim
    spec: Spec
    handler: Handler
    lane: Lane
    # Monotonic seconds: when it was claimed, and when it must end unless it is extended.
    taken: float
    deadline: float
    # The rest of a batch; None for a single run.
    others: list[tuple[Claim, Spec]] | None = None
    run: Run | None = None
    runs: list[Run] | None = None

    def all(self) -> list[tuple[Claim, Spec]]:
        return [(self.claim, self.spec), *(self.others or ())]

    def size(self) -> int:
        return 1 if self.others is None else 1 + len(self.others)

    def ends_at(self) -> float:
        """Monotonic seconds when it must end. A batch ends as a whole: the run that was extended furthest decides."""
        if self.run is not None:
            return self.run.extended_until or self.deadline
        return max([self.deadline, *(run.extended_until or 0.0 for run in self.runs or ())])

    def is_overdue(self, now: float) -> bool:
        """A batch has up to 1000 runs: they are looked at only when the batch may be overdue."""
        return (self.run is not None or self.deadline <= now) and self.ends_at() <= now

    def set_cancelled(self) -> None:
        if self.run is not None:
            self.run.cancelled = True
        for run in self.runs or ():
            run.cancelled = True


class Sent(Struct, frozen=True):
    """A call that settles claims and is not answered yet, with what it is about."""

    lane: Lane
    call: Call
    items: list[Item]
