"""The timetable: the jobs of a queue that this worker may run, and when it believes each is due.

A worker of the agents' queue claims by id. So it never stalls behind jobs that it may not run, and no job starves
behind those of another worker. The due times are hints: the claim script checks them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from tocsin.model.ids import EXTRA, job_of
from tocsin.telemetry import agent_log

# A due job that the claim did not give is asked for again after this long: it may be a suspect, and those are given one
# at a time.
AGAIN_MS = 100


class AgentTimetable:
    """Ids and due times. A job that does not wait, as far as known, has none."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        # The ids in `_due` that are extra runs.
        self._extras: set[str] = set()
        # Also holds outdated times, which are skipped when they come up.
        self._line: list[tuple[float, str]] = []
        # The former due times of the jobs that a pass is asking for.
        self._asked: dict[str, float] = {}
        # The latest time at which a pass took something.
        self._now = 0.0
        # Whether extra runs of our jobs may wait under ids that we do not know.
        self.curious = True
        # The position in the line where the last search for extra runs ended; 0: it reached the end of what was due.
        self.looked_to = 0
        # Due times that become true when a finish is sent, or answered; by verb.
        self._unsent: dict[str, list[tuple[str, float]]] = {}
        self._sent: dict[str, list[tuple[str, float]]] = {}

    def __len__(self) -> int:
        return len(self._due)

    def __iter__(self) -> Iterator[str]:
        return iter(self._due)

    def __contains__(self, member: object) -> bool:
        return isinstance(member, str) and job_of(member) in self._due

    def own(self, members: Iterable[str]) -> None:
        """Add these. Until we hear when each is due, we ask for it in doubt."""
        for member in members:
            self._due.setdefault(member, math.inf)

    def disown(self, members: Iterable[str]) -> None:
        """Drop these and their extra runs."""
        gone = set(members)
        for member in gone:
            self._due.pop(member, None)
        for extra in [known for known in self._extras if job_of(known) in gone]:
            self._forget_extra(extra)

    def hear(self, waiting: Mapping[str, float]) -> None:
        """The due times of some jobs, as Redis has them. Only an earlier time is news: our own finish may have moved a
        job on since Redis was read."""
        for member, due in waiting.items():
            if due < self._due.get(member, -math.inf):
                self.expect(member, due)

    def expect(self, member: str, due: float) -> None:
        """A job of ours, or an extra run of one, waits for this time."""
        self._due[member] = due
        if EXTRA in member:
            self._extras.add(member)
        if due < math.inf:
            heapq.heappush(self._line, (due, member))

    def _forget_extra(self, member: str) -> None:
        self._due.pop(member, None)
        self._extras.discard(member)

    def recheck_all(self) -> None:
        """Something happened in the queue: ask for the jobs that did not wait, after all that are known to be due, and
        search for extra runs."""
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
        """The ids to claim: at most `limit` that are due as far as known, the longest due first."""
        self._now = max(now, self._now) if now < math.inf else self._now
        taken: list[str] = []
        while len(taken) < limit and self.soonest() <= now:
            due, member = heapq.heappop(self._line)
            self._asked[member], self._due[member] = due, math.inf
            taken.append(member)
        return taken

    def put_back(self, members: Sequence[str]) -> None:
        """They were taken, but the claim was not made."""
        for member in members:
            due = self._asked.pop(member, 0.0)
            if self._due.get(member) == math.inf:
                self.expect(member, due)

    def learn(self, members: Sequence[str], dues: Sequence[int], claimed: set[str], now: float, limit: int = 0) -> None:
        """The reply to a claim by ids: until when each waits, below 0 if it does not wait. If `limit` runs were
        claimed, the claim did not look at the other ids."""
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
        """Call this before `answered`: the server has done what was sent, except for the lost claims."""
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
