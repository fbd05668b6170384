"""What the tests of task queues and schedulers share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.agent_scheduling import by_hand, gate, make, notes, scheduler, told
from tests.support.task_bench import Desk
from tocsin import Tocsin
from tocsin.testing import ManualClock

__all__ = ["by_hand", "gate", "make", "notes", "scheduler", "told"]


@pytest.fixture
async def desk(tocsin_app: Tocsin, tocsin_clock: ManualClock) -> AsyncIterator[Desk]:
    made = Desk(tocsin_app, tocsin_clock)
    yield made
    await made.close()
