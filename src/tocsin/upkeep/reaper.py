"""Brings back the runs of dead workers, and runs that are past their deadline.

`liveness_watch.py` says which workers are dead. The worker that declares another one dead brings back its runs; if it
dies on the way, another worker takes over.

Deadlines are on the server's clock. Somebody may set that clock, and a failover may replace it. So deadlines are
trusted only after an unbroken watch, and only where the server's time matches our last heartbeat. Claims from before a
step of the clock get the length of the step as extra time.

The orphan cleanup handles agents that are past their deadline, because only its threshold says for how long an agent
may go on past it. Agents of a dead worker are brought back here, like all other runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct

from tocsin.engine.incarnation import Incarnation
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
from tocsin.store.transitions.claims import ANY_DEADLINE, Deadlines
from tocsin.store.transitions.fleet import LATE_BEATS, Fleet, HeartbeatReply
from tocsin.telemetry import agent_log
from tocsin.telemetry.logs import get_logger
from tocsin.upkeep.liveness_watch import LivenessWatch

log = get_logger("tocsin.reaper")

# A run that is this far past its deadline is brought back although its worker lives.
OVERDUE_S = 30.0
# One pass checks the deadlines of one partition each, of so many queues.
EVERY_S = 1.0
MOST_QUEUES = 10
# Once in so many rounds over the partitions, sessions of dead programs are removed.
PRUNE_EVERY = 200
# All workers together check deadlines so many times a second, but each worker at least once in so many seconds.
CHECKS_PER_S, LONGEST_S = 10, 10.0
# Another worker takes over if the one that recovers a dead worker's runs is silent for this long.
RECOVERY_TERM_MS: Millis = 10_000


class WorkerRecovery(Struct):
    """A dead worker whose runs we bring back."""

    # Until when this is our task, by the server's clock; and when the server last confirmed that, by ours.
    held: Millis
    since: float
    # The queues that are done.
    walked: set[str]


class Reaper:
    """Each pass declares dead workers dead, brings back their runs, and checks some deadlines."""

    name = "reaper"

    def __init__(
        self,
        *,
        store: Store,
        fleet: Fleet,
        incarnation: Incarnation,
        queues: list[OpenQueue],
        look_again: Callable[[OpenQueue, int], None],
        ttl_s: float,
        beat_s: float,
        overdue_s: float = OVERDUE_S,
    ) -> None:
        self.wake = asyncio.Event()
        # How many runs were brought back so far, and how many of them from dead workers.
        self.recovered = 0
        self.from_dead = 0
        self._store = store
        self._fleet = fleet
        self._incarnation = incarnation
        self._queues = queues
        self._clock = store.clock
        self._look_again = look_again
        self._watch = LivenessWatch(ttl_s, look_s=2 * beat_s, late_s=LATE_BEATS * beat_s)
        self._overdue_ms = int(overdue_s * 1000)
        self._workers = 1
        self._dead: dict[str, bytes] = {}
        # Dead workers whose runs nobody brings back, and those whose runs we bring back.
        self._abandoned: set[str] = set()
        self._recoveries: dict[str, WorkerRecovery] = {}
        self._turn = 0
        # The queues on servers whose time differs from that of the server with the heartbeats.
        self._disagreeing: set[str] = set()

    def on_heartbeat(self, beat: HeartbeatReply | None, at: float) -> None:
        """Take the reply to our heartbeat, which shows the other workers too. None if the heartbeat failed."""
        self._dead = dict(self._watch.look(beat, at))
        if beat is not None and beat.accepted:
            self._workers = beat.workers
            self._abandoned.update(beat.buried)
        if self._dead or self._abandoned or self._recoveries:
            self.wake.set()

    def deadlines(self, overdue: Millis) -> Deadlines | None:
        """What a script needs to find runs that are overdue by so many ms; None while deadlines cannot be trusted."""
        at = self._clock.monotonic()
        if not self._watch.settled(at):
            return None
        return Deadlines(overdue, self._watch.server_ms(at), self._watch.steps)

    async def step(self) -> float:
        for worker, counter in list(self._dead.items()):
            self._dead.pop(worker, None)
            if held := await self._fleet.declare_dead(worker, counter, RECOVERY_TERM_MS):
                log.warning("worker is dead, bringing back its runs", worker=worker)
                self._recoveries[worker] = WorkerRecovery(held, self._clock.monotonic(), set())
        for worker in list(self._abandoned):
            self._abandoned.discard(worker)
            await self._take_over(worker)
        for worker, recovery in list(self._recoveries.items()):
            if await self._bring_back(worker, recovery):
                await self._fleet.leave(worker)
                self._recoveries.pop(worker, None)
        await self._check_deadlines()
        return EVERY_S if self._recoveries else min(max(EVERY_S, self._workers / CHECKS_PER_S), LONGEST_S)

    async def _take_over(self, worker: str) -> None:
        if worker not in self._recoveries and (held := await self._fleet.take_burial(worker, 0, RECOVERY_TERM_MS)):
            self._recoveries[worker] = WorkerRecovery(held, self._clock.monotonic(), set())

    async def _still_ours(self, worker: str, recovery: WorkerRecovery) -> bool:
        at = self._clock.monotonic()
        if (at - recovery.since) * 1000 < RECOVERY_TERM_MS / 4:
            return True
        recovery.held = await self._fleet.take_burial(worker, recovery.held, RECOVERY_TERM_MS)
        recovery.since = at
        if not recovery.held:
            self._recoveries.pop(worker, None)
        return bool(recovery.held)

    async def _bring_back(self, worker: str, recovery: WorkerRecovery) -> bool:
        """Bring back all runs of `worker`, from all queues. Repeating this does no harm.
        False if another worker has taken over, or if a queue is being repartitioned or on a node that is away; a later
        pass brings back the runs from there."""
        brought = 0
        queues, unready = await self._store.queues.open_registered()
        for queue in queues:
            if queue.name in recovery.walked:
                continue
            if not await self._still_ours(worker, recovery):
                return False
            try:
                brought += await self._bring_back_from(queue, worker)
                recovery.walked.add(queue.name)
            except (QueueRepartitioning, NodeUnavailable):
                unready.append(queue.name)
            except StoreUnavailable:
                raise
            except (StoreError, InvalidConfig) as error:
                # A garbled queue must not keep the others waiting. Its runs come back after their deadline.
                recovery.walked.add(queue.name)
                log.warning("cannot look for runs to bring back", queue=queue.name, error=str(error))
        if brought:
            log.warning("runs brought back", worker=worker, runs=brought)
        return not unready

    async def _bring_back_from(self, queue: OpenQueue, worker: str) -> int:
        brought, partition, layout = 0, 0, queue.layout
        while partition < queue.partitions:
            brought += await self._recover(queue, partition, worker)
            # Even if the worker had no runs here, it may have taken a bell and died before it claimed anything.
            self._look_again(queue, partition)
            partition += 1
            if queue.layout != layout:
                # The queue was repartitioned: its jobs are in other partitions now.
                partition, layout = 0, queue.layout
        return brought

    async def _check_deadlines(self) -> None:
        """Check one partition of each of the next few queues. So idle workers cost little, however many queues they
        serve."""
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
            # On a single server our next heartbeat brings the new time. On a cluster the clocks of the nodes differ.
            if queue.name not in self._disagreeing:
                log.warning("deadlines are not trusted", queue=queue.name, partition=partition, error=str(error))
            self._disagreeing.add(queue.name)
        except (StoreError, InvalidConfig) as error:
            # The queue is being repartitioned or is garbled. The fetcher logs that; here it must not stop the others.
            log.debug("cannot check deadlines", queue=queue.name, partition=partition, error=str(error))

    async def _recover(self, queue: OpenQueue, partition: int, worker: str, deadlines: Deadlines = ANY_DEADLINE) -> int:
        try:
            brought = await self._incarnation.runs.recover(queue, partition, worker, deadlines)
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
