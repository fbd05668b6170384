"""Jobs that wait for others, on workers of which one is killed: all run, each after all that it waits for."""

from __future__ import annotations

from tests.support.waiting import eventually
from tests.support.worker_fleet import Fleet

QUEUES = ("default", "line")
CHAIN = 60
DIAMONDS = 60


async def test_a_chain_and_diamonds_survive_a_killed_worker_in_order(fleet: Fleet) -> None:
    upstreams = await _put_everything(fleet)
    # Alone at first: others might leave nothing to it.
    (victim,) = await fleet.start(1, queues=list(QUEUES))
    await eventually(lambda: len(fleet.diary.started(victim.pid)) >= 5, "the worker is in the middle of it", within=30)
    victim.kill()
    assert fleet.diary.started() < set(upstreams)
    await fleet.start(2, queues=list(QUEUES))
    for queue in QUEUES:
        await fleet.all_done(within=60, queue=queue)
    assert fleet.diary.started() == set(upstreams)
    assert sum([await fleet.count("succeeded", queue) for queue in QUEUES]) == len(upstreams)
    ended = {}
    for entry in fleet.diary.entries("end"):
        ended.setdefault(entry.job, entry.at)
    for job, starts in fleet.diary.starts_by_job().items():
        assert len({start.run for start in starts}) == 1, "a run keeps its id, whoever runs it"
        assert all(ended[upstream] <= starts[0].at for upstream in upstreams[job]), job
    twice = {starts[0].job: starts for starts in fleet.diary.started_twice().values()}
    assert all(starts[0].pid == victim.pid for starts in twice.values())
    left = ("blocked", "needs", "watchers", "outbox")
    counts = [sum(await fleet.ask_each("EXISTS", key, queue=queue)) for key in left for queue in QUEUES]
    assert counts == [0] * len(counts)


async def _put_everything(fleet: Fleet) -> dict[str, list[str]]:
    """What each waits for. The chain goes from queue to queue, and so does each diamond."""
    upstreams: dict[str, list[str]] = {}

    async def put(job: str, queue: str, *after: str) -> None:
        upstreams[job] = list(after)
        await fleet.app.enqueue(fleet.does["nap"], 0.02, id=job, queue=queue, after=after, keep=0)

    for n in range(CHAIN):
        await put(f"chain{n}", QUEUES[n % 2], *([f"chain{n - 1}"] if n else []))
    for n in range(DIAMONDS):
        await put(f"top{n}", QUEUES[n % 2])
        await put(f"left{n}", QUEUES[0], f"top{n}")
        await put(f"right{n}", QUEUES[1], f"top{n}")
        await put(f"end{n}", QUEUES[n % 2], f"left{n}", f"right{n}")
    return upstreams
