"""Rows of `tocsin bench` for operators: the time to find, check, retry and remove many jobs."""

from __future__ import annotations

import time
from collections.abc import Awaitable

from tocsin.app import Tocsin
from tocsin.bench.measure import PAYLOAD, Measure
from tocsin.config import Config
from tocsin.inspection.doctor import Doctor
from tocsin.model.ids import new_id
from tocsin.store.store import LARGEST_BATCH
from tocsin.store.transitions.claims import ClaimReply, ClaimRequest, Runs
from tocsin.store.transitions.fleet import Fleet
from tocsin.store.transitions.settle import bury_or_park_item
from tocsin.store.views.audit import AuditReader

QUEUE = "operated"


class OperateBench:
    """Rows like those of `Bench` in engine.py."""

    ROWS = ("operating",)
    CONFIG = Config()

    def __init__(self, app: Tocsin, scale: float) -> None:
        self._app = app
        self._n = max(10_000, int(200_000 * scale))

    async def operating(self) -> list[Measure]:
        app, n = self._app, self._n
        app.queue(QUEUE)

        @app.job(name="bench.operated", queue=QUEUE)
        async def operated(payload: str) -> None:
            pass

        await app.enqueue_many(operated, ((PAYLOAD,) for _ in range(n)), delay="1d")
        find = await _each(app.count_jobs(queue=QUEUE, name="bench.another"), n)
        check = await _each(Doctor(AuditReader(app.store), Fleet(app.store), patience_s=0).run(), n)
        await app.enqueue_many(operated, ((PAYLOAD,) for _ in range(n // 2)))
        await self._bury(n // 2)
        retry = await _each(app.retry_dead_many(queue=QUEUE), n // 2)
        purge = await _each(app.purge_queue(QUEUE), n + n // 2)
        return [
            Measure(f"jobs of a handler found among {n}", find, "us per job", 5, at_least=False),
            Measure("  doctor", check, "us per job", 25, at_least=False),
            Measure(f"  {n // 2} dead jobs retried", retry, "us per job", 30, at_least=False),
            Measure("  queue purged", purge, "us per job", 30, at_least=False),
        ]

    async def _bury(self, wanted: int) -> None:
        """Claim at least `wanted` jobs and make them dead."""
        where = await self._app.store.open_queue(self._app.declarations.known_queue(QUEUE))
        runs, partition = Runs(self._app.store, f"{new_id()}.1"), 0
        while wanted > 0:
            [answer] = await runs.claim([ClaimRequest(where, partition, LARGEST_BATCH)], lease=1e15)
            assert isinstance(answer, ClaimReply)
            items = [bury_or_park_item(claim, b"\x91\xa3bad") for claim in answer.claims]
            if items:
                await self._app.store.call(runs.settle("bury", where, partition, items))
            wanted -= len(items)
            partition = (partition + 1) % where.partitions


async def _each(work: Awaitable[object], jobs: int) -> float:
    """Microseconds per job."""
    began = time.perf_counter()
    await work
    return (time.perf_counter() - began) / jobs * 1e6
