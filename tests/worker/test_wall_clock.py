"""The clock of the worker's machine is set anew while it works: nothing is early, late, double or dead for that."""

from __future__ import annotations

import time

import pytest

from tests.support.waiting import eventually

pytestmark = pytest.mark.agents


@pytest.mark.parametrize("jump_s", [3600, -3600], ids=["an hour ahead", "an hour back"])
async def test_a_machine_whose_clock_jumps_runs_everything_on_time(live_app, make_worker, monkeypatch, jump_s):
    ran: list[tuple[str, float]] = []

    @live_app.job
    async def job():
        ran.append(("job", time.monotonic()))

    @live_app.agent(every="100ms", name="tick")
    async def tick():
        ran.append(("tick", time.monotonic()))

    def times(name: str) -> list[float]:
        return [at for who, at in ran if who == name]

    worker = await make_worker(live_app, start=True, beat_s=0.05, ttl_s=1.0)
    await eventually(lambda: times("tick"), "the agent runs")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump_s)
    name, jumped = worker.name, time.monotonic()
    await live_app.enqueue(job, delay="300ms")
    await eventually(lambda: times("job"), "the job runs")
    assert times("job")[0] - jumped >= 0.3
    await eventually(lambda: len([at for at in times("tick") if at > jumped]) >= 5, "the agent goes on")
    stats = worker.stats()
    assert (stats.worker, stats.lost, stats.recovered) == (name, 0, 0)
    # At its interval, not all at once: as many as the time allows.
    assert len(times("tick")) <= (time.monotonic() - times("tick")[0]) / 0.1 + 2
