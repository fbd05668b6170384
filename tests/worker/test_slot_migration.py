"""Slots go from one node of a cluster to another, key by key, while a worker is at work."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator

import pytest
from redis.crc import key_slot

from tests.support.captured_logs import capture_logs
from tests.support.servers import Cluster, Server, ask, cluster
from tests.support.waiting import eventually
from tocsin import Every, StoreUnavailable, Tocsin
from tocsin.inspection.doctor import Doctor
from tocsin.store.transitions.fleet import Fleet
from tocsin.store.views.audit import AuditReader

QUEUE = "line"


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster(2) as nodes:
        yield nodes


class Migration:
    """Of one slot, to the node that does not have it."""

    def __init__(self, nodes: Cluster, tag: str) -> None:
        self.slot = key_slot(tag.encode())
        self.source, self.target = nodes.nodes if self.slot < 8192 else nodes.nodes[::-1]
        self._nodes = nodes.nodes

    def begin(self) -> None:
        self._set(self.target, "IMPORTING", self._name(self.source))
        self._set(self.source, "MIGRATING", self._name(self.target))

    def move_keys(self, most: int) -> int:
        with self.source.client() as plain:
            keys = ask(plain, "CLUSTER GETKEYSINSLOT", self.slot, most)
            if keys:
                ask(plain, "MIGRATE", "127.0.0.1", self.target.port, "", 0, 5000, "KEYS", *keys)
            return len(keys)

    def end(self) -> None:
        while self.move_keys(100):
            pass
        for node in (self.target, self.source):
            self._set(node, "NODE", self._name(self.target))

    def _set(self, node: Server, state: str, name: bytes) -> None:
        with node.client() as plain:
            ask(plain, "CLUSTER SETSLOT", self.slot, state, name)

    def _name(self, node: Server) -> bytes:
        with node.client() as plain:
            return bytes(ask(plain, "CLUSTER MYID"))


@pytest.mark.parametrize("tag", [f"{QUEUE}:0", "tocsin"], ids=["of the queue", "of the fleet"])
async def test_nothing_is_lost_and_work_goes_on(nodes: Cluster, make_worker, tag: str) -> None:
    ran: Counter[int] = Counter()
    ticks: Counter[str] = Counter()
    async with Tocsin(nodes.url, prefix=f"{tag}-") as app:
        app.queue(QUEUE)

        @app.job(queue=QUEUE)
        async def job(n: int) -> None:
            ran[n] += 1

        @app.job
        async def tick(where: str) -> None:
            ticks[where] += 1

        put = 0

        async def put_on() -> None:
            nonlocal put
            while True:
                with contextlib.suppress(StoreUnavailable):
                    await app.enqueue(job, put, id=f"job {put}")
                    put += 1

        for name in (QUEUE, "default"):
            await app.schedule(tick, Every("20ms"), name, id="tick", queue=name)
        worker = await make_worker(app, start=True)
        migration = Migration(nodes, tag)
        with capture_logs() as logs:
            putting = asyncio.create_task(put_on())
            await eventually(lambda: ticks[QUEUE] >= 5 and len(ran) >= 20, "it works")
            migration.begin()
            # Half-way: calls find some of their keys here and some there.
            assert migration.move_keys(2)
            before = ticks["default"]
            await eventually(lambda: ticks["default"] >= before + 40, "another slot is served meanwhile")
            migration.end()
            before, came = ticks[QUEUE], put
            await eventually(lambda: ticks[QUEUE] >= before + 10 and put >= came + 20, "it goes on")
            putting.cancel()
            await eventually(lambda: len(ran) >= put, "all have run")
            await eventually(worker.finisher.idle, "nothing is left to write")
        assert {n: ran[n] for n in range(put)} == dict.fromkeys(range(put), 1)
        assert (worker.stats().lost, worker.stats().acquisition_breaker.trips) == (0, 0)
        assert not [line for line in logs if line.get("exc_info") or line["log_level"] == "error"]
        await worker.kill()
        assert not (await Doctor(AuditReader(app.store), Fleet(app.store), patience_s=0).run()).wrong
