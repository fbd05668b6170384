"""The agents of a program, as they are put into Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tocsin.app import job_options
from tocsin.app.declarations import DeclaredAgent
from tocsin.engine.handlers import Catalog
from tocsin.model.errors import InvalidArgument
from tocsin.model.outcome import UPDATE
from tocsin.model.queue import AGENTS_QUEUE
from tocsin.store.transitions.jobs import PutItem
from tocsin.worker import Worker, WorkerSettings
from tocsin.worker.settings import settings_of

if TYPE_CHECKING:
    from tocsin.app.tocsin import Tocsin


class DeclaredAgents(Mapping[str, PutItem]):
    """By id, as Redis is to have them. Each is encoded when it is first asked for, and again if it is declared anew."""

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
    """One that is there keeps its due time as long as its interval stays."""
    rules = job_options.policy(error_interval=agent.error_interval, agent=True)
    planned = job_options.plan(agent.handler, (), {}, trigger=agent.every, timeout=agent.timeout, policy=rules)
    # An interval counts from when the server gets it: what time it is here does not matter.
    return job_options.recurring(planned, name, 0, UPDATE)


# For patterns that keep agents of their own, beside those that the app declares


def refuse_declared(app: Tocsin, name: str) -> None:
    if name in app._registry.agents:
        raise InvalidArgument(f"{name!r} is declared with @app.agent on this app: choose another name")


async def worker_for(
    app: Tocsin,
    catalog: Catalog,
    agents: Callable[[], Mapping[str, PutItem]],
    settings: WorkerSettings | None,
    shard: Callable[[str], bool] | None,
) -> Worker:
    """A worker of the agents' queue alone, not started yet. What `agents` says now is registered."""
    settings = settings or settings_of(app.config)
    if shard is not None:
        settings = replace(settings, owns=_both(settings.owns, shard))
    queue = await app.store.open_queue(app._registry.queues[AGENTS_QUEUE])
    worker = Worker(app.store, [queue], catalog, settings, agents, app._registry.classifier)
    if worker.reconciler is not None:
        await worker.reconciler.register()
    return worker


def _both(owns: Callable[[str], bool], shard: Callable[[str], bool]) -> Callable[[str], bool]:
    return lambda name: owns(name) and shard(name)
