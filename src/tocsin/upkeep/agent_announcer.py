"""Announcing: the fleet knows which agents this worker's program declares, so that those of nobody can be told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from tocsin.store.transitions.declared_agents import DeclaredAgentSets, set_name


class AgentAnnouncer:
    """One pass: what was declared last is kept for the fleet, also after the server lost it."""

    name = "announce"

    def __init__(self, declared: DeclaredAgentSets, every_s: float) -> None:
        self.wake = asyncio.Event()
        # The name of the set that is kept; None: none is yet, and nobody may conclude anything.
        self.kept: str | None = None
        self._declared = declared
        self._every_s = every_s
        self._agents: frozenset[str] | None = None

    def hear(self, agents: Iterable[str]) -> None:
        """What the program declares now."""
        heard = frozenset(agents)
        if heard != self._agents:
            self._agents = heard
            self.wake.set()

    async def step(self) -> float:
        agents = self._agents
        if agents is not None:
            name = set_name(agents)
            await self._declared.keep(name, agents)
            self.kept = name
        return self._every_s
