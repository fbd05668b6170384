"""Watches the heartbeats of the other workers: which workers are dead, and whether deadlines can be trusted.

A worker is dead when an observer has watched its counter stand still for `ttl` on the observer's own monotonic clock,
with every look on time. A late or failed look starts the watch over, so no worker is declared dead because of an outage
or because this process was stopped. The reply to a heartbeat lists only the workers that are late by the server's
clock, which keeps the cost low in a fleet of any size. Their silence from before the first such reply counts too, if
our watch was unbroken and the server's clock was not set in that time.
"""

from __future__ import annotations

from tocsin.model.durations import Millis
from tocsin.store.transitions.fleet import HeartbeatReply


class LivenessWatch:
    """What one observer has seen of the other workers. Pure: heartbeat replies go in, dead workers come out."""

    def __init__(self, ttl_s: float, look_s: float, late_s: float) -> None:
        """Looks more than `look_s` apart break the watch. A worker is late `late_s` after its last beat."""
        self._ttl_s = ttl_s
        self._look_s = look_s
        self._late_s = late_s
        # For each late worker: its counter, and since when the counter has stood still.
        self._silent: dict[str, tuple[bytes, float]] = {}
        self._last_look: float | None = None
        # The server's time at the last look.
        self._server_ms: Millis = 0
        # When the unbroken watch began. Setting the server's clock breaks it.
        self.since: float | None = None
        self.steps = b""

    def look(self, beat: HeartbeatReply | None, at: float) -> list[tuple[str, bytes]]:
        """Take the reply to a heartbeat at `at` on our monotonic clock; None if the heartbeat failed. Returns the dead
        workers, each with its counter."""
        if beat is None or not beat.accepted:
            self._start_over(None)
            return []
        if self._last_look is None or at - self._last_look > self._look_s:
            self._start_over(at)
        if beat.step:
            self.since = at
        self._last_look, self._server_ms, self.steps = at, beat.now, beat.steps
        self._silent = {worker: self._silence_of(worker, counter, at) for worker, counter in beat.late.items()}
        return [(worker, counter) for worker, (counter, since) in self._silent.items() if at - since >= self._ttl_s]

    def settled(self, at: float) -> bool:
        """True if the watch has been unbroken for long enough to trust deadlines."""
        return self.since is not None and at - self.since >= self._ttl_s

    def server_ms(self, at: float) -> Millis:
        """The server's time at `at`, if nobody has set its clock since our last look."""
        return self._server_ms + int((at - (self._last_look or at)) * 1000)

    def _silence_of(self, worker: str, counter: bytes, at: float) -> tuple[bytes, float]:
        before = self._silent.get(worker)
        if before is not None and before[0] == counter:
            return before
        assert self.since is not None
        return counter, max(at - self._late_s, self.since)

    def _start_over(self, at: float | None) -> None:
        self._silent.clear()
        self._last_look = self.since = at
