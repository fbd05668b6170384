"""A job as the model of state_model.py knows it."""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.model.job import NORMAL
from tocsin.model.outcome import FAILED, SKIPPED, SUCCEEDED

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
