"""Agents that no live worker declares any more, at the defaults of orphan-cleanup: ten minutes."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from tests.support.captured_logs import capture_logs
from tests.support.waiting import run_dry
from tocsin.inspection.doctor import Doctor
from tocsin.inspection.findings import Finding
from tocsin.model.queue import AGENTS_QUEUE
from tocsin.patterns import Agent, AgentScheduler
from tocsin.store.transitions.fleet import Fleet
from tocsin.store.views.audit import AuditReader
from tocsin.upkeep.agent_ownership import Ownership
from tocsin.worker import Worker

pytestmark = pytest.mark.agents

ORPHAN_S = 600


@pytest.fixture
async def leader(tocsin_app, other_app, make_worker) -> Worker:
    """`gone` was registered by a program that runs no more; another program, with an agent of its own, leads."""

    @tocsin_app.agent(every="30s", name="gone")
    async def gone():
        pass

    @other_app.agent(every="30s", name="stays")
    async def stays():
        pass

    await tocsin_app.register_agents()
    worker = await make_worker(other_app)
    await run_dry(worker)
    return worker


async def look(*workers: Worker) -> None:
    """Each says which agents it has, and the first, which leads, looks for those of nobody."""
    for worker in workers:
        await worker.reconciler.step()
        await worker.parts.upkeep.announcer.step()
        await asyncio.to_thread(worker.heart.beat)
    await workers[0].parts.upkeep.elector.step()
    await workers[0].parts.upkeep.unregistered_agents.step()


async def findings_of(app) -> list[Finding]:
    return (await Doctor(AuditReader(app.store), Fleet(app.store), patience_s=0).run()).findings


async def stage(app, name: str = "gone") -> str:
    return (await app.get(name)).stage


async def test_an_agent_that_nobody_declares_is_parked_after_the_orphan_threshold(tocsin_app, tocsin_clock, leader):
    tocsin_clock.advance(ORPHAN_S - 1)
    await run_dry(leader)
    await look(leader)
    assert await stage(tocsin_app) == "waiting"
    tocsin_clock.advance("1s")
    with capture_logs() as logs:
        await look(leader)
    assert await stage(tocsin_app) == "parked"
    assert await stage(tocsin_app, "stays") == "waiting"
    # Counted, logged, and shown.
    assert leader.stats().orphans == 1
    leader.telemetry._gather(leader.tally)
    assert leader.tally.orphans == {"unregistered": 1}
    assert [entry["agents"] for entry in logs if "no worker declares" in entry["event"]] == [["gone"]]
    [reason] = (await tocsin_app.why("gone")).reasons
    assert (reason.kind, "no live worker declared" in reason.says) == ("parked", True)
    findings = await findings_of(tocsin_app)
    assert [found.count for found in findings if found.kind == "parked"] == [1]
    # Removed on request.
    assert (await tocsin_app.remove_many(queue=AGENTS_QUEUE, stage="parked")).removed == 1
    assert await tocsin_app.get("gone") is None


async def test_a_worker_that_declares_it_again_gets_it_back(tocsin_app, tocsin_clock, leader, make_worker):
    tocsin_clock.advance(ORPHAN_S)
    await look(leader)
    assert await stage(tocsin_app) == "parked"
    worker = await make_worker()
    await run_dry(worker)
    job = await tocsin_app.get("gone")
    assert (job.stage, job.succeeded > 0) == ("waiting", True)
    tocsin_clock.advance(ORPHAN_S)
    await look(leader, worker)
    assert await stage(tocsin_app) == "waiting"


async def test_what_a_live_worker_declares_stays_in_line_although_it_does_not_run_it(
    tocsin_app, tocsin_clock, leader, make_worker
):
    """Another deployment has it; its patterns leave it out, or it is behind."""
    other = await make_worker(owns=Ownership(".*", "gone"))
    tocsin_clock.advance(ORPHAN_S * 2)
    await look(other)
    await look(leader)
    assert await stage(tocsin_app) == "waiting"
    # The doctor says so.
    findings = await findings_of(tocsin_app)
    assert [found.count for found in findings if found.kind == "late-agents"] == [2]
    await other.stop(grace=0)
    await look(leader)
    assert await stage(tocsin_app) == "parked"


@pytest.mark.parametrize("version", ["an older one", "has just started", "the server lost its set"])
async def test_nothing_is_parked_while_a_live_worker_does_not_say_what_it_declares(
    tocsin_app, tocsin_clock, leader, make_worker, version
):
    other = await make_worker()
    tocsin_clock.advance(ORPHAN_S)
    if version == "an older one":
        about = other.about
        other.heart._about = lambda: replace(about(), agents=None)
    if version == "the server lost its set":
        await look(other)
        await tocsin_app.store.client.delete(tocsin_app.store.keys.fleet()["declared"])
    else:
        await asyncio.to_thread(other.heart.beat)
    await look(leader)
    assert await stage(tocsin_app) == "waiting"


async def test_the_first_look_of_a_leader_does_not_drop_what_it_has_yet_to_tell_of(tocsin_app, tocsin_clock, leader):
    await leader.reconciler.step()
    await leader.parts.upkeep.announcer.step()
    await leader.parts.upkeep.elector.step()
    await leader.parts.upkeep.unregistered_agents.step()
    tocsin_clock.advance(ORPHAN_S)
    await asyncio.to_thread(leader.heart.beat)
    await leader.parts.upkeep.elector.step()
    await leader.parts.upkeep.unregistered_agents.step()
    assert await stage(tocsin_app) == "parked"


async def test_an_agent_that_was_unscheduled_everywhere_is_parked_although_its_handler_is_known(
    tocsin_app, tocsin_clock
):
    async def execute(agent):
        pass

    scheduler = AgentScheduler(tocsin_app)
    agents = [Agent(f"agent-{n}", "test", "30s") for n in range(3)]
    for agent in agents:
        scheduler.schedule(agent, execute)
    worker = await scheduler.worker()
    await run_dry(worker)
    await look(worker)
    scheduler.unschedule(agents[1])
    tocsin_clock.advance(ORPHAN_S + 45)
    await look(worker)
    assert [await stage(tocsin_app, agent.type) for agent in agents] == ["waiting", "parked", "waiting"]
    # Sets that nobody has any more are dropped.
    assert await tocsin_app.store.client.hlen(tocsin_app.store.keys.fleet()["declared"]) == 1
    scheduler.schedule(agents[1], execute)
    await look(worker)
    await run_dry(worker)
    assert (await tocsin_app.get("agent-1")).succeeded == 2
    await worker.kill()


async def test_who_does_not_lead_parks_nothing(tocsin_app, tocsin_clock, leader, make_worker, other_app):
    other = await make_worker(other_app)
    await leader.parts.upkeep.elector.step()
    tocsin_clock.advance(ORPHAN_S)
    await look(other)
    assert await stage(tocsin_app) == "waiting"


async def test_a_leader_without_agents_parks_those_of_nobody(tocsin_app, tocsin_clock, make_worker, other_app):
    @tocsin_app.agent(every="30s", name="gone")
    async def gone():
        pass

    @other_app.job
    async def job():
        pass

    await tocsin_app.register_agents()
    worker = await make_worker(other_app)
    assert worker.reconciler is None
    tocsin_clock.advance(ORPHAN_S)
    await worker.parts.upkeep.elector.step()
    await worker.parts.upkeep.unregistered_agents.step()
    assert await stage(tocsin_app) == "parked"
