"""Agents for an `AgentScheduler`, and what they and its instrumentation note."""

from __future__ import annotations

import pytest

from tests.support.waiting import Gate
from tocsin import Tocsin
from tocsin.patterns import Agent, AgentScheduler

AGENTS = "agents"


class Told:
    """An instrumentation that notes what it is told, in one line each."""

    def __init__(self) -> None:
        self.lines: list[tuple[object, ...]] = []

    def started(self, agent):
        self.lines.append(("started", agent.type))

    def completed(self, agent, ms):
        self.lines.append(("completed", agent.type, ms))

    def failed(self, agent, error, ms):
        self.lines.append(("failed", agent.type, repr(error), ms))


class Notes:
    """An execution that notes which agents it ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    async def execute_agent(self, agent):
        self.ran.append(agent.type)


def agent(name: str = "caching", interval: object = "30s", **options: object) -> Agent:
    return Agent(name, "aws", interval, **options)


@pytest.fixture
async def make(tocsin_app):
    """Schedulers as of several processes, all ended with the test."""
    made: list[AgentScheduler] = []

    def build(app: Tocsin | None = None, **options) -> AgentScheduler:
        made.append(AgentScheduler(app or tocsin_app, **options))
        return made[-1]

    yield build
    for scheduler in made:
        await scheduler.shutdown(grace=0)


@pytest.fixture
def scheduler(make):
    return make()


@pytest.fixture
async def by_hand():
    """A scheduler's worker that does nothing by itself."""
    made = []

    async def build(scheduler: AgentScheduler):
        made.append(await scheduler.worker())
        return made[-1]

    yield build
    for worker in made:
        await worker.kill()


@pytest.fixture
def notes():
    return Notes()


@pytest.fixture
def told():
    return Told()


@pytest.fixture
def gate():
    return Gate()
