"""A worker frees blocked jobs whose server forgot that they were told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.lost_writes import Snapshot
from tests.support.waiting import eventually
from tocsin import Tocsin
from tocsin.engine.handlers import Handler


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def job(live_app: Tocsin, ran: list[str]) -> Handler:
    for name in ("a", "b"):
        live_app.queue(name, partitions=1)

    @live_app.job(name="job", queue="a")
    async def job(name: str) -> None:
        ran.append(name)

    return job


async def test_a_dependent_that_was_told_and_is_blocked_again_runs_again(
    live_app: Tocsin, make_worker: Any, job: Handler, ran: list[str]
) -> None:
    up = await live_app.enqueue(job, "up", id="up", delay="500ms")
    down = await live_app.enqueue(job, "down", id="down", queue="b", after=[up])
    snapshot = Snapshot(live_app.store, "b")
    await snapshot.take()
    worker = await make_worker(live_app, start=True)
    await eventually(lambda: ran == ["up", "down"] and worker.finisher.idle(), "both have run")
    await snapshot.put_back()
    # Its next look may be ten seconds away.
    worker.parts.upkeep.stuck_dependents.wake.set()
    await eventually(lambda: ran == ["up", "down", "down"], "it ran again")
    assert await down.result() is None


async def test_a_dependent_whose_watch_was_lost_runs_when_the_job_has_ended_that_it_waits_for(
    live_app: Tocsin, make_worker: Any, job: Handler, ran: list[str]
) -> None:
    up = await live_app.enqueue(job, "up", id="up", delay="500ms")
    snapshot = Snapshot(live_app.store, "a")
    await snapshot.take()
    down = await live_app.enqueue(job, "down", id="down", queue="b", after=[up])
    await snapshot.put_back()
    worker = await make_worker(live_app, start=True)
    await eventually(lambda: "up" in ran and worker.finisher.idle(), "one has run")
    worker.parts.upkeep.stuck_dependents.wake.set()
    await eventually(lambda: ran == ["up", "down"], "the other ran")
    assert await down.result() is None
