"""Workers whose passes a test calls itself, and workers that run their loops on a clock that stands still."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.deadline_sweeps import patient, stubborn
from tests.support.failure_logs import logs
from tests.support.schedule_bench import QUEUE, ScheduleBench
from tests.support.worker_fixtures import live_app, make_worker, other_app
from tocsin import Tocsin
from tocsin.testing import ManualClock

__all__ = ["live_app", "logs", "make_worker", "other_app", "patient", "stubborn"]


@pytest.fixture
async def ticking(tocsin_app: Tocsin, tocsin_clock: ManualClock) -> AsyncIterator[ScheduleBench]:
    made = ScheduleBench(tocsin_app, tocsin_clock)
    made.worker = await tocsin_app.worker(queues=[QUEUE])
    yield made
    await made.close()
