"""File descriptors: how many deliveries may hold, and what becomes of a run that finds none free.

A process has a limit of them, often 1024. Whoever may put jobs chooses hosts and logins, each of which needs a
connection: without bounds they would use up what the worker needs for Redis, for programs and for others' deliveries.
"""

from __future__ import annotations

import errno
import os
import resource

from tocsin.engine.handlers import TryLater
from tocsin.model.clock import monotonic
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.descriptors")

# Of all that the process may have, so large a part is for connections to brokers, and for idle ones to receivers.
PART = 4
MOST = 512
# When none is free the run goes back for so long: another worker may have some.
AWAY_S = 1.0
TELL_EVERY_S = 10.0
_LACK = (errno.EMFILE, errno.ENFILE)

_told_at = -TELL_EVERY_S


def most_connections() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else max(1, min(MOST, soft // PART))


def is_lack(error: BaseException | None) -> bool:
    """Whether an error says that no descriptor was free."""
    return isinstance(error, OSError) and error.errno in _LACK


def are_used_up() -> bool:
    """Whether none is free now. Libraries hide why they failed: a name that cannot be looked up for want of a
    descriptor looks like a name that does not exist."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return is_lack(error)
    return False


def handed_back(why: str) -> TryLater:
    """For a run that cannot begin for want of a descriptor. It is no fault of the run or its host: no attempt."""
    global _told_at
    now = monotonic()
    if now - _told_at >= TELL_EVERY_S:
        _told_at = now
        log.warning(
            "file descriptors are used up, and runs go back: raise the limit of open files (ulimit -n)", error=why
        )
    return TryLater(f"file descriptors are used up: {why}", AWAY_S)
