"""The server goes away and comes back, restarted, emptied or replaced: workers survive it and lose nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.servers import Server, sentinel
from tests.support.waiting import eventually
from tests.support.worker_fleet import QUICK, Fleet
from tests.support.worker_handlers import nap
from tocsin import StoreUnavailable, Tocsin
from tocsin.engine.loop import repeat
from tocsin.model.queue import Queue
from tocsin.store.scripts.script import script
from tocsin.store.store import Store
from tocsin.store.transitions.claims import ClaimReply, ClaimRequest, Runs


@pytest.fixture
def server() -> Iterator[Server]:
    """One that the test may maltreat. Each write is on disk before it is answered."""
    with Server.valkey(aof=True) as server:
        yield server


class Outage(NamedTuple):
    """How the server goes away, for how long, and the settings of the workers that live through it."""

    how: str
    seconds: float
    settings: dict[str, float]


OUTAGES = {
    "no answer for many ttls": Outage("pause", 10, QUICK),
    # Longer than a reply is waited for and shorter than a lease: it executes what nobody waits for any more.
    "answers that come too late": Outage("pause", 4, {}),
    "killed and restarted": Outage("kill", 3, QUICK),
}
MINUTES = {"no answer for a minute": Outage("pause", 60, {}), "gone for a minute": Outage("kill", 60, {})}


@pytest.mark.parametrize("outage", OUTAGES.values(), ids=OUTAGES)
async def test_an_outage_buries_nobody_and_runs_nothing_twice(server: Server, tmp_path: Path, outage: Outage) -> None:
    await _survive(outage, server, tmp_path, naps=400)


@pytest.mark.soak
@pytest.mark.parametrize("outage", MINUTES.values(), ids=MINUTES)
async def test_a_minute_without_the_server_buries_nobody_and_runs_nothing_twice(
    server: Server, tmp_path: Path, outage: Outage
) -> None:
    await _survive(outage, server, tmp_path, naps=2000)


async def _survive(outage: Outage, server: Server, folder: Path, naps: int) -> None:
    async with Fleet(server.url, folder) as fleet:
        members = await fleet.start(3, settings=outage.settings)
        diary, names = fleet.diary, {member.first_name for member in members}
        # One that ends while the server is away and one that goes on beyond that.
        await fleet.app.enqueue(fleet.does["linger"], "during", id="during", keep=0)
        await fleet.app.enqueue(fleet.does["wait"], "after", id="after", keep=0)
        await fleet.app.enqueue_many(fleet.does["nap"], [(0.2,)] * naps, ids=(f"n{i}" for i in range(naps)), keep=0)
        await eventually(
            lambda: len(diary.started()) >= 150 and {"during", "after"} <= diary.started(), "all are busy", within=30
        )
        back = time.monotonic() + outage.seconds
        server.pause() if outage.how == "pause" else server.kill()
        fleet.open_gate("during")
        await eventually(lambda: any(entry.job == "during" for entry in diary.entries("end")), "it ends", within=30)
        await eventually(lambda: time.monotonic() > back, "the outage ends", within=outage.seconds + 1)
        server.resume() if outage.how == "pause" else server.start()
        await fleet.until_left(1, within=30)
        fleet.open_gate("after")
        await fleet.all_done(within=10)
        assert not diary.started_twice()
        assert len(diary.started()) == await fleet.count("succeeded") == naps + 2
        assert await fleet.alive() == names
        assert await fleet.count("recovered") == 0
        assert [(await member.stats()).lost for member in members] == [0, 0, 0]
        # They rested between their tries.
        assert fleet.log().count("server away") < 60


async def test_a_part_survives_more_failed_passes_than_any_outage_has() -> None:
    class Failing:
        name = "failing"
        passes = 0

        def __init__(self) -> None:
            self.wake = asyncio.Event()

        async def step(self) -> float:
            self.passes += 1
            self.wake.set()
            raise StoreUnavailable("away")

    part, stop = Failing(), asyncio.Event()
    loop = asyncio.create_task(repeat(part, stop))
    await eventually(lambda: part.passes > 3000 or loop.done(), "it goes on", within=30)
    stop.set()
    await loop


async def test_an_answer_that_is_given_again_is_known_to_be_old(server: Server) -> None:
    """Neither the clock nor the time that is left to the run may be counted from when it was asked again."""
    store = Store(server.url)
    await store.open()
    try:
        queue = await store.open_queue(Queue("line", partitions=1))
        runs, wish, lease = Runs(store, "worker.1"), ClaimRequest(queue, 0, 10), time.time() * 1000 + 60_000
        # The server knows the script from here on.
        await runs.claim([wish], lease)
        app = Tocsin(server.url)
        app.queue("line", partitions=1)
        async with app:
            await app.enqueue(app.job(name="nap")(nap), 0, queue="line", timeout=60)
        server.pause()
        [unheard] = await runs.claim([wish], lease)
        assert isinstance(unheard, StoreUnavailable)
        server.resume()
        old = time.monotonic() + 1.5
        await eventually(lambda: time.monotonic() > old, "its answer is old", within=30)
        [again] = await runs.claim([wish], lease)
        assert isinstance(again, ClaimReply)
        now = time.time() * 1000
        assert abs(store.clock.server_ms() - now) < 500
        assert abs(again.now - now) < 500
        assert again.claims[0].deadline - now < 59_000
    finally:
        await store.close()


async def test_an_idle_worker_hears_new_work_after_the_server_was_restarted(server: Server, tmp_path: Path) -> None:
    async with Fleet(server.url, tmp_path) as fleet:
        # Polls so seldom that only the bell can bring it.
        [member] = await fleet.start(settings=QUICK | {"poll_s": 60})
        await fleet.app.enqueue(fleet.does["nap"], 0)
        await fleet.all_done(within=10)
        server.restart()
        with server.client() as client:
            assert client.script_exists(script("run_claim").sha) == [False]
            await eventually(
                lambda: any(each["cmd"] == "blpop" for each in client.client_list()), "it listens again", within=30
            )
        asked = time.monotonic()
        await fleet.app.enqueue(fleet.does["nap"], 0, id="later", keep=0)
        await fleet.all_done(within=10)
        [start] = fleet.diary.starts_of("later")
        assert start.at - asked < 3
        assert await fleet.alive() == {member.first_name}


async def test_agents_are_registered_again_and_jobs_run_after_the_server_was_emptied(
    server: Server, tmp_path: Path
) -> None:
    async with Fleet(server.url, tmp_path) as fleet:
        [member] = await fleet.start(queues=["agents", "default"], agent_every=0.2)
        await eventually(lambda: len(fleet.diary.starts_of("tick")) > 2, "its agent runs", within=30)
        await _empty(server, fleet, "tick")
        asked = time.monotonic()
        await fleet.app.enqueue(fleet.does["nap"], 0, id="later", keep=0)
        await eventually(lambda: fleet.diary.starts_of("later"), "a new job runs", within=30)
        assert fleet.diary.starts_of("later")[0].at - asked < 3
        [name] = await fleet.alive()
        assert f":{member.pid}:" in name


async def test_an_agent_that_was_running_while_the_server_was_emptied_is_registered_again(
    server: Server, tmp_path: Path
) -> None:
    """Not the part that claims notices it first, but the one that writes down what has ended."""
    async with Fleet(server.url, tmp_path) as fleet:
        await fleet.start(queues=["agents"], agent_every=0.2)
        await eventually(lambda: "patrol" in fleet.diary.started(), "its agent runs", within=30)
        await _empty(server, fleet, "patrol")


async def _empty(server: Server, fleet: Fleet, agent: str) -> None:
    before = {entry.run for entry in fleet.diary.starts_of(agent)}
    with server.client() as client:
        client.flushall()
        fleet.open_gate("patrol")
    await eventually(
        lambda: len({entry.run for entry in fleet.diary.starts_of(agent)} - before) > 2,
        "the agent runs again",
        within=30,
    )


async def test_workers_go_on_with_the_new_primary_after_a_failover(tmp_path: Path) -> None:
    with sentinel() as watched:
        async with Fleet(watched.url, tmp_path) as fleet:
            await fleet.start(2)
            diary, runs = fleet.diary, 300
            await fleet.app.enqueue_many(fleet.does["nap"], [(0.1,)] * runs, ids=(f"n{i}" for i in range(runs)), keep=0)
            await eventually(lambda: len(diary.started()) >= runs // 4, "they are busy", within=30)
            watched.primary.kill()
            await fleet.all_done(within=30)
            await fleet.app.enqueue(fleet.does["nap"], 0, id="later", keep=0)
            await fleet.all_done(within=10)
            # What the old primary had not passed on in its last moments may be claimed again; nothing is lost.
            assert diary.started() == {"later", *(f"n{i}" for i in range(runs))}
