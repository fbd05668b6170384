"""A queue of one partition, and hands to break it with."""

from __future__ import annotations

from typing import Any

import pytest

from tocsin.inspection.doctor import Doctor, DoctorReport
from tocsin.model.outcome import SUCCEEDED
from tocsin.model.run import Claim
from tocsin.store.keys import STAGE_KEYS
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.claims import ClaimRequest, Runs
from tocsin.store.transitions.fleet import Fleet
from tocsin.store.transitions.jobs import Jobs
from tocsin.store.transitions.settle import bury_or_park_item, finish_item, retry_item
from tocsin.store.views.audit import AuditReader

FOR_EVER = 1e15


class Bench:
    """A queue of one partition, and hands to break it with."""

    def __init__(self, store: Store, queue: OpenQueue, jobs: Jobs, runs: Runs, make_put: Any) -> None:
        self.store, self.queue, self.jobs, self.runs = store, queue, jobs, runs
        self.redis: Any = store.client
        self.keys = queue.keys[0]
        self._make_put = make_put

    async def put(self, member: str, due: int = 0, **about: Any) -> None:
        await self.jobs.put(self.queue, self._make_put(member, due, **about))

    async def take(self, member: str, runs: Runs | None = None) -> Claim:
        [answer] = await (runs or self.runs).claim([ClaimRequest(self.queue, 0, 1, [member])], FOR_EVER)
        [claim] = answer.claims  # type: ignore[union-attr]
        return claim

    async def settle(self, verb: str, item: Any) -> list[bytes]:
        """The ids whose claim was lost."""
        answer = await self.store.call(self.runs.settle(verb, self.queue, 0, [item]))
        return list(answer[1])

    async def finish(self, claim: Claim, **kept: Any) -> list[bytes]:
        return await self.settle("finish", finish_item(claim, 0, SUCCEEDED, **kept))

    async def audit(self, *, repair: bool = False) -> DoctorReport:
        audit = Doctor(AuditReader(self.store), Fleet(self.store), repair=repair, patience_s=0)
        return await audit.run()

    async def kinds(self, *, repair: bool = False) -> dict[str, tuple[int, int]]:
        """kind -> found, mended; without the note that these servers keep no append-only file."""
        report = await self.audit(repair=repair)
        return {found.kind: (found.count, found.mended) for found in report.findings if found.kind != "no-aof"}

    async def stages(self, member: str) -> list[str]:
        return [stage for stage in STAGE_KEYS if await self.redis.zscore(self.keys[stage], member) is not None]

    async def waits_until(self, member: str) -> float | None:
        found: float | None = await self.redis.zscore(self.keys["waiting"], member)
        return found


async def one_in_each_stage(bench: Bench) -> None:
    for member in ("waiting", "paused", "held", "retried", "buried", "parked", "kept"):
        await bench.put(member, keep=60 if member == "kept" else 0)
    await bench.put("recurring", 5000, every=10)
    await bench.jobs.pause(bench.queue, "paused")
    await bench.take("held")
    await bench.settle("retry", retry_item(await bench.take("retried"), 9000, b"\x91\xa3bad"))
    await bench.settle("bury", bury_or_park_item(await bench.take("buried"), b"\x91\xa3bad"))
    await bench.settle("park", bury_or_park_item(await bench.take("parked"), b"\x91\xa3odd"))
    await bench.finish(await bench.take("kept"), keep=60, result=b"\x07")


@pytest.fixture
def bench(store: Store, queue: OpenQueue, jobs: Jobs, runs: Runs, make_put: Any) -> Bench:
    return Bench(store, queue, jobs, runs, make_put)
