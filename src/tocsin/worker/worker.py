"""A worker: runs the loops of its parts, and ends them in the right order."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable

from tocsin.engine import claim_planner
from tocsin.engine import finisher as finish
from tocsin.engine.bells_and_mail import Listener
from tocsin.engine.loop import Part, end, repeat
from tocsin.model.clock import monotonic
from tocsin.model.errors import QueueRepartitioning, StoreError
from tocsin.resilience.breaker import Breaker
from tocsin.store.connection.nodes import nodes_away, when_back
from tocsin.store.transitions.fleet import BellReader, HeartbeatReply
from tocsin.store.transitions.jobs import Jobs
from tocsin.telemetry.logs import get_logger
from tocsin.upkeep.idle_connections import IdleConnections
from tocsin.worker.build import WorkerParts
from tocsin.worker.settings import StopTimes

log = get_logger("tocsin.worker")

GRACE_S = 30.0
# After the grace period: how long a handler may take to react to its cancellation.
CANCEL_S = 2.0
# How long a claim in flight is awaited.
CLAIM_S = 5.0
# How long the last outcomes may take to be written, and the last words to the server. Where it is away, outcomes have
# what is left of the grace period.
FLUSH_S = 10.0
LEAVE_S = 5.0
AWAY_S = 1.0
# So many workers are asked to lead when a leader leaves.
MOST_CALLED = 5
# So many of the jobs whose outcomes are lost are named in the log.
MOST_NAMED = 50
# A pass of upkeep that takes longer than this hangs: it is cut off, and the next begins anew.
LONGEST_PASS_S = 300.0


class Worker(WorkerParts):
    """Runs the jobs of some queues. `start`, then `quiet` (no more claims), then `stop`."""

    # Life

    async def start(self) -> None:
        """Join the fleet and begin to work."""
        beat = await asyncio.to_thread(self.heart.beat)
        if beat is None:
            log.warning("no heartbeat yet: claims begin when the server answers")
        self.heart.start()
        self.watch.start()
        self._forget_nodes = when_back(self.store, self._look_around)
        if self.settings.enabled:
            for turn in range(claim_planner.PASSES):
                self._run(self.fetcher, self._quiet, f"fetch {turn}", breaker=self.acquisition_breaker)
            self._listen()
        for turn in range(finish.PASSES):
            self._run(self.finisher, self._stopped, f"finish {turn}", breaker=self.redis_breaker)
        # These must go on whatever the server does: they stop runs, and say what is wrong.
        tellers: list[Part] = [self.sweep, self.watch, self.failures, *self.vitals.parts()]
        for part in tellers:
            self._run(part, self._stopped)
        callers: list[Part] = [self.reaper, self.unheld, self.carrier, self.referrer, self.gates, self.vitals.gauges]
        for part in (*callers, IdleConnections(self.store)):
            self._run(part, self._stopped, held=self.held)
        leaders = (self.election, self.orphans, self.unregistered, self.replanner, self.forgetter, self.unheard)
        for upkeep in (*leaders, self.announcer):
            if upkeep is not None:
                self._run(upkeep, self._stopped, longest=LONGEST_PASS_S, held=self.held)
        if self.reconciler is not None:
            self._run(self.reconciler, self._quiet, longest=LONGEST_PASS_S, held=self.held)
        log.info(
            "worker started",
            worker=self.name,
            queues=sorted(self.lanes),
            concurrency=self.settings.concurrency,
        )

    def _run(
        self,
        part: Part,
        stop: asyncio.Event,
        name: str = "",
        longest: float | None = None,
        breaker: Breaker | None = None,
        held: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`breaker`: the part's own, which it asks itself. `held`: how long to leave the server alone."""
        self._looped[name or part.name] = part
        is_failing = (lambda: breaker.failing) if breaker is not None else (lambda: False)
        work = repeat(part, stop, longest, self.watch.is_waking, is_failing, held)
        self._tasks[name or part.name] = asyncio.create_task(work, name=f"tocsin {part.name}")

    async def _change_ear(self, queues: list[str]) -> None:
        """Listen in our present name for the bells of these queues, and for mail."""
        listening = self._tasks.pop("listen", None)
        if listening is None:
            return
        await end(listening)
        await self.ear.close()
        self.ear = BellReader(self.store, self.name, queues)
        self._listen()

    def _listen(self) -> None:
        on_election = self.election.wake.set if self.election is not None else lambda: None
        listener = Listener(
            self.ear, self.lanes, self.pool, self.fetcher.frees_soon, self.fetcher.wake.set, on_election
        )  # fmt: skip
        self._run(listener, self._stopped, held=self.held)

    async def quiet(self, patience: float = CLAIM_S) -> None:
        """Claim nothing more; hand back what has not started."""
        if self._quiet.is_set():
            return
        self._state = "stopping"
        self._quiet.set()
        log.info("claiming nothing more", worker=self.name)
        self.fetcher.wake.set()
        fetching = [task for name, task in self._tasks.items() if name.startswith("fetch")]
        if fetching:
            # A claim in flight is awaited: what it brings is ours to hand back.
            await asyncio.wait(fetching, timeout=patience)
        for lane in self.lanes.values():
            lane.expect_all([math.inf] * len(lane.next_due))
        self.finisher.spread_releases(self.settings.shutdown_jitter_s)
        for unit in self.pool.withdraw(float("inf")):
            self.finisher.release(unit)
        # Bells are for those who claim: one that we heard would wake nobody. Mail may still ask to cancel a run.
        await self._change_ear([])

    async def stop(self, grace: float = GRACE_S, hurry: asyncio.Event | None = None, cancel_s: float = CANCEL_S) -> int:
        """Let runs end within the grace period, then cancel and hand over what is left at its due time. How many."""
        grace_ends = monotonic() + grace
        await self.quiet(min(CLAIM_S, max(grace, AWAY_S)))
        await self._until_ended(grace_ends - monotonic(), hurry)
        left = list(self.pool.running())
        for runner, _ in left:
            runner.stop("handover")
        await self._until_ended(cancel_s, None)
        for runner, unit in list(self.pool.running()):
            # It ignores its cancellation, or is a thread: its claim goes to another worker all the same.
            log.warning("handing over a run that does not end", run=unit.claim.run_id, handler=unit.handler.name)
            runner.reason = "lost"
            self.finisher.release(unit)
        await self._flush(grace_ends)
        await self._leave(handed_over=len(left))
        return len(left)

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

    async def _flush(self, grace_ends: float) -> None:
        """Everything that ended is written down before we leave. A server that is away may come back until the grace
        period is over."""
        deadline, away_deadline = monotonic() + FLUSH_S, max(grace_ends, monotonic() + AWAY_S)
        self.finisher.wake.set()
        while not self.finisher.idle() and monotonic() < (away_deadline if self._is_away() else deadline):
            await asyncio.sleep(0.005)
        if left := self.finisher.left():
            log.error(
                "outcomes could not be written: the runs will be recovered by others and run again",
                count=len(left),
                jobs=left[:MOST_NAMED],
            )

    def _is_away(self) -> bool:
        return self.heart.away or self.redis_breaker.away or bool(nodes_away(self.store))

    async def _leave(self, handed_over: int) -> None:
        self._stopped.set()
        # Its part has ended, so it would take the loop for blocked.
        await asyncio.to_thread(self.watch.stop)
        await self._leave_the_fleet()
        await self._end_parts()
        log.info("worker stopped", worker=self.name, ran=self.pool.ran, handed_over=handed_over)

    async def _leave_the_fleet(self) -> None:
        """The last words are dropped soon if the server is away, also if that turns out on the way."""
        began, goodbye = monotonic(), asyncio.ensure_future(self._say_goodbye())
        try:
            while not goodbye.done() and monotonic() - began < (AWAY_S if self._is_away() else LEAVE_S):
                await asyncio.wait([goodbye], timeout=0.05)
        finally:
            await end(goodbye)
        error = None if goodbye.cancelled() else goodbye.exception()
        if error is not None and not isinstance(error, StoreError | TimeoutError):
            raise error

    async def _say_goodbye(self) -> None:
        for queue in self.queues:
            for partition in range(queue.partitions):
                self._ringer.ring(queue, partition)
        await self._ringer.quiet()
        if self.election is not None and await self.election.leave():
            await self._call_an_election()
        if not self.finisher.idle() or self.runs.unanswered:
            # Something is, or may be, still claimed in our name: those who see our heart stand still bring it back.
            return
        await self._fleet.leave(self.name)
        for queue in self.queues:
            await self.runs.forget_sessions(queue)

    def _look_around(self) -> None:
        """A node of the cluster is back, or another took its place: it may have lost its last writes."""
        self.unheld.hurry()
        self.carrier.wake.set()
        self.fetcher.wake.set()
        self.finisher.wake.set()

    async def _call_an_election(self) -> None:
        """A few are enough: one that hears of it leads."""
        others = [worker for worker in await self._fleet.workers() if worker.id != self.name]
        others.sort(key=lambda worker: (worker.about.state != "running", worker.age or 0))
        for worker in others[:MOST_CALLED]:
            await self._fleet.post(worker.id, {"elect": True})

    async def _end_parts(self) -> None:
        self._forget_nodes()
        await asyncio.to_thread(self.heart.stop)
        await asyncio.to_thread(self.watch.stop)
        await self._end_upkeep()
        await end(*self._tasks.values())
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self.failures.end()
        self.vitals.end()
        await self.pool.close()
        await self.ear.close()
        await self._outside.close()
        await asyncio.to_thread(self._processes.close)

    async def _end_upkeep(self) -> None:
        """A pass that is under way may end by itself for a while, and has another while after it is cancelled."""
        settings = self.settings
        endings = {"reconcile": settings.reconcile_ending, "replan": settings.reconcile_ending}
        if settings.zombies is not None:
            endings["sweep"] = settings.zombies.ending
        if settings.cleanup is not None:
            endings |= dict.fromkeys(("elect", "orphans", "unregistered"), settings.cleanup.ending)
        for name in endings.keys() & self._looped.keys():
            # A loop that rests notices the stop.
            self._looped[name].wake.set()
        running = [(self._tasks[name], ending) for name, ending in endings.items() if name in self._tasks]
        await asyncio.gather(*(_end_gently(task, ending) for task, ending in running))

    async def wait_until_idle(self) -> None:
        """Until nothing is due and nothing is working, here or elsewhere."""
        jobs = Jobs(self.store)
        while True:
            if not self.pool.busy and self.finisher.idle() and not await jobs.any_due_or_working(self.queues):
                # One that was repartitioned meanwhile may have its jobs elsewhere.
                with contextlib.suppress(QueueRepartitioning):
                    if not any([await self.store.catch_up(queue) for queue in self.queues]):
                        return
            await asyncio.sleep(0.02)

    # What the parts tell

    def _beat_seen(self, beat: HeartbeatReply | None, at: float) -> None:
        """On the heart's thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: we are ending
            self._loop.call_soon_threadsafe(self._react_to_beat, beat, at)

    def _react_to_beat(self, beat: HeartbeatReply | None, at: float) -> None:
        self.reaper.on_heartbeat(beat, at)
        if beat is None or not beat.accepted or self.heart.lost_writes:
            # A server that comes back may have lost its last writes.
            self._look_for_losses()
        if beat is not None:
            self._probe()
        if beat is not None and not beat.accepted:
            self.tally.contention["beat"] += 1
        if beat is not None and not beat.accepted and not self._stopped.is_set():
            task = asyncio.ensure_future(self._reincarnate())
            self._tasks["reincarnate"] = task
        elif beat is not None:
            self.fetcher.wake.set()

    def _probe(self) -> None:
        """The server answers: who found it away need not wait for the end of a cooldown."""
        away = [breaker for breaker in (self.acquisition_breaker, self.redis_breaker) if breaker.away]
        for breaker in away:
            breaker.probe_now()
        if away:
            self._wake_all()

    async def _reincarnate(self) -> None:
        """The fleet buried us, or the server forgot us: what we held is not ours. Stop it here and begin anew."""
        if self.heart.forgotten:
            log.error("the server has forgotten this worker, and so lost data: beginning anew", worker=self.name)
        else:
            log.warning(
                "the others declared this worker dead, because they did not see its heartbeat: beginning anew",
                worker=self.name,
            )
        for runner, _ in self.pool.running():
            runner.stop("lost")
        self.pool.withdraw(float("inf"))
        self.finisher.forget()
        former = self.heart
        # Before anything is awaited: a claim that is answered from now on is seen to be of the former name.
        self._new_incarnation()
        await asyncio.to_thread(former.stop)
        await self._change_ear([] if self._quiet.is_set() else list(self.lanes))
        await asyncio.to_thread(self.heart.beat)
        self.heart.start()
        for lane in self.lanes.values():
            lane.forget_dues()
        self._declare_again()


async def _end_gently(task: asyncio.Task[None], ending: StopTimes) -> None:
    """The stop was said: a pass that is under way may end."""
    await asyncio.wait([task], timeout=ending.await_s)
    if not task.done():
        log.warning("a pass does not end, cancelling it", part=task.get_name())
        task.cancel()
        await asyncio.wait([task], timeout=ending.force_s)
