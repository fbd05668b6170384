"""The fetcher: claims what is due, as the planner says, and sleeps until there is more."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from msgspec.structs import replace

from tocsin.engine.agenda import Agenda
from tocsin.engine.agent_timetable import AgentTimetable
from tocsin.engine.claim_planner import MANY, Batching, ClaimPlanner
from tocsin.engine.encode_outcome import EndedRun
from tocsin.engine.finisher import Finisher
from tocsin.engine.handlers import Catalog
from tocsin.engine.intake import ClaimIntake
from tocsin.engine.partition_faults import PartitionFaults
from tocsin.engine.requested_runs import RequestedRuns
from tocsin.engine.runner_pool import RunnerPool
from tocsin.engine.served_queue import ServedQueue
from tocsin.engine.work_item import WorkItem
from tocsin.model.clock import Clock
from tocsin.model.errors import (
    InvalidConfig,
    NodeUnavailable,
    QueueRepartitioning,
    StoreChanged,
    StoreError,
    StoreUnavailable,
)
from tocsin.model.ids import EXTRA
from tocsin.model.run import Claim
from tocsin.resilience.breaker import Breaker, BreakerState, Permit
from tocsin.store.connection.cluster import ClusterClient
from tocsin.store.connection.nodes import by_node, each_by_itself
from tocsin.store.store import LARGEST_BATCH, Call, Store
from tocsin.store.suspect_scores import not_before
from tocsin.store.transitions.claims import ClaimReply, ClaimRequest, Runs
from tocsin.store.transitions.held_runs import HeldRuns
from tocsin.telemetry.logs import get_logger
from tocsin.telemetry.metrics import Counters

log = get_logger("tocsin.fetch")

# While the breaker is open.
SHORTEST_REST_S = 0.05
# While a queue is being repartitioned: how often it is asked whether that is over.
STILL_MS = 250.0
# A partition whose node is away is asked again this often: the client knows, and fails the call at once.
AWAY_MS = 250.0
# What is asked for by id is asked again after this long, also if its node is away or the lease is over.
PAUSE_S = 0.1
# The fallback for bells that were lost asks so many queues in each interval, each in its turn.
MOST_POLLED = 25
# What is due and not asked for lack of a permit is rung for again this often, so that a worker with one hears it.
HAND_ON_S = 1.0
# A partition that was asked while another might have brought a suspect is waited for if it will be asked again within
# this long. Where all that is due is held back, the claim script says 100 ms.
PASSED_OVER_MS = 200.0
# Queues that are found to be gone within this long of each other were lost together.
LOSS_S = 10.0


OnAnswers = Callable[[list[tuple[ServedQueue, ClaimRequest]], list[ClaimReply | StoreError], float], None]


class Fetcher:
    """One pass: which partitions are due, how many permits each lane may have, claim, hand to the pool."""

    name = "fetch"

    def __init__(
        self,
        store: Store,
        runs: Callable[[], Runs],
        lanes: list[ServedQueue],
        agenda: Agenda,
        catalog: Catalog,
        pool: RunnerPool,
        finisher: Finisher,
        clock: Clock,
        lease: Callable[[], float],
        ring: Callable[[ServedQueue, int], None],
        refer: Callable[[str, int], None],
        poll_s: float,
        on_change: Callable[[ServedQueue], None],
        breaker: Breaker,
        batching: Batching,
        tally: Counters,
    ) -> None:
        self.wake = asyncio.Event()
        self.lanes = lanes
        self.claimed = 0
        self._store = store
        self._runs = runs
        self._pool = pool
        self._finisher = finisher
        self._clock = clock
        self._lease = lease
        self._ring = ring
        self._refer = refer
        self._poll_s = poll_s
        self._on_change = on_change
        self.breaker = breaker
        # Told of each claim: what was asked for, what came, and the seconds that it took. None: nobody listens.
        self.on_answers: OnAnswers | None = None
        self._batching = batching
        self._tally = tally
        self.agenda = agenda
        self._planner = ClaimPlanner(pool, clock, batching)
        self._timed = [lane for lane in lanes if lane.timetable is not None]
        self._next_poll = 0.0
        self._turn = 0
        # When each partition was handed on last.
        self._handed_on: dict[tuple[str, int], float] = {}
        # Runs that passes are asking for at the moment, and those claimed and not handed out yet.
        self._asked = RequestedRuns(clock, several_nodes=isinstance(store.client, ClusterClient))
        self._coming = 0
        # Which wish may bring a suspect next; whether a pass is asking for one; which partition was asked meanwhile.
        self._allowed = 0
        self._allows_suspect = False
        self._passed_over: tuple[ServedQueue, int] | None = None
        # When data that is gone is logged again.
        self._next_loss = -math.inf
        self._collector = ClaimIntake(catalog, pool, finisher, clock, tally)
        self._holdings = HeldRuns(store)
        # Runs that were claimed in a name which this worker has given up since, with that name.
        self._former: list[tuple[ServedQueue, str, list[Claim]]] = []
        self.faults = PartitionFaults(clock)

    async def step(self) -> float:
        await self._hand_back_former()
        await self._hand_back_in_doubt()
        self._poll_in_turn()
        now = self._clock.server_ms()
        for lane in self._timed:
            await self._look_up(lane, now)
        self.agenda.ripen(now)
        ripe = list(self.agenda.ripe)
        if not ripe:
            return self._rest(now)
        for lane in ripe:
            lane.follow()
        wishes = self._planner.plan(ripe, self._asked.count() + self._coming)
        self._hand_on(set(ripe) - {lane for lane, _ in wishes})
        if not wishes:
            return self._rest(math.inf)
        if self.faults.by_place and not (wishes := self._without_faulty(wishes, now)):
            return self._rest(now)
        permit = self.breaker.allow()
        if permit is None:
            self._put_back(wishes)
            return max(self.breaker.status().probe_in, SHORTEST_REST_S)
        if self._pool.suspects or not self._allow_suspect(wishes):
            return await self._ask(wishes, permit)
        # Until it is in the pool: other passes ask meanwhile, and must not be given a second one.
        self._allows_suspect = True
        try:
            return await self._ask(wishes, permit)
        finally:
            self._allows_suspect = False

    async def _ask(self, wishes: list[tuple[ServedQueue, ClaimRequest]], permit: Permit) -> float:
        for lane, wish in wishes:
            lane.ask(wish.partition, wish.limit)
        if self.agenda.ripe:
            # Only now that there was room: passes that woke each other for want of it would never rest.
            self.wake.set()
        nodes = by_node(self._store, wishes, lambda each: (each[1].queue, each[1].partition))
        groups = [(some, self._asked.begin(sum(wish.limit for _, wish in some))) for some in nodes]
        unanswered = len(groups)

        async def ask(group: tuple[list[tuple[ServedQueue, ClaimRequest]], int]) -> float:
            nonlocal unanswered
            try:
                return await self._ask_node(*group, permit)
            finally:
                unanswered -= 1
                if unanswered:
                    # This pass waits for another node: others act on what this one said.
                    self.wake.set()

        return await each_by_itself(groups, ask)

    async def _ask_node(self, wishes: list[tuple[ServedQueue, ClaimRequest]], asked: int, permit: Permit) -> float:
        asked_at, runs = self._clock.monotonic(), self._runs()
        runs.unread = self._collector.unread.digests()
        try:
            answers = await runs.claim([wish for _, wish in wishes], self._lease())
        except BaseException:
            for lane, wish in wishes:
                lane.answered(wish.partition)
            raise
        finally:
            self._asked.end(asked)
        if self.on_answers is not None:
            self.on_answers(wishes, answers, self._clock.monotonic() - asked_at)
        self.faults.tell(self.breaker, permit, [(lane.name, wish.partition) for lane, wish in wishes], answers)
        return await self._take(wishes, answers, runs)

    def frees_soon(self) -> bool:
        """Whether there is a permit, or will be one in a moment: then a bell is for us to hear."""
        return self._pool.free() >= 1 or self._planner.frees_soon() >= 1

    def _put_back(self, wishes: list[tuple[ServedQueue, ClaimRequest]]) -> None:
        for lane, wish in wishes:
            if lane.timetable is not None:
                lane.timetable.put_back(wish.members)

    def _without_faulty(
        self, wishes: list[tuple[ServedQueue, ClaimRequest]], now: float
    ) -> list[tuple[ServedQueue, ClaimRequest]]:
        """Those of partitions that fail by themselves are asked when they have rested."""
        left = []
        for lane, wish in wishes:
            rest = self.faults.rests_for((lane.name, wish.partition))
            if rest > 0:
                self._put_back([(lane, wish)])
                lane.postpone(wish.partition, now + rest * 1000)
            else:
                left.append((lane, wish))
        return left

    def _allow_suspect(self, wishes: list[tuple[ServedQueue, ClaimRequest]]) -> bool:
        """One at a time, each partition in turn: if it kills this worker, it takes no other such run with it. Passes
        may keep step, so that one always comes while another asks for a suspect: its partition is then next."""
        asked = [(lane, wish.partition) for lane, wish in wishes]
        if self._allows_suspect:
            self._passed_over = self._passed_over or asked[self._allowed % len(asked)]
            return False
        self._allowed += 1
        at, passed_over = self._allowed % len(wishes), self._passed_over
        if passed_over in asked:
            at = asked.index(passed_over)
        elif passed_over is not None:
            lane, partition = passed_over
            if lane.is_asked_by(partition, self._clock.server_ms() + PASSED_OVER_MS):
                return False
        self._passed_over = None
        lane, wish = wishes[at]
        wishes[at] = (lane, replace(wish, suspects=1))
        return True

    def _poll_in_turn(self) -> None:
        """The fallback for a bell that was lost: of some queues one partition, each interval."""
        at = self._clock.monotonic()
        if at < self._next_poll:
            return
        self._next_poll = at + self._poll_s
        for lane in self.lanes:
            lane.age()
        for _ in range(min(MOST_POLLED, len(self.lanes))):
            self._turn = (self._turn + 1) % len(self.lanes)
            self.lanes[self._turn].look_in_turn()

    def _rest(self, now: float) -> float:
        """Seconds until something is due or a poll is."""
        poll = self._next_poll - self._clock.monotonic()
        if now == math.inf:
            return max(poll, 0.001)
        return max(min((self.agenda.soonest() - now) / 1000, poll), 0.0005)

    async def _look_up(self, lane: ServedQueue, now: float) -> None:
        """When the lane has work next. What rang may be an extra run of one of our jobs, under an id of its own."""
        timetable = lane.timetable
        assert timetable is not None
        lane.follow()
        if timetable.curious and not lane.asked:
            await self._ask_for_extras(lane, timetable, now)
        lane.plan(timetable.soonest())

    async def _ask_for_extras(self, lane: ServedQueue, timetable: AgentTimetable, now: float) -> None:
        """While no agent is due these looks alone find out that the server does not answer. But that it answers says
        nothing of claims that it refuses."""
        breaker, permit = self.breaker, None
        if breaker.away or breaker.state is not BreakerState.HALF_OPEN:
            permit = breaker.allow()
            if permit is None:
                return
        timetable.curious = False
        try:
            await self._find_extras(lane, timetable, now)
        except StoreUnavailable as error:
            if permit is not None:
                breaker.answered(permit, [error])
            raise
        if permit is not None:
            breaker.answered(permit, [])

    async def _find_extras(self, lane: ServedQueue, timetable: AgentTimetable, now: float) -> None:
        """From where the last look ended: page by page all that is due is looked at, however much of it is foreign."""
        line, at = lane.queue.keys[0]["waiting"], timetable.looked_to
        timetable.looked_to = 0
        for _ in range(1 + math.ceil(self._batching.extra_attempts)):
            page = await self._store.read(
                lambda client, at=at: client.zrange(line, at, at + LARGEST_BATCH - 1, withscores=True)  # type: ignore
            )
            for member, score in page:
                name = member.decode(errors="replace")
                if EXTRA in name and score <= now and name in timetable:
                    timetable.expect(name, not_before(score))
            if len(page) < LARGEST_BATCH or page[-1][1] > now:
                return
            at += LARGEST_BATCH
        timetable.looked_to = at

    def _hand_on(self, lanes: set[ServedQueue]) -> None:
        """No permit for what is due there: tell an idle worker, now and then."""
        now = self._clock.monotonic()
        for lane in lanes:
            for partition in lane.ripe:
                key = lane.name, partition
                if now - self._handed_on.get(key, -math.inf) >= HAND_ON_S:
                    self._handed_on[key] = now
                    self._ring(lane, partition)

    # What came

    async def _take(
        self, wishes: list[tuple[ServedQueue, ClaimRequest]], answers: list[ClaimReply | StoreError], runs: Runs
    ) -> float:
        trouble: StoreError | None = None
        rest = 0.0
        changed: dict[ServedQueue, StoreChanged] = {}
        came: list[tuple[ServedQueue, ClaimReply]] = []
        for (lane, wish), answer in zip(wishes, answers, strict=True):
            if isinstance(answer, StoreError) or answer.lease_over:
                self._put_back([(lane, wish)])
                if not isinstance(answer, NodeUnavailable):
                    lane.answered(wish.partition)
            if isinstance(answer, StoreChanged):
                # Unless it was opened again meanwhile, by another pass or another part.
                if wish.layout == lane.queue.layout:
                    changed[lane] = answer
            elif isinstance(answer, NodeUnavailable):
                lane.put_off(wish.partition, self._clock.server_ms() + AWAY_MS)
                rest = PAUSE_S
            elif isinstance(answer, StoreError):
                if not self.faults.rests_for((lane.name, wish.partition)):
                    trouble = answer if trouble is None or isinstance(answer, StoreUnavailable) else trouble
            elif answer.lease_over:
                rest = PAUSE_S
            else:
                self._learn(lane, wish, answer)
                came.append((lane, answer))
        await self._hand_out(came, runs)
        await self._hand_back_former()
        for lane, error in changed.items():
            await self._open_again(lane, error)
        if trouble is not None:
            if isinstance(trouble, StoreUnavailable):
                await self._store.revive_server()
            raise trouble
        return rest

    async def _hand_out(self, came: list[tuple[ServedQueue, ClaimReply]], runs: Runs) -> None:
        """To the pool. If that takes a while, the server gets more to do from another pass first. What was claimed in a
        name that this worker has given up meanwhile is not started: its outcome would be refused."""
        count = sum(len(answer.claims) for _, answer in came)
        self._coming += count
        for lane, answer in came:
            lane.coming += len(answer.claims)
        try:
            if count >= MANY:
                self.wake.set()
                await asyncio.sleep(0)
            for _, answer in came:
                await self._collector.read_rules(answer)
        finally:
            # Whatever ends this pass: what was claimed is ours to run or to give back.
            self._coming -= count
            units: list[WorkItem] = []
            batches: dict[str, WorkItem] = {}
            for lane, answer in came:
                lane.coming -= len(answer.claims)
                if runs is self._runs():
                    self._collector.collect(lane, answer, units, batches)
                elif answer.claims:
                    self._former.append((lane, runs.owner, answer.claims))
            self.claimed += len(units)
            self._tally.acquired += len(units)
            if units:
                self._pool.submit(units)

    async def _open_again(self, lane: ServedQueue, error: StoreChanged) -> None:
        before = lane.queue.layout
        try:
            await self._store.reopen(lane.queue)
        except QueueRepartitioning as moving:
            if lane.stand_still(self._clock.server_ms() + STILL_MS):
                log.info("waiting for a queue that is being repartitioned", queue=lane.name, to=moving.partitions)
            return
        except StoreUnavailable:
            raise
        except (StoreError, InvalidConfig) as broken:
            for partition in range(lane.queue.partitions):
                self.faults.add((lane.name, partition), broken)
            return
        if lane.queue.layout == before:
            self._log_loss(lane, error)
        elif lane.layout == before:
            log.info("queue has other partitions", queue=lane.name, partitions=lane.queue.partitions)
        lane.follow()
        self._runs().forget_doubts(lane.queue)
        self._on_change(lane)

    def _log_loss(self, lane: ServedQueue, error: StoreChanged) -> None:
        """Once for all queues and passes that find it out at about the same time."""
        now = self._clock.monotonic()
        if now >= self._next_loss:
            log.error(
                "the server lost its data, or has other data than before: opening the queues again",
                queue=lane.name,
                error=str(error),
            )
        self._next_loss = now + LOSS_S

    async def _hand_back_former(self) -> None:
        """Release what was claimed in a former name. What cannot be released now, the look for unheld runs finds."""
        while self._former:
            lane, owner, claims = former = self._former.pop()
            try:
                released = await self._holdings.release_all(lane.queue, owner, claims)
            except StoreUnavailable:
                self._former.append(former)
                raise
            except StoreError as error:
                log.warning("cannot release runs that were claimed in a former name", queue=lane.name, error=str(error))
                continue
            for partition in released:
                lane.hear(partition)
                self._ring(lane, partition)
            self.wake.set()

    async def _hand_back_in_doubt(self) -> None:
        if not self._runs().unanswered:
            return
        for lane in self.lanes:
            lane.follow()
            for call in self._runs().in_doubt(lane.queue):
                await self._hand_back_unseen(lane, call)

    async def _hand_back_unseen(self, lane: ServedQueue, call: Call) -> None:
        """A claim of which we did not hear, in a partition that has changed since: nobody runs what it gave us."""
        for key, token in await self._runs().claimed_unseen(call):
            claim = Claim(lane.name, 0, key, token, 0, 1, 0, False, 0, bytes(2))
            self._finisher.add(EndedRun(lane, claim, None, "released"))

    def _learn(self, lane: ServedQueue, wish: ClaimRequest, answer: ClaimReply) -> None:
        if wish.layout != lane.layout:
            lane.answered(wish.partition)
            return
        partition = wish.partition
        next_due = answer.next_due if answer.next_due >= 0 else math.inf
        if lane.timetable is not None:
            claimed = {claim.member for claim in answer.claims}
            lane.timetable.learn(answer.members, answer.dues, claimed, answer.now, wish.limit)
            if answer.members and answer.members != wish.members:
                lane.timetable.put_back(wish.members)
            next_due = lane.timetable.soonest()
        lane.learn(partition, next_due, answer.now, len(answer.claims))
        lane.left[partition] = answer.left
        if answer.parked:
            self._refer(lane.name, partition)
