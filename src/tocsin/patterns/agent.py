"""An agent, what observes its runs, and the numbers of its scheduler."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from tocsin.model.durations import Duration, seconds
from tocsin.model.errors import InvalidArgument
from tocsin.model.ids import check_job_id
from tocsin.model.job import DEFAULT_TIMEOUT, check_timeout
from tocsin.model.trigger import Every
from tocsin.worker import Stats


class Agent(Struct, frozen=True):
    """A name and how often to run. The type is its name in the whole fleet, the provider the system it belongs to."""

    type: str
    provider: str
    interval: Duration
    error_interval: Duration | None = None
    timeout: Duration = DEFAULT_TIMEOUT

    def __post_init__(self) -> None:
        check_job_id(self.type)
        if not isinstance(self.provider, str):
            raise InvalidArgument(f"a provider is text, not {self.provider!r}")
        Every(self.interval)
        if self.error_interval is not None:
            seconds(self.error_interval, "error_interval")
        check_timeout(self.timeout)


class Instrumentation(Protocol):
    """Called for each run: `started`, then one of the others, on the event loop or in the thread of the run.

    A run that was stopped (timeout, shutdown, cancellation) has failed with the CancelledError that it got. The methods
    are plain functions and quick. What they raise is logged and does not affect the run.
    """

    def started(self, agent: Agent) -> None: ...
    def completed(self, agent: Agent, ms: float) -> None: ...
    def failed(self, agent: Agent, error: BaseException, ms: float) -> None: ...


class AgentStats(Struct, frozen=True):
    """How many agents are scheduled here, how many of them this worker runs, and how many run now."""

    scheduled: int
    registered: int
    running: int
    # None before initialize() and after shutdown().
    worker: Stats | None
