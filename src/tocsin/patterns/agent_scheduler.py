"""A scheduler of agents: schedule one and it runs for ever, on its interval, one at a time in the whole fleet.

Agents are jobs of the queue `agents`, named by their type. Cadence, error intervals, recovery and the rest are the
core's; here is only which agents this process has, what each executes, and who hears about it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from tocsin.app import Tocsin, agents
from tocsin.app.declarations import DeclaredAgent as Declared
from tocsin.app.declarations import check_executor
from tocsin.config import merged, read_mapping
from tocsin.engine.handlers import Catalog, Handler, NotStarted
from tocsin.engine.work_item import WorkItem
from tocsin.model.durations import Duration, seconds
from tocsin.model.errors import InvalidArgument, InvalidConfig, TocsinError
from tocsin.model.run import Run
from tocsin.model.trigger import Every
from tocsin.patterns.agent import Agent, AgentStats, Instrumentation
from tocsin.patterns.agent_execution import (
    AgentDelivery,
    InstrumentedProcess,
    Scheduled,
    arguments_for,
    execute_in_process,
    execution_of,
    handler,
)
from tocsin.store.transitions.jobs import PutItem
from tocsin.telemetry.logs import get_logger
from tocsin.upkeep.agent_ownership import parse_shard
from tocsin.worker import GRACE_S, Worker, WorkerSettings
from tocsin.worker.settings import settings_of

log = get_logger("tocsin.agents")

# What the records of all these agents name; which agent it is, their id says.
HANDLER = "tocsin.patterns.agent"
# Settings of a worker, which a scheduler may have its own of; and among them those of the connection, which it has not.
_OWN = ("redis.agent.", "redis.scheduler.")
_OF_THE_APP = ("redis.scheduler.keys.", "redis.scheduler.time-cache-duration-ms")

Shard = str | Callable[[str], bool]


class AgentScheduler:
    """The agents of this process. Any number of processes may schedule the same ones: each run happens in one.

    An execution is a function of the agent, or an object with such a function as `execute_agent`; a parameter named
    `run` gets the Run. `async def` runs on the event loop; a plain function in a thread, which nothing can stop: it
    must look at `run.cancelled`; or, with executor="process", in a process, which is killed. To return is success, to
    raise is failure.

    All calls are to be made on the event loop; `schedule` and `unschedule` at any time, the app need not even be open.
    `tocsin worker MODULE:SCHEDULER` runs it without another line of code.
    """

    def __init__(
        self,
        app: Tocsin,
        *,
        shard: Shard | None = None,
        settings: WorkerSettings | Mapping[str, Any] | None = None,
        executor: str | None = None,
    ) -> None:
        """`shard` is "I/N", or a function from a type to whether it is ours, which may change its mind. `settings` are
        keys of the configuration (`{"redis.agent.max-concurrent-agents": 20}`), which hold here over those of the app.
        `executor`: where plain functions run, "thread" or "process"; `schedule` may say otherwise for one of them.
        """
        self.app = app
        self._settings = settings if isinstance(settings, WorkerSettings | None) else _own_settings(settings)
        self._executor = None if executor is None else check_executor(executor, is_async=False)
        self._shard = parse_shard(shard) if isinstance(shard, str) else shard
        self._concurrency: int | None = None
        self._scheduled: dict[str, Scheduled] = {}
        # As Redis is to have them.
        self._puts: dict[str, PutItem] = {}
        self._catalog = Catalog()
        self._handler = self._add(handler(HANDLER, self._on_loop, "loop"))
        self._add(handler(f"{HANDLER}.thread", self._in_thread, "thread"))
        self._add(handler(f"{HANDLER}.process", execute_in_process, "process")).process_args = self._process_args
        self._worker: Worker | None = None
        self._turn = asyncio.Lock()

    def _add(self, handler: Handler) -> Handler:
        self._catalog.add(handler)
        return handler

    def schedule(
        self,
        agent: Agent,
        execution: Any,
        instrumentation: Instrumentation | None = None,
        *,
        executor: str | None = None,
    ) -> None:
        """From now on; a new one is due at once, one that Redis knows when it says.

        Raises InvalidArgument if its type is scheduled here already: `unschedule` it first.
        """
        if not isinstance(agent, Agent):
            raise InvalidArgument(f"an agent is an Agent(type, provider, interval, ...), not {agent!r:.100}")
        if agent.type in self._scheduled:
            raise InvalidArgument(f"an agent {agent.type!r} is scheduled already: unschedule it first")
        agents.refuse_declared(self.app, agent.type)
        _check_instrumentation(instrumentation)
        runs = execution_of(agent.type, execution, executor, self._executor)
        runs.check((agent,), {})
        definition = Declared(self._handler, Every(agent.interval), agent.error_interval, agent.timeout)
        self._puts[agent.type] = agents.put_of(agent.type, definition)
        self._scheduled[agent.type] = Scheduled(agent, runs, instrumentation)
        self._changed(agent.type)

    def unschedule(self, agent: Agent) -> bool:
        """Run it here no more; a run that has begun goes on to its end. False if it was not scheduled.

        The job stays in Redis, for other processes: `app.remove(agent.type)` removes it.
        """
        if self._scheduled.pop(agent.type, None) is None:
            return False
        del self._puts[agent.type]
        self._changed(agent.type)
        return True

    def _changed(self, name: str) -> None:
        """Its registration follows at once, not at the next period."""
        if self._worker is not None and self._worker.reconciler is not None:
            self._worker.reconciler.reconsider(name)

    def host(self, app: Tocsin, *, concurrency: int | None = None, shard: Shard | None = None) -> None:
        """Before `initialize`: what a host, such as `tocsin worker`, was given goes over what the program says."""
        if self._worker is not None:
            raise TocsinError("this scheduler is initialized already: shutdown() ends it")
        self.app, self._concurrency = app, concurrency
        if shard is not None:
            self._shard = parse_shard(shard) if isinstance(shard, str) else shard

    async def worker(self) -> Worker:
        """A worker of these agents that is not started yet, for those who run its passes themselves."""
        worker = await agents.worker_for(self.app, self._catalog, lambda: self._puts, self._settings_now(), self._shard)
        handlers = worker.catalog.by_name
        on_loop, in_thread, in_process = (handlers[f"{HANDLER}{end}"] for end in ("", ".thread", ".process"))
        in_process.set_delivery(InstrumentedProcess(in_process, self._scheduled_for, self.app.store.clock))
        on_loop.set_delivery(AgentDelivery(on_loop, {"thread": in_thread, "process": in_process}, self._where))
        return worker

    def _settings_now(self) -> WorkerSettings:
        """The app's configuration may be another one than when this scheduler was made."""
        settings = self._settings
        if isinstance(settings, Mapping):
            loaded = merged(self.app.config, settings)
            for warning in loaded.warnings:
                log.warning("settings of an agent scheduler", warning=warning)
            settings = settings_of(loaded.config)
        elif settings is None:
            settings = settings_of(self.app.config)
        return settings if self._concurrency is None else replace(settings, concurrency=self._concurrency)

    async def initialize(self) -> Worker:
        """Register the agents and begin to run them. If it raises, nothing was begun."""
        async with self._turn:
            if self._worker is not None:
                raise TocsinError("this scheduler is initialized already: shutdown() ends it")
            worker = self._worker = await self.worker()
            try:
                await worker.start()
            except BaseException:
                self._worker = None
                await worker.kill()
                raise
            return worker

    async def shutdown(self, grace: Duration = GRACE_S, hurry: asyncio.Event | None = None) -> None:
        """Claim nothing more, let runs end for `grace` or until `hurry`, then stop them and hand them over at their
        due time.

        The agents stay scheduled: initialize() would run them again.
        """
        wait = seconds(grace, "grace")
        async with self._turn:
            worker, self._worker = self._worker, None
            if worker is not None:
                # Also when this task is cancelled: the stop must not be.
                await asyncio.shield(asyncio.ensure_future(worker.stop(wait, hurry)))

    def stats(self) -> AgentStats:
        worker = self._worker
        if worker is None:
            return AgentStats(len(self._scheduled), 0, 0, None)
        now = worker.stats()
        registered = 0 if worker.reconciler is None else worker.reconciler.registered
        return AgentStats(len(self._scheduled), registered, now.running, now)

    # What the worker asks and runs

    def _where(self, name: str) -> str:
        scheduled = self._scheduled.get(name)
        return "loop" if scheduled is None else scheduled.execution.executor

    async def _on_loop(self, run: Run) -> None:
        scheduled = self._scheduled_for(run.job_id)
        with scheduled.told(self.app.store.clock):
            await scheduled.call(run)

    def _in_thread(self, run: Run) -> None:
        scheduled = self._scheduled_for(run.job_id)
        with scheduled.told(self.app.store.clock):
            scheduled.call_plain(run)

    def _process_args(self, unit: WorkItem) -> tuple[Any, ...]:
        return arguments_for(self._scheduled_for(unit.claim.job_id))

    def _scheduled_for(self, name: str) -> Scheduled:
        scheduled = self._scheduled.get(name)
        if scheduled is None:
            raise NotStarted(f"agent {name!r} was unscheduled after it was claimed")
        return scheduled


def _own_settings(given: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise InvalidArgument(f"settings are a mapping of configuration keys, or Settings, not {given!r:.100}")
    values = read_mapping(given)
    for key in values:
        if not key.startswith(_OWN) or key.startswith(_OF_THE_APP):
            raise InvalidConfig(f"{key} is for the app and all that it does: set it in the app's configuration")
    return values


def _check_instrumentation(told: Any) -> None:
    for name in ("started", "completed", "failed") if told is not None else ():
        method = getattr(told, name, None)
        if not callable(method) or inspect.iscoroutinefunction(method):
            raise InvalidArgument(f"instrumentation {told!r:.100} needs a plain function {name!r}")
