"""Agents as Clouddriver has them: `tocsin worker caching_agents:scheduler` runs one for each account and region."""

import logging

from tocsin import Run, Tocsin
from tocsin.patterns import Agent, AgentScheduler

log = logging.getLogger("caching")


class ImageCaching:
    """An AgentExecution: to return is success, to raise is failure."""

    def __init__(self, account: str, region: str) -> None:
        self.account, self.region = account, region

    def execute_agent(self, agent: Agent, run: Run) -> None:
        for page in range(3):
            if run.cancelled:  # what Thread.interrupted() is in Java
                return
            log.info("%s: page %d of %s in %s", agent.type, page, self.account, self.region)


class Timing:
    """An ExecutionInstrumentation."""

    def started(self, agent: Agent) -> None:
        log.info("%s began", agent.type)

    def completed(self, agent: Agent, ms: float) -> None:
        log.info("%s took %.0f ms", agent.type, ms)

    def failed(self, agent: Agent, error: BaseException, ms: float) -> None:
        log.warning("%s failed after %.0f ms: %r", agent.type, ms, error)


app = Tocsin()
scheduler = AgentScheduler(app, settings={"redis.agent.max-concurrent-agents": 20})

for account in ("prod", "test"):
    for region in ("us-east-1", "eu-west-1"):
        caching = Agent(f"{account}/{region}/ImageCachingAgent", provider="aws", interval="30s", timeout="5m")
        scheduler.schedule(caching, ImageCaching(account, region), Timing())
