"""Agents past their timeout, at the defaults: 5 minutes for a run, 30 s more before it is a zombie, an hour for
exceptional ones, ten minutes before it is an orphan."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from tests.support.captured_logs import capture_logs
from tests.support.waiting import eventually
from tocsin import Run
from tocsin.model.queue import AGENTS_QUEUE
from tocsin.upkeep import zombie_thresholds
from tocsin.worker.settings import ZombieRules

pytestmark = pytest.mark.agents

TIMEOUT_S = 300
EXCEPTIONAL = ZombieRules(zombie_thresholds.ZombieThresholds.of(30_000, "aws/.*", 3_600_000))


class Inside:
    """What the handlers of a test see: when they were told to stop, and a door to leave by."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.told: list[str] = []
        self.door = asyncio.Event()
        self.thread_door = threading.Event()

    async def stay(self, name: str) -> None:
        self.started.append(name)
        try:
            await self.door.wait()
        except asyncio.CancelledError:
            self.told.append(name)
            raise

    def let_go(self) -> None:
        self.door.set()
        self.thread_door.set()


@pytest.fixture
def inside():
    made = Inside()
    yield made
    made.let_go()


@pytest.fixture
def crew(tocsin_app, tocsin_clock, make_worker):
    """Two workers, of which the first has claimed all agents and the second would take what it lost."""

    class Crew:
        async def begin(self, started: Callable[[], object], **settings) -> None:
            self.first = await make_worker(**settings)
            await self.first.reconciler.step()
            await self.first.fetcher.step()
            await eventually(started, "they run")
            self.began = tocsin_clock.now
            self.second = await make_worker(**settings)
            await self.second.reconciler.step()

        async def at(self, seconds: float) -> None:
            """Ten seconds before this time and until then both live, and look for what is past its time."""
            tocsin_clock.move_to(self.began)
            tocsin_clock.advance(seconds - 10)
            for _ in range(5):
                tocsin_clock.advance("2s")
                for worker in (self.first, self.second):
                    await asyncio.to_thread(worker.heart.beat)
                await asyncio.sleep(0)
                await self.first.sweep.step()
                await self.first.sweep.step()
            await self.first.finisher.step()
            for worker in (self.second, self.first):
                await worker.parts.upkeep.elector.step()
                await worker.parts.upkeep.reaper.step()
                await worker.parts.upkeep.orphan_cleaner.step()
            for _ in range(5):
                await asyncio.sleep(0)

        async def write_down(self) -> None:
            await eventually(lambda: not self.first.pool.busy, "all have ended")
            while not self.first.finisher.idle():
                await self.first.finisher.step()

    return Crew()


async def test_an_agent_may_go_on_past_its_timeout_and_has_succeeded_if_it_ends_within_the_threshold(
    tocsin_app, tocsin_clock, crew, inside
):
    @tocsin_app.agent(every="30s", name="slow")
    async def slow(run: Run):
        await inside.stay("slow")
        inside.told += ["cancelled"] * run.cancelled

    await crew.begin(lambda: inside.started)
    working = crew.first.served[AGENTS_QUEUE].queue.keys[0]["working"]
    deadline = tocsin_clock.ms + TIMEOUT_S * 1000
    for past in (0, 10, 29.9):
        await crew.at(TIMEOUT_S + past)
        assert (inside.told, crew.first.sweep.zombies, crew.first.sweep.stuck) == ([], 0, 0)
        assert await tocsin_app.store.client.zrange(working, 0, -1, withscores=True) == [(b"slow", deadline)]
    assert (
        crew.second.parts.upkeep.reaper.recovered + sum(crew.second.parts.upkeep.orphan_cleaner.cleaned.values()) == 0
    )
    inside.let_go()
    await crew.write_down()
    job = await tocsin_app.get("slow")
    assert (job.stage, job.succeeded, job.failed, job.recoveries) == ("waiting", 1, 0, 0)
    assert (inside.told, crew.first.finisher.lost) == ([], 0)


async def test_an_agent_is_told_to_stop_at_its_timeout_plus_the_threshold(tocsin_app, crew, inside):
    @tocsin_app.agent(every="30s", name="slow", error_interval="5m")
    async def slow():
        await inside.stay("slow")

    await crew.begin(lambda: inside.started)
    await crew.at(TIMEOUT_S + 29.9)
    assert inside.told == []
    with capture_logs() as logs:
        await crew.at(TIMEOUT_S + 30)
    assert (inside.told, crew.first.sweep.zombies) == (["slow"], 1)
    assert [entry["past_s"] for entry in logs if "told to stop" in entry["event"]] == [30.0]
    # Also in the summary and as a metric.
    await crew.first.telemetry.check.step()
    crew.first.telemetry._gather(crew.first.tally)
    assert (crew.first.telemetry.check.snapshot.zombies_cleaned, crew.first.tally.zombies) == (1, 1)
    await crew.write_down()
    job = await tocsin_app.get("slow")
    assert (job.stage, job.succeeded, job.failed) == ("waiting", 0, 1)
    assert "timed out 30.0 s past its deadline" in job.failure.error


async def test_an_exceptional_agent_has_an_hour_in_which_nobody_takes_it(tocsin_app, crew, inside):
    for name in ("aws/slow", "gcp/slow"):

        @tocsin_app.agent(every="30s", name=name, error_interval="1d")
        async def slow(run: Run):
            await inside.stay(run.job_id)

    await crew.begin(lambda: len(inside.started) == 2, zombies=EXCEPTIONAL)
    await crew.at(TIMEOUT_S + 30)
    assert inside.told == ["gcp/slow"]
    # Every so often its claim is extended, also while others would take it for an orphan.
    for past in range(30, 3600, 25):
        await crew.at(TIMEOUT_S + past)
    assert inside.told == ["gcp/slow"]
    assert (
        crew.second.parts.upkeep.reaper.recovered + sum(crew.second.parts.upkeep.orphan_cleaner.cleaned.values()) == 0
    )
    await crew.at(TIMEOUT_S + 3600)
    assert inside.told == ["gcp/slow", "aws/slow"]
    await crew.write_down()
    assert crew.first.finisher.lost == 0


async def test_without_zombie_cleanup_an_agent_is_never_told_and_others_take_it_after_the_orphan_threshold(
    tocsin_app, crew, inside
):
    @tocsin_app.agent(every="30s", name="slow")
    async def slow():
        await inside.stay("slow")

    await crew.begin(lambda: inside.started, zombies=None)
    for past in (0, 30, 31, 590):
        await crew.at(TIMEOUT_S + past)
        assert (await tocsin_app.get("slow")).stage == "working"
    await crew.at(TIMEOUT_S + 600)
    assert (await tocsin_app.get("slow")).stage == "waiting"
    assert crew.second.parts.upkeep.orphan_cleaner.cleaned["recovered"] == 1
    await crew.at(TIMEOUT_S + 36_000)
    assert (inside.told, crew.first.sweep.zombies) == ([], 0)
    inside.let_go()
    await crew.write_down()
    assert crew.first.finisher.lost == 1


async def test_an_agent_in_a_thread_is_stuck_only_when_the_threshold_is_over(tocsin_app, crew, inside):
    flags = []

    @tocsin_app.agent(every="30s", name="slow")
    def slow(run: Run):
        inside.started.append("slow")
        assert inside.thread_door.wait(20)
        flags.append(run.cancelled)

    await crew.begin(lambda: inside.started)
    await crew.at(TIMEOUT_S + 29.9)
    assert (crew.first.sweep.stuck, crew.first.sweep.zombies) == (0, 0)
    # From then on it keeps its claim, however long it takes.
    for past in range(30, 1300, 25):
        await crew.at(TIMEOUT_S + past)
        assert crew.first.sweep.stuck == 1
    assert crew.first.sweep.zombies == 1
    assert (
        crew.second.parts.upkeep.reaper.recovered + sum(crew.second.parts.upkeep.orphan_cleaner.cleaned.values()) == 0
    )
    inside.let_go()
    await crew.write_down()
    assert (flags, crew.first.finisher.lost) == ([True], 0)


async def test_the_deadline_of_a_job_is_hard(tocsin_app, tocsin_clock, make_worker, inside):
    @tocsin_app.job
    async def slow():
        await inside.stay("slow")

    await tocsin_app.enqueue(slow)
    worker = await make_worker()
    await worker.fetcher.step()
    await eventually(lambda: inside.started, "it runs")
    tocsin_clock.advance(TIMEOUT_S)
    await worker.sweep.step()
    await asyncio.sleep(0)
    assert inside.told == ["slow"]
