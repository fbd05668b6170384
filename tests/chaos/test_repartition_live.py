"""A queue gets other partitions while programs put jobs into it and workers run them."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys

from tests.support.python_path import PYTHON_PATH
from tests.support.servers import Server
from tests.support.waiting import eventually
from tests.support.worker_fleet import Fleet
from tocsin.app.handle import Handle
from tocsin.inspection.doctor import Doctor
from tocsin.inspection.inspector import Inspector
from tocsin.model.errors import QueueRepartitioning
from tocsin.store.transitions.fleet import Fleet as Roll
from tocsin.store.views.audit import AuditReader

LATER = 2000
WAITING = 300


async def ran(*words: str) -> int:
    """The exit code of a Python module."""
    env = os.environ | {"PYTHONPATH": PYTHON_PATH}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return await process.wait()


class Producer:
    """Puts one job after the other until it is told to stop."""

    def __init__(self, fleet: Fleet, mark: str) -> None:
        self.put: set[str] = set()
        self._fleet, self._mark = fleet, mark
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        for n in itertools.count():
            if self._stop.is_set():
                return
            handle = await self._put(f"{self._mark}{n}")
            assert handle.new
            self.put.add(handle.id)

    async def _put(self, job: str) -> Handle:
        while True:
            try:
                return await self._fleet.app.enqueue(self._fleet.does["nap"], 0.002, id=job, keep=0)
            except QueueRepartitioning:
                # A busy machine may take longer to begin the move again than a call waits.
                continue

    async def stop(self) -> set[str]:
        self._stop.set()
        await self._task
        return self.put


async def test_nothing_is_lost_and_nothing_runs_twice_while_partitions_change(valkey: Server, fleet: Fleet) -> None:
    app, prefix = fleet.app, fleet.app.store.keys.prefix
    later = {f"later{n}" for n in range(LATER)}
    await app.enqueue_many(fleet.does["nap"], [(0.001,)] * LATER, ids=sorted(later), keep=0, delay=6)
    waiting = {f"waiting{n}": f"later{n}" for n in range(WAITING)}
    for job, upstream in waiting.items():
        await app.enqueue(fleet.does["nap"], 0.001, id=job, after=[upstream], keep=0)
    await app.repartition_queue("default", 4)
    # Their program still declares sixteen.
    await fleet.start(3)
    producers = [Producer(fleet, mark) for mark in "abc"]

    async def has(n: int) -> bool:
        return (await fleet.queue()).partitions == n

    async def busy(more: int) -> None:
        started = len(fleet.diary.started())
        await eventually(lambda: len(fleet.diary.started()) > started + more, "jobs run", within=30)

    await busy(50)
    assert await ran("tests.support.repartition_process", valkey.url, prefix, "default", "7") == -9
    [view] = [view for view in await Inspector(app.store).queues() if view.name == "default"]
    assert (view.partitions, view.moving_to) == (4, 7)
    where = ("--url", valkey.url, "--prefix", prefix)
    assert await ran("tocsin.cli", "queues", "repartition", "default", "7", *where) == 0
    await busy(50)
    await eventually(lambda: has(7), "this program has learned of it by its puts", within=30)
    async with app.with_same_declarations() as operator:
        await operator.repartition_queue("default", 2)
    await busy(50)
    await eventually(lambda: has(2), "this program has learned of it by its puts", within=30)
    put = set().union(*[await producer.stop() for producer in producers])
    await fleet.all_done(within=30)
    assert fleet.diary.started() == put | later | waiting.keys()
    assert fleet.diary.started_twice() == {}
    assert await fleet.count("succeeded") == len(put) + LATER + WAITING
    ended = {entry.job: entry.at for entry in fleet.diary.entries("end")}
    starts = {entry.job: entry.at for entry in fleet.diary.entries("start")}
    assert [job for job, upstream in waiting.items() if ended[upstream] > starts[job]] == []
    assert await fleet.count("recovered") == 0
    for member in fleet.members:
        await member.end()
    report = await Doctor(AuditReader(app.store), Roll(app.store), patience_s=0).run()
    assert [finding for finding in report.findings if finding.level != "note" and finding.kind != "no-aof"] == []
    assert "Traceback" not in fleet.log()
