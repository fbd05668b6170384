"""Seed 000's API: agents that come and go while the scheduler runs, each with its own execution."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from engine.waiting import Gate, eventually, run_dry
from logged import capture_logs
from tocsin import Every, FailureClass, InvalidArgument, Run, Tocsin, TocsinError
from tocsin.patterns import Agent, AgentScheduler
from tocsin.resilience.backoff import BackoffSettings
from tocsin.worker import WorkerSettings

pytestmark = pytest.mark.agents

AGENTS = "agents"


class Told:
    """An instrumentation that notes what it is told, in one line each."""

    def __init__(self) -> None:
        self.lines: list[tuple[object, ...]] = []

    def started(self, agent):
        self.lines.append(("started", agent.type))

    def completed(self, agent, ms):
        self.lines.append(("completed", agent.type, ms))

    def failed(self, agent, error, ms):
        self.lines.append(("failed", agent.type, repr(error), ms))


class Notes:
    """An execution that notes which agents it ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    async def execute_agent(self, agent):
        self.ran.append(agent.type)


@pytest.fixture
async def make(tocsin_app):
    """Schedulers as of several processes, all ended with the test."""
    made: list[AgentScheduler] = []

    def build(app: Tocsin | None = None, **options) -> AgentScheduler:
        made.append(AgentScheduler(app or tocsin_app, **options))
        return made[-1]

    yield build
    for scheduler in made:
        await scheduler.shutdown(grace=0)


@pytest.fixture
def scheduler(make):
    return make()


@pytest.fixture
async def by_hand():
    """A scheduler's worker that does nothing by itself."""
    made = []

    async def build(scheduler: AgentScheduler):
        made.append(await scheduler.worker())
        return made[-1]

    yield build
    for worker in made:
        await worker.kill()


@pytest.fixture
def notes():
    return Notes()


@pytest.fixture
def told():
    return Told()


@pytest.fixture
def gate():
    return Gate()


def agent(name: str = "caching", interval: object = "30s", **options: object) -> Agent:
    return Agent(name, "aws", interval, **options)


# Running


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


# Coming and going


async def test_an_agent_may_be_scheduled_while_the_scheduler_runs(scheduler, notes):
    scheduler.schedule(agent("first"), notes)
    await scheduler.initialize()
    await eventually(lambda: notes.ran == ["first"], "the first runs")
    scheduler.schedule(agent("second"), notes)
    # The next period of reconciliation is half a minute away.
    await eventually(lambda: notes.ran == ["first", "second"], "the second runs without a restart", within=5)
    assert scheduler.stats().registered == 2


async def test_scheduling_or_unscheduling_an_agent_looks_at_no_other(make, tocsin_app, notes):
    looked_at: list[str] = []

    def shard(name: str) -> bool:
        looked_at.append(name)
        return True

    scheduler = make(shard=shard, settings=WorkerSettings(enabled=False))
    for n in range(600):
        scheduler.schedule(agent(f"agent-{n}"), notes)
    await scheduler.initialize()
    # A round before the worker starts, and its first one.
    await eventually(lambda: len(looked_at) == 1200, "it looked at all")
    looked_at.clear()
    scheduler.schedule(agent("one-more"), notes)
    scheduler.unschedule(agent("agent-7"))

    async def registered():
        return await tocsin_app.get("one-more", queue=AGENTS) is not None

    await eventually(registered, "the new one is registered")
    await eventually(lambda: scheduler.stats().registered == 600, "the other one is not ours any more")
    assert looked_at == ["one-more"]


async def test_an_agent_may_be_scheduled_by_another_one(scheduler, notes):
    async def finds_more(_):
        scheduler.schedule(agent("found"), notes)

    scheduler.schedule(agent("finder"), finds_more)
    await scheduler.initialize()
    await eventually(lambda: notes.ran == ["found"], "what was found runs", within=5)


async def test_an_unscheduled_agent_runs_here_no_more_and_stays_in_redis(
    scheduler, by_hand, tocsin_app, tocsin_clock, notes
):
    for name in "ab":
        scheduler.schedule(agent(name), notes)
    worker = await by_hand(scheduler)
    await run_dry(worker)
    assert scheduler.unschedule(agent("a"))
    assert not scheduler.unschedule(agent("a"))
    await worker.reconciler.step()
    tocsin_clock.advance("30s")
    await run_dry(worker)
    assert sorted(notes.ran) == ["a", "b", "b"]
    assert (await tocsin_app.get("a", queue=AGENTS)).due == tocsin_clock.now
    assert worker.pool.not_started == 0


async def test_unscheduling_takes_effect_while_the_scheduler_runs(scheduler, notes):
    scheduler.schedule(agent(), notes)
    await scheduler.initialize()
    await eventually(lambda: scheduler.stats().registered == 1, "it is registered")
    scheduler.unschedule(agent())
    await eventually(lambda: scheduler.stats().registered == 0, "it is unregistered", within=5)


async def test_a_run_whose_agent_is_unscheduled_goes_on_to_its_end(scheduler, tocsin_app, gate, told):
    async def waits(agent):
        await gate.enter(agent.type)

    scheduler.schedule(agent(), waits, told)
    await scheduler.initialize()
    await eventually(lambda: gate.inside, "it runs")
    scheduler.unschedule(agent())
    await eventually(lambda: scheduler.stats().registered == 0, "it is unregistered")
    gate.open()

    async def written():
        return (await tocsin_app.get("caching", queue=AGENTS)).succeeded == 1

    await eventually(written, "its success is written")
    assert [line[0] for line in told.lines] == ["started", "completed"]


async def test_what_is_unscheduled_between_its_claim_and_its_start_is_handed_back(
    scheduler, by_hand, tocsin_app, tocsin_clock, notes, told
):
    scheduler.schedule(agent(), notes, told)
    scheduler.schedule(agent("blocking"), lambda agent: notes.ran.append("blocking"), told)
    worker, due = await by_hand(scheduler), tocsin_clock.now
    await asyncio.to_thread(worker.heart.beat)
    await worker.fetcher.step()
    assert worker.pool.busy == 2
    for name in ("caching", "blocking"):
        scheduler.unschedule(agent(name))
    await worker.reconciler.step()
    await run_dry(worker)
    for name in ("caching", "blocking"):
        job = await tocsin_app.get(name, queue=AGENTS)
        assert (job.stage, job.due, job.attempt, job.failed) == ("waiting", due, 1, 0)
    assert (notes.ran, told.lines) == ([], [])


async def test_an_agent_that_is_scheduled_again_has_its_new_definition_and_execution(
    scheduler, tocsin_app, tocsin_clock, notes
):
    async def old(agent):
        notes.ran.append("old")

    def new(agent):
        notes.ran.append("new")

    scheduler.schedule(agent(), old)
    await scheduler.initialize()
    await eventually(lambda: notes.ran == ["old"], "it runs")
    scheduler.unschedule(agent())
    await eventually(lambda: scheduler.stats().registered == 0, "it is unregistered")
    scheduler.schedule(agent(interval="1h"), new)

    async def updated():
        return (await tocsin_app.get("caching", queue=AGENTS)).trigger == Every("1h")

    await eventually(updated, "Redis has the new definition", within=5)
    await tocsin_app.fire("caching", queue=AGENTS)
    await eventually(lambda: notes.ran == ["old", "new"], "the new execution runs", within=5)


async def test_a_type_can_be_scheduled_once_only(scheduler, by_hand, notes):
    scheduler.schedule(agent(), notes)
    for again in (agent(), agent(interval="1h")):
        with pytest.raises(InvalidArgument, match="scheduled already"):
            scheduler.schedule(again, print)
    await run_dry(await by_hand(scheduler))
    assert notes.ran == ["caching"]


async def test_a_type_that_the_app_declares_is_refused(scheduler, tocsin_app, notes):
    @tocsin_app.agent(every="30s", name="caching")
    async def caching():
        pass

    with pytest.raises(InvalidArgument, match=r"@app\.agent"):
        scheduler.schedule(agent(), notes)


# Several processes


async def test_a_scheduler_runs_its_own_agents_and_no_others(make, by_hand, tocsin_app, tocsin_clock):
    mine, theirs = Notes(), Notes()
    here, there = make(), make()
    here.schedule(agent("mine"), mine)
    there.schedule(agent("theirs"), theirs)
    tocsin_app.agent(every="30s", name="declared")(lambda: theirs.ran.append("declared"))
    await tocsin_app.register_agents()
    workers = [await by_hand(here), await by_hand(there)]
    for _ in range(2):
        await run_dry(workers[0])
        tocsin_clock.advance("30s")
    assert (mine.ran, theirs.ran) == (["mine", "mine"], [])
    await run_dry(workers[1])
    assert set(theirs.ran) == {"theirs"}
    assert (await tocsin_app.get("declared", queue=AGENTS)).stage == "waiting"


async def test_processes_with_the_same_agents_run_each_once_whatever_kind_of_function_each_has(
    make, by_hand, tocsin_clock
):
    ran = []

    async def on_loop(agent):
        ran.append("loop")

    def in_thread(agent):
        ran.append("thread")

    one, two = make(), make()
    one.schedule(agent(), on_loop)
    two.schedule(agent(), in_thread)
    first, second = await by_hand(one), await by_hand(two)
    for worker in (first, second, second, first):
        await run_dry(first)
        await run_dry(second)
        tocsin_clock.advance("30s")
        await run_dry(worker)
    assert ran == ["loop", "loop", "thread", "thread", "loop"]


async def test_a_shard_is_a_share_of_the_agents(make, by_hand):
    names = [f"agent-{n}" for n in range(30)]
    ran: list[list[str]] = []
    for shard in ("1/3", "2/3", "3/3"):
        notes, scheduler = Notes(), make(shard=shard)
        for name in names:
            scheduler.schedule(agent(name), notes)
        await run_dry(await by_hand(scheduler))
        ran.append(notes.ran)
    assert sorted(name for share in ran for name in share) == sorted(names)
    assert all(ran)


async def test_a_shard_that_changes_its_mind_and_the_settings_patterns_hold_together(make, by_hand, notes):
    mine = {"a", "b"}
    scheduler = make(shard=lambda name: name in mine, settings=WorkerSettings(owns=lambda name: name != "b"))
    for name in "abc":
        scheduler.schedule(agent(name), notes)
    worker = await by_hand(scheduler)
    await run_dry(worker)
    assert notes.ran == ["a"]
    mine.add("c")
    await worker.reconciler.step()
    await run_dry(worker)
    assert notes.ran == ["a", "c"]


# Stopping


async def past_its_timeout_and_the_threshold(worker, clock) -> None:
    """Both passes: one meets the run, the next finds it a zombie."""
    clock.advance("40s")
    await worker.sweep.step()
    await worker.sweep.step()


async def test_a_run_past_its_timeout_is_cancelled_and_told_as_failed(
    scheduler, by_hand, tocsin_app, tocsin_clock, told, gate
):
    async def waits(agent):
        await gate.enter()

    scheduler.schedule(agent(timeout="10s", error_interval="5m"), waits, told)
    worker = await by_hand(scheduler)
    await asyncio.to_thread(worker.heart.beat)
    await worker.fetcher.step()
    await eventually(lambda: gate.inside, "it runs")
    await past_its_timeout_and_the_threshold(worker, tocsin_clock)
    await eventually(lambda: not worker.pool.busy, "it has ended")
    await run_dry(worker)
    assert told.lines == [("started", "caching"), ("failed", "caching", "CancelledError()", 40_000.0)]
    job = await tocsin_app.get("caching", queue=AGENTS)
    assert job.failed == 1
    assert job.due_ms - tocsin_clock.ms == pytest.approx(300_000, rel=0.1)


async def test_a_thread_past_its_timeout_is_told_and_keeps_its_permit(scheduler, by_hand, tocsin_clock):
    runs, let_go = [], threading.Event()

    def stuck(agent, run):
        runs.append(run)
        assert let_go.wait(20)

    scheduler.schedule(agent(timeout="10s"), stuck)
    worker = await by_hand(scheduler)
    await asyncio.to_thread(worker.heart.beat)
    await worker.fetcher.step()
    await eventually(lambda: runs, "it runs")
    await past_its_timeout_and_the_threshold(worker, tocsin_clock)
    assert (runs[0].cancelled, worker.pool.busy, worker.stats().stuck) == (True, 1, 1)
    let_go.set()
    await eventually(lambda: not worker.pool.busy, "the thread has ended")


async def test_shutdown_lets_runs_end_and_claims_nothing_more(scheduler, tocsin_app, gate):
    async def waits(agent):
        await gate.enter(agent.type)

    scheduler.schedule(agent(), waits)
    await scheduler.initialize()
    await eventually(lambda: gate.inside, "it runs")
    stopping = asyncio.create_task(scheduler.shutdown())
    await eventually(lambda: scheduler.stats().worker is None, "it stops")
    scheduler.schedule(agent("late"), waits)
    gate.open()
    await asyncio.wait_for(stopping, 10)
    assert gate.passed == 1
    assert (await tocsin_app.get("caching", queue=AGENTS)).succeeded == 1
    assert await tocsin_app.get("late", queue=AGENTS) is None


async def test_what_does_not_end_before_a_shutdown_is_run_by_another_at_its_due_time(
    make, tocsin_app, tocsin_clock, gate, told
):
    due, dues = tocsin_clock.now, []

    async def waits(agent):
        await gate.enter(agent.type)

    async def works(agent, run):
        dues.append((run.due, run.attempt))

    leaving, staying = make(), make()
    leaving.schedule(agent(), waits, told)
    staying.schedule(agent(), works)
    await leaving.initialize()
    await eventually(lambda: gate.inside, "it runs")
    await staying.initialize()
    tocsin_clock.advance("1s")
    await asyncio.wait_for(leaving.shutdown(grace=0), 10)
    await eventually(lambda: dues == [(due, 1)], "another runs it at once", within=5)
    assert [line[:3] for line in told.lines] == [("started", "caching"), ("failed", "caching", "CancelledError()")]


async def test_a_scheduler_is_initialized_once_and_may_be_again_after_its_shutdown(scheduler, tocsin_clock, notes):
    scheduler.schedule(agent(), notes)
    await scheduler.shutdown()
    await scheduler.initialize()
    with pytest.raises(TocsinError, match="initialized already"):
        await scheduler.initialize()
    await eventually(lambda: notes.ran == ["caching"], "it runs")
    await asyncio.gather(scheduler.shutdown(), scheduler.shutdown())
    tocsin_clock.advance("30s")
    await scheduler.initialize()
    await eventually(lambda: notes.ran == ["caching"] * 2, "it runs again")


async def test_a_scheduler_that_could_not_be_initialized_may_be_when_the_app_is_open(tocsin_server, make, notes):
    app = Tocsin(tocsin_server.url, prefix="late:")
    scheduler = make(app)
    scheduler.schedule(agent("late"), notes)
    with pytest.raises(TocsinError, match="not open"):
        await scheduler.initialize()
    async with app:
        await scheduler.initialize()
        await eventually(lambda: notes.ran, "it runs")
        await scheduler.shutdown()


async def test_stats_say_what_is_scheduled_registered_and_running(make, gate):
    async def waits(agent):
        await gate.enter(agent.type)

    scheduler = make(shard=lambda name: name != "foreign")
    for name in ("a", "b", "foreign"):
        scheduler.schedule(agent(name), waits)
    before = scheduler.stats()
    assert (before.scheduled, before.registered, before.running, before.worker) == (3, 0, 0, None)
    await scheduler.initialize()
    await eventually(lambda: len(gate.inside) == 2, "both run")
    stats = scheduler.stats()
    assert (stats.scheduled, stats.registered, stats.running, stats.worker.claimed) == (3, 2, 2, 2)
    await scheduler.shutdown(grace=0)
    assert scheduler.stats() == before


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
