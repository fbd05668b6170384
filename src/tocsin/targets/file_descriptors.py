"""How many file descriptors deliveries may use, and what happens to a run that finds none free.

A process has a limit of descriptors, often 1024. People who put jobs choose hosts and logins, each of which needs a
connection. Without bounds these would use up what the worker needs for Redis, for programs and for other deliveries.
"""

from __future__ import annotations

import errno
import os
import resource

from tocsin.engine.handlers import TryLater
from tocsin.model.clock import monotonic
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.descriptors")

# One in so many descriptors is for connections to brokers, and one in so many for idle connections to receivers.
SHARE = 4
MOST_CONNECTIONS = 512
# A run that finds no descriptor free goes back for so long: another worker may have some.
AWAY_S = 1.0
WARN_EVERY_S = 10.0
_SHORTAGES = (errno.EMFILE, errno.ENFILE)

_warned_at = -WARN_EVERY_S


def most_connections() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(1, min(MOST_CONNECTIONS, soft // SHARE))


def is_descriptor_shortage(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in _SHORTAGES


def are_descriptors_used_up() -> bool:
    """Try to open a file. Libraries hide why they failed: a name lookup that finds no free descriptor fails like the
    lookup of a name that does not exist."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return is_descriptor_shortage(error)
    return False


def descriptors_used_up(why: str) -> TryLater:
    """Sends a run back without an attempt: neither the run nor its host is at fault."""
    global _warned_at
    now = monotonic()
    if now - _warned_at >= WARN_EVERY_S:
        _warned_at = now
        log.warning(
            "file descriptors are used up, and runs go back: raise the limit of open files (ulimit -n)", error=why
        )
    return TryLater(f"file descriptors are used up: {why}", AWAY_S)
