"""The heartbeat: it runs on a thread and a connection of its own, so that a busy event loop does not look dead.

A confirmed beat renews the lease under which this worker may claim. A refused beat means that other workers declared
this one dead, or that the server lost its data. What this worker held then belongs to others or to nobody, and it must
begin a new incarnation.

A beat also shows whether the server's clock was set since the last beat, by a person or by a failover to another host:
the time that the server's clock moved is compared with our monotonic clock, also across an outage. A step is reported
to the fleet at once, so that workers that start later know of it too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from tocsin.engine.continuity import Continuity
from tocsin.engine.incarnation import Lease
from tocsin.model.clock import Clock
from tocsin.model.durations import Millis
from tocsin.model.errors import StoreError
from tocsin.store.transitions.fleet import LATE_BEATS, HeartbeatReply, HeartbeatSender, WorkerInfo
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.heart")

BEAT_S = 2.0
TTL_S = 8.0
# After a beat that was not answered, the next comes this soon: once the lease is over, claims wait for it.
AGAIN_S = 0.5
# The server's clock and ours may drift apart by this much between two beats; more is a step.
STEP_MS = 1000.0


class ClockReading(Struct, frozen=True):
    """The server's time, with our monotonic time before and after asking for it."""

    now: Millis
    sent: float
    received: float


def step_between(before: ClockReading, after: ClockReading) -> float:
    """How many ms the server's clock was set between two readings; 0 if the time that passed explains both."""
    shown = after.now - before.now
    least, most = (after.sent - before.received) * 1000, (after.received - before.sent) * 1000
    if least - STEP_MS <= shown <= most + STEP_MS:
        return 0.0
    return shown - (least + most) / 2


class Heartbeat:
    """`beat` is one pass; `start` and `stop` are the thread around it."""

    def __init__(
        self,
        *,
        sender: HeartbeatSender,
        lease: Lease,
        about: Callable[[], WorkerInfo],
        on_beat: Callable[[HeartbeatReply | None, float], None],
        clock: Clock,
        beat_s: float = BEAT_S,
        ttl_s: float = TTL_S,
    ) -> None:
        # The last beat was refused because the server forgot this worker, not because others declared it dead.
        self.forgotten = False
        self.lease = lease
        self._sender = sender
        self._about = about
        self._on_beat = on_beat
        self._clock = clock
        self._beat_s = beat_s
        self._ttl_s = ttl_s
        self._counter = 0
        self._reading: ClockReading | None = None
        # The sum of all clock steps that the fleet knows, and what this worker saw and has not reported yet.
        self._stepped = 0
        self._unreported = 0.0
        self._continuity = Continuity(beat_s, cluster=sender.cluster)
        # The last beat has shown that the server may have lost its last writes.
        self.lost_writes = False
        # The server did not answer the last beat.
        self.away = False
        # The last beat failed for another reason.
        self._failing = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def beat(self) -> HeartbeatReply | None:
        """Raise our counter and read the others'. None if the server did not answer."""
        beat = self._send()
        if beat is not None and beat.accepted and (step := self._unreported):
            log.warning("the server's clock was set, or another server took over", ahead_s=round(step / 1000, 1))
            beat = self._send()
            beat = beat and replace(beat, step=step)
        self._on_beat(beat, self._clock.monotonic())
        return beat

    def _send(self) -> HeartbeatReply | None:
        sent, step = self._clock.monotonic(), self._unreported
        late = int(self._beat_s * LATE_BEATS * 1000)
        try:
            beat = self._sender.beat(
                self._counter + 1, self._about(), self._counter == 0, late, int(step) if step else None, self._stepped
            )
        except StoreError as error:
            if not self.away:
                log.warning("heartbeat failed, trying again", error=str(error))
            self.away = True
            return None
        self.away = False
        reading = ClockReading(beat.now, sent, self._clock.monotonic())
        self._clock.observe(beat.now, reading.sent, reading.received)
        if beat.accepted:
            self.lost_writes = self._continuity.look(beat, self._counter)
            self._counter += 1
            self._notice_step(reading, beat.stepped, reported=bool(step))
            # The lease counts from before the beat was sent: others may have seen the counter move only then.
            self.lease.until = beat.now - (reading.received - sent) * 1000 + self._ttl_s * 1000
        else:
            # No worker is declared dead before its lease has ended.
            self.forgotten = beat.now < self.lease.until
            self.lease.until = 0.0
        return beat

    def _notice_step(self, reading: ClockReading, stepped: int, reported: bool) -> None:
        if reported:
            self._unreported, self._stepped = 0.0, stepped
        if self._reading is not None:
            self._unreported += step_between(self._reading, reading)
        self._reading = reading
        # While a step is unreported, keep the sum that the fleet had before it, to compare with.
        if not self._unreported:
            self._stepped = stepped

    def start(self) -> None:
        thread = threading.Thread(target=self._run, name="tocsin heart", daemon=True)
        thread.start()
        # Set it only now: `stop` on another thread cannot join a thread that has not begun.
        self._thread = thread

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)
        self._sender.close()

    def _run(self) -> None:
        while not self._stop.wait(min(AGAIN_S, self._beat_s) if self.away else self._beat_s):
            beat = self._try_to_beat()
            if beat is not None and not beat.accepted:
                return

    def _try_to_beat(self) -> HeartbeatReply | None:
        """The thread survives every error: without it this worker would claim nothing more."""
        try:
            beat = self.beat()
            self._failing = False
            return beat
        except Exception as error:
            if not self._failing:
                log.error("heartbeat failed, trying again", exc_info=error)
            self._failing = True
            self._on_beat(None, self._clock.monotonic())
            return None
