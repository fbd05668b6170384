"""A signal ends a worker: what can end does, the rest goes to another worker at once, and the exit is clean."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.support.servers import Server
from tests.support.waiting import eventually
from tests.support.worker_fleet import Fleet

# As `app.work` has them.
OWN = {"settings": None}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_runs_end_within_the_grace_period(fleet: Fleet, number: signal.Signals) -> None:
    diary = fleet.diary
    member = fleet.launch(**OWN, concurrency=2, grace=20)
    for i, chore in enumerate(("linger", "wait")):
        await fleet.app.enqueue(fleet.does[chore], "a", id=f"n{i}", keep=0)
    await eventually(lambda: diary.started() == {"n0", "n1"}, "it runs them", within=30)
    await fleet.app.enqueue(fleet.does["nap"], 0, id="not claimed", keep=0)
    member.send(number)
    await eventually(lambda: "claiming nothing more" in fleet.log(), "it has understood", within=30)
    await fleet.app.enqueue(fleet.does["nap"], 0, id="too late", keep=0)
    fleet.open_gate("a")
    assert await member.ended(within=5) == 0
    assert {entry.job for entry in diary.entries("end")} == diary.started() == {"n0", "n1"}
    assert await fleet.count("succeeded") == 2
    assert await fleet.left() == 2
    assert await fleet.alive() == set()


async def test_what_does_not_end_in_time_is_handed_over_at_its_due_time(fleet: Fleet) -> None:
    diary = fleet.diary
    member = fleet.launch(**OWN, grace=0.5)
    chores = {"async": "linger", "thread": "wait", "process": "toil"}
    for job, chore in chores.items():
        await fleet.app.enqueue(fleet.does[chore], "a", id=job, keep=0)
    await eventually(lambda: diary.started() == set(chores), "it runs them", within=30)
    runs = {entry.run for entry in diary.entries("start")}
    await fleet.start(settings={"poll_s": 600})
    began = time.monotonic()
    member.send(signal.SIGTERM)
    # The thread ignores its cancellation for as long as it is given, 2 s.
    assert await member.ended(within=8) == 0
    assert 0.5 <= time.monotonic() - began < 5
    fleet.open_gate("a")
    await fleet.all_done(within=5)
    starts = diary.entries("start")
    assert {entry.run for entry in starts} == runs
    assert len(starts) == 6
    assert {(entry.attempt, entry.recoveries) for entry in starts} == {(1, 0)}
    assert {entry.job for entry in diary.entries("cancelled", pid=member.pid)} == {"async"}
    assert await fleet.count("succeeded") == 3


async def test_a_second_signal_hurries(fleet: Fleet) -> None:
    member = fleet.launch(**OWN, grace=60)
    await fleet.app.enqueue(fleet.does["linger"], "a", id="n", keep=0)
    await eventually(lambda: fleet.diary.started() == {"n"}, "it runs it", within=30)
    member.send(signal.SIGTERM)
    await eventually(lambda: "stopping" in fleet.log(), "it has understood", within=30)
    member.send(signal.SIGINT)
    assert await member.ended(within=5) == 0
    assert fleet.diary.entries("cancelled")
    job = await fleet.app.get("n")
    assert job is not None
    assert (job.stage.value, job.attempt, job.recoveries) == ("waiting", 1, 0)


async def test_a_handler_that_never_ends_does_not_keep_a_worker_from_exiting(fleet: Fleet) -> None:
    member = fleet.launch(**OWN, grace=0)
    await fleet.app.enqueue(fleet.does["wait"], "never", id="thread", keep=0)
    await fleet.app.enqueue(fleet.does["stubborn"], id="async", keep=0)
    await eventually(lambda: fleet.diary.started() == {"thread", "async"}, "it runs them", within=30)
    member.send(signal.SIGTERM)
    assert await member.ended(within=10) == 0
    assert await fleet.count("succeeded") == 0
    assert sum(await fleet.ask_each("ZCARD", "waiting")) == 2


async def test_an_idle_worker_ends_at_once(fleet: Fleet) -> None:
    [member] = await fleet.start(grace=60)
    began = time.monotonic()
    await member.end()
    assert time.monotonic() - began < 2
    assert await fleet.alive() == set()


async def test_what_a_worker_could_not_write_before_it_ended_is_run_again_by_another(tmp_path: Path) -> None:
    """The server is away when it is stopped, and comes back too late: nothing is left lying in its name."""
    with Server.valkey(aof=True) as server:
        async with Fleet(server.url, tmp_path) as fleet:
            [member] = await fleet.start(grace=0)
            await fleet.app.enqueue(fleet.does["linger"], "a", id="n", keep=0)
            await eventually(lambda: fleet.diary.started() == {"n"}, "it runs it", within=30)
            server.kill()
            fleet.open_gate("a")
            await eventually(lambda: fleet.diary.entries("end"), "it ends", within=30)
            member.send(signal.SIGTERM)
            await eventually(lambda: "could not be written" in fleet.log(), "it gives up", within=30)
            server.start()
            assert await member.ended(within=10) == 0
            await fleet.start()
            await fleet.all_done(within=5)
            assert [(entry.attempt, entry.recoveries) for entry in fleet.diary.starts_of("n")] == [(1, 0), (1, 1)]
