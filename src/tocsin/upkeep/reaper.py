"""The reaper: brings back the runs of workers that died, and those that are past their deadline.

`liveness_watch.py` says which workers are dead. The worker that declares another one dead brings back its runs; if it
dies on the way, another takes over.

Deadlines are on the server's clock, which may be set, or be another one after a failover. So they are believed only
after an unbroken watch, only where the server's time is what our last beat showed, and claims from before a step have
so much more time.

Deadlines of agents are left to the orphan cleanup: an agent may go on past its deadline, and how long only the orphan
threshold says. Those of a dead worker are brought back like all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct

from tocsin.model.clock import Clock
from tocsin.model.durations import Millis
from tocsin.model.errors import (
    ClockDisagrees,
    InvalidConfig,
    NodeUnavailable,
    QueueRepartitioning,
    StoreChanged,
    StoreError,
    StoreUnavailable,
)
from tocsin.model.queue import AGENTS_QUEUE
from tocsin.store.sessions import prune_sessions
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.claims import ANY_DEADLINE, Deadlines, Runs
from tocsin.store.transitions.fleet import LATE_BEATS, Fleet, HeartbeatReply
from tocsin.telemetry import agent_log
from tocsin.telemetry.logs import get_logger
from tocsin.upkeep.liveness_watch import LivenessWatch

log = get_logger("tocsin.reaper")

# Past its deadline by this much a run of a job is recovered although its worker lives.
OVERDUE_S = 30.0
# How often the deadlines of one partition each are looked at, of so many queues, in turn.
EVERY_S = 1.0
MOST_QUEUES = 10
# Every so many rounds over the partitions, sessions of programs that died are forgotten.
PRUNE_EVERY = 200
# The fleet looks at deadlines so many times a second, but each worker at least once in so many seconds.
LOOKS_PER_S, LONGEST_S = 10, 10.0
# How long one worker may be silent while it brings back the runs of a dead one, before another takes over.
BURIAL_MS: Millis = 10_000


class Burial(Struct):
    """A dead worker whose runs we bring back."""

    # Until when that is ours to do, on the server's clock, and when we were given it, on ours.
    held: Millis
    since: float
    # The queues that are done.
    walked: set[str]


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
        overdue_s: float = OVERDUE_S,
    ) -> None:
        self.wake = asyncio.Event()
        # Runs brought back so far; those of dead workers among them.
        self.recovered = 0
        self.from_dead = 0
        self._store = store
        self._fleet = fleet
        self._runs = runs
        self._queues = queues
        self._clock = clock
        self._look_again = look_again
        self._watch = LivenessWatch(ttl_s, look_s=2 * beat_s, late_s=LATE_BEATS * beat_s)
        self._overdue_ms = int(overdue_s * 1000)
        self._workers = 1
        self._dead: dict[str, bytes] = {}
        # Dead workers whose runs nobody brings back, and those whose runs we do.
        self._left: set[str] = set()
        self._burials: dict[str, Burial] = {}
        self._turn = 0
        # The queues on servers with another time than the fleet's.
        self._disagreeing: set[str] = set()

    def saw(self, beat: HeartbeatReply | None, at: float) -> None:
        """Each beat of our heart is also a look at the others."""
        self._dead = dict(self._watch.look(beat, at))
        if beat is not None and beat.accepted:
            self._workers = beat.workers
            self._left.update(beat.buried)
        if self._dead or self._left or self._burials:
            self.wake.set()

    def deadlines(self, overdue: Millis) -> Deadlines | None:
        """Those that passed so many ms ago; None while none is to be believed."""
        at = self._clock.monotonic()
        if not self._watch.settled(at):
            return None
        return Deadlines(overdue, self._watch.server_ms(at), self._watch.steps)

    async def step(self) -> float:
        for worker, counter in list(self._dead.items()):
            self._dead.pop(worker, None)
            if held := await self._fleet.declare_dead(worker, counter, BURIAL_MS):
                log.warning("worker is dead, bringing back its runs", worker=worker)
                self._burials[worker] = Burial(held, self._clock.monotonic(), set())
        for worker in list(self._left):
            self._left.discard(worker)
            await self._take_over(worker)
        for worker, burial in list(self._burials.items()):
            if await self._bring_back(worker, burial):
                await self._fleet.leave(worker)
                self._burials.pop(worker, None)
        await self._look_at_deadlines()
        return EVERY_S if self._burials else min(max(EVERY_S, self._workers / LOOKS_PER_S), LONGEST_S)

    async def _take_over(self, worker: str) -> None:
        if worker not in self._burials and (held := await self._fleet.take_burial(worker, 0, BURIAL_MS)):
            self._burials[worker] = Burial(held, self._clock.monotonic(), set())

    async def _still_ours(self, worker: str, burial: Burial) -> bool:
        at = self._clock.monotonic()
        if (at - burial.since) * 1000 < BURIAL_MS / 4:
            return True
        burial.held = await self._fleet.take_burial(worker, burial.held, BURIAL_MS)
        burial.since = at
        if not burial.held:
            self._burials.pop(worker, None)
        return bool(burial.held)

    async def _bring_back(self, worker: str, burial: Burial) -> bool:
        """Walk all runs at work in all queues for those of `worker`. Repeating it does no harm.
        False if some queues are being repartitioned, or on a node that is away: what it held there is brought back when
        that is over; or if another worker has taken over."""
        brought = 0
        queues, moving = await self._store.queues.open_registered()
        for queue in queues:
            if queue.name in burial.walked:
                continue
            if not await self._still_ours(worker, burial):
                return False
            try:
                brought += await self._bring_back_from(queue, worker)
                burial.walked.add(queue.name)
            except (QueueRepartitioning, NodeUnavailable):
                moving.append(queue.name)
            except StoreUnavailable:
                raise
            except (StoreError, InvalidConfig) as error:
                # One that is garbled must not keep the others waiting: its runs come back by their deadline.
                burial.walked.add(queue.name)
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
        if self.deadlines(0) is None:
            return
        for _ in range(min(MOST_QUEUES, len(self._queues))):
            self._turn += 1
            queue, turn = self._queues[self._turn % len(self._queues)], self._turn // len(self._queues)
            partition = turn % queue.partitions
            prune = turn // queue.partitions % PRUNE_EVERY == PRUNE_EVERY - 1
            if queue.name != AGENTS_QUEUE or prune:
                await self._recover_overdue(queue, partition, prune)

    async def _recover_overdue(self, queue: OpenQueue, partition: int, prune: bool) -> None:
        deadlines = self.deadlines(self._overdue_ms)
        if deadlines is None:
            return
        try:
            if queue.name != AGENTS_QUEUE:
                await self._recover(queue, partition, "", deadlines)
            self._disagreeing.discard(queue.name)
            if prune:
                await prune_sessions(self._store, queue, partition)
        except NodeUnavailable:
            pass
        except StoreUnavailable:
            raise
        except ClockDisagrees as error:
            # On a single server our next beat shows the same time; on a cluster the nodes have different ones.
            if queue.name not in self._disagreeing:
                log.warning("deadlines are not believed", queue=queue.name, partition=partition, error=str(error))
            self._disagreeing.add(queue.name)
        except (StoreError, InvalidConfig) as error:
            # It is being repartitioned, or garbled, which the fetcher logs: the others are looked at.
            log.debug("cannot look at deadlines", queue=queue.name, partition=partition, error=str(error))

    async def _recover(self, queue: OpenQueue, partition: int, worker: str, deadlines: Deadlines = ANY_DEADLINE) -> int:
        try:
            brought = await self._runs().recover(queue, partition, worker, deadlines)
        except StoreChanged:
            await self._store.reopen(queue)
            return 0
        if brought:
            self.recovered += brought
            self.from_dead += brought if worker else 0
            if queue.name == AGENTS_QUEUE:
                agent_log.recovered(brought, worker)
            self._look_again(queue, partition)
        return brought
