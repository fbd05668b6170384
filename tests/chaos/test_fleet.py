"""Several workers on one server: they share the work, wake each other and leave to others what they do not know."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.support.servers import Server, cluster
from tests.support.waiting import eventually
from tests.support.worker_fleet import QUICK, Fleet

# Polls so seldom that a job which starts soon was not found by polling.
DEAF = QUICK | {"poll_s": 600}


async def test_four_workers_start_each_of_ten_thousand_jobs_exactly_once(fleet: Fleet) -> None:
    jobs = 10_000
    members = await fleet.start(4)
    await fleet.app.enqueue_many(fleet.does["nap"], [(0,)] * jobs, ids=(f"n{i}" for i in range(jobs)), keep=0)
    await fleet.all_done(within=30)
    diary = fleet.diary
    assert len(diary.entries("start")) == len(diary.entries("end")) == jobs
    assert diary.started() == {f"n{i}" for i in range(jobs)}
    assert await fleet.count("succeeded") == jobs
    assert all(diary.started(member.pid) for member in members)


async def test_a_bell_wakes_an_idle_worker_for_a_job_of_another_process(fleet: Fleet) -> None:
    await fleet.start(settings=DEAF)
    for i in range(40):
        asked = time.monotonic()
        await fleet.app.enqueue(fleet.does["nap"], 0, id=f"n{i}", keep=0)
        await eventually(lambda n=f"n{i}": fleet.diary.starts_of(n), "it starts", within=10)
        assert fleet.diary.starts_of(f"n{i}")[0].at - asked < 3


async def test_no_job_of_a_burst_is_overheard(fleet: Fleet) -> None:
    """A bell may ring while the worker is asking the same partition: it must ask again."""
    await fleet.start(settings=DEAF)
    for burst in range(50):
        jobs = {f"n{burst}.{i}" for i in range(20)}
        await asyncio.gather(*(fleet.app.enqueue(fleet.does["nap"], 0, id=job, keep=0) for job in jobs))
        await eventually(lambda jobs=jobs: jobs <= fleet.diary.started(), f"all of burst {burst} start", within=10)


async def test_a_sleeping_worker_is_woken_for_a_job_that_comes_before_what_it_waits_for(fleet: Fleet) -> None:
    await fleet.start(settings=DEAF, queues=["line"])
    await fleet.app.enqueue(fleet.does["nap"], 0, id="far", queue="line", delay="1h")
    await fleet.app.enqueue(fleet.does["nap"], 0, id="near", queue="line", delay=0.5)
    asked = time.monotonic()
    await eventually(lambda: fleet.diary.starts_of("near"), "the near one starts", within=10)
    assert 0.49 <= fleet.diary.starts_of("near")[0].at - asked < 3
    assert "far" not in fleet.diary.started()


async def test_a_stopping_worker_wakes_another_for_the_run_that_it_cancels(fleet: Fleet) -> None:
    [first] = await fleet.start(settings=DEAF, grace=0)
    for i in range(5):
        await fleet.app.enqueue(fleet.does["linger"], "a", id=f"n{i}", keep=0)
    await eventually(lambda: len(fleet.diary.started(first.pid)) == 5, "it runs them", within=30)
    [second] = await fleet.start(settings=DEAF)
    await first.end()
    left = time.monotonic()
    await eventually(lambda: len(fleet.diary.started(second.pid)) == 5, "the other runs them", within=30)
    assert max(entry.at for entry in fleet.diary.entries("start", pid=second.pid)) - left < 3
    fleet.open_gate("a")
    await fleet.all_done(within=10)
    assert {(entry.attempt, entry.recoveries) for entry in fleet.diary.entries("start")} == {(1, 0)}


async def test_a_stopping_worker_wakes_another_for_what_it_had_fetched_ahead(fleet: Fleet) -> None:
    """Quick jobs are fetched ahead; those that have not started when it stops are not left lying."""
    jobs = 6000
    first, second = await fleet.start(2, settings=DEAF, concurrency=5)
    await fleet.app.enqueue_many(fleet.does["nap"], [(0.002,)] * jobs, ids=(f"n{i}" for i in range(jobs)), keep=0)
    await eventually(lambda: len(fleet.diary.started(first.pid)) > 500, "it is in the middle of it", within=30)
    await first.end()
    await fleet.all_done(within=15)
    assert not fleet.diary.started_twice()
    assert len(fleet.diary.started()) == jobs
    assert len(fleet.diary.started(second.pid)) > len(fleet.diary.started(first.pid))


async def test_each_job_runs_on_a_worker_that_knows_its_handler(valkey: Server, tmp_path: Path) -> None:
    async with Fleet(valkey.url, tmp_path, handlers=("f", "g")) as fleet:
        [knows_f] = await fleet.start(handlers=["f"], settings=DEAF)
        [knows_g] = await fleet.start(handlers=["g"], settings=DEAF)
        for i in range(100):
            await fleet.app.enqueue(fleet.does["f"], id=f"f{i}", keep=0)
            await fleet.app.enqueue(fleet.does["g"], id=f"g{i}", keep=0)
        await fleet.all_done(within=5)
        starts = fleet.diary.entries("start")
        assert {(entry.handler, entry.pid) for entry in starts} == {("f", knows_f.pid), ("g", knows_g.pid)}
        assert len(starts) == await fleet.count("succeeded") == 200
        assert {(entry.attempt, entry.recoveries) for entry in starts} == {(1, 0)}


async def test_jobs_that_nobody_knows_are_parked_until_a_worker_that_does_starts(
    valkey: Server, tmp_path: Path
) -> None:
    async with Fleet(valkey.url, tmp_path, handlers=("f", "g")) as fleet:
        await fleet.start(handlers=["f"])
        await fleet.app.enqueue_many(fleet.does["g"], [()] * 200, ids=(f"g{i}" for i in range(200)), keep=0)
        await fleet.app.enqueue_many(fleet.does["f"], [()] * 20, ids=(f"f{i}" for i in range(20)), keep=0)
        await eventually(lambda: len(fleet.diary.started()) == 20, "what waits behind them is not held up", within=30)
        await _until_parked(fleet, 200)
        await fleet.start(handlers=["g"], settings=DEAF)
        await fleet.all_done(within=5)
        starts = fleet.diary.entries("start")
        assert len(starts) == await fleet.count("succeeded") == 220
        assert {(entry.attempt, entry.recoveries) for entry in starts} == {(1, 0)}


async def test_a_job_is_found_among_many_parked_ones_that_nobody_knows(valkey: Server, tmp_path: Path) -> None:
    async with Fleet(valkey.url, tmp_path, handlers=("f", "g", "nap")) as fleet:
        [first] = await fleet.start(handlers=["f"], queues=["line"])
        for chore, jobs, row in (("nap", 1000, (0,)), ("g", 200, ())):
            names = (f"{chore}{i}" for i in range(jobs))
            await fleet.app.enqueue_many(fleet.does[chore], [row] * jobs, ids=names, queue="line", keep=0)
        await _until_parked(fleet, 1200, "line")
        await first.end()
        await fleet.start(handlers=["g"], queues=["line"])
        await fleet.until_left(1000, within=5, queue="line")
        assert len(fleet.diary.started()) == 200


async def _until_parked(fleet: Fleet, jobs: int, queue: str = "default") -> None:
    async def are_parked() -> bool:
        return sum(await fleet.ask_each("ZCARD", "parked", queue=queue)) == jobs

    await eventually(are_parked, "they are parked", within=30)


async def test_workers_drain_a_queue_that_is_spread_over_a_cluster(tmp_path: Path) -> None:
    jobs = 1000
    with cluster(3) as nodes:
        async with Fleet(nodes.url, tmp_path) as fleet:
            await fleet.start(2)
            await fleet.app.repartition_queue("default", 16)
            await fleet.app.enqueue_many(
                fleet.does["nap"], [(0.01,)] * jobs, ids=(f"n{i}" for i in range(jobs)), keep=0
            )
            await fleet.all_done(within=30)
            assert len(fleet.diary.entries("start")) == await fleet.count("succeeded") == jobs
            with_keys = 0
            for node in nodes.nodes:
                with node.client() as client:
                    with_keys += bool(client.dbsize())
            assert with_keys == 3
