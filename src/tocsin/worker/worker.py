"""A worker: runs the loops of its parts, and ends them in the right order."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import Callable, Sequence

from tocsin.engine import claim_planner
from tocsin.engine import finisher as finish
from tocsin.engine.bells_and_mail import Listener
from tocsin.engine.failure_reports import FailureHook
from tocsin.engine.fetcher import OnClaims
from tocsin.engine.handlers import Catalog
from tocsin.engine.heartbeat import Heartbeat
from tocsin.engine.loop import Part, end, repeat
from tocsin.model.clock import monotonic, wall_ms
from tocsin.model.errors import QueueRepartitioning, StoreError
from tocsin.resilience.breaker import Breaker, BreakerState
from tocsin.resilience.classify import Classifier
from tocsin.store.connection.nodes import nodes_away, when_back
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.fleet import BellReader, HeartbeatReply, HeartbeatSender, WorkerInfo
from tocsin.store.transitions.jobs import Jobs
from tocsin.telemetry.logs import get_logger
from tocsin.upkeep.idle_connections import IdleConnections
from tocsin.worker.build import build
from tocsin.worker.build_upkeep import DeclaredAgents
from tocsin.worker.end_upkeep import end_upkeep
from tocsin.worker.goodbye import say_goodbye
from tocsin.worker.settings import WorkerSettings
from tocsin.worker.stats import Stats, about, stats
from tocsin.worker.telemetry import WorkerTelemetry

log = get_logger("tocsin.worker")

GRACE_S = 30.0
# After the grace period: how long a handler may take to react to its cancellation.
CANCEL_S = 2.0
# How long `quiet` waits for a claim in flight.
CLAIM_S = 5.0
# How long the last outcomes and the last calls may take. If the server is away, outcomes have the rest of the grace
# period, and the last calls AWAY_S.
FLUSH_S = 10.0
LEAVE_S = 5.0
AWAY_S = 1.0
# The log names this many of the jobs whose outcomes are lost.
MOST_NAMED = 50
# A pass of upkeep that takes longer than this hangs: it is cut off, and the next begins anew.
LONGEST_PASS_S = 300.0
# How long parts wait before they look again whether a breaker still holds them back, unless they are woken.
HELD_S = 1.0


class Worker:
    """Runs the jobs of some queues. `start`, then `quiet` (no more claims), then `stop`.

    Nothing runs before `start`: tests and some programs call the passes of the parts themselves."""

    def __init__(
        self,
        store: Store,
        queues: list[OpenQueue],
        catalog: Catalog,
        settings: WorkerSettings | None = None,
        *,
        agents: DeclaredAgents = dict,
        classifier: Classifier | None = None,
        failure_hooks: Sequence[FailureHook] = (),
        on_claims: OnClaims | None = None,
    ) -> None:
        """`agents`: those that the program declares, at any moment. `on_claims` observes the claims that it makes."""
        self.settings = settings or WorkerSettings()
        parts = self.parts = build(
            store, queues, catalog, self.settings,
            agents=agents, classifier=classifier, failure_hooks=failure_hooks, on_claims=on_claims,
        )  # fmt: skip
        self.store, self.clock, self.queues = store, store.clock, queues
        # The parts that this class and programs around it use most.
        self.catalog, self.served, self.tally = parts.catalog, parts.served, parts.tally
        self.fetcher, self.finisher, self.pool, self.sweep = parts.fetcher, parts.finisher, parts.pool, parts.sweep
        self.reconciler = parts.upkeep.reconciler
        self._host, self._started, self._state = socket.gethostname(), wall_ms(), "running"
        self._quiet, self._stopped = parts.quiet, asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._looped: dict[str, Part] = {}
        self._stop_watching_nodes: Callable[[], None] = lambda: None
        self._loop = asyncio.get_running_loop()
        # These two have the worker's present name.
        self.heart = self._new_heart()
        self.bells = BellReader(store, self.name, list(self.served))
        self.telemetry = WorkerTelemetry(self)

    @property
    def name(self) -> str:
        """Another one in each life (engine/incarnation.py)."""
        return self.parts.incarnation.name

    def _new_heart(self) -> Heartbeat:
        incarnation, settings = self.parts.incarnation, self.settings
        return Heartbeat(
            sender=HeartbeatSender(self.store, incarnation.name),
            lease=incarnation.lease,
            about=self.about,
            on_beat=self._beat_seen,
            clock=self.clock,
            beat_s=settings.beat_s,
            ttl_s=settings.ttl_s,
        )

    # Numbers

    def about(self) -> WorkerInfo:
        return about(self, self._host, self._started, self._state)

    def stats(self) -> Stats:
        return stats(self)

    @property
    def running(self) -> int:
        """Runs inside their handlers."""
        return self.pool.busy - self.pool.waiting

    # Breakers

    def reset_breakers(self) -> None:
        """For a person who knows that the server is well again."""
        self.parts.acquisition_breaker.reset()
        self.parts.redis_breaker.reset()
        self._wake_all()

    def held(self) -> float:
        """For how many seconds parts that call the server must wait, because a breaker is open.

        A claim script that fails holds up claims only. While the heartbeat finds the server away, no other part need
        try: the next beat that gets through ends the wait."""
        redis, acquisition = self.parts.redis_breaker, self.parts.acquisition_breaker
        breakers = [redis, *([acquisition] if acquisition.away else [])]
        waits = [breaker.status().probe_in for breaker in breakers if breaker.state is BreakerState.OPEN]
        if not waits and self.heart.away and any(breaker.state is BreakerState.HALF_OPEN for breaker in breakers):
            return HELD_S
        return max(waits, default=0.0)

    def _wake_all(self) -> None:
        for part in self._looped.values():
            part.wake.set()

    # Life

    async def start(self) -> None:
        """Join the fleet and begin to work."""
        parts, upkeep = self.parts, self.parts.upkeep
        beat = await asyncio.to_thread(self.heart.beat)
        if beat is None:
            log.warning("no heartbeat yet: claims begin when the server answers")
        self.heart.start()
        parts.loop_watch.start()
        self._stop_watching_nodes = when_back(self.store, parts.signals.nodes_changed)
        if self.settings.enabled:
            for turn in range(claim_planner.PASSES):
                self._run(self.fetcher, self._quiet, f"fetch {turn}", breaker=parts.acquisition_breaker)
            self._listen()
        for turn in range(finish.PASSES):
            self._run(self.finisher, self._stopped, f"finish {turn}", breaker=parts.redis_breaker)
        # These go on whatever the server does: they stop runs, and report what is wrong.
        reporting: list[Part] = [self.sweep, parts.loop_watch, parts.failures, *self.telemetry.parts()]
        for part in reporting:
            self._run(part, self._stopped)
        calling: list[Part] = [upkeep.reaper, upkeep.unheld_runs, upkeep.outbox_carrier, parts.parked_notifier]
        for part in (*calling, parts.host_gates, self.telemetry.gauges, IdleConnections(self.store)):
            self._run(part, self._stopped, held=self.held)
        leading = (upkeep.elector, upkeep.orphan_cleaner, upkeep.unregistered_agents, upkeep.replanner)
        for slow in (*leading, upkeep.outcome_expiry, upkeep.stuck_dependents, upkeep.announcer):
            if slow is not None:
                self._run(slow, self._stopped, longest=LONGEST_PASS_S, held=self.held)
        if self.reconciler is not None:
            self._run(self.reconciler, self._quiet, longest=LONGEST_PASS_S, held=self.held)
        log.info(
            "worker started",
            worker=self.name,
            queues=sorted(self.served),
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
        """`breaker`: the one that the part itself asks. `held`: how many seconds to leave the server alone."""
        self._looped[name or part.name] = part
        is_failing = (lambda: breaker.failing) if breaker is not None else (lambda: False)
        work = repeat(part, stop, longest, self.parts.loop_watch.is_waking, is_failing, held)
        self._tasks[name or part.name] = asyncio.create_task(work, name=f"tocsin {part.name}")

    async def _listen_to(self, queues: list[str]) -> None:
        """Listen under the present name for the bells of these queues, and for mail."""
        listening = self._tasks.pop("listen", None)
        if listening is None:
            return
        await end(listening)
        await self.bells.close()
        self.bells = BellReader(self.store, self.name, queues)
        self._listen()

    def _listen(self) -> None:
        listener = Listener(self.bells, self.served, self.pool, self.fetcher, self.parts.upkeep.elector)
        self._run(listener, self._stopped, held=self.held)

    async def quiet(self, patience: float = CLAIM_S) -> None:
        """Claim nothing more, and release what has not started."""
        if self._quiet.is_set():
            return
        self._state = "stopping"
        self._quiet.set()
        log.info("claiming nothing more", worker=self.name)
        self.fetcher.wake.set()
        fetching = [task for name, task in self._tasks.items() if name.startswith("fetch")]
        if fetching:
            # A claim in flight must be answered: what it brings must be released.
            await asyncio.wait(fetching, timeout=patience)
        for served in self.served.values():
            served.expect_all([math.inf] * len(served.next_due))
        self.finisher.spread_releases(self.settings.shutdown_jitter_s)
        for unit in self.pool.take_unstarted(float("inf")):
            self.finisher.release(unit)
        # A bell that this worker heard would wake nobody, because it claims nothing. Mail may still cancel a run.
        await self._listen_to([])

    async def stop(self, grace: float = GRACE_S, hurry: asyncio.Event | None = None, cancel_s: float = CANCEL_S) -> int:
        """Let runs end within the grace period, then cancel the others and release them. Returns how many."""
        grace_ends = monotonic() + grace
        await self.quiet(min(CLAIM_S, max(grace, AWAY_S)))
        await self._until_ended(grace_ends - monotonic(), hurry)
        left = list(self.pool.running())
        for runner, _ in left:
            runner.stop("handover")
        await self._until_ended(cancel_s, None)
        for runner, unit in list(self.pool.running()):
            # It ignores its cancellation, or is a thread: its claim goes to another worker anyway.
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
        """Write all outcomes before leaving. A server that is away may come back until the grace period is over."""
        deadline, away_deadline = monotonic() + FLUSH_S, max(grace_ends, monotonic() + AWAY_S)
        self.finisher.wake.set()
        while not self.finisher.idle() and monotonic() < (away_deadline if self._is_away() else deadline):
            await asyncio.sleep(0.005)
        if left := self.finisher.outcomes.job_ids():
            log.error(
                "outcomes could not be written: the runs will be recovered by others and run again",
                count=len(left),
                jobs=left[:MOST_NAMED],
            )

    def _is_away(self) -> bool:
        return self.heart.away or self.parts.redis_breaker.away or bool(nodes_away(self.store))

    async def _leave(self, handed_over: int) -> None:
        self._stopped.set()
        # The part that marks the turns of the loop has ended, so the watch would take the loop for blocked.
        await asyncio.to_thread(self.parts.loop_watch.stop)
        await self._leave_the_fleet()
        await self._end_parts()
        log.info("worker stopped", worker=self.name, ran=self.pool.ran, handed_over=handed_over)

    async def _leave_the_fleet(self) -> None:
        """Give up the last calls soon if the server is away, also if that shows only meanwhile."""
        began, goodbye = monotonic(), asyncio.ensure_future(say_goodbye(self.parts))
        try:
            while not goodbye.done() and monotonic() - began < (AWAY_S if self._is_away() else LEAVE_S):
                await asyncio.wait([goodbye], timeout=0.05)
        finally:
            await end(goodbye)
        error = None if goodbye.cancelled() else goodbye.exception()
        if error is not None and not isinstance(error, StoreError | TimeoutError):
            raise error

    async def _end_parts(self) -> None:
        parts = self.parts
        self._stop_watching_nodes()
        await asyncio.to_thread(self.heart.stop)
        await asyncio.to_thread(parts.loop_watch.stop)
        await end_upkeep(self.settings, self._looped, self._tasks)
        await end(*self._tasks.values())
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await parts.failures.end()
        self.telemetry.end()
        await self.pool.close()
        await self.bells.close()
        await parts.external.close()
        await asyncio.to_thread(parts.processes.close)

    async def wait_until_idle(self) -> None:
        """Until nothing is due and nothing is working, here or elsewhere."""
        jobs = Jobs(self.store)
        while True:
            if not self.pool.busy and self.finisher.idle() and not await jobs.any_due_or_working(self.queues):
                # If a queue was repartitioned meanwhile, its jobs may be elsewhere.
                with contextlib.suppress(QueueRepartitioning):
                    if not any([await self.store.queues.refresh_if_repartitioned(queue) for queue in self.queues]):
                        return
            await asyncio.sleep(0.02)

    # Heartbeats

    def _beat_seen(self, beat: HeartbeatReply | None, at: float) -> None:
        """Called on the heartbeat's thread."""
        with contextlib.suppress(RuntimeError):  # The loop is closed: the worker is ending.
            self._loop.call_soon_threadsafe(self._react_to_beat, beat, at)

    def _react_to_beat(self, beat: HeartbeatReply | None, at: float) -> None:
        self.parts.upkeep.reaper.on_heartbeat(beat, at)
        if beat is None or not beat.accepted or self.heart.lost_writes:
            # A server that comes back may have lost its last writes.
            self.parts.signals.writes_lost()
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
        """The server answers: parts that found it away need not wait for the end of a cooldown."""
        away = [each for each in (self.parts.acquisition_breaker, self.parts.redis_breaker) if each.away]
        for breaker in away:
            breaker.probe_now()
        if away:
            self._wake_all()

    async def _reincarnate(self) -> None:
        """Others declared this worker dead, or the server forgot it, so it holds nothing: stop all runs, begin anew."""
        if self.heart.forgotten:
            log.error("the server has forgotten this worker, and so lost data: beginning anew", worker=self.name)
        else:
            log.warning(
                "the others declared this worker dead, because they did not see its heartbeat: beginning anew",
                worker=self.name,
            )
        for runner, _ in self.pool.running():
            runner.stop("lost")
        self.pool.take_unstarted(float("inf"))
        self.finisher.outcomes.forget()
        former = self.heart
        # Before the first await: a claim that is answered from now on must count as made under the former name.
        self.parts.incarnation.renew()
        self.heart = self._new_heart()
        await asyncio.to_thread(former.stop)
        await self._listen_to([] if self._quiet.is_set() else list(self.served))
        await asyncio.to_thread(self.heart.beat)
        self.heart.start()
        for served in self.served.values():
            served.forget_dues()
        self.parts.signals.register_again()
