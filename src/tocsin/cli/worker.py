"""`tocsin worker MODULE:APP`: import a program's app, or scheduler of agents, and be a worker of it, in one process or
in several."""

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

# How long a server may be away before a worker that starts gives up, and the longest pause between two tries.
PATIENCE_S = 10.0
LONGEST_PAUSE_S = 2.0


class WorkerCommand(Struct, frozen=True):
    """What a worker process is to do."""

    target: str
    queues: dict[str, int] | None
    concurrency: int | None
    grace: float
    shard: str | None = None

    def arguments(self, options: Options) -> list[str]:
        """The command line of a process that does it, tied to the one that started it."""
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
        str | None, Parameter(help="Only these, as a,b, or a:3,b:1 for shares of the permits; else all declared ones.")
    ] = None,
    concurrency: Annotated[
        int | None, Parameter(help="Runs at once in a process, else as configured (100); 0 or less: unbounded.")
    ] = None,
    shard: Annotated[str | None, Parameter(help="I/N: of the agents, run only the I-th of N parts.")] = None,
    grace: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="How long runs may go on after SIGTERM or Ctrl-C.")
    ] = "30s",
    processes: Annotated[int, Parameter(validator=Number(gte=1), help="Worker processes.")] = 1,
    metrics_port: Annotated[
        int | None,
        Parameter(validator=Number(gte=1, lte=65535), help="Show metrics there, at /metrics."),
    ] = None,
    metrics_host: Annotated[str, Parameter(help="The address that it is shown at.")] = "127.0.0.1",
    tied: Annotated[bool, Parameter(show=False, negative="")] = False,
    options: Given,
) -> int:
    """Run the jobs of an app until SIGTERM, SIGHUP or Ctrl-C.

    Parameters
    ----------
    app
        MODULE:APP, the module and the name of its Tocsin object, like reminders:app; or of its AgentScheduler.
    """
    duty = WorkerCommand(
        app, None if queues is None else split_weights(queues), concurrency, parse_duration(grace, "--grace"), shard
    )
    _check(shard, processes, metrics_port)
    hosted = load(app)
    found = _app_of(hosted, duty, options)
    log_output.adopt_standard_logging(options.log_level)
    stop, hurry = asyncio.Event(), asyncio.Event()
    with told(stop, hurry) if tied else caught(stop, hurry):
        if not await opened(found, stop):
            return 0
        try:
            if processes > 1:
                return await WorkerProcesses(processes, duty.arguments(options), duty.grace).work(stop, hurry)
            with shown(metrics_host, metrics_port):
                if isinstance(hosted, AgentScheduler):
                    return await work_for_agents(hosted, duty, stop, hurry)
                return await work(found, duty, stop, hurry)
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


def _app_of(hosted: Hosted, duty: WorkerCommand, options: Options) -> Tocsin:
    """Where the options say. A scheduler is hosted itself, because its agents may schedule others on it."""
    where = options.where()
    if isinstance(hosted, Tocsin):
        return hosted.with_same_declarations(**where)
    if duty.queues is not None:
        raise WrongUsage("--queues is for an app: a scheduler of agents has the queue `agents` and no other")
    app = hosted.app.with_same_declarations(**where) if where else hosted.app
    hosted.host(app, concurrency=duty.concurrency, shard=duty.shard)
    return app


@contextmanager
def shown(host: str, port: int | None) -> Iterator[None]:
    end = None if port is None else serve_metrics(host, port)
    try:
        yield
    finally:
        if end is not None:
            end()


async def work(app: Tocsin, duty: WorkerCommand, stop: asyncio.Event, hurry: asyncio.Event) -> int:
    shard = None if duty.shard is None else parse_shard(duty.shard)
    made = await app.worker(queues=duty.queues, concurrency=duty.concurrency, shard=shard)
    await made.start()
    freeze_loaded_objects()
    try:
        await stop.wait()
    finally:
        await made.stop(duty.grace, hurry)
    return 1 if made.finisher.outcomes.job_ids() else 0


async def work_for_agents(
    scheduler: AgentScheduler, duty: WorkerCommand, stop: asyncio.Event, hurry: asyncio.Event
) -> int:
    made = await scheduler.initialize()
    freeze_loaded_objects()
    try:
        await stop.wait()
    finally:
        await scheduler.shutdown(duty.grace, hurry)
    return 1 if made.finisher.outcomes.job_ids() else 0


async def opened(app: Tocsin, stop: asyncio.Event) -> bool:
    """Connect; a server that is away gets a while to come. False if we were told to stop meanwhile."""
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
def told(stop: asyncio.Event, hurry: asyncio.Event) -> Iterator[None]:
    """For a process of a crew. Only its starter makes it hurry: a terminal or systemd may signal us all at once,
    and the starter passes its own signal on as well. When the starter is gone, its end of our stdin closes."""
    loop = asyncio.get_running_loop()

    def obey(why: str) -> None:
        if not stop.is_set():
            log.info("stopping: running jobs may end within the grace period", why=why)
            stop.set()

    def hasten() -> None:
        obey(HURRY.name)
        hurry.set()

    def look_up() -> None:
        if not os.read(sys.stdin.fileno(), 1):
            loop.remove_reader(sys.stdin.fileno())
            obey("the process that started this one is gone")

    for number in stop_signals():
        loop.add_signal_handler(number, obey, number.name)
    loop.add_signal_handler(HURRY, hasten)
    loop.add_reader(sys.stdin.fileno(), look_up)
    yield
