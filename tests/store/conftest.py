"""A queue of one partition with everything that can be done to it, on each server."""

from __future__ import annotations

import pytest

from tests.support.one_queue import Line
from tocsin.store.store import OpenQueue, Store
from tocsin.testing import ManualClock


@pytest.fixture
def line(store: Store, queue: OpenQueue, clock: ManualClock) -> Line:
    return Line(store, queue, clock)
