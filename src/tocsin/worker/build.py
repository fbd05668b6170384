"""Build a worker: takes a store, queues, handlers and settings, and returns the parts, connected and at rest."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence

from msgspec import Struct

from tocsin.engine.agenda import Agenda
from tocsin.engine.agent_timetable import AgentTimetable
from tocsin.engine.claim_planner import ClaimPlanner
from tocsin.engine.deadline_sweep import DeadlineSweep
from tocsin.engine.encode_outcome import OutcomeEncoder
from tocsin.engine.extra_runs import ExtraRunSearch
from tocsin.engine.failure_reports import FailureHook, FailureReports
from tocsin.engine.fetcher import Fetcher, OnClaims
from tocsin.engine.finisher import Finisher
from tocsin.engine.handlers import Catalog
from tocsin.engine.incarnation import Incarnation
from tocsin.engine.intake import ClaimIntake
from tocsin.engine.loop_watch import LoopWatch
from tocsin.engine.outcome_queue import OutcomeQueue
from tocsin.engine.parked_notifier import ParkedNotifier
from tocsin.engine.runner_pool import RunnerPool
from tocsin.engine.served_queue import ServedQueue
from tocsin.engine.stop_requests import StopRequests
from tocsin.engine.unrun_claims import UnrunClaims
from tocsin.model.queue import AGENTS_QUEUE
from tocsin.resilience.breaker import Breaker, redis_breaker_settings
from tocsin.resilience.classify import Classifier
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.fleet import BellRinger, Fleet
from tocsin.store.transitions.held_runs import HeldRuns
from tocsin.store.transitions.host_outages import HostOutages
from tocsin.targets.external import ExternalTargets
from tocsin.targets.host_gates import HostGates
from tocsin.targets.python.functions import target_for
from tocsin.targets.python.processes import Processes
from tocsin.targets.python.threads import Threads
from tocsin.telemetry.metrics import Counters
from tocsin.worker.build_upkeep import DeclaredAgents, Upkeep, build_upkeep
from tocsin.worker.run_factory import RunFactory
from tocsin.worker.runs_in_hand import RunsInHand
from tocsin.worker.settings import WorkerSettings, overrun_limits_of
from tocsin.worker.signals import WorkerSignals


class SharedParts(Struct, frozen=True, kw_only=True, eq=False):
    """What most parts are built with."""

    store: Store
    settings: WorkerSettings
    queues: list[OpenQueue]
    # The same queues as this worker serves them, by name.
    served: dict[str, ServedQueue]
    agenda: Agenda
    # This worker's own copies of the handlers, with those of external targets.
    catalog: Catalog
    incarnation: Incarnation
    signals: WorkerSignals
    tally: Counters
    fleet: Fleet
    ringer: BellRinger
    # Set once the worker claims nothing more.
    quiet: asyncio.Event
    acquisition_breaker: Breaker
    redis_breaker: Breaker
    # Where runs go.
    processes: Processes
    external: ExternalTargets
    host_gates: HostGates


class WorkerParts(SharedParts, frozen=True, kw_only=True, eq=False):
    """All parts of a worker. Nothing here runs by itself."""

    failures: FailureReports
    finisher: Finisher
    pool: RunnerPool
    fetcher: Fetcher
    parked_notifier: ParkedNotifier
    loop_watch: LoopWatch
    sweep: DeadlineSweep
    upkeep: Upkeep


def build(
    store: Store,
    queues: list[OpenQueue],
    catalog: Catalog,
    settings: WorkerSettings,
    *,
    agents: DeclaredAgents,
    classifier: Classifier | None = None,
    failure_hooks: Sequence[FailureHook] = (),
    on_claims: OnClaims | None = None,
) -> WorkerParts:
    """`agents`: those that the program declares, at any moment. `on_claims` observes the fetcher's claims."""
    shared = _build_shared(store, queues, catalog, settings)
    clock, incarnation, signals, tally = store.clock, shared.incarnation, shared.signals, shared.tally
    failures = FailureReports(incarnation, store.keys.prefix, clock, tally, failure_hooks)
    outcomes = OutcomeQueue(incarnation, clock, signals, tally, settings.batching.size)
    finisher = Finisher(
        store=store,
        outcomes=outcomes,
        encoder=OutcomeEncoder(settings.backoff, settings.largest_result),
        classifier=classifier or Classifier(),
        failures=failures,
        stop_requests=StopRequests(shared.fleet),
        breaker=shared.redis_breaker,
        signals=signals,
        tally=tally,
    )
    pool = RunnerPool(settings.concurrency, finisher, signals, clock, failures)
    loop_watch = LoopWatch(tally, pool.handler_in)
    parts = WorkerParts(
        **{name: getattr(shared, name) for name in SharedParts.__struct_fields__},
        failures=failures,
        finisher=finisher,
        pool=pool,
        fetcher=_build_fetcher(shared, pool, finisher, on_claims),
        parked_notifier=ParkedNotifier(store, shared.fleet, incarnation, shared.served, shared.catalog.names()),
        loop_watch=loop_watch,
        sweep=DeadlineSweep(pool, finisher, incarnation, clock, overrun_limits_of(settings), loop_watch.is_waking),
        upkeep=build_upkeep(shared, RunsInHand(shared.served, pool, outcomes, incarnation), agents),
    )
    signals.connect(parts)
    return parts


def _build_shared(store: Store, queues: list[OpenQueue], catalog: Catalog, settings: WorkerSettings) -> SharedParts:
    clock, tally, fleet = store.clock, Counters(), Fleet(store)
    handlers, reach = catalog.copy(), settings.reach
    own = list(handlers)
    gates = HostGates(HostOutages(store), clock, settings.concurrency, reach.max_per_host, shared=len(handlers) > 0)
    external = ExternalTargets(store, reach, gates)
    for handler, target in external.targets():
        placed = copy.copy(handler)
        placed.set_delivery(target)
        handlers.add(placed)
    incarnation = Incarnation(store, handlers.digests(), settings.name)
    make_run, threads, processes = RunFactory(store, incarnation, tally).make, Threads(), Processes()
    for handler in own:
        handler.set_delivery(target_for(handler, make_run, store.keys.prefix, threads, processes))
    for handler in handlers:
        handler.tally = tally.of_handler(handler.name)
    agenda = Agenda()
    return SharedParts(
        store=store,
        settings=settings,
        queues=queues,
        served={queue.name: _serve(queue, agenda, settings, handlers) for queue in queues},
        agenda=agenda,
        catalog=handlers,
        incarnation=incarnation,
        signals=WorkerSignals(),
        tally=tally,
        fleet=fleet,
        ringer=BellRinger(fleet),
        quiet=asyncio.Event(),
        acquisition_breaker=Breaker(settings.breaker, clock.monotonic, in_a_row=True),
        redis_breaker=Breaker(redis_breaker_settings(settings.breaker), clock.monotonic, in_a_row=True),
        processes=processes,
        external=external,
        host_gates=gates,
    )


def _serve(queue: OpenQueue, agenda: Agenda, settings: WorkerSettings, handlers: Catalog) -> ServedQueue:
    """Agents are claimed by id, by workers that declare and own them, so their queue has a timetable."""
    return ServedQueue(
        queue,
        agenda,
        settings.weights.get(queue.name, 1),
        timetable=AgentTimetable() if queue.name == AGENTS_QUEUE else None,
        handlers={handler for handler in handlers if handler.queue == queue.name},
    )


def _build_fetcher(shared: SharedParts, pool: RunnerPool, finisher: Finisher, on_claims: OnClaims | None) -> Fetcher:
    store, settings, incarnation = shared.store, shared.settings, shared.incarnation
    served, signals, breaker = list(shared.served.values()), shared.signals, shared.acquisition_breaker
    return Fetcher(
        store=store,
        incarnation=incarnation,
        served=served,
        agenda=shared.agenda,
        planner=ClaimPlanner(pool, store.clock, settings.batching),
        intake=ClaimIntake(shared.catalog, pool, finisher, store.clock, shared.tally),
        unrun=UnrunClaims(HeldRuns(store), served, incarnation, finisher, signals),
        extra_runs=ExtraRunSearch(store, breaker, settings.batching.extra_attempts),
        pool=pool,
        breaker=breaker,
        ringer=shared.ringer,
        signals=signals,
        tally=shared.tally,
        poll_s=settings.poll_s,
        on_claims=on_claims,
    )
