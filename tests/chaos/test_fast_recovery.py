"""How long an agent is away when its worker is killed, as workers are by default."""

from __future__ import annotations

import time

from tests.support.agent_process import CREW, Agents
from tests.support.waiting import eventually
from tests.support.worker_fleet import Fleet


async def test_an_agent_whose_worker_was_killed_runs_again_elsewhere_within_15_seconds(fleet: Fleet) -> None:
    agents: Agents = {f"a{i}": (3600, "linger", "a") for i in range(10)}
    # No settings: those that a worker has by itself.
    order = CREW | {"agents": agents, "settings": {}}
    [victim] = await fleet.start(1, **order)
    await eventually(lambda: fleet.diary.started(victim.pid) == agents.keys(), "it runs them all", within=30)
    [other] = await fleet.start(1, **order)
    victim.kill()
    killed = time.monotonic()
    await eventually(lambda: fleet.diary.started(other.pid) == agents.keys(), "the other runs them all", within=15)
    starts = fleet.diary.entries("start")
    assert max(start.at for start in starts) - killed < 15
    assert {(start.attempt, start.recoveries) for start in starts if start.pid == other.pid} == {(1, 1)}
    assert len({start.run for start in starts}) == len(agents)
