"""Executions that run in processes of their own: the child imports this module."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from tocsin import Run
from tocsin.patterns import Agent


def note(agent: Agent, run: Run) -> None:
    """Its provider is a folder: there it notes what it got, and in which process."""
    Path(agent.provider, agent.type).write_text(f"{os.getpid()} {run.job_id} {agent.interval} {agent.error_interval}")


class Noting:
    def __init__(self, mark: str) -> None:
        self.mark = mark

    def execute_agent(self, agent: Agent) -> None:
        Path(agent.provider, agent.type).write_text(f"{os.getpid()} {self.mark}")


noting = Noting("held by its module")


def hang(agent: Agent) -> None:
    Path(agent.provider, f"{agent.type}-{os.getpid()}").touch()
    threading.Event().wait()


def fail(agent: Agent) -> None:
    raise LookupError(f"no vendor for {agent.type}")


async def later(agent: Agent) -> None:
    pass


def wrongly(agent: Agent):
    return later(agent)
