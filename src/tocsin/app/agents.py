"""The agents that a program declares, encoded for Redis and registered there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tocsin.app import job_options
from tocsin.app.declarations import Declarations, DeclaredAgent
from tocsin.model.outcome import UPDATE
from tocsin.model.queue import AGENTS_QUEUE
from tocsin.store.store import Store
from tocsin.store.transitions.fleet import BellRinger
from tocsin.store.transitions.jobs import PutItem
from tocsin.upkeep.agent_ownership import Ownership
from tocsin.upkeep.agent_registrar import AgentRegistrar, RegistrationRules


class Agents:
    """The agents of one app, while it is open."""

    def __init__(self, store: Store, declarations: Declarations, ringer: BellRinger) -> None:
        self._store = store
        self._declarations = declarations
        self._ringer = ringer
        self._puts = AgentPuts(declarations.agents)

    def puts(self) -> Mapping[str, PutItem]:
        """The puts of all agents that are declared now, by id."""
        return self._puts

    async def register(self) -> None:
        where = await self._store.open_queue(self._declarations.queues[AGENTS_QUEUE])
        registrar = AgentRegistrar(
            store=self._store,
            queue=where,
            declared=self.puts,
            owns=Ownership(),
            on_owned=_no_timetable,
            on_waiting=_no_timetable,
            clock=self._store.clock,
            ring=self._ringer.ring,
            rules=RegistrationRules(),
        )
        await registrar.step()


class AgentPuts(Mapping[str, PutItem]):
    """The puts of agents by id. Each is encoded when it is first needed, and again if its agent is declared anew."""

    def __init__(self, agents: Mapping[str, DeclaredAgent]) -> None:
        """`agents` may grow while modules are imported."""
        self._agents = agents
        self._encoded: dict[str, tuple[DeclaredAgent, PutItem]] = {}

    def __getitem__(self, name: str) -> PutItem:
        agent = self._agents[name]
        known = self._encoded.get(name)
        if known is None or known[0] is not agent:
            known = self._encoded[name] = agent, put_of(name, agent)
        return known[1]

    def __contains__(self, name: object) -> bool:
        return name in self._agents

    def __iter__(self) -> Iterator[str]:
        return iter(self._agents)

    def __len__(self) -> int:
        return len(self._agents)


def put_of(name: str, agent: DeclaredAgent) -> PutItem:
    """The put of an agent. An agent that Redis has already keeps its due time as long as its interval stays."""
    rules = job_options.policy(error_interval=agent.error_interval, agent=True)
    job = job_options.define_job(agent.handler, (), {}, trigger=agent.every, timeout=agent.timeout, policy=rules)
    # The server counts the interval from its own now, so the time here does not matter.
    return job_options.recurring(job, name, 0, UPDATE)


def _no_timetable(*_: object) -> None:
    """No worker is here that would claim the agents."""
