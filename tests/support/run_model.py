"""What workers do, in the model of state_model.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.support.claim_model import Picks
from tests.support.model_job import EXTRA, Definition, Job, Wish
from tocsin.model.outcome import CANCELLED, FAILED
from tocsin.model.run import Claim


@dataclass
class RunModel(Picks):
    """Part of `Model`."""

    def new_job(self, what: Definition, stage: str, due: int) -> Job:
        return Job(what, self.calls + 1, stage, due, due)

    # Where jobs wait for their turn. Queues of another order have lines of their own.

    def line_up(self, member: str, not_before: int) -> None:
        self.enter(member, not_before)

    def keep_place(self, member: str) -> None:
        """It was edited where it stands."""
        if self.jobs[member].apart:
            self.enter(member, self.jobs[member].due)

    def set_aside(self, member: str, score: int) -> None:
        self.jobs[member].move("paused", score)

    def claim(self, now: int, owner: str, handlers: set[str], token: int, found: list[str], parked: list[str]) -> None:
        """`found` are due, `parked` are parked and known to this worker; strange ones among `found` are parked."""
        taken = [member for member in found if self.jobs[member].definition.handler in handlers]
        self.calls += bool(found or parked)
        for member in (*taken, *parked):
            job = self.jobs[member]
            job.move("working", now + job.definition.timeout)
            job.token, job.owner = token, owner
        for member in set(found) - set(taken):
            self.jobs[member].move("parked", self.digest_of(member))

    def holds(self, member: str, owner: str, token: int) -> bool:
        job = self.jobs.get(member)
        return job is not None and job.stage == "working" and (job.token, job.owner) == (token, owner)

    def settled(self, held: Sequence[Claim]) -> None:
        """A call that ends claims is an event, unless none of them is held: that changes and writes nothing."""
        self.calls += bool(held)

    def finish(self, now: int, member: str, next_due: int, outcome: int, keep: int) -> None:
        job, parent = self.jobs[member], self.parent(member)
        if next_due:
            job.count(outcome)
        elif parent is not None:
            parent.count(outcome)
        if self._obeyed(member, next_due, ended=True):
            if next_due and member in self.jobs:
                self.tell(member, outcome)
            return
        if not next_due:
            self.end(now, member, keep, outcome)
            return
        self.tell(member, outcome)
        job.fresh(next_due)
        self.line_up(member, next_due)

    def parent(self, member: str) -> Job | None:
        """The job that an extra run counts for."""
        return self.jobs.get(member.partition(EXTRA)[0]) if EXTRA in member else None

    def plan(self, now: int, member: str, next_due: int, alone: bool) -> list[tuple[str, str, int]]:
        """Whom to tell that their run is cancelled: member, owner, token."""
        job = self.jobs[member]
        due, cancelled = job.due, job.cancelled
        if self._obeyed(member, 0, ended=False):
            return []
        told = [] if cancelled or f"{member}{EXTRA}{due}" in self.jobs else self._put_extra(member, due, alone)
        if next_due:
            job.fresh(next_due)
            self.line_up(member, next_due)
        else:
            self.end(now, member, 0, CANCELLED)
        return told

    def _put_extra(self, member: str, due: int, alone: bool) -> list[tuple[str, str, int]]:
        extra = replace(self.jobs[member].definition, recurring=False, keep=0)
        name = f"{member}{EXTRA}{0 if alone else due}"
        before = self.jobs.get(name)
        if before is None or before.stage != "working":
            self.jobs[name] = Job(extra, self.calls, "", due, due)
            self.line_up(name, due)
            return []
        before.wish, before.cancelled = Wish(extra, self.calls, due), True
        before.removing = before.pausing = False
        return [(name, before.owner, before.token)]

    def retry(self, now: int, member: str, delay: int) -> None:
        job = self.jobs[member]
        job.attempt += 1
        for counts in filter(None, (job, self.parent(member))):
            counts.attempts += 1
        keep = job.definition.keep
        not_before = now if job.cancelled else now + delay
        if self._obeyed(member, 0, ended=False, not_before=not_before):
            return
        if job.cancelled and not job.definition.recurring:
            self.end(now, member, keep, CANCELLED)
            return
        self.line_up(member, not_before)

    def release(self, now: int, member: str) -> None:
        if not self._obeyed(member, 0, ended=False):
            self.line_up(member, self.jobs[member].due)

    def recover(self, now: int, member: str) -> None:
        self.jobs[member].recoveries += 1
        self.release(now, member)

    def bury(self, now: int, member: str) -> None:
        job = self.jobs[member]
        keep = job.definition.keep
        for counts in filter(None, (job, self.parent(member))):
            counts.count(FAILED)
        if self._obeyed(member, 0, ended=True):
            return
        if job.cancelled:
            self.end(now, member, keep, CANCELLED)
        else:
            job.move("dead", now)
            self.tell(member, FAILED)

    def park(self, now: int, member: str, wait: int = 0) -> None:
        job = self.jobs[member]
        edited = job.wish is not None
        if self._obeyed(member, 0, ended=False):
            return
        if edited:
            # What could not be read is there no more.
            self.line_up(member, job.due)
        else:
            job.unread = min(job.unread + 1, 15)
            job.move("parked", now + (wait or 1000 * 2 ** min(job.unread - 1, 8)))

    def park_ended(self, now: int, member: str, outcome: int, wait: int) -> None:
        """The run is over, and nobody can tell when the job is due next."""
        job = self.jobs[member]
        job.count(outcome)
        job.attempt, job.recoveries, job.cancelled = 0, 0, False
        self.tell(member, outcome)
        anew = job.wish is not None and job.wish.due > 0
        if self._obeyed(member, 0, ended=anew or not job.pausing):
            return
        job.unread = min(job.unread + 1, 15)
        job.move("parked", now + (wait or 1000 * 2 ** min(job.unread - 1, 8)))

    def advance(self, now: int, member: str, next_due: int) -> None:
        job = self.jobs[member]
        if self._obeyed(member, next_due, ended=True):
            return
        if next_due:
            job.fresh(next_due)
            self.line_up(member, next_due)
        else:
            self.end(now, member, 0, CANCELLED)

    def extend(self, now: int, member: str, by: int) -> None:
        self.calls += 1
        self.jobs[member].score = now + by

    def forget(self, now: int) -> None:
        self.done = {member: kept for member, kept in self.done.items() if kept[0] > now}

    def _obeyed(self, member: str, next_due: int, ended: bool, not_before: int = 0) -> bool:
        """What a person asked for during the run goes before what the worker wants."""
        job = self.jobs[member]
        if job.removing:
            self.end(0, member, 0, CANCELLED)
            return True
        wish, due = job.wish, next_due
        if wish is not None:
            job.define(wish.definition, wish.version)
            due = wish.due or due
        over = ended and not due
        if job.pausing and not over:
            if due:
                job.fresh(due)
            self.set_aside(member, due or not_before or job.due)
            return True
        if wish is not None and wish.due:
            job.fresh(due)
            self.line_up(member, due)
            return True
        return False
