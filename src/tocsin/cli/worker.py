"""`tocsin worker MODULE:APP`: import an app or a scheduler of agents and work for it, in one process or more."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from msgspec import Struct

from tocsin.app import Tocsin
from tocsin.app.run_worker import caught, stop_signals
from tocsin.cli.load_app import Hosted, load
from tocsin.cli.options import Given, Options, WrongUsage, parse_duration, split_weights
from tocsin.cli.printing import wait
from tocsin.cli.processes import HURRY, WorkerProcesses
from tocsin.model.clock import monotonic
from tocsin.model.errors import InvalidArgument, StoreUnavailable
from tocsin.patterns import AgentScheduler
from tocsin.telemetry import log_output
from tocsin.telemetry.logs import get_logger
from tocsin.telemetry.prometheus import serve_metrics
from tocsin.upkeep.agent_ownership import parse_shard
from tocsin.worker.frozen_objects import freeze_loaded_objects

log = get_logger("tocsin.cli")

# A starting worker gives up when the server has been away for PATIENCE_S. Pauses between its tries grow up to
# LONGEST_PAUSE_S.
PATIENCE_S = 10.0
LONGEST_PAUSE_S = 2.0


class WorkerCommand(Struct, frozen=True):
    """What a worker process works on, and how."""

    target: str
    queues: dict[str, int] | None
    concurrency: int | None
    grace: float
    shard: str | None = None

    def arguments(self, options: Options) -> list[str]:
        """The command line of a tied process that does this: one that stops when its starter is gone."""
        words = ["worker", self.target, "--grace", f"{self.grace}s", "--tied"]
        if self.concurrency is not None:
            words += ["--concurrency", str(self.concurrency)]
        if self.shard is not None:
            words += ["--shard", self.shard]
        if self.queues is not None:
            words += ["--queues", ",".join(f"{name}:{weight}" for name, weight in self.queues.items())]
        for name, value in options.where().items():
            words.append(f"--{name.replace('_', '-')}={value}")
        return [*words, "--log-level", options.log_level]


async def worker(
    app: str,
    /,
    *,
    queues: Annotated[
        str | None, Parameter(help="Only these: a,b, or a:3,b:1 to share the permits; default: all declared queues.")
    ] = None,
    concurrency: Annotated[
        int | None, Parameter(help="Runs at once in a process; default: as configured (100); 0 or less: unbounded.")
    ] = None,
    shard: Annotated[str | None, Parameter(help="I/N: run only part I of N of the agents.")] = None,
    grace: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="How long running jobs may go on after SIGTERM or Ctrl-C.")
    ] = "30s",
    processes: Annotated[int, Parameter(validator=Number(gte=1), help="How many worker processes.")] = 1,
    metrics_port: Annotated[
        int | None, Parameter(validator=Number(gte=1, lte=65535), help="Serve metrics at /metrics on this port.")
    ] = None,
    metrics_host: Annotated[str, Parameter(help="Serve metrics on this address.")] = "127.0.0.1",
    tied: Annotated[bool, Parameter(show=False, negative="")] = False,
    options: Given,
) -> int:
    """Run the jobs of an app until SIGTERM, SIGHUP or Ctrl-C.

    Parameters
    ----------
    app
        MODULE:APP, the module and the name of its Tocsin or AgentScheduler object, like reminders:app.
    """
    command = WorkerCommand(
        app, None if queues is None else split_weights(queues), concurrency, parse_duration(grace, "--grace"), shard
    )
    _check(shard, processes, metrics_port)
    hosted = load(app)
    found = _app_of(hosted, command, options)
    log_output.adopt_standard_logging(options.log_level)
    stop, hurry = asyncio.Event(), asyncio.Event()
    with supervised_signals(stop, hurry) if tied else caught(stop, hurry):
        if not await opened(found, stop):
            return 0
        try:
            if processes > 1:
                return await WorkerProcesses(processes, command.arguments(options), command.grace).work(stop, hurry)
            with serving_metrics(metrics_host, metrics_port):
                if isinstance(hosted, AgentScheduler):
                    return await work_for_agents(hosted, command, stop, hurry)
                return await work(found, command, stop, hurry)
        finally:
            await found.close()


def _check(shard: str | None, processes: int, metrics_port: int | None) -> None:
    if metrics_port is not None and processes > 1:
        raise WrongUsage("--metrics-port is for one process: each of several would need a port of its own")
    if shard is not None:
        try:
            parse_shard(shard)
        except InvalidArgument as error:
            raise WrongUsage(str(error)) from None


def _app_of(hosted: Hosted, command: WorkerCommand, options: Options) -> Tocsin:
    """The app, on the server that the options name.

    A scheduler is hosted itself, not just its app, because its agents may schedule other agents on it.
    """
    where = options.where()
    if isinstance(hosted, Tocsin):
        return hosted.with_same_declarations(**where)
    if command.queues is not None:
        raise WrongUsage("--queues is for an app: a scheduler of agents has the queue `agents` and no other")
    app = hosted.app.with_same_declarations(**where) if where else hosted.app
    hosted.host(app, concurrency=command.concurrency, shard=command.shard)
    return app


@contextmanager
def serving_metrics(host: str, port: int | None) -> Iterator[None]:
    end = None if port is None else serve_metrics(host, port)
    try:
        yield
    finally:
        if end is not None:
            end()


async def work(app: Tocsin, command: WorkerCommand, stop: asyncio.Event, hurry: asyncio.Event) -> int:
    shard = None if command.shard is None else parse_shard(command.shard)
    running = await app.worker(queues=command.queues, concurrency=command.concurrency, shard=shard)
    await running.start()
    freeze_loaded_objects()
    try:
        await stop.wait()
    finally:
        await running.stop(command.grace, hurry)
    return 1 if running.finisher.outcomes.job_ids() else 0


async def work_for_agents(
    scheduler: AgentScheduler, command: WorkerCommand, stop: asyncio.Event, hurry: asyncio.Event
) -> int:
    running = await scheduler.initialize()
    freeze_loaded_objects()
    try:
        await stop.wait()
    finally:
        await scheduler.shutdown(command.grace, hurry)
    return 1 if running.finisher.outcomes.job_ids() else 0


async def opened(app: Tocsin, stop: asyncio.Event) -> bool:
    """Connect, and wait up to PATIENCE_S for a server that is away. Returns False if `stop` is set meanwhile."""
    give_up, pause = monotonic() + PATIENCE_S, 0.25
    while True:
        try:
            await app.open()
            return True
        except StoreUnavailable as error:
            if monotonic() + pause > give_up:
                raise
            log.warning("server away, trying again", error=str(error), giving_up_in_s=round(give_up - monotonic(), 1))
        if await wait(stop, pause):
            return False
        pause = min(pause * 2, LONGEST_PAUSE_S)


@contextmanager
def supervised_signals(stop: asyncio.Event, hurry: asyncio.Event) -> Iterator[None]:
    """Handle the signals of a process that another one started and supervises.

    Stop signals only stop it, even when repeated: a terminal or systemd may signal all processes at once, and the
    starter passes its own signal on as well. Only HURRY, which the starter sends, ends the grace period. The starter
    holds the other end of our stdin: when it dies, stdin closes and this process stops.
    """
    loop = asyncio.get_running_loop()

    def begin_stop(why: str) -> None:
        if not stop.is_set():
            log.info("stopping: running jobs may end within the grace period", why=why)
            stop.set()

    def hurry_up() -> None:
        begin_stop(HURRY.name)
        hurry.set()

    def stop_if_alone() -> None:
        if not os.read(sys.stdin.fileno(), 1):
            loop.remove_reader(sys.stdin.fileno())
            begin_stop("the process that started this one is gone")

    for number in stop_signals():
        loop.add_signal_handler(number, begin_stop, number.name)
    loop.add_signal_handler(HURRY, hurry_up)
    loop.add_reader(sys.stdin.fileno(), stop_if_alone)
    yield
