"""How the delivery of a run to something outside ended."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from tocsin.model.errors import TocsinError

# So much of what a receiver said is kept with the attempt, and no more: a thousand of them share one event.
LONGEST_HEAD = 256


class Delivered(Struct, frozen=True):
    """It arrived. What is told of it stands in the run's event, and is its result unless there is more to say."""

    told: dict[str, Any]
    result: Any = None


class DeliveryFailed(TocsinError):
    """It did not arrive, or was not taken. `final`: trying again will not help; `retry_after`: when the receiver
    wants to be asked again, in seconds; `sent`: something may have reached it."""

    def __init__(
        self,
        message: str,
        told: dict[str, Any] | None = None,
        *,
        status: int | None = None,
        final: bool = False,
        retry_after: float | None = None,
        sent: bool = True,
    ) -> None:
        super().__init__(message)
        self.told = told or {}
        # Read by name when failures are classified.
        self.status = status
        self.final = final
        self.retry_after = retry_after
        self.sent = sent


def note_of(told: dict[str, Any]) -> bytes:
    """For the event of the attempt."""
    return msgspec.json.encode(told) if told else b""


def head_of(body: bytes) -> str:
    """The beginning of what a receiver said, as text, whatever it is."""
    return body[:LONGEST_HEAD].decode("utf-8", "replace").replace("\0", "\ufffd")
