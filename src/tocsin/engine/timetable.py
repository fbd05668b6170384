"""The timetable: the jobs of a queue that this worker may run, and when it believes each to be due.

A worker of the agents' queue claims by id, so it never stalls behind what it may not run, and no job starves behind
another worker's. What it believes is a hint: the claim script checks.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence

from tocsin.model.ids import EXTRA, job_of

# What was due and not given (it may be what kills workers, and they are given one at a time) is asked for again then.
AGAIN_MS = 100


class Timetable:
    """Ids and times; what is not waiting, as far as known, has none."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        # Also holds times that are no longer believed; they are passed over when they come up.
        self._line: list[tuple[float, str]] = []
        # Extra runs of our jobs may wait under ids that we have not heard of.
        self.curious = True
        # The place in the line where the last look for them ended; 0: it came to the end of what was due.
        self.looked_to = 0
        # Times that a finish which is not sent, or not answered yet, will make true; by verb.
        self._unsent: dict[str, list[tuple[str, float]]] = {}
        self._sent: dict[str, list[tuple[str, float]]] = {}

    def __len__(self) -> int:
        return len(self._due)

    def __iter__(self) -> Iterator[str]:
        return iter(self._due)

    def __contains__(self, member: object) -> bool:
        return isinstance(member, str) and job_of(member) in self._due

    def own(self, members: Iterable[str]) -> None:
        """These and no others. New ones are asked for at once."""
        owned = set(members)
        for member in [known for known in self._due if job_of(known) not in owned]:
            del self._due[member]
        for member in owned - self._due.keys():
            self.expect(member, 0.0)

    def expect(self, member: str, due: float) -> None:
        """Heard that a job of ours, or an extra run of one, waits for this time."""
        self._due[member] = due
        if due < math.inf:
            heapq.heappush(self._line, (due, member))

    def doubt(self) -> None:
        """Something happened in the queue: ask for what was not waiting, and look for extra runs."""
        self.curious = True
        for member, due in self._due.items():
            if due == math.inf:
                self.expect(member, 0.0)

    def soonest(self) -> float:
        line = self._line
        while line and self._due.get(line[0][1]) != line[0][0]:
            heapq.heappop(line)
        return line[0][0] if line else math.inf

    def take(self, now: float, limit: int) -> list[str]:
        """The ids to claim: due as far as known, at most so many, the longest due first."""
        taken: list[str] = []
        while len(taken) < limit and self.soonest() <= now:
            _, member = heapq.heappop(self._line)
            self._due[member] = math.inf
            taken.append(member)
        return taken

    def put_back(self, members: Sequence[str]) -> None:
        """They were taken and not asked for."""
        for member in members:
            if self._due.get(member) == math.inf:
                self.expect(member, 0.0)

    def learn(self, members: Sequence[str], dues: Sequence[int], claimed: set[str], now: float) -> None:
        """What a claim said of the ids it was asked for: until when each waits, below 0 if it does not wait."""
        for member, due in zip(members, dues, strict=False):
            if due >= 0 and member in self:
                self.expect(member, due if due > now else now + AGAIN_MS)
            elif EXTRA in member and member not in claimed:
                self._due.pop(member, None)

    # What our own finishes will do

    def plan(self, verb: str, member: str, due: float) -> None:
        self._unsent.setdefault(verb, []).append((member, due))

    def sent(self, verb: str, count: int) -> None:
        planned = self._unsent.get(verb, [])
        self._sent[verb] = planned[:count]
        del planned[:count]

    def answered(self, verb: str) -> None:
        for member, due in self._sent.pop(verb, ()):
            if due > 0 and member in self:
                self.expect(member, due)
            elif EXTRA in member:
                self._due.pop(member, None)

    def forget_plans(self) -> None:
        self._unsent.clear()
        self._sent.clear()
