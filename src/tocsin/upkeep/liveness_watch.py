"""The watch over the other workers: which are dead, and whether deadlines may be believed.

A worker is dead when an observer has watched its counter stand still for `ttl` on the observer's own monotonic clock,
with every look on time. A late or failed look starts over: after an outage, or after this process itself was stopped,
nobody is declared dead for what nobody saw. A beat shows only the workers that are late by the server's clock, so a
fleet of any size costs little. That they were silent before we saw them late counts if our watch was unbroken and the
server's clock was not set in that time.
"""

from __future__ import annotations

from tocsin.model.durations import Millis
from tocsin.store.transitions.fleet import HeartbeatReply


class LivenessWatch:
    """What one observer has seen of the others. Pure: looks go in, the dead come out."""

    def __init__(self, ttl_s: float, look_s: float, late_s: float) -> None:
        """`look_s`: looks further apart break the watch; `late_s`: after so long without a beat a worker is late."""
        self._ttl_s = ttl_s
        self._look_s = look_s
        self._late_s = late_s
        # Of workers that are late: the counter, and since when it has stood still.
        self._silent: dict[str, tuple[bytes, float]] = {}
        self._last: float | None = None
        self._now: Millis = 0
        # Since when we have looked without a gap, and the server's clock was not set.
        self.since: float | None = None
        self.steps = b""

    def look(self, beat: HeartbeatReply | None, at: float) -> list[tuple[str, bytes]]:
        """A look at `at` on our monotonic clock; None: it failed. The dead workers, each with its counter."""
        if beat is None or not beat.accepted:
            self._start_over(None)
            return []
        if self._last is None or at - self._last > self._look_s:
            self._start_over(at)
        if beat.step:
            self.since = at
        self._last, self._now, self.steps = at, beat.now, beat.steps
        self._silent = {worker: self._still(worker, counter, at) for worker, counter in beat.late.items()}
        return [(worker, counter) for worker, (counter, since) in self._silent.items() if at - since >= self._ttl_s]

    def settled(self, at: float) -> bool:
        """Looked without a gap for long enough to believe deadlines."""
        return self.since is not None and at - self.since >= self._ttl_s

    def server_ms(self, at: float) -> Millis:
        """The server's time by our last look: if its clock was set since then, it is another."""
        return self._now + int((at - (self._last or at)) * 1000)

    def _still(self, worker: str, counter: bytes, at: float) -> tuple[bytes, float]:
        before = self._silent.get(worker)
        if before is not None and before[0] == counter:
            return before
        assert self.since is not None
        return counter, max(at - self._late_s, self.since)

    def _start_over(self, at: float | None) -> None:
        self._silent.clear()
        self._last = self.since = at
