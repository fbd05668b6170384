"""An app with a handler that notes what it was called with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tocsin import Run, Tocsin
from tocsin.engine.handlers import Handler
from tocsin.store.embedded.server import EmbeddedServer
from tocsin.testing import ManualClock


@pytest.fixture
def ran() -> list[Any]:
    """The runs of `note`, in order: (what, attempt)."""
    return []


@pytest.fixture
def runs() -> list[Run]:
    """The same, as Run objects."""
    return []


@pytest.fixture
def note(tocsin_app: Tocsin, ran: list[Any], runs: list[Run]) -> Handler:
    """Notes what it was called with; fails if it was called with an exception's text."""

    @tocsin_app.job(name="note")
    async def note(what: Any = None, *, fail: str | None = None, run: Run) -> Any:
        ran.append(what)
        runs.append(run)
        if fail is not None:
            raise ValueError(fail)
        return what

    return note


@pytest.fixture
def prefix(tocsin_app: Tocsin) -> str:
    return tocsin_app.store.keys.prefix


@pytest.fixture
async def stranger(
    tocsin_app: Tocsin, tocsin_server: EmbeddedServer, tocsin_clock: ManualClock
) -> AsyncIterator[Tocsin]:
    """Another program in the same namespace, which knows none of the handlers of `tocsin_app`."""
    async with Tocsin(tocsin_server.url, prefix=tocsin_app.store.keys.prefix, clock=tocsin_clock) as app:
        yield app
