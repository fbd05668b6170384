"""An agent: what to run and how often, and who hears about its runs."""

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
    """What to run and how often. The type is its name in the whole fleet; the provider says whose it is."""

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
    """Hears of each run: started, then one of the others, on the event loop or in the thread of the run.

    A run that was stopped (timeout, shutdown, cancellation) has failed with the CancelledError it got. Plain functions,
    and quick ones; what they raise is logged and changes nothing.
    """

    def started(self, agent: Agent) -> None: ...
    def completed(self, agent: Agent, ms: float) -> None: ...
    def failed(self, agent: Agent, error: BaseException, ms: float) -> None: ...


class AgentStats(Struct, frozen=True):
    """Agents scheduled here, those of them that are this worker's to run, and those that run here now."""

    scheduled: int
    registered: int
    running: int
    # None before initialize() and after shutdown().
    worker: Stats | None
