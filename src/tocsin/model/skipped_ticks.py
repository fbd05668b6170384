"""Ranges of ticks that get no run of their own, and the reasons."""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct

from tocsin.model.durations import Millis


class SkipReason(IntEnum):
    """Why a tick has no run of its own. The numbers are stored; scripts use some of them too (lua/lib/events.lua)."""

    COALESCED = 0
    PAUSED = 1
    OVERLAP = 2
    MISFIRE = 3
    CAPPED = 4
    EDITED = 5
    BACKOFF = 6
    CANCELLED = 7


class SkippedTicks(Struct, frozen=True, gc=False):
    """The ticks in [first, until). `first` is a tick, `until` need not be one."""

    first: Millis
    until: Millis
    why: SkipReason
