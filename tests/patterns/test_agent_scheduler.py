"""The Redis Priority Scheduler's API: agents that come and go while the scheduler runs, each with its own execution."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from tests.support.agent_scheduling import AGENTS, Told, agent
from tests.support.captured_logs import capture_logs
from tests.support.waiting import run_dry
from tocsin import Every, FailureClass, InvalidArgument, Run
from tocsin.patterns import Agent
from tocsin.resilience.backoff import BackoffSettings
from tocsin.worker import WorkerSettings

pytestmark = pytest.mark.agents


async def test_an_agent_runs_at_once_and_then_on_its_interval(scheduler, by_hand, tocsin_clock):
    dues = []

    async def refresh(agent, run: Run):
        dues.append((agent.type, agent.provider, run.due))

    scheduler.schedule(agent(), refresh)
    worker, begun = await by_hand(scheduler), tocsin_clock.now
    for late in (0, 7, 0):
        tocsin_clock.advance(late)
        await run_dry(worker)
        tocsin_clock.advance(30 - late)
    assert dues == [("caching", "aws", begun + timedelta(seconds=30 * n)) for n in range(3)]


async def test_redis_holds_an_agent_under_its_type_with_all_that_it_says(scheduler, by_hand, tocsin_app, notes):
    scheduler.schedule(agent(error_interval="5m", timeout="2m"), notes)
    await by_hand(scheduler)
    job = await tocsin_app.get("caching", queue=AGENTS)
    assert (job.trigger, job.timeout, job.spec.rules.error_interval) == (Every("30s"), 120, 300)
    assert job.spec.rules.agent


async def test_each_agent_has_an_execution_of_its_own_on_the_loop_or_in_a_thread(scheduler, by_hand):
    where: dict[str, tuple[str, bool]] = {}

    def note(agent):
        where[agent.type] = (agent.provider, threading.current_thread() is threading.main_thread())

    class Caching:
        async def execute_agent(self, agent):
            note(agent)

    class Blocking:
        def execute_agent(self, agent):
            note(agent)

    class Called:
        async def __call__(self, agent):
            note(agent)

    async def on_loop(agent):
        note(agent)

    def in_thread(run, agent):
        assert run.job_id == agent.type
        note(agent)

    executions = {"a": on_loop, "b": in_thread, "c": Caching(), "d": Blocking(), "e": Called()}
    for name, execution in executions.items():
        scheduler.schedule(agent(name), execution)
    await run_dry(await by_hand(scheduler))
    assert where == {
        "a": ("aws", True),
        "b": ("aws", False),
        "c": ("aws", True),
        "d": ("aws", False),
        "e": ("aws", True),
    }


@pytest.mark.parametrize("name", ["{braces} and spaces", "a\nline", "🔥", "x" * 512, "12345"])
async def test_a_type_may_hold_any_characters(scheduler, by_hand, notes, name):
    scheduler.schedule(agent(name), notes)
    await run_dry(await by_hand(scheduler))
    assert notes.ran == [name]


async def test_after_a_failure_an_agent_waits_for_its_error_interval(scheduler, by_hand, tocsin_app, tocsin_clock):
    async def refresh(agent):
        raise ValueError("vendor is down")

    scheduler.schedule(agent(error_interval="5m"), refresh)
    await run_dry(await by_hand(scheduler))
    job = await tocsin_app.get("caching", queue=AGENTS)
    assert (job.stage, job.failed) == ("waiting", 1)
    assert job.due_ms - tocsin_clock.ms == pytest.approx(300_000, rel=0.1)


async def test_the_apps_own_classes_of_failures_hold_for_scheduled_agents(make, by_hand, tocsin_app, tocsin_clock):
    @tocsin_app.classify
    def forbidden(error):
        return FailureClass.PERMANENT_FORBIDDEN if isinstance(error, KeyError) else None

    async def refresh(agent):
        raise KeyError("no access")

    backoff = BackoffSettings(enabled=True, permanent_forbidden_backoff_ms=1_800_000, jitter_ratio=0)
    scheduler = make(settings=WorkerSettings(backoff=backoff))
    scheduler.schedule(agent(error_interval="5m"), refresh)
    await run_dry(await by_hand(scheduler))
    assert (await tocsin_app.get("caching", queue=AGENTS)).due_ms - tocsin_clock.ms == 1_800_000


async def test_a_plain_function_that_returns_a_coroutine_has_failed(scheduler, by_hand, tocsin_app, notes):
    scheduler.schedule(agent(), lambda agent: notes.execute_agent(agent))
    await run_dry(await by_hand(scheduler))
    assert "returned a coroutine" in (await tocsin_app.get("caching", queue=AGENTS)).failure.error
    assert notes.ran == []


# Instrumentation


async def test_instrumentation_is_told_when_a_run_begins_and_how_and_when_it_ended(
    scheduler, by_hand, tocsin_clock, told
):
    async def works(agent):
        tocsin_clock.advance("1500ms")

    def fails(agent):
        tocsin_clock.advance("250ms")
        raise ValueError("vendor is down")

    scheduler.schedule(agent("works", "1h"), works, told)
    worker = await by_hand(scheduler)
    await run_dry(worker)
    assert told.lines == [("started", "works"), ("completed", "works", 1500.0)]
    told.lines.clear()
    scheduler.schedule(agent("fails", "1h"), fails, told)
    await worker.reconciler.step()
    await run_dry(worker)
    assert told.lines == [("started", "fails"), ("failed", "fails", "ValueError('vendor is down')", 250.0)]


async def test_an_instrumentation_that_raises_is_logged_and_changes_nothing(scheduler, by_hand, tocsin_app, notes):
    class Broken:
        def started(self, agent):
            raise RuntimeError("no metrics")

        completed = failed = lambda self, *_: 1 / 0

    async def fails(agent):
        raise ValueError("vendor is down")

    scheduler.schedule(agent("works"), notes, Broken())
    scheduler.schedule(agent("fails"), fails, Broken())
    with capture_logs() as logs:
        await run_dry(await by_hand(scheduler))
    works, fails_too = [await tocsin_app.get(name, queue=AGENTS) for name in ("works", "fails")]
    assert (works.succeeded, notes.ran) == (1, ["works"])
    assert (fails_too.failed, fails_too.failure.error) == (1, "ValueError: vendor is down")
    noted = {(entry["agent"], entry["method"]) for entry in logs if "instrumentation" in entry["event"]}
    assert noted == {("works", "started"), ("works", "completed"), ("fails", "started"), ("fails", "failed")}


# Bad input


@pytest.mark.parametrize(
    "given",
    [
        {"type": ""},
        {"type": "a\0b"},
        {"type": "x" * 513},
        {"type": 7},
        {"provider": None},
        {"interval": 0},
        {"interval": -1},
        {"interval": "soon"},
        {"error_interval": -1},
        {"timeout": 0},
        {"timeout": None},
    ],
    ids=str,
)
def test_an_agent_that_cannot_be_is_refused(given):
    with pytest.raises(InvalidArgument):
        Agent(**{"type": "caching", "provider": "aws", "interval": "30s", **given})


@pytest.mark.parametrize(
    "execution",
    [None, 7, object(), lambda: None, lambda agent, more: None],
    ids=["none", "number", "object", "of nothing", "of two"],
)
async def test_an_execution_that_cannot_be_called_with_an_agent_is_refused(scheduler, execution):
    with pytest.raises(InvalidArgument):
        scheduler.schedule(agent(), execution)
    assert scheduler.stats().scheduled == 0


async def test_an_instrumentation_that_could_not_be_told_is_refused(scheduler, notes):
    class Async(Told):
        async def failed(self, agent, error, ms):
            pass

    for told in (object(), Async()):
        with pytest.raises(InvalidArgument, match="plain function"):
            scheduler.schedule(agent(), notes, told)


async def test_what_is_no_agent_is_refused(scheduler, notes):
    with pytest.raises(InvalidArgument, match="Agent"):
        scheduler.schedule("caching", notes)


@pytest.mark.parametrize("shard", ["0/2", "3/2", "half"])
async def test_a_shard_that_cannot_be_is_refused(make, shard):
    with pytest.raises(InvalidArgument, match="shard"):
        make(shard=shard)
