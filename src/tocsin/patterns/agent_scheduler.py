"""A scheduler of agents: schedule one and it runs for ever, on its interval, one at a time in the whole fleet.

Agents are jobs of the queue `agents`, named by their type. Cadence, error intervals, recovery and the rest are the
core's; here is only which agents this process has, what each executes, and who is told of it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from msgspec import Struct

from tocsin.app import Tocsin, agents
from tocsin.app.registry import Agent as Declared
from tocsin.engine.catalog import Catalog, Handler, NotStarted, with_run
from tocsin.engine.unit import Unit
from tocsin.model.durations import Duration, seconds
from tocsin.model.errors import InvalidArgument, TocsinError
from tocsin.model.ids import check_job_id
from tocsin.model.job import DEFAULT_TIMEOUT, check_timeout
from tocsin.model.queue import AGENTS_QUEUE
from tocsin.model.run import Run
from tocsin.model.trigger import Every
from tocsin.store.jobs import Put
from tocsin.telemetry.logs import get_logger
from tocsin.upkeep.ownership import parse_shard
from tocsin.worker import GRACE_S, Settings, Stats, Worker

log = get_logger("tocsin.agents")

# What the records of all these agents name; which agent it is, their id says.
HANDLER = "tocsin.patterns.agent"
_IN_THREAD = f"{HANDLER}.thread"


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
    """Is told of each run: started, then one of the others, from where the agent runs (the event loop or a thread).

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


class AgentScheduler:
    """The agents of this process. Any number of processes may schedule the same ones: each run happens in one.

    An execution is a function of the agent, or an object with such a function as `execute_agent`; a parameter named
    `run` gets the Run. `async def` runs on the event loop; a plain function in a thread, which nothing can stop: it
    must look at `run.cancelled`. To return is success, to raise is failure.

    All calls are to be made on the event loop; `schedule` and `unschedule` at any time, the app need not even be open.
    """

    def __init__(
        self, app: Tocsin, *, shard: str | Callable[[str], bool] | None = None, settings: Settings | None = None
    ) -> None:
        """`shard` is "I/N", or a function from a type to whether it is ours, which may change its mind.

        Without settings the worker is as the app's configuration says.
        """
        self._app = app
        self._settings = settings
        self._shard = parse_shard(shard) if isinstance(shard, str) else shard
        self._scheduled: dict[str, _Scheduled] = {}
        self._catalog = Catalog()
        self._handler = self._add(HANDLER, self._on_loop)
        self._add(_IN_THREAD, self._in_thread)
        self._worker: Worker | None = None
        self._turn = asyncio.Lock()

    def _add(self, name: str, fn: Callable[..., Any]) -> Handler:
        handler = _handler(name, fn)
        self._catalog.add(handler)
        return handler

    def schedule(self, agent: Agent, execution: Any, instrumentation: Instrumentation | None = None) -> None:
        """From now on; a new one is due at once, one that Redis knows when it says.

        Raises InvalidArgument if its type is scheduled here already: `unschedule` it first.
        """
        if not isinstance(agent, Agent):
            raise InvalidArgument(f"an agent is an Agent(type, provider, interval, ...), not {agent!r:.100}")
        if agent.type in self._scheduled:
            raise InvalidArgument(f"an agent {agent.type!r} is scheduled already: unschedule it first")
        agents.refuse_declared(self._app, agent.type)
        _check_instrumentation(instrumentation)
        function = getattr(execution, "execute_agent", execution)
        if not callable(function):
            raise InvalidArgument(f"an execution is a function or has execute_agent, not {execution!r:.100}")
        runs = _handler(agent.type, function)
        runs.check((agent,), {})
        definition = Declared(self._handler, Every(agent.interval), agent.error_interval, agent.timeout)
        put = agents.put_of(agent.type, definition, 0)
        self._scheduled[agent.type] = _Scheduled(agent, runs, instrumentation, put)
        self._changed()

    def unschedule(self, agent: Agent) -> bool:
        """Run it here no more; a run that has begun goes on to its end. False if it was not scheduled.

        The job stays in Redis, for other processes: `app.remove(agent.type)` removes it.
        """
        if self._scheduled.pop(agent.type, None) is None:
            return False
        self._changed()
        return True

    def _changed(self) -> None:
        """Registration follows at once, not at the next period."""
        reconciler = None if self._worker is None else self._worker.reconciler
        if reconciler is not None:
            reconciler.wake.set()

    async def worker(self) -> Worker:
        """A worker of these agents that is not started yet, for those who run its passes themselves."""
        worker = await agents.worker_for(self._app, self._catalog, self._puts, self._settings, self._shard)
        on_loop, in_thread = worker.catalog.get(HANDLER), worker.catalog.get(_IN_THREAD)
        assert on_loop is not None
        assert in_thread is not None
        on_loop.deliver_by(_Place(on_loop, in_thread, self._blocks))
        return worker

    async def initialize(self) -> None:
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

    async def shutdown(self, grace: Duration = GRACE_S) -> None:
        """Claim nothing more, let runs end for `grace`, then stop them and hand them over at their due time.

        The agents stay scheduled: initialize() would run them again.
        """
        wait = seconds(grace, "grace")
        async with self._turn:
            worker, self._worker = self._worker, None
            if worker is not None:
                # Also when this task is cancelled: the stop must not be.
                await asyncio.shield(asyncio.ensure_future(worker.stop(wait)))

    def stats(self) -> AgentStats:
        worker = self._worker
        if worker is None:
            return AgentStats(len(self._scheduled), 0, 0, None)
        now = worker.stats()
        registered = 0 if worker.reconciler is None else worker.reconciler.registered
        return AgentStats(len(self._scheduled), registered, now.running, now)

    # What the worker asks and runs

    def _puts(self) -> Mapping[str, Put]:
        return {name: scheduled.put for name, scheduled in self._scheduled.items()}

    def _blocks(self, name: str) -> bool:
        scheduled = self._scheduled.get(name)
        return scheduled is not None and scheduled.blocks

    async def _on_loop(self, run: Run) -> None:
        scheduled = self._scheduled_for(run)
        with self._told(scheduled):
            await scheduled.call(run)

    def _in_thread(self, run: Run) -> None:
        scheduled = self._scheduled_for(run)
        with self._told(scheduled):
            result = scheduled.call(run)
            if inspect.iscoroutine(result):
                result.close()
                raise TypeError(f"the execution of agent {run.job_id!r} is no `async def` and returned a coroutine")

    def _scheduled_for(self, run: Run) -> _Scheduled:
        scheduled = self._scheduled.get(run.job_id)
        if scheduled is None:
            raise NotStarted(f"agent {run.job_id!r} was unscheduled after it was claimed")
        return scheduled

    @contextmanager
    def _told(self, scheduled: _Scheduled) -> Iterator[None]:
        agent, clock = scheduled.agent, self._app.store.clock
        scheduled.tell("started", agent)
        began = clock.monotonic()
        try:
            yield
        except BaseException as error:
            scheduled.tell("failed", agent, error, (clock.monotonic() - began) * 1000)
            raise
        scheduled.tell("completed", agent, (clock.monotonic() - began) * 1000)


class _Scheduled(Struct, frozen=True):
    """An agent, what it executes, who is told, and what Redis is to hold."""

    agent: Agent
    execution: Handler
    instrumentation: Instrumentation | None
    put: Put

    @property
    def blocks(self) -> bool:
        return self.execution.executor == "thread"

    def call(self, run: Run) -> Any:
        args, kwargs = with_run(self.execution.signature, (self.agent,), {}, run)
        return self.execution.fn(*args, **kwargs)

    def tell(self, what: str, *facts: Any) -> None:
        if self.instrumentation is None:
            return
        try:
            getattr(self.instrumentation, what)(*facts)
        except Exception:
            log.error("instrumentation failed, the run goes on", agent=self.agent.type, told=what, exc_info=True)


class _Place:
    """Where a run goes is for its agent to say: the record, which all processes share, names one handler."""

    stoppable = True

    def __init__(self, on_loop: Handler, in_thread: Handler, blocks: Callable[[str], bool]) -> None:
        self._deliver = on_loop.deliver
        self._in_thread = in_thread
        self._blocks = blocks

    def deliver(self, unit: Unit) -> Awaitable[Any]:
        if not self._blocks(unit.claim.job_id):
            return self._deliver(unit)
        # Those who would stop the run ask its handler whether that is possible.
        unit.handler = self._in_thread
        return self._in_thread.deliver(unit)


def _handler(name: str, fn: Callable[..., Any]) -> Handler:
    on_loop = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)
    executor: Any = "loop" if on_loop else "thread"
    return Handler(name, fn, executor=executor, queue=AGENTS_QUEUE, timeout=check_timeout(DEFAULT_TIMEOUT))


def _check_instrumentation(told: Any) -> None:
    for name in ("started", "completed", "failed") if told is not None else ():
        method = getattr(told, name, None)
        if not callable(method) or inspect.iscoroutinefunction(method):
            raise InvalidArgument(f"instrumentation {told!r:.100} needs a plain function {name!r}")
