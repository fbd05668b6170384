"""The steps of an agent's life in the log at DEBUG, as the Redis Priority Scheduler has them."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.support.captured_logs import capture_logs
from tests.support.waiting import Gate, eventually, run_dry
from tocsin.engine.claim_planner import Batching

pytestmark = pytest.mark.agents


def steps(logs: list[dict], agent: str) -> list[str]:
    return [line["event"] for line in logs if line["logger"] == "tocsin.agents" and line.get("agent") == agent]


async def test_each_step_of_an_agent_is_a_line(tocsin_app, tocsin_clock, make_worker):
    @tocsin_app.agent(every="30s", name="works")
    async def works():
        pass

    @tocsin_app.agent(every="30s", error_interval="5m", name="fails")
    async def fails():
        raise ValueError("vendor is down")

    with capture_logs() as logs:
        worker = await make_worker()
        await run_dry(worker)
    assert steps(logs, "works") == ["registered", "acquired", "executed", "completed", "rescheduled"]
    assert steps(logs, "fails") == ["registered", "acquired", "executed", "completed", "rescheduled"]
    outcomes = {line["agent"]: line["outcome"] for line in logs if line["event"] == "executed"}
    assert outcomes == {"works": "succeeded", "fails": "failed"}
    assert {line["log_level"] for line in logs if line["logger"] == "tocsin.agents"} == {"debug"}
    [due] = [line["due"] for line in logs if line["event"] == "rescheduled" and line["agent"] == "works"]
    assert due == (await tocsin_app.get("works")).due.isoformat()


async def test_what_is_handed_over_is_released_and_what_is_given_up_is_unregistered(
    tocsin_app, tocsin_clock, make_worker
):
    gate, mine = Gate(), {"waits", "given-up"}

    @tocsin_app.agent(every="1h", name="waits")
    async def waits():
        await gate.enter()

    @tocsin_app.agent(every="1h", name="given-up")
    async def given_up():
        pass

    worker = await make_worker(start=True, owns=lambda name: name in mine)
    await eventually(lambda: gate.inside, "one runs")
    await eventually(lambda: worker.pool.ran == 1 and worker.finisher.idle(), "the other has run")
    mine.remove("given-up")
    with capture_logs() as logs:
        worker.reconciler.wake.set()
        await eventually(lambda: steps(logs, "given-up"), "it is given up")
        await worker.stop(grace=0)
    assert steps(logs, "given-up") == ["unregistered here"]
    assert steps(logs, "waits") == ["executed", "released"]


async def test_what_another_worker_left_is_recovered(tocsin_app, tocsin_clock, make_worker):
    gate = Gate()

    @tocsin_app.agent(every="1h", name="waits")
    async def waits():
        await gate.enter()

    dies, lives = await make_worker(), await make_worker()
    await dies.fetcher.step()
    await eventually(lambda: gate.inside, "it runs")
    with capture_logs() as logs:
        await lives.parts.upkeep.reaper._recover(lives.served["agents"].queue, 0, dies.name)
    assert [(line["runs"], line["worker"]) for line in logs if line["event"] == "recovered"] == [(1, dies.name)]
    gate.open()
    with capture_logs() as logs:
        await eventually(lambda: not dies.pool.busy, "its run has ended")
        await dies.finisher.step()
    assert steps(logs, "waits") == ["executed", "lost to another worker"]


async def test_a_worker_that_does_not_log_them_asks_once_a_batch(tocsin_app, tocsin_clock, make_worker, monkeypatch):
    async def agent():
        pass

    for n in range(300):
        tocsin_app.agent(every="1h", name=f"agent-{n}")(agent)
    asked: list[int] = []

    def ask(level: int) -> bool:
        asked.append(level)
        return False

    monkeypatch.setattr(logging.getLogger("tocsin.agents"), "isEnabledFor", ask)
    worker = await make_worker(concurrency=300, batching=Batching(size=100))
    asked.clear()
    await asyncio.to_thread(worker.heart.beat)
    ran = 0
    while ran < 300:
        await worker.fetcher.step()
        await eventually(lambda: not worker.pool.busy, "they ran")
        while not worker.finisher.idle():
            await worker.finisher.step()
        ran = worker.pool.ran
    assert 0 < len(asked) <= 30
