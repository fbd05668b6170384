"""Build the upkeep of a worker: the parts that repair, register and clean up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from tocsin.engine.agent_timetable import AgentTimetable
from tocsin.model.queue import AGENTS_QUEUE
from tocsin.store.transitions.declared_agents import DeclaredAgentSets
from tocsin.store.transitions.held_runs import HeldRuns
from tocsin.store.transitions.jobs import PutItem
from tocsin.store.transitions.leadership import LeaderKey
from tocsin.store.views.audit import AuditReader
from tocsin.store.views.strays import StrayReader
from tocsin.upkeep.agent_announcer import AgentAnnouncer
from tocsin.upkeep.agent_registrar import AgentRegistrar
from tocsin.upkeep.elector import Elector
from tocsin.upkeep.orphan_cleaner import OrphanCleaner
from tocsin.upkeep.outbox_carrier import OutboxCarrier
from tocsin.upkeep.outcome_expiry import OutcomeExpiry
from tocsin.upkeep.reaper import Reaper
from tocsin.upkeep.replanner import Replanner
from tocsin.upkeep.stuck_dependents import StuckDependents
from tocsin.upkeep.unheld_runs import UnheldRuns
from tocsin.upkeep.unregistered_agents import UnregisteredAgents
from tocsin.worker.runs_in_hand import RunsInHand
from tocsin.worker.signals import WorkerSignals

if TYPE_CHECKING:
    from tocsin.worker.build import SharedParts

DeclaredAgents = Callable[[], Mapping[str, PutItem]]


class Upkeep(Struct, frozen=True, kw_only=True, eq=False):
    """None: this worker does not do that."""

    outbox_carrier: OutboxCarrier
    reaper: Reaper
    unheld_runs: UnheldRuns
    # Only with cleanup; without an elector every worker cleans up what it owns.
    elector: Elector | None
    orphan_cleaner: OrphanCleaner | None
    unregistered_agents: UnregisteredAgents | None
    # These work while the elector leads, or always.
    replanner: Replanner
    outcome_expiry: OutcomeExpiry
    stuck_dependents: StuckDependents
    # Only on workers of the agents' queue.
    reconciler: AgentRegistrar | None
    announcer: AgentAnnouncer | None


class AgentClaims:
    """Keeps the timetable of the agents' queue in step with what the registrar finds."""

    def __init__(
        self,
        timetable: AgentTimetable,
        signals: WorkerSignals,
        declared: DeclaredAgents,
        announcer: AgentAnnouncer | None,
    ) -> None:
        self._timetable = timetable
        self._signals = signals
        self._declared = declared
        self._announcer = announcer

    def own(self, gained: Iterable[str], lost: Iterable[str]) -> None:
        self._timetable.own(gained)
        self._timetable.disown(lost)
        self._signals.agents_changed()

    def hear(self, waiting: Mapping[str, float]) -> None:
        self._timetable.hear(waiting)
        self._signals.agents_changed()

    def declared(self) -> Mapping[str, PutItem]:
        """What the program declares now. The registrar and the fleet get the same."""
        agents = self._declared()
        if self._announcer is not None:
            self._announcer.set_agents(agents)
        return agents


def build_upkeep(shared: SharedParts, in_hand: RunsInHand, agents: DeclaredAgents) -> Upkeep:
    store, settings, signals = shared.store, shared.settings, shared.signals
    clock = store.clock
    reaper = Reaper(
        store=store,
        fleet=shared.fleet,
        incarnation=shared.incarnation,
        queues=shared.queues,
        look_again=signals.recovered,
        ttl_s=settings.ttl_s,
        beat_s=settings.beat_s,
        overdue_s=settings.overdue_s,
    )
    unheld_runs = UnheldRuns(
        held_runs=HeldRuns(store),
        queues=shared.queues,
        clock=clock,
        names=shared.incarnation.names,
        held_by_us=in_hand.of,
        on_release=signals.unheld_released,
        beat_s=settings.beat_s,
    )
    elector, orphan_cleaner, unregistered_agents = _build_cleanup(shared, reaper)
    leading = elector.leading if elector is not None else _always
    reconciler, announcer = _build_agents(shared, agents)
    return Upkeep(
        outbox_carrier=OutboxCarrier(store, clock, signals.work_due),
        reaper=reaper,
        unheld_runs=unheld_runs,
        elector=elector,
        orphan_cleaner=orphan_cleaner,
        unregistered_agents=unregistered_agents,
        replanner=Replanner(store, shared.fleet, clock, signals.work_due, leading=leading),
        outcome_expiry=OutcomeExpiry(store, clock, leading=leading),
        stuck_dependents=StuckDependents(store, clock, signals.others_wait, leading=leading),
        reconciler=reconciler,
        announcer=announcer,
    )


def _always() -> bool:
    return True


def _build_cleanup(
    shared: SharedParts, reaper: Reaper
) -> tuple[Elector | None, OrphanCleaner | None, UnregisteredAgents | None]:
    cleanup, store, signals, settings = shared.settings.cleanup, shared.store, shared.signals, shared.settings
    if cleanup is None:
        return None, None, None
    force, rules = cleanup.force_all, cleanup.orphans

    def owns_agent(agent: str) -> bool:
        """A leader cleans up for all. Where all workers clean up, each does it for its own agents."""
        return not force or settings.owns(agent)

    def owns(queue: str, member: str) -> bool:
        return queue != AGENTS_QUEUE or owns_agent(member)

    elector = Elector(
        LeaderKey(store),
        shared.incarnation.current_name,
        store.clock,
        cleanup.term_ms,
        force_all=force,
        on_lead=signals.leads,
    )
    orphan_cleaner = OrphanCleaner(
        StrayReader(store), AuditReader(store), store.queues.open_all, store.clock, rules,
        leading=elector.leading, deadlines=reaper.deadlines, look_again=signals.recovered, owns=owns,
    )  # fmt: skip
    unregistered_agents = UnregisteredAgents(
        store, shared.fleet, rules.threshold_ms, rules.interval_ms / 1000, leading=elector.leading, owns=owns_agent
    )
    return elector, orphan_cleaner, unregistered_agents


def _build_agents(shared: SharedParts, agents: DeclaredAgents) -> tuple[AgentRegistrar | None, AgentAnnouncer | None]:
    served, settings, store = shared.served.get(AGENTS_QUEUE), shared.settings, shared.store
    if served is None or served.timetable is None:
        return None, None
    every_s = settings.reconcile.every_s
    announcer = AgentAnnouncer(DeclaredAgentSets(store), every_s) if settings.cleanup else None
    claims = AgentClaims(served.timetable, shared.signals, agents, announcer)
    registrar = AgentRegistrar(
        store=store,
        queue=served.queue,
        declared=claims.declared,
        owns=settings.owns,
        on_owned=claims.own,
        on_waiting=claims.hear,
        clock=store.clock,
        ring=shared.ringer.ring,
        rules=settings.reconcile,
    )
    return registrar, announcer
