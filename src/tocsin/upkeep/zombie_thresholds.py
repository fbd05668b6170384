"""Says from when on a run is a zombie: it goes on although it was asked to stop at its deadline."""

from __future__ import annotations

import re
from typing import Self

from msgspec import Struct

from tocsin.model.durations import Millis
from tocsin.model.ids import job_of
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.zombies")


class ZombieThresholds(Struct, frozen=True):
    # A run that is this far past its deadline is a zombie.
    threshold_ms: Millis = 30_000
    # Jobs whose whole id matches get another threshold.
    exceptional: re.Pattern[str] | None = None
    exceptional_threshold_ms: Millis = 3_600_000

    @classmethod
    def of(cls, threshold_ms: Millis, pattern: str, exceptional_threshold_ms: Millis) -> Self:
        """A pattern that is no regular expression is logged and ignored."""
        return cls(threshold_ms, _compiled(pattern), exceptional_threshold_ms)


def threshold_for(member: str, settings: ZombieThresholds) -> Millis:
    """How many ms past its deadline a run of this job, or an extra run of it, is a zombie."""
    if settings.exceptional is not None and settings.exceptional.fullmatch(job_of(member)):
        return settings.exceptional_threshold_ms
    return settings.threshold_ms


def _compiled(pattern: str) -> re.Pattern[str] | None:
    if not pattern:
        return None
    try:
        # As with other patterns: a name may contain any character, even a newline.
        return re.compile(pattern, re.DOTALL)
    except re.error as error:
        log.warning(
            "redis.scheduler.zombie-cleanup.exceptional-agents.pattern is no regular expression: ignored",
            pattern=pattern,
            error=str(error),
        )
        return None
