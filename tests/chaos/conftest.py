"""A fleet on the shared server, in a namespace of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.servers import Server
from tests.support.worker_fleet import Fleet


@pytest.fixture
async def fleet(valkey: Server, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with Fleet(valkey.url, tmp_path) as fleet:
        yield fleet
