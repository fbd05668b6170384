"""The heart: beats on a thread and a connection of its own, so that a busy event loop does not look dead.

A beat that is confirmed renews the lease under which this worker may claim. A beat that is refused means that the
others buried this worker, or that the server lost its data: what it held belongs to nobody or to others now, and it
must begin a new incarnation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tocsin.model.clock import Clock
from tocsin.model.errors import StoreError
from tocsin.store.fleet import About, Beat, Pulse
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.heart")

BEAT_S = 2.0
TTL_S = 8.0


class Heart:
    """`beat` is one pass; `start` and `stop` are the thread around it."""

    def __init__(
        self,
        pulse: Pulse,
        about: Callable[[], About],
        on_beat: Callable[[Beat | None, float], None],
        clock: Clock,
        beat_s: float = BEAT_S,
        ttl_s: float = TTL_S,
    ) -> None:
        # Our last beat was refused because the server forgot this worker, not because the others buried it.
        self.forgotten = False
        # Server time in ms until which this worker may claim; 0 before the first beat.
        self.lease = 0.0
        self._pulse = pulse
        self._about = about
        self._on_beat = on_beat
        self._clock = clock
        self._beat_s = beat_s
        self._ttl_s = ttl_s
        self._counter = 0
        # The server did not answer the last beat.
        self.away = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def beat(self) -> Beat | None:
        """Raise our counter and see the others'. None when the server did not answer."""
        try:
            sent = self._clock.monotonic()
            beat = self._pulse.beat(self._counter + 1, self._about(), joins=self._counter == 0)
        except StoreError as error:
            if not self.away:
                log.warning("heartbeat failed, trying again", error=str(error))
            self.away = True
            self._on_beat(None, self._clock.monotonic())
            return None
        self.away = False
        self._clock.observe(beat.now, sent, self._clock.monotonic())
        if beat.accepted:
            self._counter += 1
            # Counted from before it was sent: the others may have seen it only then.
            elapsed_ms = (self._clock.monotonic() - sent) * 1000
            self.lease = beat.now - elapsed_ms + self._ttl_s * 1000
        else:
            # Nobody may bury a worker whose lease has not ended.
            self.forgotten = beat.now < self.lease
            self.lease = 0.0
        self._on_beat(beat, self._clock.monotonic())
        return beat

    def start(self) -> None:
        thread = threading.Thread(target=self._run, name="tocsin heart", daemon=True)
        thread.start()
        # Only now: whoever stops us meanwhile, on another thread, cannot wait for one that has not begun.
        self._thread = thread

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)
        self._pulse.close()

    def _run(self) -> None:
        while not self._stop.wait(self._beat_s):
            beat = self.beat()
            if beat is not None and not beat.accepted:
                return
