"""What happens to a job after a failed attempt."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import Struct


class FollowUp(Struct, frozen=True):
    """The decision after a failed attempt.

    retry: the run is tried again `at` this time. next: the job waits for its next run, due `at` this time.
    dead: the job is out of retries and waits for a person. ended: the job was recurring, and this was its last run.
    parked: the job is recurring, but its next due time cannot be computed.
    """

    kind: Literal["retry", "next", "dead", "ended", "parked"]
    at: datetime | None = None
    # Seconds until `at`.
    delay: float = 0.0
    # The number of the next attempt, and the maximum; 0 if the class of the failure alone decides about retries.
    attempt: int = 0
    attempts: int = 0

    def __str__(self) -> str:
        if self.kind == "retry":
            number = f"attempt {self.attempt}" + (f" of {self.attempts}" if self.attempts else "")
            return f"{number} in {self.delay:g} s"
        if self.kind == "next" and self.at is not None:
            return f"next run at {self.at.isoformat(timespec='milliseconds')}"
        return "its schedule has ended" if self.kind == "ended" else self.kind
