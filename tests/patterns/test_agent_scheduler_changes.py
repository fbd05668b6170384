"""Agents come, change and go while the scheduler runs, in one process or in several."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.agent_scheduling import AGENTS, Notes, agent
from tests.support.waiting import eventually, run_dry
from tocsin import Every, InvalidArgument
from tocsin.worker import WorkerSettings

pytestmark = pytest.mark.agents


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
