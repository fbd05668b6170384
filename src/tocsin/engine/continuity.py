"""Continuity: whether the server still has what it confirmed.

A replica that takes over lacks some of what its primary had confirmed, and a restarted server may have lost its last
second. Then runs that ended run again, and jobs that were put are missing, without any error. Each heartbeat brings two
signs of it: our own counter, which only we raise, and the name of the server's history.
"""

from __future__ import annotations

from tocsin.store.transitions.fleet import HeartbeatReply, History
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.heart")

_TOOK_OVER = "a replica took over as the primary"
_RESTARTED = "the server was restarted, or another stands in its place"


class Continuity:
    """What one incarnation of a worker has seen of its server."""

    def __init__(self, beat_s: float, *, cluster: bool) -> None:
        """`cluster`: the cluster client itself notices when a replica takes over, on any node
        (store/connection/topology.py)."""
        self._beat_s = beat_s
        self._cluster = cluster
        self._history: History | None = None

    def look(self, beat: HeartbeatReply, confirmed: int) -> bool:
        """Whether writes may be lost. `confirmed`: the counter of our last answered beat."""
        known, self._history = self._history, beat.history or self._history
        lost = confirmed - beat.before if beat.before is not None else 0
        change = _change(known, beat.history)
        if lost > 0:
            log.error(
                "the server has lost writes that it had confirmed: runs that ended since then run again, and jobs that "
                "were put since then are missing; min-replicas-to-write with min-replicas-max-lag bounds what a "
                "failover loses, appendfsync what a restart does",
                lost_s=lost * self._beat_s,
                change=change or "not seen: its data may have been restored",
            )
            return True
        if change is not None:
            self._warn(change)
            return True
        if known is not None and known.replicas and beat.history is not None and not beat.history.replicas:
            log.warning(
                "the primary has lost all its replicas: if a split has cut it off, another may take over, and what is "
                "written here from now on is lost then; min-replicas-to-write 1 makes it refuse writes instead",
                replicas_before=known.replicas,
            )
        return False

    def _warn(self, change: str) -> None:
        if change == _TOOK_OVER and self._cluster:
            return
        log.warning(
            f"{change}: what it does not have of the last writes is lost, so runs that ended in the last moments may "
            "run again, and jobs that were put then may be missing"
        )


def _change(known: History | None, now: History | None) -> str | None:
    if known is None or now is None or known.name == now.name:
        return None
    return _TOOK_OVER if now.former == known.name else _RESTARTED
