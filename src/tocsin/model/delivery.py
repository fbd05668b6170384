"""The outcome of a delivery to a target outside the program: a host, a broker, a subprocess."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from tocsin.model.errors import TocsinError

# Characters of a receiver's answer that are kept with the attempt. Small, because a thousand may share one event.
LONGEST_HEAD = 256


class Delivered(Struct, frozen=True):
    """The delivery succeeded. `told` goes into the run's event, and is the run's result if `result` is None."""

    told: dict[str, Any]
    result: Any = None


class DeliveryFailed(TocsinError):
    """The delivery failed, or the receiver refused it. `told` goes into the attempt's event. `final`: trying again will
    not help. `retry_after`: seconds until the receiver wants the next try. `sent`: some of it may have arrived."""

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
        # resilience/evidence.py reads this attribute by its name.
        self.status = status
        self.final = final
        self.retry_after = retry_after
        self.sent = sent


def note_of(told: dict[str, Any]) -> bytes:
    """The facts of a delivery, encoded for the event of the attempt."""
    return msgspec.json.encode(told) if told else b""


def head_of(body: bytes) -> str:
    """The beginning of an answer as text, whatever bytes it holds."""
    return body[:LONGEST_HEAD].decode("utf-8", "replace").replace("\0", "\ufffd")
