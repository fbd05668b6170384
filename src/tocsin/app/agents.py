"""The agents of a program, as they are put into Redis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tocsin.app import options
from tocsin.app.registry import Agent, Registry
from tocsin.engine.catalog import Catalog
from tocsin.model.durations import Millis
from tocsin.model.errors import InvalidArgument
from tocsin.model.queue import AGENTS_QUEUE
from tocsin.store.jobs import UPDATE, Put
from tocsin.worker import Settings, Worker
from tocsin.worker.settings import settings_of

if TYPE_CHECKING:
    from tocsin.app.tocsin import Tocsin


def declared(registry: Registry, now: Millis) -> dict[str, Put]:
    """By id. One that is there keeps its due time as long as its interval stays."""
    return {name: put_of(name, agent, now) for name, agent in registry.agents.items()}


def put_of(name: str, agent: Agent, now: Millis) -> Put:
    rules = options.policy(error_interval=agent.error_interval, agent=True)
    planned = options.plan(agent.handler, (), {}, trigger=agent.every, timeout=agent.timeout, policy=rules)
    return options.recurring(planned, name, now, UPDATE)


# For patterns that keep agents of their own, beside those that the app declares


def refuse_declared(app: Tocsin, name: str) -> None:
    if name in app._registry.agents:
        raise InvalidArgument(f"{name!r} is declared with @app.agent on this app: choose another name")


async def worker_for(
    app: Tocsin,
    catalog: Catalog,
    agents: Callable[[], Mapping[str, Put]],
    settings: Settings | None,
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
