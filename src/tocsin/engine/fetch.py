"""The fetcher: claims what is due, no more than there are permits for, and sleeps until there is more.

Ahead of the permits it fetches only what is known to be quick: what a measured handler gets through in a moment.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from tocsin.engine.catalog import Catalog
from tocsin.engine.collect import Collector
from tocsin.engine.finish import Finisher
from tocsin.engine.pace import Pace
from tocsin.engine.pool import Pool
from tocsin.engine.settle import Ended
from tocsin.engine.timetable import Timetable
from tocsin.engine.unit import Lane, Unit
from tocsin.model.clock import Clock
from tocsin.model.errors import QueueMoving, StoreChanged, StoreError, StoreUnavailable
from tocsin.model.ids import EXTRA
from tocsin.model.run import Claim
from tocsin.resilience.breaker import Breaker
from tocsin.store.runs import Claimed, Runs, Wish
from tocsin.store.store import LARGEST_BATCH, Call, Store
from tocsin.telemetry.logs import get_logger
from tocsin.telemetry.metrics import Tally

log = get_logger("tocsin.fetch")

# Fetched ahead: what the permits get through in this time, if each run takes less than the second, at most the third.
AHEAD_S = 0.1
QUICK_S = 0.05
MOST_AHEAD = 4000
# Of that, how much must be used up before more is fetched.
REFILL = 0.25
# Passes take turns, each with its own partitions: while the server claims for one, another's runs are handed out.
# Many with few runs each keep both sides busy; few with many runs wait for each other. More than are needed for that
# only wake up and find nothing to ask for.
PASSES = 6
MOST_PER_PASS = 1000
# What all passes ask of a lane together.
MOST_ASKED = 3000
# So many runs at once take a while to be handed out.
MANY = 50
# While the breaker is open.
SHORTEST_REST_S = 0.05
# While a queue is being repartitioned: how often it is asked whether that is over.
STILL_MS = 250.0


OnAnswers = Callable[[list[tuple[Lane, Wish]], list[Claimed | StoreError], float], None]


class Batching(Struct, frozen=True):
    """How many runs one claim asks for at most, and how much further than one page to look for what may be ours."""

    size: int = MOST_PER_PASS
    extra_looks: float = 0.0


class Fetcher:
    """One pass: which partitions are due, how many permits each lane may have, claim, hand to the pool."""

    name = "fetch"

    def __init__(
        self,
        store: Store,
        runs: Callable[[], Runs],
        lanes: list[Lane],
        catalog: Catalog,
        pool: Pool,
        finisher: Finisher,
        clock: Clock,
        lease: Callable[[], float],
        ring: Callable[[Lane, int], None],
        refer: Callable[[str, int], None],
        poll_s: float,
        on_change: Callable[[Lane], None],
        breaker: Breaker,
        batching: Batching,
        tally: Tally,
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
        # The server did not answer when we asked last.
        self.away = False
        # Told of each claim: what was asked for, what came, and the seconds that it took. None: nobody listens.
        self.on_answers: OnAnswers | None = None
        self._batching = batching
        self._tally = tally
        self._next_poll = 0.0
        self._rung: dict[tuple[str, int], float] = {}
        # Partitions that a pass is asking at the moment, and for how many runs.
        self._asked: dict[tuple[str, int], int] = {}
        # Claimed, and not handed out yet.
        self._coming = 0
        self._allowed = 0
        self._pace = Pace()
        self._collector = Collector(catalog, pool, finisher, clock, tally)

    async def step(self) -> float:
        for lane in self.lanes:
            lane.follow()
            for call in self._runs().in_doubt(lane.queue):
                await self._hand_back_unseen(lane, call)
        self._poll_one_each()
        now = self._clock.server_ms()
        for lane in self.lanes:
            if lane.timetable is not None:
                await self._look_up(lane, lane.timetable, now)
        due = {lane: partitions for lane in self.lanes if (partitions := self._due(lane, now))}
        if not due:
            return self._rest(now)
        shares = {lane: partitions[: self._share(lane)] for lane, partitions in due.items()}
        wishes = self._plan(shares)
        if not wishes:
            self._hand_on(shares)
            return self._rest(math.inf)
        permit = self.breaker.allow()
        if permit is None:
            self._put_back(wishes)
            return max(self.breaker.status().probe_in, SHORTEST_REST_S)
        if not self._pool.suspects and not self._asked:
            self._allow_suspect(wishes)
        for lane, wish in wishes:
            self._asked[lane.name, wish.partition] = wish.limit
            lane.ask(wish.partition)
        if shares != due:
            # Only now that there was room: passes that woke each other for want of it would never rest.
            self.wake.set()
        asked_at = self._clock.monotonic()
        try:
            answers = await self._runs().claim([wish for _, wish in wishes], self._lease())
        finally:
            for lane, wish in wishes:
                del self._asked[lane.name, wish.partition]
        if self.on_answers is not None:
            self.on_answers(wishes, answers, self._clock.monotonic() - asked_at)
        self.away = self.breaker.answered(permit, answers)
        return await self._take(wishes, answers)

    def _put_back(self, wishes: list[tuple[Lane, Wish]]) -> None:
        for lane, wish in wishes:
            if lane.timetable is not None:
                lane.timetable.put_back(wish.members)

    def _allow_suspect(self, wishes: list[tuple[Lane, Wish]]) -> None:
        """One at a time, each partition in turn: if it kills this worker, it takes no other such run with it."""
        self._allowed += 1
        lane, wish = wishes[self._allowed % len(wishes)]
        wishes[self._allowed % len(wishes)] = (lane, replace(wish, suspects=1))

    def _due(self, lane: Lane, now: float) -> list[int]:
        """The partitions to ask, that with the oldest run first; not those that another pass is asking."""
        count = len(lane.next_due)
        turns = ((lane.start + i) % count for i in range(count))
        due = [p for p in turns if lane.next_due[p] <= now and (lane.name, p) not in self._asked]
        due.sort(key=lane.next_due.__getitem__)
        return due

    def _share(self, lane: Lane) -> int:
        """Of how many partitions a pass asks: if one asked for all, the others would come back with a few runs each."""
        count = len(lane.next_due)
        return count if self._pool.busy + self._coming < MANY else -(-count // PASSES)

    def _poll_one_each(self) -> None:
        """The fallback for a bell that was lost: one partition per lane each interval, in turn."""
        at = self._clock.monotonic()
        if at < self._next_poll:
            return
        self._next_poll = at + self._poll_s
        for lane in self.lanes:
            lane.age()
            lane.turn = (lane.turn + 1) % len(lane.next_due)
            if not lane.still:
                lane.look(lane.turn)

    def _rest(self, now: float) -> float:
        """Seconds until something is due or a poll is."""
        poll = self._next_poll - self._clock.monotonic()
        if now == math.inf:
            return max(poll, 0.001)
        soonest = min(
            (at for lane in self.lanes for p, at in enumerate(lane.next_due) if (lane.name, p) not in self._asked),
            default=math.inf,
        )
        return max(min((soonest - now) / 1000, poll), 0.0005)

    # How much

    def _plan(self, due: dict[Lane, list[int]]) -> list[tuple[Lane, Wish]]:
        """Equal shares of the permits for the lanes that have work, so that unused shares pass on."""
        pool = self._pool
        self._pace.look(pool.ran, self._clock.monotonic())
        taken = pool.busy + self._coming + sum(self._asked.values())
        free, fetched_ahead = max(0.0, pool.permits - taken), max(0.0, taken - pool.permits)
        wishes: list[tuple[Lane, Wish]] = []
        for lane in sorted(due, key=lambda lane: lane.busy):
            permits = min(free, max(0.0, pool.permits / len(due) - lane.busy + 0.999) // 1)
            ahead = self._ahead(lane) / len(due)
            more = ahead - fetched_ahead
            # Ahead of the permits it waits until some of it is used up: a few at a time would cost a call each.
            if permits >= 1 or more >= max(1.0, ahead * REFILL):
                free = free if free == math.inf else free - permits
                wishes += self._wishes(lane, due[lane], (permits + max(more, 0.0)) * lane.batch())
        if not wishes:
            ahead = max(map(self._ahead, due)) / len(due) * (1 - REFILL)
            pool.starved_at = int(pool.permits + ahead) if ahead >= 1 else int(pool.permits) - 1
        return wishes

    def _ahead(self, lane: Lane) -> float:
        """How many units to fetch beyond the permits: none of what is slow or not known yet."""
        slowest = lane.slowest()
        if slowest > QUICK_S or self._pool.permits == math.inf:
            return 0.0
        return min(self._pool.permits * AHEAD_S / max(slowest, 1e-6), self._pace.rate * AHEAD_S, MOST_AHEAD)

    def _wishes(self, lane: Lane, due: list[int], units: float) -> list[tuple[Lane, Wish]]:
        """As many from each partition as are known to be due there; equal parts where that is not known."""
        room = int(min(units, self._batching.size, MOST_ASKED // min(PASSES, len(lane.next_due))))
        if lane.timetable is not None:
            return self._own_wishes(lane, lane.timetable, room)
        equal = max(1, room // len(due))
        wishes: list[tuple[Lane, Wish]] = []
        for partition in due:
            limit = min(room, max(lane.left[partition], equal), LARGEST_BATCH)
            if limit < 1:
                break
            wishes.append((lane, Wish(lane.queue, partition, limit, suspects=0, layout=lane.layout)))
            lane.start = partition + 1
            room -= limit
        return wishes

    def _own_wishes(self, lane: Lane, timetable: Timetable, room: int) -> list[tuple[Lane, Wish]]:
        """By ids. The agents' queue has one partition."""
        members = timetable.take(self._clock.server_ms(), room)
        return [(lane, Wish(lane.queue, 0, len(members), members, suspects=0))] if members else []

    async def _look_up(self, lane: Lane, timetable: Timetable, now: float) -> None:
        """When the lane has work next. What rang may be an extra run of one of our jobs, under an id of its own."""
        if timetable.curious and (lane.name, 0) not in self._asked:
            timetable.curious = False
            await self._find_extras(lane, timetable, now)
        lane.next_due[0] = timetable.soonest()

    async def _find_extras(self, lane: Lane, timetable: Timetable, now: float) -> None:
        """From where the last look ended: page by page all that is due is looked at, however much of it is foreign."""
        line, at = lane.queue.keys[0]["waiting"], timetable.looked_to
        timetable.looked_to = 0
        for _ in range(1 + math.ceil(self._batching.extra_looks)):
            page = await self._store.read(
                lambda client, at=at: client.zrange(line, at, at + LARGEST_BATCH - 1, withscores=True)  # type: ignore
            )
            for member, score in page:
                name = member.decode(errors="replace")
                if EXTRA in name and score <= now and name in timetable:
                    timetable.expect(name, score)
            if len(page) < LARGEST_BATCH or page[-1][1] > now:
                return
            at += LARGEST_BATCH
        timetable.looked_to = at

    def _hand_on(self, due: dict[Lane, list[int]]) -> None:
        """No permit for what is due: tell an idle worker, once per due time."""
        for lane, partitions in due.items():
            for partition in partitions:
                at = lane.next_due[partition]
                if at > 0 and self._rung.get((lane.name, partition)) != at:
                    self._rung[lane.name, partition] = at
                    self._ring(lane, partition)

    # What came

    async def _take(self, wishes: list[tuple[Lane, Wish]], answers: list[Claimed | StoreError]) -> float:
        trouble: StoreError | None = None
        rest = 0.0
        changed: dict[Lane, StoreChanged] = {}
        came: list[tuple[Lane, Claimed]] = []
        for (lane, wish), answer in zip(wishes, answers, strict=True):
            if isinstance(answer, StoreError) or answer.lease_over:
                self._put_back([(lane, wish)])
            if isinstance(answer, StoreChanged):
                # Unless it was opened again meanwhile, by another pass or another part.
                if wish.layout == lane.queue.layout:
                    changed[lane] = answer
            elif isinstance(answer, StoreError):
                trouble = answer if trouble is None or isinstance(answer, StoreUnavailable) else trouble
            elif answer.lease_over:
                rest = 0.1
            else:
                self._learn(lane, wish, answer)
                came.append((lane, answer))
        await self._hand_out(came)
        for lane, error in changed.items():
            await self._open_again(lane, error)
        if trouble is not None:
            if isinstance(trouble, StoreUnavailable):
                await self._store.revive_server()
            raise trouble
        return rest

    async def _hand_out(self, came: list[tuple[Lane, Claimed]]) -> None:
        """To the pool. If that takes a while, the server gets more to do from another pass first."""
        count = sum(len(answer.claims) for _, answer in came)
        self._coming += count
        try:
            if count >= MANY:
                self.wake.set()
                await asyncio.sleep(0)
        finally:
            # Whatever ends this pass: what was claimed is ours to run or to give back.
            self._coming -= count
            units: list[Unit] = []
            batches: dict[str, Unit] = {}
            for lane, answer in came:
                self._collector.collect(lane, answer, units, batches)
            self.claimed += len(units)
            self._tally.acquired += len(units)
            if units:
                self._pool.submit(units)

    async def _open_again(self, lane: Lane, error: StoreChanged) -> None:
        before = lane.queue.layout
        try:
            await self._store.reopen(lane.queue)
        except QueueMoving as moving:
            if lane.stand_still(self._clock.server_ms() + STILL_MS):
                log.info("waiting for a queue that is being repartitioned", queue=lane.name, to=moving.partitions)
            return
        if lane.queue.layout == before:
            log.warning("queue changed under us, opening it again", queue=lane.name, error=str(error))
        elif lane.layout == before:
            log.info("queue has other partitions", queue=lane.name, partitions=lane.queue.partitions)
        lane.follow()
        self._runs().forget_doubts(lane.queue)
        self._on_change(lane)

    async def _hand_back_unseen(self, lane: Lane, call: Call) -> None:
        """A claim of which we did not hear, in a partition that has changed since: nobody runs what it gave us."""
        for key, token in await self._runs().claimed_unseen(call):
            claim = Claim(lane.name, 0, key, token, 0, 1, 0, False, 0, bytes(2))
            self._finisher.add(Ended(lane, claim, None, "released"))

    def _learn(self, lane: Lane, wish: Wish, answer: Claimed) -> None:
        if wish.layout != lane.layout:
            return
        partition = wish.partition
        next_due = answer.next_due if answer.next_due >= 0 else math.inf
        if lane.timetable is not None:
            claimed = {claim.member for claim in answer.claims}
            lane.timetable.learn(answer.members, answer.dues, claimed, answer.now)
            if answer.members and answer.members != wish.members:
                lane.timetable.put_back(wish.members)
            next_due = lane.timetable.soonest()
        lane.learn(partition, next_due, answer.now, len(answer.claims))
        lane.left[partition] = answer.left
        if answer.parked:
            self._refer(lane.name, partition)
