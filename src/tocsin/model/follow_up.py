"""What follows a failed attempt."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import Struct


class FollowUp(Struct, frozen=True):
    """What becomes of a job after an attempt that failed.

    retry: the run is tried again `at` this time. next: the job waits for its next run, due `at` this time.
    dead: the job is out of retries and waits for a person. ended: it was recurring, and this was its last run.
    parked: it is recurring, and nobody can tell when it is due next.
    """

    kind: Literal["retry", "next", "dead", "ended", "parked"]
    at: datetime | None = None
    # Seconds until then.
    delay: float = 0.0
    # The number of the next attempt, and how many there may be; 0 if only the class of the failure decides that.
    attempt: int = 0
    attempts: int = 0

    def __str__(self) -> str:
        if self.kind == "retry":
            number = f"attempt {self.attempt}" + (f" of {self.attempts}" if self.attempts else "")
            return f"{number} in {self.delay:g} s"
        if self.kind == "next" and self.at is not None:
            return f"next run at {self.at.isoformat(timespec='milliseconds')}"
        return "its schedule has ended" if self.kind == "ended" else self.kind
