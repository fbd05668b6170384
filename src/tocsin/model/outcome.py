"""How runs and puts can end: the codes that scripts, events and Python share."""

from __future__ import annotations

from typing import Any

import msgspec

from tocsin.model.durations import Millis

# How a run ended, as lua/lib/outcome.lua numbers it.
FAILED, SUCCEEDED, SKIPPED, CANCELLED = range(4)
# The code of a run that is parked before it has ended.
NOT_ENDED = 4
# The name of each outcome, by its code.
OUTCOMES = ("failed", "succeeded", "skipped", "cancelled")
# The name for an outcome that somebody garbled.
UNKNOWN = "unknown"

# What a put does if the job exists, as lua/job_put.lua numbers it.
IGNORE, REPLACE, POSTPONE, UPDATE, EDIT, EDIT_IN_LINE = range(6)
# What a put did. IS_WORKING: the job is being run, so it cannot wait for others now (lua/dependency_block.lua).
UNCHANGED, NEW, CHANGED, REMEMBERED, CONFLICT, MISSING, IS_WORKING = range(7)

LARGEST_RESULT = 512 * 1024


class Outcome(msgspec.Struct, frozen=True):
    """How a remembered one-shot ended."""

    name: str
    at: Millis
    result: Any
    # False: it is only remembered because others wait for it, without its result.
    kept: bool = True
    # Why its result could not be kept.
    lost: str = ""
