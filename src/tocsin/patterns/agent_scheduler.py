"""A scheduler of agents: schedule one and it runs for ever, on its interval, one at a time in the whole fleet.

Agents are jobs of the queue `agents`, and their type is their job id. The core does cadence, error intervals and
recovery. This file adds which agents this process has, the execution of each, and its instrumentation.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from tocsin.app import Tocsin
from tocsin.app.agents import put_of
from tocsin.app.declarations import DeclaredAgent as Declared
from tocsin.app.declarations import check_executor
from tocsin.config import merged, read_mapping
from tocsin.engine.handlers import Catalog, Handler, NotStarted
from tocsin.engine.work_item import WorkItem
from tocsin.model.durations import Duration, seconds
from tocsin.model.errors import InvalidArgument, InvalidConfig, TocsinError
from tocsin.model.queue import AGENTS_QUEUE
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

# The handler that the records of all these agents name. The job id says which agent it is.
HANDLER = "tocsin.patterns.agent"
# A scheduler may have its own settings of a worker, but not those among them that belong to the app's connection.
_OWN_SETTINGS = ("redis.agent.", "redis.scheduler.")
_APP_SETTINGS = ("redis.scheduler.keys.", "redis.scheduler.time-cache-duration-ms")

Shard = str | Callable[[str], bool]


class AgentScheduler:
    """The agents of this process. Any number of processes may schedule the same ones: each run happens in one.

    An execution is a function of the agent, or an object with such a function as `execute_agent`. A parameter named
    `run` gets the Run. An `async def` runs on the event loop. A plain function runs in a thread, which cannot be
    stopped, so it must look at `run.cancelled`; with executor="process" it runs in a process, which is killed. A run
    that returns has succeeded, a run that raises has failed.

    Make all calls on the event loop. `schedule` and `unschedule` are allowed at any time, even before the app is open.
    `tocsin worker MODULE:SCHEDULER` runs the scheduler without another line of code.
    """

    def __init__(
        self,
        app: Tocsin,
        *,
        shard: Shard | None = None,
        settings: WorkerSettings | Mapping[str, Any] | None = None,
        executor: str | None = None,
    ) -> None:
        """`shard` is "I/N", or a function that says whether the agent of a type is ours; its answers may change.
        `settings` are keys of the configuration (`{"redis.agent.max-concurrent-agents": 20}`) and override the app's.
        `executor`: where plain functions run, "thread" or "process"; `schedule` can override it for one agent.
        """
        self.app = app
        self._settings = settings if isinstance(settings, WorkerSettings | None) else _own_settings(settings)
        self._executor = None if executor is None else check_executor(executor, is_async=False)
        self._shard = parse_shard(shard) if isinstance(shard, str) else shard
        self._concurrency: int | None = None
        self._scheduled: dict[str, Scheduled] = {}
        # The puts that register the scheduled agents.
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
        """Run the agent from now on. A new agent is due at once, one that Redis has already at its due time there.

        Raises InvalidArgument if its type is scheduled here already: `unschedule` it first.
        """
        if not isinstance(agent, Agent):
            raise InvalidArgument(f"an agent is an Agent(type, provider, interval, ...), not {agent!r:.100}")
        if agent.type in self._scheduled:
            raise InvalidArgument(f"an agent {agent.type!r} is scheduled already: unschedule it first")
        self.app.declarations.refuse_agent(agent.type)
        _check_instrumentation(instrumentation)
        runs = execution_of(agent.type, execution, executor, self._executor)
        runs.check((agent,), {})
        definition = Declared(self._handler, Every(agent.interval), agent.error_interval, agent.timeout)
        self._puts[agent.type] = put_of(agent.type, definition)
        self._scheduled[agent.type] = Scheduled(agent, runs, instrumentation)
        self._changed(agent.type)

    def unschedule(self, agent: Agent) -> bool:
        """Stop running the agent here. A run that has begun goes on to its end. False if it was not scheduled.

        The job stays in Redis for other processes: `app.remove(agent.type)` removes it.
        """
        if self._scheduled.pop(agent.type, None) is None:
            return False
        del self._puts[agent.type]
        self._changed(agent.type)
        return True

    def _changed(self, name: str) -> None:
        """Register the change at once instead of at the next period."""
        if self._worker is not None and self._worker.reconciler is not None:
            self._worker.reconciler.reconsider(name)

    def host(self, app: Tocsin, *, concurrency: int | None = None, shard: Shard | None = None) -> None:
        """Called before `initialize` by a host such as `tocsin worker`, whose options override those of the program."""
        if self._worker is not None:
            raise TocsinError("this scheduler is initialized already: shutdown() ends it")
        self.app, self._concurrency = app, concurrency
        if shard is not None:
            self._shard = parse_shard(shard) if isinstance(shard, str) else shard

    async def worker(self) -> Worker:
        """A worker of these agents that is not started yet, for programs that run its passes themselves."""
        app, settings, shard = self.app, self._settings_now(), self._shard
        if shard is not None:
            settings = replace(settings, owns=_both(settings.owns, shard))
        queue = await app.store.open_queue(app.declarations.queues[AGENTS_QUEUE])
        classifier = app.declarations.classifier
        worker = Worker(app.store, [queue], self._catalog, settings, agents=lambda: self._puts, classifier=classifier)
        if worker.reconciler is not None:
            await worker.reconciler.register()
        handlers = worker.catalog.by_name
        on_loop, in_thread, in_process = (handlers[f"{HANDLER}{end}"] for end in ("", ".thread", ".process"))
        in_process.set_delivery(InstrumentedProcess(in_process, self._scheduled_for, self.app.store.clock))
        on_loop.set_delivery(AgentDelivery(on_loop, {"thread": in_thread, "process": in_process}, self._executor_of))
        return worker

    def _settings_now(self) -> WorkerSettings:
        """Read at each start, because `host` may have replaced the app, and so its configuration."""
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
        """Register the agents and begin to run them. If this raises, no worker was left running."""
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
        """Claim nothing more and let runs end for `grace` or until `hurry`. Then stop the rest and hand them over at
        their due time.

        The agents stay scheduled: another initialize() runs them again.
        """
        wait = seconds(grace, "grace")
        async with self._turn:
            worker, self._worker = self._worker, None
            if worker is not None:
                # Shielded: if this task is cancelled, the stop goes on all the same.
                await asyncio.shield(asyncio.ensure_future(worker.stop(wait, hurry)))

    def stats(self) -> AgentStats:
        worker = self._worker
        if worker is None:
            return AgentStats(len(self._scheduled), 0, 0, None)
        now = worker.stats()
        registered = 0 if worker.reconciler is None else worker.reconciler.registered
        return AgentStats(len(self._scheduled), registered, now.running, now)

    # Called by the worker

    def _executor_of(self, name: str) -> str:
        scheduled = self._scheduled.get(name)
        return "loop" if scheduled is None else scheduled.execution.executor

    async def _on_loop(self, run: Run) -> None:
        scheduled = self._scheduled_for(run.job_id)
        with scheduled.instrumented(self.app.store.clock):
            await scheduled.call(run)

    def _in_thread(self, run: Run) -> None:
        scheduled = self._scheduled_for(run.job_id)
        with scheduled.instrumented(self.app.store.clock):
            scheduled.call_plain(run)

    def _process_args(self, unit: WorkItem) -> tuple[Any, ...]:
        return arguments_for(self._scheduled_for(unit.claim.job_id))

    def _scheduled_for(self, name: str) -> Scheduled:
        scheduled = self._scheduled.get(name)
        if scheduled is None:
            raise NotStarted(f"agent {name!r} was unscheduled after it was claimed")
        return scheduled


def _both(owns: Callable[[str], bool], shard: Callable[[str], bool]) -> Callable[[str], bool]:
    return lambda name: owns(name) and shard(name)


def _own_settings(given: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise InvalidArgument(f"settings are a mapping of configuration keys, or Settings, not {given!r:.100}")
    values = read_mapping(given)
    for key in values:
        if not key.startswith(_OWN_SETTINGS) or key.startswith(_APP_SETTINGS):
            raise InvalidConfig(f"{key} is for the app as a whole: set it in the app's configuration")
    return values


def _check_instrumentation(given: Any) -> None:
    for name in ("started", "completed", "failed") if given is not None else ():
        method = getattr(given, name, None)
        if not callable(method) or inspect.iscoroutinefunction(method):
            raise InvalidArgument(f"instrumentation {given!r:.100} needs a plain function {name!r}")
