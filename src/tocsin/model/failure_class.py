"""The classes of failure. The class decides how long to wait before the next try (resilience/backoff.py)."""

from __future__ import annotations

from enum import StrEnum


class FailureClass(StrEnum):
    """Ordered from the class that wins over all others to the least specific one."""

    PERMANENT_FORBIDDEN = "PERMANENT_FORBIDDEN"
    THROTTLED = "THROTTLED"
    SERVER_ERROR = "SERVER_ERROR"
    TRANSIENT = "TRANSIENT"
    UNKNOWN = "UNKNOWN"
