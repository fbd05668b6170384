"""A worker whose queue is held by its own cap or rate does what it was told, and is healthy."""

from __future__ import annotations

import pytest

from tests.support.waiting import Gate, eventually
from tocsin.upkeep.health import HealthState

LIMITS = [
    ("due", {"max_active": 1}),
    ("priority", {"max_active": 1}),
    ("fair", {"max_active": 1}),
    ("fair", {"tenant_max_active": 1}),
    ("priority", {"rate": "1/h"}),
    ("fair", {"tenant_rate": "1/h"}),
]


@pytest.mark.parametrize(("order", "limits"), LIMITS)
async def test_work_that_limits_hold_is_no_backlog(tocsin_app, tocsin_clock, make_worker, order, limits):
    tocsin_app.queue("line", order=order, partitions=1, **limits)
    gate = Gate()

    @tocsin_app.job(queue="line", timeout="1h")
    async def job():
        await gate.enter()

    await tocsin_app.enqueue_many(job, [() for _ in range(300)])
    worker = await make_worker(queues=["line"], concurrency=5)
    await worker.fetcher.step()
    await worker.fetcher.step()
    await eventually(lambda: gate.inside, "one runs")
    for _ in range(4):
        tocsin_clock.advance("1m")
        await worker.telemetry.check.step()
    assert (worker.telemetry.check.health.state, worker.telemetry.check.signals) == (HealthState.HEALTHY, ())
    # Without them it is behind.
    await tocsin_app.queue_update("line", **dict.fromkeys(limits))
    await worker.telemetry.check.step()
    assert worker.telemetry.check.health.state is HealthState.DEGRADED
    assert worker.telemetry.check.snapshot.ready == 299
    gate.open()
    await eventually(lambda: not worker.pool.busy, "it has ended")
