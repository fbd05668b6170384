"""Publishes which agents this worker's program declares, so that a leader can find agents that no program declares."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from tocsin.store.transitions.declared_agents import DeclaredAgentSets, set_name


class AgentAnnouncer:
    """Each pass stores the set of declared agents again, in case the server lost it."""

    name = "announce"

    def __init__(self, declared: DeclaredAgentSets, every_s: float) -> None:
        self.wake = asyncio.Event()
        # The name of the stored set. None before the first pass: then nobody knows yet what this worker declares.
        self.stored_set: str | None = None
        self._declared = declared
        self._every_s = every_s
        self._agents: frozenset[str] | None = None

    def set_agents(self, agents: Iterable[str]) -> None:
        """Take the agents that the program declares now."""
        declared = frozenset(agents)
        if declared != self._agents:
            self._agents = declared
            self.wake.set()

    async def step(self) -> float:
        agents = self._agents
        if agents is not None:
            name = set_name(agents)
            await self._declared.keep(name, agents)
            self.stored_set = name
        return self._every_s
