"""What a claim takes, in the model of state_model.py: who is in line, who stands apart or aside, and who is next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.support.dependency_model import Waits
from tocsin.model.record import handler_digest
from tocsin.store.formats import LARGEST_DIGEST

if TYPE_CHECKING:
    from tests.support.model_job import Job


@dataclass
class Picked:
    """What a claim takes, in its order, and what it sets aside."""

    taken: list[str] = field(default_factory=list)
    parked: list[str] = field(default_factory=list)


@dataclass
class Picks(Waits):
    """Part of `Model`."""

    # The time of the call that is being made.
    now: int = 0

    def enter(self, member: str, not_before: int) -> None:
        """With the entry in `claims` that it has."""
        if self.jobs[member].is_suspect and not_before <= self.now:
            self.stand_apart(member)
        else:
            self.jobs[member].move("waiting", not_before)

    def stand_apart(self, member: str) -> None:
        job = self.jobs[member]
        job.move("waiting", job.due)
        job.apart = True

    def enter_ready(self, member: str) -> None:
        """It is due, and may be taken."""
        self.jobs[member].move("waiting", self.jobs[member].due)

    def due_now(self, now: int) -> list[str]:
        """In the order in which they are claimed."""
        waiting = [(job.score + job.below, member) for member, job in self.in_line()]
        return [member for score, member in sorted(waiting) if score < now + 1]

    def in_line(self) -> list[tuple[str, Job]]:
        return [(member, job) for member, job in self.jobs.items() if job.stage == "waiting" and not job.apart]

    def those_apart(self) -> list[str]:
        """In the order in which they are tried."""
        return sorted((m for m, job in self.jobs.items() if job.apart), key=self.key_apart)

    def key_apart(self, member: str) -> tuple[int, int, str]:
        return 0, self.jobs[member].due, member

    def next_due(self) -> int:
        """When the first in line may start, or those that stand apart are to be asked for again; -1 if nobody waits."""
        first = min((job.score for _, job in self.in_line()), default=-1)
        return self.or_again(first)

    def or_again(self, first: int) -> int:
        again = self.now + 100
        return again if self.those_apart() and not 0 <= first <= again else first

    def parked_for(self, now: int, handlers: set[str]) -> list[str]:
        """In the order in which a claim meets them: what could not be read, then by handler."""
        found = [
            (job.score < LARGEST_DIGEST, job.score, member)
            for member, job in self.jobs.items()
            if job.stage == "parked" and job.score <= now and job.definition.handler in handlers
        ]
        return [member for _, _, member in sorted(found)]

    def enter_parked(self, handlers: set[str], suspects: int) -> None:
        """What was set aside for such as this worker is in line again."""
        for member in self.parked_for(self.now, handlers):
            job = self.jobs[member]
            if job.is_suspect and suspects < 1:
                job.score = self.digest_of(member)
            else:
                suspects -= job.is_suspect
                self.enter(member, job.due)

    def call_up(self, picked: Picked, handlers: set[str], most: int) -> None:
        """Of those that stand apart, as many as this worker may try."""
        for member in self.those_apart():
            if most < 1:
                return
            if self.jobs[member].definition.handler in handlers:
                most -= 1
                self.enter_ready(member)
            else:
                picked.parked.append(member)

    def pick(self, handlers: set[str], limit: int, suspects: int) -> Picked:
        """What a claim takes of what is due."""
        picked, most = Picked(), min(suspects, limit)
        self.keep_for_those_who_know(self.now, handlers, self.jobs)
        self.enter_parked(handlers, most)
        self.call_up(picked, handlers, most)
        limit += len(picked.parked)
        for member in self.due_now(self.now):
            if len(picked.taken) + len(picked.parked) < limit:
                suspects -= self.serve(picked, member, handlers, suspects) == "suspect"
        return picked

    def pick_named(self, handlers: set[str], named: list[str], suspects: int) -> tuple[Picked, list[str]]:
        """Likewise of some jobs, wherever they wait; and what of it comes from among the parked."""
        picked, eligible = Picked(), []
        parked = self.parked_for(self.now, handlers)
        due = {*self.due_now(self.now), *(member for member in self.those_apart() if self.jobs[member].due <= self.now)}
        for member in [member for member in named if member in due]:
            suspects -= self.serve(picked, member, handlers, suspects) == "suspect"
        self.keep_for_those_who_know(self.now, handlers, named)
        for member in [member for member in named if member in parked and self.jobs[member].due <= self.now]:
            if not self.jobs[member].is_suspect or suspects > 0:
                suspects -= self.jobs[member].is_suspect
                eligible.append(member)
        return picked, eligible

    def serve(self, picked: Picked, member: str, handlers: set[str], suspects: int) -> str:
        job = self.jobs[member]
        if job.definition.handler not in handlers:
            picked.parked.append(member)
            return "parked"
        if job.is_suspect and suspects < 1:
            self.stand_apart(member)
            return "apart"
        picked.taken.append(member)
        return "suspect" if job.is_suspect else "taken"

    def digest_of(self, member: str) -> float:
        """Its score among the parked."""
        job = self.jobs[member]
        return handler_digest(job.definition.handler) + (0.5 if job.is_suspect else 0)

    def keep_for_those_who_know(self, now: int, handlers: set[str], members: Iterable[str]) -> None:
        """What could not be read, and is not for this worker either."""
        for member in members:
            job = self.jobs.get(member)
            if (
                job
                and job.stage == "parked"
                and LARGEST_DIGEST < job.score <= now
                and job.definition.handler not in handlers
            ):
                job.score = self.digest_of(member)
