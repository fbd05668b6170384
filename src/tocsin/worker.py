"""The composition root: takes a store, a catalog and a few settings, builds the parts, runs the loops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import structlog
from msgspec import Struct

from tocsin.engine import fetch, finish
from tocsin.engine.catalog import Catalog
from tocsin.engine.fetch import Fetcher
from tocsin.engine.finish import Finisher
from tocsin.engine.heart import BEAT_S, TTL_S, Heart
from tocsin.engine.listen import Listener
from tocsin.engine.loop import Part, end, repeat
from tocsin.engine.pool import Pool
from tocsin.engine.refer import Referrer
from tocsin.engine.sweep import Sweep
from tocsin.engine.timetable import Timetable
from tocsin.engine.unit import Lane, Unit
from tocsin.model.clock import monotonic, wall_ms
from tocsin.model.codec import decode_header
from tocsin.model.durations import ceil_ms, moment
from tocsin.model.errors import StoreError
from tocsin.model.job import AGENTS_QUEUE, Spec
from tocsin.model.run import Claim, Run
from tocsin.resilience.backoff import BackoffSettings
from tocsin.resilience.breaker import Breaker, BreakerSettings, redis_breaker_settings
from tocsin.resilience.classify import Classifier
from tocsin.store.fleet import About, Beat, Ear, Fleet, Pulse, Ringer
from tocsin.store.jobs import Jobs, Put
from tocsin.store.runs import Runs
from tocsin.store.store import OpenQueue, Store
from tocsin.targets.processes import Processes
from tocsin.targets.python import target_for
from tocsin.targets.threads import Threads
from tocsin.upkeep.ownership import Ownership
from tocsin.upkeep.reaper import Reaper
from tocsin.upkeep.reconcile import Reconciler, Rules

log = structlog.get_logger("tocsin.worker")

GRACE_S = 30.0
# After the grace period: how long a handler may take to react to its cancellation.
CANCEL_S = 2.0
# How long the last words to a server that does not answer may take.
LEAVE_S = 5.0


class Settings(Struct, frozen=True):
    """What a worker can be told."""

    concurrency: int = 100
    poll_s: float = 1.0
    beat_s: float = BEAT_S
    ttl_s: float = TTL_S
    # Which agents are this worker's to run, and how their registration is kept true.
    owns: Callable[[str], bool] = Ownership()
    reconcile: Rules = Rules()
    backoff: BackoffSettings = BackoffSettings()
    breaker: BreakerSettings = BreakerSettings()


class Stats(Struct, frozen=True):
    """What a worker has done so far, and what it is doing."""

    worker: str
    claimed: int
    ran: int
    running: int
    backlog: int
    unwritten: int
    lost: int
    recovered: int
    stuck: int


class Worker:
    """Runs the jobs of some queues. `start`, then `quiet` (no more claims), then `stop`."""

    def __init__(
        self,
        store: Store,
        queues: list[OpenQueue],
        catalog: Catalog,
        settings: Settings | None = None,
        agents: Callable[[], Mapping[str, Put]] = dict,
        classifier: Classifier | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self._store = store
        self._clock = store.clock
        self.catalog = catalog.copy()
        self._queues = queues
        self._agents = agents
        self._classifier = classifier
        self._host = socket.gethostname()
        self._started = wall_ms()
        self._incarnation = 0
        self._state = "running"
        self._quiet, self._stopped = asyncio.Event(), asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._loop = asyncio.get_running_loop()
        self._build()

    def _build(self) -> None:
        store, clock = self._store, self._clock
        self._fleet = Fleet(store)
        self._ringer = Ringer(self._fleet)
        self.acquisition_breaker = Breaker(self.settings.breaker, clock.monotonic)
        self.redis_breaker = Breaker(redis_breaker_settings(self.settings.breaker), clock.monotonic)
        self._threads, self._processes = Threads(), Processes()
        for handler in self.catalog:
            prefix = store.keys.prefix
            handler.deliver_by(target_for(handler, self._make_run, prefix, self._threads, self._processes))
        self.lanes = {queue.name: Lane(queue) for queue in self._queues}
        self.reconciler = self._claim_agents_by_id()
        self._new_incarnation()
        self.ear = Ear(store, self.name, list(self.lanes))
        self.finisher = Finisher(
            store, lambda: self.runs, clock, self._lost_claim, lambda: self.fetcher.wake.set(), self._classifier,
            self.settings.backoff, self.redis_breaker,
        )  # fmt: skip
        self.pool = Pool(self.settings.concurrency, self.finisher, lambda: self.fetcher.wake.set())
        self.referrer = Referrer(self._fleet, lambda: self.name, self.catalog.names())
        self.fetcher = Fetcher(
            store, lambda: self.runs, list(self.lanes.values()), self.catalog, self.pool, self.finisher, clock,
            lambda: self.heart.lease, lambda lane, p: self._ringer.ring(lane.queue, p), self.referrer.refer,
            self.settings.poll_s, self._queue_changed, self.acquisition_breaker,
        )  # fmt: skip
        self.sweep = Sweep(self.pool, self.finisher, lambda: self.runs, clock)
        self.reaper = Reaper(
            store, self._fleet, lambda: self.runs, self._queues, clock, self._look_again,
            self.settings.ttl_s, self.settings.beat_s,
        )  # fmt: skip

    def _claim_agents_by_id(self) -> Reconciler | None:
        """Agents are claimed by those that declare and own them, so their lane has a timetable."""
        lane = self.lanes.get(AGENTS_QUEUE)
        if lane is None:
            return None
        timetable = lane.timetable = Timetable()

        def own(members: Iterable[str]) -> None:
            timetable.own(members)
            self.fetcher.wake.set()

        settings = self.settings
        return Reconciler(
            self._store,
            lane.queue,
            self._agents,
            settings.owns,
            own,
            self._clock,
            self._ringer.ring,
            settings.reconcile,
        )

    def _new_incarnation(self) -> None:
        """A name under which nothing was ever claimed: after a burial the old one's runs belong to others."""
        self._incarnation += 1
        self.name = f"{self._host}:{os.getpid()}:{os.urandom(3).hex()}.{self._incarnation}"
        self.runs = Runs(self._store, self.name, self.catalog.digests())
        pulse = Pulse(self._store, self.name)
        self.heart = Heart(pulse, self.about, self._beat_seen, self._clock, self.settings.beat_s, self.settings.ttl_s)

    def about(self) -> About:
        return About(
            host=self._host,
            pid=os.getpid(),
            started=self._started,
            queues=sorted(self.lanes),
            handlers=self.catalog.names(),
            concurrency=self.settings.concurrency,
            running=self.pool.busy - len(self.pool.backlog),
            finished=self.pool.ran,
            stuck=self.sweep.stuck,
            state=self._state,
        )

    def stats(self) -> Stats:
        return Stats(
            worker=self.name,
            claimed=self.fetcher.claimed,
            ran=self.pool.ran,
            running=self.pool.busy - len(self.pool.backlog),
            backlog=len(self.pool.backlog),
            unwritten=len(self.finisher.waiting),
            lost=self.finisher.lost,
            recovered=self.reaper.recovered,
            stuck=self.sweep.stuck,
        )

    # Life

    async def start(self) -> None:
        """Join the fleet and begin to work."""
        beat = await asyncio.to_thread(self.heart.beat)
        if beat is None:
            log.warning("no heartbeat yet: claims begin when the server answers")
        self.heart.start()
        for turn in range(fetch.PASSES):
            self._run(self.fetcher, self._quiet, f"fetch {turn}")
        self._listen()
        for turn in range(finish.PASSES):
            self._run(self.finisher, self._stopped, f"finish {turn}")
        for part in (self.sweep, self.reaper, self.referrer):
            self._run(part, self._stopped)
        if self.reconciler is not None:
            self._run(self.reconciler, self._quiet)
        log.info(
            "worker started",
            worker=self.name,
            queues=sorted(self.lanes),
            concurrency=self.settings.concurrency,
        )

    def _run(self, part: Part, stop: asyncio.Event, name: str = "") -> None:
        self._tasks[name or part.name] = asyncio.create_task(repeat(part, stop), name=f"tocsin {part.name}")

    async def _change_ear(self, queues: list[str]) -> None:
        """Listen in our present name for the bells of these queues, and for mail."""
        listening = self._tasks.pop("listen", None)
        if listening is None:
            return
        await end(listening)
        await self.ear.close()
        self.ear = Ear(self._store, self.name, queues)
        self._listen()

    def _listen(self) -> None:
        listener = Listener(self.ear, self.lanes, self.pool, self.fetcher.wake.set)
        self._run(listener, self._stopped)

    async def quiet(self) -> None:
        """Claim nothing more; hand back what has not started."""
        if self._quiet.is_set():
            return
        self._state = "stopping"
        self._quiet.set()
        self.fetcher.wake.set()
        fetching = [task for name, task in self._tasks.items() if name.startswith("fetch")]
        if fetching:
            # A claim in flight is awaited: what it brings is ours to hand back.
            await asyncio.wait(fetching, timeout=5)
        for unit in self.pool.withdraw(float("inf")):
            self.finisher.release(unit)
        # Bells are for those who claim: one that we heard would wake nobody. Mail may still ask to cancel a run.
        await self._change_ear([])

    async def stop(self, grace: float = GRACE_S, hurry: asyncio.Event | None = None) -> None:
        """Let runs end within the grace period, then cancel and hand over what is left at its due time."""
        await self.quiet()
        await self._until_ended(grace, hurry)
        left = list(self.pool.running())
        for runner, _ in left:
            runner.stop("handover")
        await self._until_ended(CANCEL_S, None)
        for runner, unit in list(self.pool.running()):
            # It ignores its cancellation, or is a thread: its claim goes to another worker all the same.
            log.warning("handing over a run that does not end", run=unit.claim.run_id, handler=unit.handler.name)
            runner.reason = "lost"
            self.finisher.release(unit)
        await self._flush()
        await self._leave(handed_over=len(left))

    async def kill(self) -> None:
        """End at once, as a crash would, but without leaving anything in this process."""
        self._quiet.set()
        self._stopped.set()
        await self._end_parts()

    async def _until_ended(self, seconds: float, hurry: asyncio.Event | None) -> None:
        deadline = monotonic() + seconds
        while any(True for _ in self.pool.running()) and monotonic() < deadline:
            if hurry is not None and hurry.is_set():
                return
            await asyncio.sleep(0.01)

    async def _flush(self) -> None:
        """Everything that ended is written down before we leave; the server gets a while to come back."""
        deadline = monotonic() + 10
        self.finisher.wake.set()
        while not self.finisher.idle() and monotonic() < deadline:
            await asyncio.sleep(0.005)
        if not self.finisher.idle():
            log.error("outcomes could not be written: the runs will be recovered by others and run again")

    async def _leave(self, handed_over: int) -> None:
        self._stopped.set()
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._say_goodbye()
        await self._end_parts()
        log.info("worker stopped", worker=self.name, ran=self.pool.ran, handed_over=handed_over)

    async def _say_goodbye(self) -> None:
        for queue in self._queues:
            for partition in range(queue.partitions):
                self._ringer.ring(queue, partition)
        await self._ringer.quiet()
        if not self.finisher.idle() or self.runs.unanswered:
            # Something is, or may be, still claimed in our name: those who see our heart stand still bring it back.
            return
        await self._fleet.leave(self.name)
        for queue in self._queues:
            await self.runs.forget_sessions(queue)

    async def _end_parts(self) -> None:
        await asyncio.to_thread(self.heart.stop)
        await end(*self._tasks.values())
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self.pool.close()
        await self.ear.close()
        await asyncio.to_thread(self._processes.close)

    async def wait_until_idle(self) -> None:
        """Until nothing is due and nothing is working, here or elsewhere."""
        jobs = Jobs(self._store)
        while True:
            if not self.pool.busy and self.finisher.idle() and not await jobs.any_due_or_working(self._queues):
                return
            await asyncio.sleep(0.02)

    # What the parts tell

    def _beat_seen(self, beat: Beat | None, at: float) -> None:
        """On the heart's thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: we are ending
            self._loop.call_soon_threadsafe(self._react_to_beat, beat, at)

    def _react_to_beat(self, beat: Beat | None, at: float) -> None:
        self.reaper.saw(beat, at)
        if beat is not None and not beat.accepted and not self._stopped.is_set():
            task = asyncio.ensure_future(self._reincarnate())
            self._tasks["reincarnate"] = task
        elif beat is not None:
            self.fetcher.wake.set()

    async def _reincarnate(self) -> None:
        """The fleet buried us: what we held is running elsewhere. Stop it here and begin anew."""
        log.warning("this worker was declared dead, or the server forgot it: beginning anew", worker=self.name)
        for runner, _ in self.pool.running():
            runner.stop("lost")
        self.pool.withdraw(float("inf"))
        self.finisher.forget()
        await asyncio.to_thread(self.heart.stop)
        self._new_incarnation()
        await self._change_ear([] if self._quiet.is_set() else list(self.lanes))
        await asyncio.to_thread(self.heart.beat)
        self.heart.start()
        for lane in self.lanes.values():
            lane.forget_dues()
        self._declare_again()

    def _look_again(self, queue: OpenQueue, partition: int) -> None:
        """There may be work: told to ourselves too, because a bell may be heard by a worker that is stopped."""
        if queue.name in self.lanes:
            self.lanes[queue.name].hear(partition)
            self.fetcher.wake.set()
        self._ringer.ring(queue, partition)

    def _queue_changed(self, lane: Lane) -> None:
        lane.forget_dues()
        self._declare_again()

    def _declare_again(self) -> None:
        """The server was emptied or replaced, or may have been: what the program registers is to be there."""
        if self.reconciler is not None:
            self.reconciler.start_over()

    def _lost_claim(self, member: str) -> None:
        log.warning(
            "claim lost: its outcome was not written, another worker has the run",
            job=member,
            worker=self.name,
        )

    # What runs may ask

    def _make_run(self, unit: Unit, claim: Claim, spec: Spec) -> Run:
        def extend(run: Run, seconds: float) -> Any:
            return self._extend(unit, claim, run, seconds)

        return Run(claim, decode_header(claim.record), spec, self._store.keys.prefix, extend)

    def _extend(self, unit: Unit, claim: Claim, run: Run, seconds: float) -> Any:
        work = self._extended(unit, claim, run, seconds)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        return work

    async def _extended(self, unit: Unit, claim: Claim, run: Run, seconds: float) -> None:
        run.deadline = moment(await self.runs.extend(unit.lane.queue, claim, ceil_ms(seconds)))
        unit.deadline = self._clock.monotonic() + seconds
