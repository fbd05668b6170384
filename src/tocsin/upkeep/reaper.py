"""The reaper: brings back the runs of workers that died, and those that are past their deadline.

A worker is dead when an observer saw its counter unchanged for `ttl` on the observer's own monotonic clock, with
every look on time. A late or failed look starts over: after an outage, or after this process itself was stopped,
nobody is declared dead for what nobody saw. The same unbroken watch is needed before deadlines are believed; and a
server clock that jumped ahead adds its jump to what a deadline must be past.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from tocsin.model.clock import Clock
from tocsin.model.durations import Millis
from tocsin.model.errors import QueueMoving, RecordUnreadable, StoreChanged
from tocsin.store.fleet import Beat, Fleet
from tocsin.store.queues import open_registered
from tocsin.store.runs import Runs
from tocsin.store.store import OpenQueue, Store
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.reaper")

# Past its deadline by this much a claim is recovered although its worker lives.
OVERDUE_S = 30.0
# How often the deadlines of one partition each are looked at, of so many queues, in turn.
EVERY_S = 1.0
MOST_QUEUES = 10
# Every so many rounds over the partitions, sessions of programs that died are forgotten.
PRUNE_EVERY = 200
# Server and monotonic clock may drift apart by this much between two looks; more is a step.
STEP_MS = 1000.0


class Watch:
    """What one observer has seen of the others. Pure: looks go in, the dead come out."""

    def __init__(self, ttl_s: float, late_s: float) -> None:
        self._ttl_s = ttl_s
        self._late_s = late_s
        self._seen: dict[str, tuple[int, float]] = {}
        self._last: float | None = None
        self._last_server: float | None = None
        self.since: float | None = None
        self.jump_ms = 0.0

    def look(self, beat: Beat | None, at: float) -> list[tuple[str, int]]:
        """A look at `at` on our monotonic clock; None: it failed. Who is dead, with the counter that stood still."""
        on_time = self._last is not None and at - self._last <= self._late_s
        if beat is None or not beat.accepted:
            self._start_over(None)
            return []
        if not on_time:
            self._start_over(at)
        self._notice_steps(beat, at)
        self._last, self._last_server = at, beat.now
        for worker, counter in beat.counters.items():
            if self._seen.get(worker, (None, 0.0))[0] != counter:
                self._seen[worker] = (counter, at)
        self._seen = {worker: seen for worker, seen in self._seen.items() if worker in beat.counters}
        return [(worker, counter) for worker, (counter, since) in self._seen.items() if at - since >= self._ttl_s]

    def settled(self, at: float) -> bool:
        """Looked without a gap for long enough to believe deadlines."""
        return self.since is not None and at - self.since >= self._ttl_s

    def _start_over(self, at: float | None) -> None:
        self._seen.clear()
        self._last = self.since = at
        self._last_server = None

    def _notice_steps(self, beat: Beat, at: float) -> None:
        if self._last is None or self._last_server is None:
            return
        step = (beat.now - self._last_server) - (at - self._last) * 1000
        if abs(step) > STEP_MS:
            self.jump_ms = max(self.jump_ms, self.jump_ms + step)
            self.since = at


class Reaper:
    """One pass: bury who is dead, walk the claims of the buried, look at some deadlines."""

    name = "reaper"

    def __init__(
        self,
        store: Store,
        fleet: Fleet,
        runs: Callable[[], Runs],
        queues: list[OpenQueue],
        clock: Clock,
        look_again: Callable[[OpenQueue, int], None],
        ttl_s: float,
        beat_s: float,
    ) -> None:
        self.wake = asyncio.Event()
        self.recovered = 0
        self._store = store
        self._fleet = fleet
        self._runs = runs
        self._queues = queues
        self._clock = clock
        self._look_again = look_again
        self._watch = Watch(ttl_s, late_s=2 * beat_s)
        self._dead: dict[str, int] = {}
        # With the queues that their claims were brought back from.
        self._buried: dict[str, set[str]] = {}
        self._turn = 0

    def saw(self, beat: Beat | None, at: float) -> None:
        """Each beat of our heart is also a look at the others."""
        dead = self._watch.look(beat, at)
        self._dead = dict(dead)
        if beat is not None:
            for worker in beat.buried:
                self._buried.setdefault(worker, set())
        if self._dead or self._buried:
            self.wake.set()

    def slack(self) -> Millis | None:
        """What deadlines must be past because the server's clock jumped; None while they are not to be believed."""
        return int(self._watch.jump_ms) if self._watch.settled(self._clock.monotonic()) else None

    async def step(self) -> float:
        for worker, counter in list(self._dead.items()):
            self._dead.pop(worker, None)
            if await self._fleet.bury(worker, counter):
                log.warning("worker is dead, bringing back its runs", worker=worker)
                self._buried.setdefault(worker, set())
        for worker, walked in list(self._buried.items()):
            if await self._bring_back(worker, walked):
                await self._fleet.leave(worker)
                self._buried.pop(worker, None)
        if self._watch.settled(self._clock.monotonic()):
            await self._look_at_deadlines()
        return EVERY_S

    async def _bring_back(self, worker: str, walked: set[str]) -> bool:
        """Walk all claims of all queues for those of `worker`. Repeating it does no harm, so any worker may.
        False if some are being repartitioned: what it held there is brought back when that is over."""
        brought = 0
        queues, moving = await open_registered(self._store)
        for queue in queues:
            if queue.name in walked:
                continue
            try:
                brought += await self._bring_back_from(queue, worker)
                walked.add(queue.name)
            except QueueMoving:
                moving.append(queue.name)
            except RecordUnreadable as error:
                # Its entry was damaged a moment ago; the next pass leaves it out.
                moving.append(queue.name)
                log.warning("cannot look for runs to bring back", queue=queue.name, error=str(error))
        if brought:
            log.warning("runs brought back", worker=worker, runs=brought)
        return not moving

    async def _bring_back_from(self, queue: OpenQueue, worker: str) -> int:
        brought, partition, layout = 0, 0, queue.layout
        while partition < queue.partitions:
            brought += await self._recover(queue, partition, worker)
            # Also where it held nothing: it may have heard a bell and done nothing about it.
            self._look_again(queue, partition)
            partition += 1
            if queue.layout != layout:
                # Its jobs are in other partitions by now.
                partition, layout = 0, queue.layout
        return brought

    async def _look_at_deadlines(self) -> None:
        """Of one partition each, of some queues in each pass: however many they serve, idle workers cost little."""
        for _ in range(min(MOST_QUEUES, len(self._queues))):
            self._turn += 1
            queue, turn = self._queues[self._turn % len(self._queues)], self._turn // len(self._queues)
            partition = turn % queue.partitions
            with contextlib.suppress(QueueMoving, RecordUnreadable):
                await self._recover(queue, partition, "")
            if turn // queue.partitions % PRUNE_EVERY == PRUNE_EVERY - 1:
                await self._store.prune_sessions(queue, partition)

    async def _recover(self, queue: OpenQueue, partition: int, worker: str) -> int:
        overdue = int(OVERDUE_S * 1000 + self._watch.jump_ms)
        try:
            brought = await self._runs().recover(queue, partition, worker, overdue)
        except StoreChanged:
            await self._store.reopen(queue)
            return 0
        if brought:
            self.recovered += brought
            self._look_again(queue, partition)
        return brought
