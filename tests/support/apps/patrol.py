"""A scheduler of agents as users write it, for `tocsin worker patrol:scheduler`."""

import multiprocessing

from tocsin import Tocsin
from tocsin.patterns import Agent, AgentScheduler

# Nobody listens there: tests say --url.
app = Tocsin("redis://127.0.0.1:1")
scheduler = AgentScheduler(app, settings={"redis.agent.disabled-pattern": "off-duty"})


async def patrol(agent: Agent) -> None:
    if agent.type == "sergeant":
        scheduler.schedule(Agent("recruit", "precinct", "1h"), patrol)


def ride(agent: Agent) -> None:
    assert agent == Agent("rider", "precinct", "1h")
    assert multiprocessing.parent_process() is not None


scheduler.schedule(Agent("sergeant", "precinct", "1h"), patrol)
scheduler.schedule(Agent("off-duty", "precinct", "1h"), patrol)
scheduler.schedule(Agent("rider", "precinct", "1h"), ride, executor="process")
