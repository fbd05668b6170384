"""The agents of a program, as they are put into Redis."""

from __future__ import annotations

from tocsin.app import options
from tocsin.app.registry import Agent, Registry
from tocsin.model.durations import Millis
from tocsin.store.jobs import UPDATE, Put


def declared(registry: Registry, now: Millis) -> dict[str, Put]:
    """By id. One that is there keeps its due time as long as its interval stays."""
    return {name: _put(name, agent, now) for name, agent in registry.agents.items()}


def _put(name: str, agent: Agent, now: Millis) -> Put:
    rules = options.policy(error_interval=agent.error_interval, agent=True)
    planned = options.plan(agent.handler, (), {}, trigger=agent.every, policy=rules)
    return options.recurring(planned, name, now, UPDATE)
