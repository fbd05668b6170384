"""The fetcher: claims runs that are due, as the planner says, and sleeps until there is more."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from msgspec import Struct

from tocsin.engine.agenda import Agenda
from tocsin.engine.claim_planner import MANY, ClaimPlanner, PlannedClaim
from tocsin.engine.extra_runs import ExtraRunSearch
from tocsin.engine.incarnation import Incarnation
from tocsin.engine.intake import ClaimIntake
from tocsin.engine.partition_faults import PartitionFaults
from tocsin.engine.requested_runs import RequestedRuns
from tocsin.engine.runner_pool import RunnerPool
from tocsin.engine.served_queue import ServedQueue
from tocsin.engine.signals import Signals
from tocsin.engine.suspect_turns import SuspectTurns
from tocsin.engine.unrun_claims import UnrunClaims
from tocsin.engine.work_item import WorkItem
from tocsin.model.errors import (
    InvalidConfig,
    NodeUnavailable,
    QueueRepartitioning,
    StoreChanged,
    StoreError,
    StoreUnavailable,
)
from tocsin.resilience.breaker import Breaker, Permit
from tocsin.store.connection.cluster import ClusterClient
from tocsin.store.connection.nodes import by_node, each_by_itself
from tocsin.store.store import Store
from tocsin.store.transitions.claims import ClaimReply, ClaimRequest, Runs
from tocsin.store.transitions.fleet import BellRinger
from tocsin.telemetry.logs import get_logger
from tocsin.telemetry.metrics import Counters

log = get_logger("tocsin.fetch")

# The shortest rest while the breaker is open.
SHORTEST_REST_S = 0.05
# How often a queue that is being repartitioned is asked whether that is over.
STILL_MS = 250.0
# How often a partition whose node is away is asked again: the client knows, and fails the call at once.
AWAY_MS = 250.0
# How long a pass rests after its node was away or its lease was over.
PAUSE_S = 0.1
# The fallback for lost bells asks this many queues in each interval, in turn.
MOST_POLLED = 25
# Work that is due here while no permit is free is rung for again this often, so that a worker with a permit hears it.
HAND_ON_S = 1.0
# Queues that lose their data within this long of each other lost it together.
LOSS_S = 10.0


class AnsweredClaim(Struct, frozen=True):
    """What an observer of claims gets: what was asked, and what came."""

    queue: str
    partition: int
    # When this worker expected work there, in ms of the server's clock: 0 now, infinity unknown.
    expected: float
    reply: ClaimReply | StoreError


# Gets each call's claims, and how many seconds it took.
OnClaims = Callable[[list[AnsweredClaim], float], None]


class Fetcher:
    """One pass: plan claims for the partitions that are due, make them, hand the runs to the pool."""

    name = "fetch"

    def __init__(
        self,
        *,
        store: Store,
        incarnation: Incarnation,
        served: list[ServedQueue],
        agenda: Agenda,
        planner: ClaimPlanner,
        intake: ClaimIntake,
        unrun: UnrunClaims,
        extra_runs: ExtraRunSearch,
        pool: RunnerPool,
        breaker: Breaker,
        ringer: BellRinger,
        signals: Signals,
        tally: Counters,
        poll_s: float,
        on_claims: OnClaims | None = None,
    ) -> None:
        self.wake = asyncio.Event()
        self.served = served
        self.agenda = agenda
        self.breaker = breaker
        self.claimed = 0
        self._store = store
        self._clock = store.clock
        self._incarnation = incarnation
        self._planner = planner
        self._intake = intake
        self._unrun = unrun
        self._extra_runs = extra_runs
        self._pool = pool
        self._ringer = ringer
        self._signals = signals
        self._tally = tally
        self._poll_s = poll_s
        self._on_claims = on_claims
        # Queues whose runs are claimed by id.
        self._by_id = [queue for queue in served if queue.timetable is not None]
        self._next_poll = 0.0
        self._turn = 0
        # When each partition was last rung for because no permit was free.
        self._handed_on: dict[tuple[str, int], float] = {}
        # Runs that passes are asking for, and runs that are claimed and not handed out yet.
        self._asked = RequestedRuns(self._clock, several_nodes=isinstance(store.client, ClusterClient))
        self._coming = 0
        self._suspects = SuspectTurns(self._clock)
        # When lost data is logged again.
        self._next_loss = -math.inf
        self.faults = PartitionFaults(self._clock)

    async def step(self) -> float:
        await self._unrun.release_former()
        await self._unrun.release_unseen()
        self._poll_in_turn()
        now = self._clock.server_ms()
        for served in self._by_id:
            await self._extra_runs.look(served, now)
        self.agenda.ripen(now)
        ripe = list(self.agenda.ripe)
        if not ripe:
            return self._rest(now)
        for served in ripe:
            served.follow()
        requests = self._planner.plan(ripe, self._asked.count() + self._coming)
        self._hand_on(set(ripe) - {served for served, _ in requests})
        if not requests:
            return self._rest(math.inf)
        if self.faults.by_place and not (requests := self._without_faulty(requests, now)):
            return self._rest(now)
        permit = self.breaker.allow()
        if permit is None:
            _put_back(requests)
            return max(self.breaker.status().probe_in, SHORTEST_REST_S)
        suspects = self._suspects
        if self._pool.suspects or not suspects.allow_one(requests):
            return await self._ask(requests, permit)
        # Until the suspect is in the pool: other passes ask meanwhile, and must not be given a second one.
        suspects.taken = True
        try:
            return await self._ask(requests, permit)
        finally:
            suspects.taken = False

    def frees_soon(self) -> bool:
        """Whether there is a permit, or will be one in a moment: then this worker should hear a bell."""
        return self._pool.free() >= 1 or self._planner.frees_soon() >= 1

    def _without_faulty(self, requests: list[PlannedClaim], now: float) -> list[PlannedClaim]:
        """Partitions that fail by themselves are asked when they have rested."""
        left = []
        for served, request in requests:
            rest = self.faults.rests_for((served.name, request.partition))
            if rest > 0:
                _put_back([(served, request)])
                served.postpone(request.partition, now + rest * 1000)
            else:
                left.append((served, request))
        return left

    def _poll_in_turn(self) -> None:
        """The fallback for a lost bell: in each interval, one partition of some queues."""
        at = self._clock.monotonic()
        if at < self._next_poll:
            return
        self._next_poll = at + self._poll_s
        for served in self.served:
            served.forget_old_handlers()
        for _ in range(min(MOST_POLLED, len(self.served))):
            self._turn = (self._turn + 1) % len(self.served)
            self.served[self._turn].look_in_turn()

    def _rest(self, now: float) -> float:
        """Seconds until something is due or the next poll is."""
        poll = self._next_poll - self._clock.monotonic()
        if now == math.inf:
            return max(poll, 0.001)
        return max(min((self.agenda.soonest() - now) / 1000, poll), 0.0005)

    def _hand_on(self, queues: set[ServedQueue]) -> None:
        """No permit is free for what is due there: wake an idle worker, now and then."""
        now = self._clock.monotonic()
        for served in queues:
            for partition in served.ripe:
                key = served.name, partition
                if now - self._handed_on.get(key, -math.inf) >= HAND_ON_S:
                    self._handed_on[key] = now
                    self._ringer.ring(served.queue, partition)

    # Claims

    async def _ask(self, requests: list[PlannedClaim], permit: Permit) -> float:
        for served, request in requests:
            served.note_asked(request.partition, request.limit)
        if self.agenda.ripe:
            # Only after permits were found: passes that wake each other for want of permits would never rest.
            self.wake.set()
        nodes = by_node(self._store, requests, lambda each: (each[1].queue, each[1].partition))
        groups = [(some, self._asked.begin(sum(request.limit for _, request in some))) for some in nodes]
        unanswered = len(groups)

        async def ask(group: tuple[list[PlannedClaim], int]) -> float:
            nonlocal unanswered
            try:
                return await self._ask_node(*group, permit)
            finally:
                unanswered -= 1
                if unanswered:
                    # This pass waits for another node: other passes use what this one answered.
                    self.wake.set()

        return await each_by_itself(groups, ask)

    async def _ask_node(self, requests: list[PlannedClaim], asked: int, permit: Permit) -> float:
        asked_at, runs = self._clock.monotonic(), self._incarnation.runs
        runs.unread = self._intake.unread.digests()
        try:
            replies = await runs.claim([request for _, request in requests], self._incarnation.lease.until)
        except BaseException:
            for served, request in requests:
                served.answered(request.partition)
            raise
        finally:
            self._asked.end(asked)
        if self._on_claims is not None:
            self._on_claims(_observed(requests, replies), self._clock.monotonic() - asked_at)
        places = [(served.name, request.partition) for served, request in requests]
        self.faults.report(self.breaker, permit, places, replies)
        return await self._take(requests, replies, runs)

    # Replies

    async def _take(self, requests: list[PlannedClaim], replies: list[ClaimReply | StoreError], runs: Runs) -> float:
        trouble: StoreError | None = None
        rest = 0.0
        changed: dict[ServedQueue, StoreChanged] = {}
        came: list[tuple[ServedQueue, ClaimReply]] = []
        for (served, request), reply in zip(requests, replies, strict=True):
            if isinstance(reply, StoreError) or reply.lease_over:
                _put_back([(served, request)])
                if not isinstance(reply, NodeUnavailable):
                    served.answered(request.partition)
            if isinstance(reply, StoreChanged):
                # Unless another pass or another part has opened it again meanwhile.
                if request.layout == served.queue.layout:
                    changed[served] = reply
            elif isinstance(reply, NodeUnavailable):
                served.put_off(request.partition, self._clock.server_ms() + AWAY_MS)
                rest = PAUSE_S
            elif isinstance(reply, StoreError):
                if not self.faults.rests_for((served.name, request.partition)):
                    trouble = reply if trouble is None or isinstance(reply, StoreUnavailable) else trouble
            elif reply.lease_over:
                rest = PAUSE_S
            else:
                self._note_reply(served, request, reply)
                came.append((served, reply))
        await self._hand_out(came, runs)
        await self._unrun.release_former()
        for served, error in changed.items():
            await self._open_again(served, error)
        if trouble is not None:
            if isinstance(trouble, StoreUnavailable):
                await self._store.revive_server()
            raise trouble
        return rest

    def _note_reply(self, served: ServedQueue, request: ClaimRequest, reply: ClaimReply) -> None:
        if request.layout != served.layout:
            served.answered(request.partition)
            return
        partition = request.partition
        next_due = reply.next_due if reply.next_due >= 0 else math.inf
        if served.timetable is not None:
            claimed = {claim.member for claim in reply.claims}
            served.timetable.learn(reply.members, reply.dues, claimed, reply.now, request.limit)
            if reply.members and reply.members != request.members:
                served.timetable.put_back(request.members)
            next_due = served.timetable.soonest()
        served.note_reply(partition, next_due, reply.now, len(reply.claims))
        served.left[partition] = reply.left
        if reply.parked:
            self._signals.parked(served.queue, partition)

    async def _hand_out(self, came: list[tuple[ServedQueue, ClaimReply]], runs: Runs) -> None:
        """Give runs to the pool. If that takes a while, another pass gives the server work first. Runs that were
        claimed under a name which this worker has given up meanwhile do not start: their outcomes would be refused."""
        count = sum(len(reply.claims) for _, reply in came)
        self._coming += count
        for served, reply in came:
            served.coming += len(reply.claims)
        try:
            if count >= MANY:
                self.wake.set()
                await asyncio.sleep(0)
            for _, reply in came:
                await self._intake.read_rules(reply)
        finally:
            # Whatever ends this pass, every claimed run is started or released.
            self._coming -= count
            units: list[WorkItem] = []
            batches: dict[str, WorkItem] = {}
            for served, reply in came:
                served.coming -= len(reply.claims)
                if runs is self._incarnation.runs:
                    self._intake.admit(served, reply, units, batches)
                elif reply.claims:
                    self._unrun.add_former(served, runs.owner, reply.claims)
            self.claimed += len(units)
            self._tally.acquired += len(units)
            if units:
                self._pool.submit(units)

    # Queues that changed

    async def _open_again(self, served: ServedQueue, error: StoreChanged) -> None:
        before = served.queue.layout
        try:
            await self._store.reopen(served.queue)
        except QueueRepartitioning as repartitioning:
            if served.wait_until(self._clock.server_ms() + STILL_MS):
                to = repartitioning.partitions
                log.info("waiting for a queue that is being repartitioned", queue=served.name, to=to)
            return
        except StoreUnavailable:
            raise
        except (StoreError, InvalidConfig) as broken:
            for partition in range(served.queue.partitions):
                self.faults.add((served.name, partition), broken)
            return
        if served.queue.layout == before:
            self._log_loss(served, error)
        elif served.layout == before:
            log.info("queue has other partitions", queue=served.name, partitions=served.queue.partitions)
        served.follow()
        self._incarnation.runs.forget_doubts(served.queue)
        self._signals.queue_changed(served)

    def _log_loss(self, served: ServedQueue, error: StoreChanged) -> None:
        """Once for all queues and passes that find it out at about the same time."""
        now = self._clock.monotonic()
        if now >= self._next_loss:
            log.error(
                "the server lost its data, or has other data than before: opening the queues again",
                queue=served.name,
                error=str(error),
            )
        self._next_loss = now + LOSS_S


def _put_back(requests: list[PlannedClaim]) -> None:
    for served, request in requests:
        if served.timetable is not None:
            served.timetable.put_back(request.members)


def _observed(requests: list[PlannedClaim], replies: list[ClaimReply | StoreError]) -> list[AnsweredClaim]:
    answered = []
    for (served, request), reply in zip(requests, replies, strict=True):
        known = request.partition < len(served.next_due)
        expected = served.next_due[request.partition] if known else 0.0
        answered.append(AnsweredClaim(served.name, request.partition, expected, reply))
    return answered
