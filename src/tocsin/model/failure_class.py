"""The kinds of failure there are. The kind says how long to wait; see `backoff`."""

from __future__ import annotations

from enum import StrEnum


class FailureClass(StrEnum):
    """From the one that asks for most patience to the one that says the least."""

    PERMANENT_FORBIDDEN = "PERMANENT_FORBIDDEN"
    THROTTLED = "THROTTLED"
    SERVER_ERROR = "SERVER_ERROR"
    TRANSIENT = "TRANSIENT"
    UNKNOWN = "UNKNOWN"
