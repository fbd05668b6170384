"""Where the executions of an AgentScheduler run, and settings of its own."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support import agent_handlers
from tests.support.waiting import Gate, eventually, run_dry
from tocsin import InvalidArgument, InvalidConfig, Tocsin
from tocsin.config import Config, merged
from tocsin.patterns import Agent, AgentScheduler

pytestmark = pytest.mark.agents

AGENTS = "agents"


class Told:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def started(self, agent):
        self.lines.append(("started", agent.type))

    def completed(self, agent, ms):
        self.lines.append(("completed", agent.type))

    def failed(self, agent, error, ms):
        self.lines.append(("failed", f"{type(error).__name__}: {error}".partition("\n")[0]))


@pytest.fixture
async def make(tocsin_app):
    made: list[AgentScheduler] = []

    def build(app: Tocsin | None = None, **options) -> AgentScheduler:
        made.append(AgentScheduler(app or tocsin_app, **options))
        return made[-1]

    yield build
    for scheduler in made:
        await scheduler.shutdown(grace=0)


def noted(folder: Path, name: str) -> list[str]:
    file = folder / name
    return file.read_text().split(" ", 1) if file.exists() else []


async def counts(app: Tocsin, name: str) -> tuple[int, int]:
    job = await app.get(name, queue=AGENTS)
    return (0, 0) if job is None else (job.succeeded, job.failed)


# Processes


async def test_a_function_or_an_object_of_a_module_runs_in_a_process_and_gets_its_agent(make, tocsin_app, tmp_path):
    scheduler, told = make(), Told()
    first = Agent("first", str(tmp_path), timedelta(seconds=90), error_interval="5m")
    scheduler.schedule(first, agent_handlers.note, told, executor="process")
    scheduler.schedule(Agent("second", str(tmp_path), "30s"), agent_handlers.noting, executor="process")
    await scheduler.initialize()
    for name in ("first", "second"):
        await eventually(lambda name=name: noted(tmp_path, name)[1:], f"the {name} ran", within=60)
    pid, text = noted(tmp_path, "first")
    assert int(pid) != os.getpid()
    # A timedelta arrives as seconds.
    assert text == "first 90.0 5m"
    assert noted(tmp_path, "second")[1] == "held by its module"

    async def written() -> bool:
        return [await counts(tocsin_app, name) for name in ("first", "second")] == [(1, 0), (1, 0)]

    await eventually(written, "both succeeded")
    assert told.lines == [("started", "first"), ("completed", "first")]


async def test_a_process_past_the_timeout_of_its_agent_is_killed(make, tocsin_app, tocsin_clock, tmp_path):
    scheduler, told = make(), Told()
    hanging = Agent("hanging", str(tmp_path), "1h", error_interval="5m", timeout="10s")
    scheduler.schedule(hanging, agent_handlers.hang, told, executor="process")
    await scheduler.initialize()
    [file] = await eventually(lambda: list(tmp_path.iterdir()), "it hangs", within=60)
    pid = int(file.name.rpartition("-")[2])
    # Past its timeout, and past the time that zombies have.
    tocsin_clock.advance("1m")
    await eventually(lambda: not Path(f"/proc/{pid}").exists(), "its process is gone", within=30)

    async def failed() -> bool:
        return await counts(tocsin_app, "hanging") == (0, 1)

    await eventually(failed, "its run has failed", within=30)
    assert scheduler.stats().worker.stuck == 0
    assert [line[0] for line in told.lines] == ["started", "failed"]


async def test_what_fails_in_a_process_fails_here_by_the_same_name(make, tocsin_app, tmp_path):
    scheduler, told = make(executor="process"), Told()
    scheduler.schedule(Agent("failing", str(tmp_path), "1h"), agent_handlers.fail, told)
    scheduler.schedule(Agent("wrong", str(tmp_path), "1h"), agent_handlers.wrongly)
    await scheduler.initialize()

    async def failed() -> bool:
        return [await counts(tocsin_app, name) for name in ("failing", "wrong")] == [(0, 1), (0, 1)]

    await eventually(failed, "both failed", within=60)
    assert told.lines == [("started", "failing"), ("failed", "LookupError: no vendor for failing")]
    assert "returned a coroutine" in (await tocsin_app.get("wrong", queue=AGENTS)).failure.error


async def test_the_executor_of_a_scheduler_is_for_plain_functions_and_one_of_them_may_have_another(make, tmp_path):
    where: dict[str, bool] = {}

    async def on_loop(agent):
        where[agent.type] = threading.current_thread() is threading.main_thread()

    def in_thread(agent):
        where[agent.type] = threading.current_thread() is threading.main_thread()

    scheduler = make(executor="process")
    scheduler.schedule(Agent("loop", "aws", "1h"), on_loop)
    scheduler.schedule(Agent("thread", "aws", "1h"), in_thread, executor="thread")
    scheduler.schedule(Agent("process", str(tmp_path), "1h"), agent_handlers.note)
    await scheduler.initialize()
    await eventually(lambda: len(where) == 2 and noted(tmp_path, "process")[1:], "all ran", within=60)
    assert where == {"loop": True, "thread": False}
    assert int(noted(tmp_path, "process")[0]) != os.getpid()


def local(agent):
    def inner(agent):
        pass

    return inner


@pytest.mark.parametrize(
    ("execution", "executor", "says"),
    [
        (lambda agent: None, "process", "imports it by its name"),
        (local(None), "process", "imports it by its name"),
        (agent_handlers.Noting("nobody's"), "process", "imports it by its name"),
        (agent_handlers.later, "process", "make it a plain def"),
        (agent_handlers.later, "thread", "make it a plain def"),
        (agent_handlers.note, "proces", "did you mean 'process'"),
        (agent_handlers.note, "loop", "no executor 'loop'"),
    ],
    ids=["lambda", "local", "unnamed object", "async in process", "async in thread", "typo", "loop"],
)
def test_what_cannot_run_there_is_refused_when_it_is_scheduled(execution, executor, says):
    scheduler = AgentScheduler(Tocsin("redis://127.0.0.1:1"))
    with pytest.raises(InvalidArgument, match=says):
        scheduler.schedule(Agent("a", "aws", "1h"), execution, executor=executor)
    assert scheduler.stats().scheduled == 0


def test_an_executor_that_there_is_not_is_refused():
    with pytest.raises(InvalidArgument, match="did you mean 'thread'"):
        AgentScheduler(Tocsin("redis://127.0.0.1:1"), executor="threads")


# Settings


async def test_settings_of_its_own_hold_over_those_of_the_app(tocsin_server, tocsin_clock, tocsin_app, topology):
    configured = {"redis.agent.disabled-pattern": "off-.*", "redis.agent.max-concurrent-agents": 5}
    if topology == "cluster":
        configured["redis.scheduler.keys.hash-tag"] = "ps"
    gate = Gate()

    async def waits(agent):
        await gate.enter(agent.type)

    prefix = tocsin_app.store.keys.prefix
    config = merged(Config(), configured).config
    async with Tocsin(tocsin_server.url, prefix=prefix, clock=tocsin_clock, config=config) as app:
        scheduler = AgentScheduler(app, settings={"redis": {"agent": {"max-concurrent-agents": 2}}})
        for name in ("a", "b", "c", "off-duty"):
            scheduler.schedule(Agent(name, "aws", "1h"), waits)
        worker = await scheduler.initialize()
        await eventually(lambda: len(gate.inside) == 2, "two run")
        gate.open()
        await eventually(lambda: gate.passed == 3, "three have run")
        assert (gate.most, worker.settings.concurrency, scheduler.stats().registered) == (2, 2, 3)
        await scheduler.shutdown(grace=0)


async def test_the_failures_of_its_agents_are_backed_off_as_its_settings_say(make, tocsin_app, tocsin_clock):
    async def forbidden(agent):
        raise PermissionError("AccessDenied")

    scheduler = make(
        settings={
            "redis.scheduler.failure-backoff.enabled": True,
            "redis.scheduler.jitter.failure-backoff-ratio": 0.0,
        }
    )
    scheduler.schedule(Agent("a", "aws", "30s"), forbidden)
    worker = await scheduler.worker()
    await run_dry(worker)
    # The default of permanent-forbidden-backoff-ms.
    assert (await tocsin_app.get("a", queue=AGENTS)).due_ms - tocsin_clock.ms == 1_800_000
    await worker.kill()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"redis.agent.max-concurrent-agent": 1}, "did you mean 'redis.agent.max-concurrent-agents'?"),
        ({"redis.agent.max-concurrent-agents": "many"}, "must be a whole number"),
        ({"redis.scheduler.keys.prefix": "x:"}, "for the app"),
        ({"redis.scheduler.time-cache-duration-ms": 5}, "for the app"),
        ({"redis.connection.timeout": 5}, "for the app"),
        ({"http.max-per-host": 5}, "for the app"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_that_it_cannot_have_are_refused_when_it_is_made(settings, says):
    with pytest.raises(InvalidConfig) as refused:
        AgentScheduler(Tocsin("redis://127.0.0.1:1"), settings=settings)
    assert says in str(refused.value)


async def test_settings_that_do_not_fit_to_the_apps_are_refused_at_the_start(make):
    scheduler = make(settings={"redis.scheduler.orphan-cleanup.run-budget-ms": 100_000})
    with pytest.raises(InvalidConfig, match="a leader must outlast its pass"):
        await scheduler.initialize()


async def test_a_host_says_where_how_many_and_which_over_the_program(make, tocsin_app):
    ran: list[str] = []

    async def notes(agent):
        ran.append(agent.type)

    scheduler = AgentScheduler(Tocsin("redis://127.0.0.1:1"), shard="1/2")
    for n in range(20):
        scheduler.schedule(Agent(f"agent-{n}", "aws", "1h"), notes)
    scheduler.host(tocsin_app, concurrency=3, shard="2/2")
    other = make(shard="2/2")
    for n in range(20):
        other.schedule(Agent(f"agent-{n}", "aws", "1h"), notes)
    worker = await scheduler.worker()
    await run_dry(worker)
    here, ran[:] = ran[:], []
    assert worker.settings.concurrency == 3
    await worker.kill()
    same = await other.worker()
    assert sorted(same.reconciler._owned) == sorted(here)
    await same.kill()
