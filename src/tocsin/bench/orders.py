"""Rows of `tocsin bench` for priority and fair queues: speed, cost, and how fair the shares are."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from tocsin.app import Tocsin, job_options
from tocsin.bench.measure import PAYLOAD, Measure
from tocsin.config import Config
from tocsin.model.ids import new_id
from tocsin.model.job import PRIORITIES
from tocsin.model.outcome import SUCCEEDED
from tocsin.model.record import decode_header
from tocsin.store.store import LARGEST_BATCH
from tocsin.store.transitions.claims import ClaimReply, ClaimRequest, Runs
from tocsin.store.transitions.jobs import Jobs, PutItem
from tocsin.store.transitions.settle import finish_item
from tocsin.worker import WorkerSettings

FEW, MANY = 10, 10_000
ROUNDS = 2
# For `shares`: EQUALS tenants of weight 1, and one of weight HEAVY.
EQUALS, HEAVY = 100, 10


class LineBench:
    """Rows like those of `Bench` in engine.py: the same jobs in one partition, in queues of different orders."""

    ROWS = ("lines", "shares")
    CONFIG = Config()

    def __init__(self, app: Tocsin, scale: float) -> None:
        self._app = app
        self._n = max(10_000, int(100_000 * scale))
        app.queue("by-due", partitions=1)
        app.queue("by-priority", order="priority")
        app.queue("by-few", order="fair")
        app.queue("by-many", order="fair")
        app.queue("shares", order="fair")

        @app.job(name="bench.in-line")
        async def in_line(payload: str) -> None:
            pass

        self._handler = in_line

    async def lines(self) -> list[Measure]:
        """The drains run in a worker; the costs are those of the scripts alone, in batches of 100."""
        plain = await self._cost("by-due", 1)
        by_priority = await self._drain("by-priority", 1)
        cost = await self._cost("by-priority", 1)
        drains = {tenants: await self._drain(queue, tenants) for queue, tenants in (("by-few", FEW), ("by-many", MANY))}
        few = many = 0.0
        # Measure both in turns, so that a machine that gets quicker or slower changes both alike.
        for _ in range(ROUNDS):
            few += await self._cost("by-few", FEW) / ROUNDS
            many += await self._cost("by-many", MANY) / ROUNDS
        return [
            Measure("queue by priority, drain", by_priority, "runs/s", 25_000),
            Measure("  server CPU per run against order due", cost / plain, "", 3, at_least=False),
            *(Measure(f"fair queue, {n} tenants, drain", drained, "runs/s", 25_000) for n, drained in drains.items()),
            Measure(f"  server CPU per run, {MANY} tenants, against order due", many / plain, "", 3, at_least=False),
            Measure(f"  {MANY} tenants against {FEW}", many / few, "", 1.3, at_least=False),
        ]

    async def shares(self) -> list[Measure]:
        """How far the worst tenant's share of 10 000 runs is from the share that its weight gives it."""
        heavy, each = "heavy", 10_000 // (EQUALS + HEAVY)
        await self._put("shares", [heavy] * (2 * HEAVY * each), prefix="h")
        await self._put("shares", [f"tenant-{n % EQUALS}" for n in range(EQUALS * 2 * each)], prefix="t")
        await self._app.queue_update("shares", weights={heavy: HEAVY})
        served = await self._serve("shares", 10_000)
        total = sum(served.values())
        due = {tenant: total * (HEAVY if tenant == heavy else 1) / (EQUALS + HEAVY) for tenant in served}
        worst = max(abs(served[tenant] - due[tenant]) / due[tenant] for tenant in served)
        return [Measure("fair shares, furthest from its due", worst * 100, "%", 5, at_least=False)]

    async def _put(self, queue: str, tenants: list[str], prefix: str = "") -> None:
        """Jobs differ only in their tenant and, in a queue by priority, in their priority."""
        where = await self._app.store.open_queue(self._app.declarations.known_queue(queue))
        bands = PRIORITIES if queue == "by-priority" else (None,)
        jobs, records = Jobs(self._app.store), {}
        puts: list[PutItem] = []
        for number, tenant in enumerate(tenants):
            kind = tenant, bands[number % len(bands)]
            if kind not in records:
                plan = job_options.define_job(self._handler, (PAYLOAD,), {}, tenant=tenant, priority=kind[1])
                records[kind] = plan.record(keep=0, recurring=False)
            puts.append(PutItem(f"{prefix}{number}", records[kind], 0, True))
        for first in range(0, len(puts), LARGEST_BATCH):
            await jobs.put_many(where, puts[first : first + LARGEST_BATCH])

    async def _drain(self, queue: str, tenants: int) -> float:
        """Runs per second with one worker."""
        await self._put(queue, [f"tenant-{n % tenants}" for n in range(self._n)])
        worker = await self._app.worker(queues=[queue], settings=WorkerSettings())
        began = time.perf_counter()
        await worker.start()
        try:
            while worker.pool.ran < self._n or not worker.finisher.idle():
                await asyncio.sleep(0.002)
            return self._n / (time.perf_counter() - began)
        finally:
            await worker.stop(grace=5)

    async def _cost(self, queue: str, tenants: int) -> float:
        """Microseconds of the server's CPU per run."""
        await self._put(queue, [f"tenant-{n % tenants}" for n in range(self._n)])
        before = await self._server_cpu()
        await self._serve(queue, self._n)
        return (await self._server_cpu() - before) / self._n * 1e6

    async def _serve(self, queue: str, wanted: int) -> Counter[str]:
        """Claim and finish in batches of 100 without a worker. Returns how many runs of each tenant were claimed."""
        where = await self._app.store.open_queue(self._app.declarations.known_queue(queue))
        runs, served = Runs(self._app.store, f"{new_id()}.1"), Counter[str]()
        while sum(served.values()) < wanted:
            [answer] = await runs.claim([ClaimRequest(where, 0, 100)], lease=1e15)
            assert isinstance(answer, ClaimReply)
            served.update(_tenant(claim.record) for claim in answer.claims)
            items = [finish_item(claim, 0, SUCCEEDED) for claim in answer.claims]
            await self._app.store.call(runs.settle("finish", where, 0, items))
        return served

    async def _server_cpu(self) -> float:
        found = await self._app.store.client.info("cpu")
        return float(found["used_cpu_user"]) + float(found["used_cpu_sys"])


def _tenant(record: bytes) -> str:
    return decode_header(record).tenant
