"""The state machine in plain Python: what the scripts must do, said once more without Redis.

Each method is one transition. It answers what the script answers and changes the jobs as the script must. `calls`
counts those that changed something: each is one event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from picks import Picks

from tocsin.model.job import NORMAL
from tocsin.model.outcome import (
    CANCELLED,
    CHANGED,
    CONFLICT,
    EDIT,
    FAILED,
    IGNORE,
    MISSING,
    NEW,
    POSTPONE,
    REMEMBERED,
    SKIPPED,
    SUCCEEDED,
    UNCHANGED,
    UPDATE,
)
from tocsin.model.run import Claim

EXTRA = "\x1f"


@dataclass(frozen=True)
class Definition:
    """What a record says, apart from its counters and its version."""

    recurring: bool = False
    trigger: int = 0
    keep: int = 0
    timeout: int = 1000
    handler: str = ""
    body: int = 0
    band: int = NORMAL
    tenant: str = ""
    cost: int = 1


@dataclass
class Wish:
    """A put that waits for the end of a run; due 0: it leaves the run alone."""

    definition: Definition
    version: int
    due: int


@dataclass
class Job:
    definition: Definition
    version: int
    stage: str
    # Not before in `waiting` and `paused`, the deadline in `working`, since when elsewhere.
    score: float
    due: int
    attempt: int = 1
    recoveries: int = 0
    succeeded: int = 0
    failed: int = 0
    attempts: int = 0
    cancelled: bool = False
    # How often a worker could not read it.
    unread: int = 0
    # Among those that entered the line in the same millisecond, where that is counted; None before it entered.
    place: int | None = None
    # What the server says below the millisecond of its score: it goes before the id.
    below: float = 0.0
    # A suspect that is due: it waits, and in no line.
    apart: bool = False
    # While it is working:
    token: int = 0
    owner: str = ""
    pausing: bool = False
    removing: bool = False
    wish: Wish | None = None

    @property
    def is_suspect(self) -> bool:
        return self.recoveries > 1

    def fresh(self, due: int) -> None:
        """Another run."""
        self.due, self.attempt, self.recoveries, self.place = due, 1, 0, None
        self.cancelled, self.unread = False, 0

    def move(self, stage: str, score: int) -> None:
        self.stage, self.score, self.apart = stage, score, False
        self.token, self.owner = 0, ""
        self.pausing = self.removing = False
        self.wish = None

    def define(self, definition: Definition, version: int) -> None:
        self.definition, self.version = definition, version

    def count(self, outcome: int) -> None:
        self.succeeded += outcome == SUCCEEDED
        self.failed += outcome == FAILED
        self.attempts += outcome != SKIPPED


@dataclass
class Model(Picks):
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

    # What a program does

    def put(self, now: int, member: str, definition: Definition, due: int, mode: int, expected: int) -> int:
        code = self._put(now, member, definition, due, mode, expected)
        self.calls += code in (NEW, CHANGED)
        return code

    def _put(self, now: int, member: str, definition: Definition, due: int, mode: int, expected: int) -> int:
        job, version = self.jobs.get(member), self.calls + 1
        if job is None:
            if mode == EDIT:
                return MISSING
            if mode == IGNORE and self.remembers(member, now):
                return REMEMBERED
            self.done.pop(member, None)
            self.jobs[member] = Job(definition, version, "", due, due)
            self.line_up(member, due)
            return NEW
        old = job.wish or job
        if expected and old.version != expected:
            return CONFLICT
        if job.removing and mode == EDIT:
            return MISSING
        if not job.removing and (mode == IGNORE or (mode == UPDATE and old.definition == definition)):
            return UNCHANGED
        keeps = (mode == EDIT and due == 0) or (
            mode == UPDATE and old.definition.trigger == definition.trigger and not job.removing
        )
        if job.stage == "working":
            kept = job.wish.due if job.wish else 0
            job.wish = Wish(definition, version, kept if keeps else due)
            job.removing = False
            return CHANGED
        job.define(definition, version)
        if keeps and job.stage == "parked" and job.attempt == 0:
            # Its run has ended: it must not come back because its arguments changed.
            return CHANGED
        if keeps and job.stage != "parked":
            self.keep_place(member)
            return CHANGED
        if job.stage == "blocked" and mode == POSTPONE:
            job.due = job.score = due
            return CHANGED
        self.waits.pop(member, None)
        job.fresh(job.due if keeps else due)
        if job.stage == "paused":
            self.set_aside(member, job.due)
        else:
            self.line_up(member, job.due)
        return CHANGED

    def delete(self, member: str, only: str) -> str:
        job = self.jobs.get(member)
        if job is None or job.removing or (only and job.stage != only):
            return "0"
        self.calls += 1
        if job.stage != "working":
            self.end(0, member, 0, CANCELLED)
            return "1"
        job.removing, job.pausing, job.wish = True, False, None
        return "2"

    def pause(self, now: int, member: str) -> int:
        job = self.jobs.get(member)
        if job is None or job.removing:
            return 0
        if job.stage in ("dead", "paused"):
            return 3
        self.calls += 1
        if job.stage in ("working", "blocked"):
            job.pausing = True
            return 2
        self.set_aside(member, job.score if job.stage == "waiting" else job.due)
        return 1

    def resume(self, member: str, expected: int, due: int) -> int:
        job = self.jobs.get(member)
        if job is None:
            return 0
        if job.stage == "paused":
            if expected and job.version != expected:
                return 4
            self.calls += 1
            if due in (0, job.due):
                self.line_up(member, job.score)
            else:
                job.fresh(due)
                self.line_up(member, due)
            return 1
        if job.stage in ("working", "blocked") and job.pausing:
            self.calls += 1
            job.pausing = False
            return 2
        return 3

    def cancel(self, now: int, member: str, due: int) -> int:
        job = self.jobs.get(member)
        if job is None or (due and due != job.due):
            return 0
        if job.stage == "working":
            self.calls += 1
            job.cancelled = True
            return 2
        if job.definition.recurring or job.stage == "dead":
            return 0
        self.calls += 1
        self.end(now, member, job.definition.keep, CANCELLED)
        self.forget(now)
        return 1

    def fire(self, now: int, member: str, due: int) -> list[int] | None:
        job = self.jobs.get(member)
        if job is None or job.removing:
            return None
        at = due or now
        taken = {job.due} if job.stage in ("waiting", "ready", "working") else set()
        extras = {name: extra for name, extra in self.jobs.items() if name.startswith(f"{member}{EXTRA}")}
        taken |= {int(name.partition(EXTRA)[2]) or extra.due for name, extra in extras.items()}
        while not due and at in taken:
            at += 1
        if at in taken:
            return []
        extra = replace(job.definition, recurring=False, keep=0)
        self.calls += 1
        self.jobs[f"{member}{EXTRA}{at}"] = Job(extra, self.calls, "", at, at)
        self.line_up(f"{member}{EXTRA}{at}", at)
        return [at]

    def revive(self, now: int, member: str) -> str:
        job = self.jobs.get(member)
        if job is None or job.stage != "dead":
            return "0"
        self.calls += 1
        job.fresh(job.due)
        job.place = 0
        self.line_up(member, now)
        return "1"

    def unpark(self, member: str) -> int:
        job = self.jobs.get(member)
        if job is None or job.stage != "parked":
            return 0
        self.calls += 1
        job.unread = 0
        self.line_up(member, job.due)
        return 1

    # What a worker does

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
