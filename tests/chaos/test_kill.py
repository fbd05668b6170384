"""Workers that die, or look dead: what they held is run by others, once more and no more than that."""

from __future__ import annotations

import signal
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from tests.support.waiting import eventually
from tests.support.worker_fleet import Fleet
from tocsin import Every, Stage

RUNS = 1000


async def test_a_worker_killed_in_the_middle_of_a_thousand_runs_loses_none(fleet: Fleet) -> None:
    victim, _ = await fleet.start(2)
    diary = fleet.diary
    began = time.monotonic()
    await fleet.app.enqueue_many(fleet.does["nap"], [(0.05,)] * RUNS, ids=(f"n{i}" for i in range(RUNS)), keep=0)
    await eventually(
        lambda: len(diary.started(victim.pid)) >= RUNS // 5, "the worker is in the middle of it", within=30
    )
    victim.kill()
    in_flight = await fleet.held_by(victim.mark)
    assert in_flight
    await fleet.all_done(within=15)
    assert time.monotonic() - began < 15
    assert diary.started() == {f"n{i}" for i in range(RUNS)}
    assert await fleet.count("succeeded") == RUNS
    assert await fleet.count("recovered") == len(in_flight)
    twice = diary.started_twice()
    assert {starts[0].job for starts in twice.values()} == in_flight & diary.started(victim.pid)
    for first, second in twice.values():
        assert (first.pid, first.attempt, first.recoveries) == (victim.pid, 1, 0)
        assert (second.attempt, second.recoveries) == (1, 1)
        assert second.token > first.token
    once = [e for e in diary.entries("start") if e.run not in twice and e.recoveries]
    assert {entry.job for entry in once} == in_flight - diary.started(victim.pid)


async def test_a_worker_that_wakes_after_its_burial_is_refused_and_begins_anew(fleet: Fleet) -> None:
    diary = fleet.diary
    [sleeper] = await fleet.start()
    jobs = {f"async{i}": "linger" for i in range(4)} | {f"thread{i}": "wait" for i in range(4)}
    for job, chore in jobs.items():
        await fleet.app.enqueue(fleet.does[chore], chore, id=job, keep=0)
    await eventually(lambda: diary.started(sleeper.pid) == set(jobs), "it runs them all", within=30)
    [other] = await fleet.start()
    sleeper.send(signal.SIGSTOP)
    await eventually(lambda: diary.started(other.pid) == set(jobs), "the other runs them all", within=30)
    assert await fleet.alive() == {other.first_name}
    fleet.open_gate("linger")
    await eventually(lambda: len(diary.entries("end", pid=other.pid)) == 4, "the other ends what it can", within=30)
    sleeper.send(signal.SIGCONT)
    await eventually(
        lambda: len(diary.entries("told", pid=sleeper.pid)) == 4, "its threads are told to stop", within=30
    )
    fleet.open_gate("wait", only=sleeper)
    # What runs on the loop may be cancelled before it can end; threads always end.
    await eventually(
        lambda: len(diary.entries("end", "cancelled", pid=sleeper.pid)) == 8, "nothing runs there any more", within=30
    )

    async def refused() -> bool:
        return 4 <= (await sleeper.stats()).lost <= 8

    await eventually(refused, "it is told that these are not its to finish", within=30)
    assert await fleet.left() == 4
    fleet.open_gate("wait")
    await fleet.all_done(within=10)
    assert await fleet.count("succeeded") == await fleet.count("recovered") == len(jobs)
    await other.end()
    later = {f"later{i}" for i in range(20)}
    await fleet.app.enqueue_many(fleet.does["nap"], [(0.01,)] * len(later), ids=sorted(later), keep=0)
    await fleet.all_done(within=10)
    assert diary.started(sleeper.pid) == {*jobs, *later}
    assert (await sleeper.stats()).worker != sleeper.first_name
    assert await fleet.count("succeeded") == len(jobs) + len(later)
    assert {starts[0].job for starts in diary.started_twice().values()} == set(jobs)
    assert all(len(starts) == 2 for starts in diary.started_twice().values())


async def test_a_worker_that_was_stopped_claims_nothing_in_the_name_that_was_buried(fleet: Fleet) -> None:
    [sleeper] = await fleet.start(queues=["line"])
    # Serves another queue: it only buries.
    await fleet.start(queues=["default"])
    jobs = {f"n{i}" for i in range(10)}
    for job in jobs:
        await fleet.app.enqueue(fleet.does["linger"], "a", id=job, queue="line", delay=3, keep=0)
    sleeper.send(signal.SIGSTOP)

    async def is_buried() -> bool:
        return sleeper.first_name not in await fleet.alive()

    await eventually(is_buried, "it is buried", within=30)
    last = max([job.due_ms async for job in fleet.app.jobs(queue="line")])
    await eventually(lambda: time.time() * 1000 > last, "all are due", within=30)
    sleeper.send(signal.SIGCONT)
    await eventually(lambda: fleet.diary.started() == jobs, "it runs them", within=30)
    assert await fleet.held_by(sleeper.first_name, "line") == set()
    assert await fleet.held_by(sleeper.mark, "line") == jobs
    fleet.open_gate("a")
    await fleet.all_done(within=10, queue="line")
    assert not fleet.diary.started_twice()


async def test_what_a_dead_worker_held_is_run_by_another_all_at_once(fleet: Fleet) -> None:
    """One death proves nothing against a run: only those that were there at several are tried one by one."""
    jobs = {f"n{i}" for i in range(10)}
    [victim] = await fleet.start()
    for job in jobs:
        await fleet.app.enqueue(fleet.does["linger"], "a", id=job, keep=0)
    await eventually(lambda: fleet.diary.started() == jobs, "it runs them", within=30)
    [other] = await fleet.start()
    victim.kill()
    await eventually(lambda: fleet.diary.started(other.pid) == jobs, "the other runs them all", within=30)
    fleet.open_gate("a")
    await fleet.all_done(within=10)
    assert await fleet.count("succeeded") == len(jobs)


async def test_a_job_that_kills_its_workers_is_buried_and_takes_no_other_with_it(fleet: Fleet) -> None:
    """Neither those of its own partition nor those that are claimed from others at the same time."""
    does, others = fleet.does, {f"n{i}" for i in range(30)}
    await fleet.app.enqueue(does["deadly"], id="deadly", keep=0)
    await fleet.app.enqueue_many(does["nap"], [(0.05,)] * len(others), ids=sorted(others), keep=0)
    await _keep_working_until(fleet, lambda: fleet.none_left_but("deadly"))
    await _keep_working_until(fleet, lambda: fleet.is_in("dead", "deadly"))
    assert await fleet.count("buried") == 1
    assert await fleet.count("succeeded") == len(others)
    starts = fleet.diary.starts_of("deadly")
    assert [(start.attempt, start.recoveries) for start in starts] == [(1, n) for n in range(5)]
    assert len({start.run for start in starts}) == 1
    job = await fleet.app.get("deadly")
    assert job is not None
    assert job.failure is not None
    assert "recovered 5 times" in job.failure.error


async def test_a_recurring_job_that_kills_its_workers_waits_for_its_next_occurrence(fleet: Fleet) -> None:
    app = fleet.app
    await app.schedule(fleet.does["deadly"], Every("1h"), id="deadly", starts=datetime.now(UTC) + timedelta(seconds=1))
    first = await app.get("deadly")
    assert first is not None

    async def moved_on() -> bool:
        job = await app.get("deadly")
        return job is not None and job.due_ms > first.due_ms

    await _keep_working_until(fleet, moved_on)
    job = await app.get("deadly")
    assert job is not None
    assert (job.stage, job.due_ms, job.failed) == (Stage.WAITING, first.due_ms + 3_600_000, 1)
    assert (job.attempt, job.recoveries) == (1, 0)
    assert [start.recoveries for start in fleet.diary.starts_of("deadly")] == list(range(5))


async def _keep_working_until(fleet: Fleet, condition: Callable[[], Awaitable[bool]]) -> None:
    """With two workers; who dies is replaced, as a supervisor would."""

    async def met() -> bool:
        alive = sum(member.alive for member in fleet.members)
        for _ in range(alive, 2):
            fleet.launch(concurrency=10)
        return await condition()

    await eventually(met, "what the workers were kept for", within=40)
