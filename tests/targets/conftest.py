"""A receiver on loopback, which the workers of `tocsin_app` may reach."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from receiver import Receiver


@pytest.fixture(autouse=True)
def loopback_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an operator would say it; before `tocsin_app` reads it."""
    monkeypatch.setenv("TOCSIN_HTTP__ALLOW", "127.0.0.0/8")


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    await made.start()
    yield made
    await made.stop()
