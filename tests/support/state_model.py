"""The state machine in plain Python: what the scripts must do, said once more without Redis.

Each method is one transition. It answers what the script answers and changes the jobs as the script must. `calls`
counts those that changed something: each is one event.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.support.model_job import EXTRA, Definition, Job, Wish
from tests.support.run_model import RunModel
from tocsin.model.outcome import (
    CANCELLED,
    CHANGED,
    CONFLICT,
    EDIT,
    IGNORE,
    MISSING,
    NEW,
    POSTPONE,
    REMEMBERED,
    UNCHANGED,
    UPDATE,
)


@dataclass
class Model(RunModel):
    """What programs do; what workers do is in run_model.py."""

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
