"""The server's clock is set, or a host with another clock takes over: nothing that still runs is started again, and
what nobody runs comes back all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.captured_logs import capture_logs
from tocsin import Tocsin
from tocsin.store.embedded.server import EmbeddedServer
from tocsin.testing import ManualClock
from tocsin.worker import Worker, WorkerSettings

pytestmark = pytest.mark.one_server(reason="its clock belongs to the test")

MINUTE = 60


class SettableClock(ManualClock):
    """The server's clock may be set without time passing."""

    def set_ahead(self, seconds: float) -> None:
        self._now += int(seconds * 1000)
        self._start += int(seconds * 1000)


@pytest.fixture
def settable() -> SettableClock:
    return SettableClock()


@pytest.fixture
async def app(tocsin_server: EmbeddedServer, settable: SettableClock) -> AsyncIterator[Tocsin]:
    async with Tocsin(tocsin_server.url, prefix="steps:", clock=settable) as app:
        await app.store.client.flushall()

        @app.job(name="work", timeout="2m")
        async def work() -> None: ...

        await app.enqueue(work, id="job")
        yield app


@pytest.fixture
async def make(app: Tocsin) -> AsyncIterator[object]:
    made: list[Worker] = []

    async def make() -> Worker:
        worker = await app.worker(settings=WorkerSettings())
        worker._loop = asyncio.get_running_loop()
        made.append(worker)
        await pulse(worker)
        return worker

    yield make
    for worker in made:
        await worker.kill()


async def pulse(*workers: Worker) -> None:
    for worker in workers:
        await asyncio.to_thread(worker.heart.beat)
    # Each beat is shown to the parts on the event loop.
    await asyncio.sleep(0)


async def live(clock: ManualClock, seconds: float, *workers: Worker) -> None:
    """All beat every 2 s, and bring back what they find."""
    for _ in range(int(seconds / 2)):
        clock.advance("2s")
        await pulse(*workers)
        for worker in workers:
            await worker.parts.upkeep.reaper.step()


async def owner(app: Tocsin) -> str | None:
    job = await app.get("job")
    assert job is not None
    return job.owner


async def holding(make, clock: ManualClock) -> Worker:
    """A worker that runs the job."""
    worker = await make()
    await worker.fetcher.step()
    await live(clock, 10, worker)
    return worker


@pytest.mark.parametrize("outage", [0, 6, 60])
@pytest.mark.parametrize("ahead", [10 * MINUTE, 24 * 60 * MINUTE])
async def test_a_clock_that_is_set_ahead_starts_no_running_job_again(app, make, settable, outage, ahead):
    worker = await holding(make, settable)
    settable.advance(outage)
    settable.set_ahead(ahead)
    with capture_logs() as logs:
        await live(settable, 30, worker)
    assert await owner(app) == worker.name
    assert [line["ahead_s"] for line in logs if "clock was set" in line["event"]] == [ahead]


async def test_a_worker_that_starts_after_the_step_knows_of_it(app, make, settable):
    worker = await holding(make, settable)
    settable.set_ahead(10 * MINUTE)
    await pulse(worker)
    fresh = await make()
    await live(settable, 30, worker, fresh)
    assert await owner(app) == worker.name


@pytest.mark.parametrize(("back", "held"), [(118, True), (122, False)])
async def test_a_deadline_from_before_a_step_is_later_by_the_step(app, make, settable, back, held):
    """Claimed 10 s before the step, with 2 minutes, and recovered 30 s after they are over."""
    worker = await holding(make, settable)
    settable.set_ahead(10 * MINUTE)
    # It holds the run and does not end it, as if its event loop were blocked.
    await live(settable, 20 + back, worker)
    assert (await owner(app) == worker.name) is held


async def test_steps_of_the_past_give_new_runs_no_more_time(app, make, settable):
    worker = await make()
    for _ in range(30):
        settable.set_ahead(10 * MINUTE)
        await live(settable, 2, worker)
    await worker.fetcher.step()
    await live(settable, 148, worker)
    assert await owner(app) == worker.name
    await live(settable, 6, worker)
    assert await owner(app) is None


async def test_deadlines_are_not_believed_before_a_beat_has_seen_the_clock(app, make, settable):
    worker = await holding(make, settable)
    settable.set_ahead(10 * MINUTE)
    await worker.parts.upkeep.reaper.step()
    assert await owner(app) == worker.name


async def test_a_server_with_another_time_than_the_heartbeats_is_named(app, make, settable):
    worker = await holding(make, settable)
    # As a node of a cluster whose clock is ahead: the heartbeats never show it.
    settable.set_ahead(10 * MINUTE)
    with capture_logs() as logs:
        for _ in range(3):
            await worker.parts.upkeep.reaper.step()
    [line] = [line for line in logs if line["event"] == "deadlines are not trusted"]
    assert "+600.0 s" in line["error"]
    assert "NTP" in line["error"]
