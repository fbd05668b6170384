"""The parts of a worker, and how they are put together."""

from __future__ import annotations

import asyncio
import copy
import os
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tocsin.engine.agenda import Agenda
from tocsin.engine.agent_timetable import AgentTimetable
from tocsin.engine.deadline_sweep import DeadlineSweep
from tocsin.engine.failure_reports import FailureHook, FailureReports
from tocsin.engine.fetcher import Fetcher
from tocsin.engine.finisher import Finisher
from tocsin.engine.handlers import Catalog
from tocsin.engine.heartbeat import Heartbeat
from tocsin.engine.loop import Part
from tocsin.engine.loop_watch import LoopWatch
from tocsin.engine.parked_notifier import ParkedNotifier
from tocsin.engine.runner_pool import RunnerPool
from tocsin.engine.served_queue import ServedQueue
from tocsin.engine.work_item import WorkItem
from tocsin.model.clock import wall_ms
from tocsin.model.codec import decode_header
from tocsin.model.durations import ceil_ms, moment
from tocsin.model.errors import ClaimLost
from tocsin.model.job import Spec
from tocsin.model.queue import AGENTS_QUEUE
from tocsin.model.run import Claim, Run
from tocsin.resilience.breaker import Breaker, redis_breaker_settings
from tocsin.resilience.breaker import BreakerState as Circuit
from tocsin.resilience.classify import Classifier
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.claims import Runs
from tocsin.store.transitions.declared_agents import DeclaredAgentSets
from tocsin.store.transitions.fleet import BellReader, BellRinger, Fleet, HeartbeatReply, HeartbeatSender, WorkerInfo
from tocsin.store.transitions.held_runs import HeldRuns
from tocsin.store.transitions.host_outages import HostOutages
from tocsin.store.transitions.jobs import PutItem
from tocsin.store.transitions.leadership import LeaderKey
from tocsin.store.transitions.queue_settings import open_all
from tocsin.store.views.audit import AuditReader
from tocsin.store.views.parked_handlers import parked_in
from tocsin.store.views.strays import StrayReader
from tocsin.targets.external import ExternalTargets
from tocsin.targets.host_gates import HostGates
from tocsin.targets.python.functions import target_for
from tocsin.targets.python.processes import Processes
from tocsin.targets.python.threads import Threads
from tocsin.telemetry.metrics import Counters
from tocsin.upkeep.agent_announcer import AgentAnnouncer
from tocsin.upkeep.agent_registrar import AgentRegistrar
from tocsin.upkeep.elector import Elector
from tocsin.upkeep.orphan_cleaner import OrphanCleaner
from tocsin.upkeep.outbox_carrier import OutboxCarrier
from tocsin.upkeep.outcome_expiry import OutcomeExpiry
from tocsin.upkeep.reaper import Reaper
from tocsin.upkeep.replanner import Replanner
from tocsin.upkeep.stuck_dependents import StuckDependents
from tocsin.upkeep.unheld_runs import HeldByWorker, UnheldRuns
from tocsin.upkeep.unregistered_agents import UnregisteredAgents
from tocsin.worker.settings import WorkerSettings, patience_of
from tocsin.worker.stats import Stats, about, stats
from tocsin.worker.telemetry import WorkerTelemetry

# How long parts wait before they look again whether a breaker still holds them back, unless they are woken.
HELD_S = 1.0
# So many incarnations of a worker may have left claims behind that it looks after.
MOST_NAMES = 10


class WorkerParts(ABC):
    """Built and at rest: nothing here runs by itself."""

    def __init__(
        self,
        store: Store,
        queues: list[OpenQueue],
        catalog: Catalog,
        settings: WorkerSettings | None = None,
        agents: Callable[[], Mapping[str, PutItem]] = dict,
        classifier: Classifier | None = None,
        failure_hooks: Sequence[FailureHook] = (),
    ) -> None:
        self.settings = settings or WorkerSettings()
        self.store = store
        self.clock = store.clock
        self.catalog = catalog.copy()
        self.queues = queues
        self._agents = agents
        self._classifier = classifier
        self._failure_hooks = failure_hooks
        self._host = socket.gethostname()
        self._started = wall_ms()
        self._incarnation = 0
        # The names of all incarnations, the present one last.
        self._names: deque[str] = deque(maxlen=MOST_NAMES)
        self._state = "running"
        self._quiet, self._stopped = asyncio.Event(), asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._looped: dict[str, Part] = {}
        self._forget_nodes: Callable[[], None] = lambda: None
        self._loop = asyncio.get_running_loop()
        self._build()

    def _build(self) -> None:
        store, clock, settings = self.store, self.clock, self.settings
        self.tally = Counters()
        self._fleet = Fleet(store)
        self._ringer = BellRinger(self._fleet)
        self.acquisition_breaker = Breaker(settings.breaker, clock.monotonic, in_a_row=True)
        self.redis_breaker = Breaker(redis_breaker_settings(settings.breaker), clock.monotonic, in_a_row=True)
        self._place_handlers()
        self.announcer: AgentAnnouncer | None = None
        agenda = Agenda()
        self.lanes = {
            queue.name: ServedQueue(queue, agenda, settings.weights.get(queue.name, 1)) for queue in self.queues
        }
        for lane in self.lanes.values():
            lane.expect_handlers({handler for handler in self.catalog if handler.queue == lane.name})
        self.reconciler = self._claim_agents_by_id()
        self._new_incarnation()
        self.ear = BellReader(store, self.name, list(self.lanes))
        self.carrier = OutboxCarrier(store, clock, self._look_again)
        self.failures = FailureReports(lambda: self.name, store.keys.prefix, clock, self.tally, self._failure_hooks)
        self.finisher = Finisher(
            store, lambda: self.runs, clock, self._lost_claim, self._work_is_due, self._classifier,
            settings.backoff, self.redis_breaker, self.tally, settings.batching.size, self._fleet.post,
            self.carrier.note_filled, settings.largest_result, self.failures.report,
        )  # fmt: skip
        self.pool = RunnerPool(
            settings.concurrency, self.finisher, lambda: self.fetcher.wake.set(), clock, self.failures.not_started
        )
        unwritten = self.finisher.unwritten
        unwritten.on_full, unwritten.on_room = self.pool.hold, self.pool.go_on
        self.referrer = ParkedNotifier(
            self._fleet, lambda: self.name, self.catalog.names(),
            lambda queue, partition: parked_in(store, self.lanes[queue].queue, partition),
        )  # fmt: skip
        self.fetcher = Fetcher(
            store, lambda: self.runs, list(self.lanes.values()), agenda, self.catalog, self.pool, self.finisher, clock,
            lambda: self.heart.lease, lambda lane, p: self._ringer.ring(lane.queue, p), self.referrer.refer,
            settings.poll_s, self._queue_changed, self.acquisition_breaker, settings.batching, self.tally,
        )  # fmt: skip
        self.watch = LoopWatch(self.tally, self.pool.handler_in)
        patience = patience_of(settings)
        self.sweep = DeadlineSweep(self.pool, self.finisher, lambda: self.runs, clock, patience, self.watch.is_waking)
        self.reaper = Reaper(
            store=store, fleet=self._fleet, runs=lambda: self.runs, queues=self.queues, clock=clock,
            look_again=self._brought_back, ttl_s=settings.ttl_s, beat_s=settings.beat_s, overdue_s=settings.overdue_s,
        )  # fmt: skip
        self.unheld = UnheldRuns(
            held_runs=HeldRuns(store), queues=self.queues, clock=clock, names=lambda: list(self._names),
            held_by_us=self._hand, on_release=self._handed_back, beat_s=settings.beat_s,
        )  # fmt: skip
        self.election, self.orphans, self.unregistered = self._build_cleanup()
        leading = self.election.leading if self.election is not None else lambda: True
        self.replanner = Replanner(store, self._fleet, clock, self._look_again, leading=leading)
        self.forgetter = OutcomeExpiry(store, clock, leading=leading)
        self.unheard = StuckDependents(store, clock, self.carrier.note_filled, leading=leading)
        if self.election is not None:
            self.election.on_lead = self._begin_to_lead
        self.vitals = WorkerTelemetry(self, self.tally)

    def _place_handlers(self) -> None:
        """Where the runs of each go."""
        prefix = self.store.keys.prefix
        self._threads, self._processes = Threads(), Processes()
        for handler in self.catalog:
            handler.deliver_by(target_for(handler, self._make_run, prefix, self._threads, self._processes))
        reach = self.settings.reach
        self.gates = HostGates(
            HostOutages(self.store),
            self.clock,
            self.settings.concurrency,
            reach.max_per_host,
            shared=len(self.catalog) > 0,
        )
        self._outside = ExternalTargets(self.store, reach, self.gates)
        for handler, target in self._outside.targets():
            self.catalog.add(own := copy.copy(handler))
            own.deliver_by(target)
        for handler in self.catalog:
            handler.tally = self.tally.of_handler(handler.name)

    def _build_cleanup(self) -> tuple[Elector | None, OrphanCleaner | None, UnregisteredAgents | None]:
        cleanup, store, clock = self.settings.cleanup, self.store, self.clock
        if cleanup is None:
            return None, None, None
        force, rules = cleanup.force_all, cleanup.orphans
        election = Elector(LeaderKey(store), lambda: self.name, clock, cleanup.term_ms, force_all=force)
        orphans = OrphanCleaner(
            StrayReader(store), AuditReader(store), lambda: open_all(store), clock, rules, leading=election.leading,
            deadlines=self.reaper.deadlines, look_again=self._brought_back,
            # A leader cleans up for all; where all do it, each does it for its own agents.
            owns=lambda queue, member: not force or queue != AGENTS_QUEUE or self.settings.owns(member),
        )  # fmt: skip
        unregistered = UnregisteredAgents(
            store, self._fleet, rules.threshold_ms, rules.interval_ms / 1000, leading=election.leading,
            owns=lambda member: not force or self.settings.owns(member),
        )  # fmt: skip
        return election, orphans, unregistered

    def _begin_to_lead(self) -> None:
        for part in (self.orphans, self.unregistered, self.replanner, self.forgetter, self.unheard):
            if part is not None:
                part.wake.set()

    def _claim_agents_by_id(self) -> AgentRegistrar | None:
        """Agents are claimed by those that declare and own them, so their lane has a timetable."""
        lane = self.lanes.get(AGENTS_QUEUE)
        if lane is None:
            return None
        timetable = lane.timetable = AgentTimetable()

        def own(gained: Iterable[str], lost: Iterable[str]) -> None:
            timetable.own(gained)
            timetable.disown(lost)
            self.fetcher.wake.set()

        def hear(waiting: Mapping[str, float]) -> None:
            timetable.hear(waiting)
            self.fetcher.wake.set()

        settings = self.settings
        self.announcer = (
            AgentAnnouncer(DeclaredAgentSets(self.store), settings.reconcile.every_s) if settings.cleanup else None
        )
        return AgentRegistrar(
            store=self.store,
            queue=lane.queue,
            declared=self._declared_agents,
            owns=settings.owns,
            on_owned=own,
            on_waiting=hear,
            clock=self.clock,
            ring=self._ringer.ring,
            rules=settings.reconcile,
        )

    def _declared_agents(self) -> Mapping[str, PutItem]:
        """As the program declares them now. What the reconciler hears, the fleet is told."""
        agents = self._agents()
        if self.announcer is not None:
            self.announcer.set_agents(agents)
        return agents

    def _new_incarnation(self) -> None:
        """A name under which nothing was ever claimed: after a burial the old one's runs belong to others."""
        self._incarnation += 1
        given = f"{self.settings.name}:" if self.settings.name else ""
        self.name = f"{given}{self._host}:{os.getpid()}:{os.urandom(3).hex()}.{self._incarnation}"
        self._names.append(self.name)
        self.runs = Runs(self.store, self.name, self.catalog.digests())
        pulse = HeartbeatSender(self.store, self.name)
        self.heart = Heartbeat(
            pulse, self.about, self._beat_seen, self.clock, self.settings.beat_s, self.settings.ttl_s
        )

    def about(self) -> WorkerInfo:
        return about(self, self._host, self._started, self._state)

    def stats(self) -> Stats:
        return stats(self)

    @property
    def running(self) -> int:
        """Runs inside their handlers."""
        return self.pool.busy - self.pool.waiting

    def reset_breakers(self) -> None:
        """A person knows that the server is well again."""
        self.acquisition_breaker.reset()
        self.redis_breaker.reset()
        self._wake_all()

    def held(self) -> float:
        """For how many seconds all that calls the server is to wait, because a breaker is open. A claim script that
        fails holds up claims only. While the heart finds the server away, no other part need try: its next beat that
        gets through ends the wait."""
        breakers = [self.redis_breaker, *([self.acquisition_breaker] if self.acquisition_breaker.away else [])]
        waits = [breaker.status().probe_in for breaker in breakers if breaker.state is Circuit.OPEN]
        if not waits and self.heart.away and any(breaker.state is Circuit.HALF_OPEN for breaker in breakers):
            return HELD_S
        return max(waits, default=0.0)

    def _wake_all(self) -> None:
        for part in self._looped.values():
            part.wake.set()

    # What the parts tell

    @abstractmethod
    def _beat_seen(self, beat: HeartbeatReply | None, at: float) -> None:
        """On the heart's thread."""

    def _look_again(self, queue: OpenQueue, partition: int) -> None:
        """There may be work: told to ourselves too, because a bell may be heard by a worker that is stopped."""
        if queue.name in self.lanes:
            self.lanes[queue.name].hear(partition)
            self.fetcher.wake.set()
        self._ringer.ring(queue, partition)

    def _brought_back(self, queue: OpenQueue, partition: int) -> None:
        """Some may have ended on the way, because a person had asked for it."""
        self.carrier.note_filled(queue, partition)
        self._look_again(queue, partition)

    def _handed_back(self, queue: OpenQueue, partition: int, keys: Sequence[bytes]) -> None:
        """A timetable expects these at the time that their lost outcomes had set."""
        timetable = self.lanes[queue.name].timetable
        for member in [key.decode(errors="replace") for key in keys]:
            if timetable is not None and member in timetable:
                timetable.expect(member, 0.0)
        self._brought_back(queue, partition)

    def _work_is_due(self, lane: ServedQueue, partition: int) -> None:
        """For us; or, once we claim nothing more, for those who do: we may have freed what keeps it back."""
        if not self._quiet.is_set():
            self.fetcher.wake.set()
        elif lane.timetable is None:
            lane.rest(partition)
            self._ringer.ring(lane.queue, partition)

    def _queue_changed(self, lane: ServedQueue) -> None:
        lane.forget_dues()
        self._declare_again()

    def _declare_again(self) -> None:
        """The server was emptied or replaced, or may have been: what the program registers is to be there."""
        if self.reconciler is not None:
            self.reconciler.start_over()

    def _lost_claim(self, member: str) -> None:
        self.failures.claim_lost(member)
        self._look_for_losses()

    def _look_for_losses(self) -> None:
        """The server may have lost its last writes: outcomes of ours, and what blocked jobs were told."""
        self.unheld.hurry()
        self.unheard.hurry()

    def _hand(self, queue: OpenQueue, partition: int) -> HeldByWorker | None:
        """None while runs are on their way from the fetcher to the pool."""
        lane = self.lanes[queue.name]
        if lane.coming:
            return None
        keys = self.pool.keys_in_hand(lane) | self.finisher.keys_in_hand(lane)
        return HeldByWorker(keys, self.runs.asking(queue.name, partition))

    # What runs may ask

    def _make_run(self, unit: WorkItem, claim: Claim, spec: Spec) -> Run:
        # The run must not hold its unit: the unit holds the run, and the garbage collector does not look into units.
        queue = unit.lane.queue

        def extend(run: Run, seconds: float) -> Any:
            return self._extend(queue, claim, run, seconds)

        return Run(claim, decode_header(claim.record), spec, self.store.keys.prefix, extend)

    def _extend(self, queue: OpenQueue, claim: Claim, run: Run, seconds: float) -> Any:
        work = self._extended(queue, claim, run, seconds)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        return work

    async def _extended(self, queue: OpenQueue, claim: Claim, run: Run, seconds: float) -> None:
        try:
            run.deadline = moment(await self.runs.extend(queue, claim, ceil_ms(seconds)))
        except ClaimLost:
            self.tally.contention["extend"] += 1
            raise
        run.extended_until = self.clock.monotonic() + seconds
