"""Ticks that get no run of their own, and why."""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct

from tocsin.model.durations import Millis


class SkipReason(IntEnum):
    """Why a tick has no run of its own. The numbers are stored; lua/lib/call.lua has those that scripts give."""

    COALESCED = 0
    PAUSED = 1
    OVERLAP = 2
    MISFIRE = 3
    CAPPED = 4
    EDITED = 5
    BACKOFF = 6
    CANCELLED = 7


class SkippedTicks(Struct, frozen=True, gc=False):
    """All ticks from `first`, which is one, up to `until`, which need not be one and is not among them."""

    first: Millis
    until: Millis
    why: SkipReason
