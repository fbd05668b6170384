"""The timetable: the jobs of a queue that this worker may run, and when it believes each to be due.

A worker of the agents' queue claims by id, so it never stalls behind what it may not run, and no job starves behind
another worker's. What it believes is a hint: the claim script checks.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from tocsin.model.ids import EXTRA, job_of
from tocsin.telemetry import agent_log

# What was due and not given (it may be what kills workers, and they are given one at a time) is asked for again then.
AGAIN_MS = 100


class AgentTimetable:
    """Ids and times; what is not waiting, as far as known, has none."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        # Those of them that are extra runs, under ids of their own.
        self._extras: set[str] = set()
        # Also holds times that are no longer believed; they are passed over when they come up.
        self._line: list[tuple[float, str]] = []
        # What each was expected at that is being asked for.
        self._asked: dict[str, float] = {}
        # The latest time at which we took something.
        self._now = 0.0
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
        """These too. When each is due is to be heard; until then it is asked for in doubt."""
        for member in members:
            self._due.setdefault(member, math.inf)

    def disown(self, members: Iterable[str]) -> None:
        """These no more, nor their extra runs."""
        gone = set(members)
        for member in gone:
            self._due.pop(member, None)
        for extra in [known for known in self._extras if job_of(known) in gone]:
            self._forget_extra(extra)

    def hear(self, waiting: Mapping[str, float]) -> None:
        """When some are due, as Redis has it. Only what is sooner than we believe is news: our own finish may have
        moved the others on since that was read."""
        for member, due in waiting.items():
            if due < self._due.get(member, -math.inf):
                self.expect(member, due)

    def expect(self, member: str, due: float) -> None:
        """Heard that a job of ours, or an extra run of one, waits for this time."""
        self._due[member] = due
        if EXTRA in member:
            self._extras.add(member)
        if due < math.inf:
            heapq.heappush(self._line, (due, member))

    def _forget_extra(self, member: str) -> None:
        self._due.pop(member, None)
        self._extras.discard(member)

    def recheck_all(self) -> None:
        """Something happened in the queue: ask for what was not waiting, behind all that is known to be due, and look
        for extra runs."""
        self.curious = True
        for member, due in self._due.items():
            if due == math.inf:
                self.expect(member, self._now)

    def soonest(self) -> float:
        line = self._line
        while line and self._due.get(line[0][1]) != line[0][0]:
            heapq.heappop(line)
        return line[0][0] if line else math.inf

    def take(self, now: float, limit: int) -> list[str]:
        """The ids to claim: due as far as known, at most so many, the longest due first."""
        self._now = max(now, self._now) if now < math.inf else self._now
        taken: list[str] = []
        while len(taken) < limit and self.soonest() <= now:
            due, member = heapq.heappop(self._line)
            self._asked[member], self._due[member] = due, math.inf
            taken.append(member)
        return taken

    def put_back(self, members: Sequence[str]) -> None:
        """They were taken and not asked for."""
        for member in members:
            due = self._asked.pop(member, 0.0)
            if self._due.get(member) == math.inf:
                self.expect(member, due)

    def learn(self, members: Sequence[str], dues: Sequence[int], claimed: set[str], now: float, limit: int = 0) -> None:
        """What a claim said of the ids it was asked for: until when each waits, below 0 if it does not wait. With as
        many claimed as `limit` says, the others were not looked at."""
        again = now if limit and len(claimed) >= limit else now + AGAIN_MS
        for member, due in zip(members, dues, strict=False):
            self._asked.pop(member, None)
            if due >= 0 and member in self:
                self.expect(member, due if due > now or again == now else again)
            elif EXTRA in member and member not in claimed:
                self._forget_extra(member)

    # What our own finishes will do

    def plan(self, verb: str, member: str, due: float) -> None:
        self._unsent.setdefault(verb, []).append((member, due))

    def sent(self, verb: str, count: int) -> None:
        planned = self._unsent.get(verb, [])
        self._sent[verb] = planned[:count]
        del planned[:count]

    def log_answer(self, verb: str, lost: Collection[bytes]) -> None:
        """Before `answered`: the server has done what was sent, but for those that were lost."""
        if agent_log.is_wanted():
            agent_log.settled(verb, self._sent.get(verb, ()), {member.decode(errors="replace") for member in lost})

    def answered(self, verb: str) -> None:
        for member, due in self._sent.pop(verb, ()):
            if due > 0 and member in self:
                self.expect(member, due)
            elif EXTRA in member:
                self._forget_extra(member)

    def forget_plans(self) -> None:
        self._unsent.clear()
        self._sent.clear()
