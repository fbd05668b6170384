"""A cleaner of orphans whose leader and clock the test sets, and hands to break `waiting` and `working` with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.one_queue import Line
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.claims import Deadlines
from tocsin.store.views.audit import AuditReader
from tocsin.store.views.strays import StrayPage, StrayReader
from tocsin.testing import ManualClock
from tocsin.upkeep.orphan_cleaner import OrphanCleaner, OrphanRules

CENTURY = 100 * 366 * 86_400_000

YEAR_2500 = 16_725_225_600_000

HOUR = 3_600_000


class Cleaner(OrphanCleaner):
    """Orphans with what a test may turn."""

    def __init__(self, store: Store, queues: list[OpenQueue], clock: ManualClock, **settings: Any) -> None:
        self.leading: Callable[[], bool] = lambda: True
        self.believes = True
        self.steps = b""
        self.own: Callable[[str], bool] = lambda member: True
        self.heard: list[tuple[str, int]] = []

        async def registered() -> list[OpenQueue]:
            return queues

        super().__init__(
            StrayReader(store), AuditReader(store), registered, clock, OrphanRules(**settings),
            leading=lambda: self.leading(), owns=lambda _, member: self.own(member),
            deadlines=lambda overdue: Deadlines(overdue, clock.ms, self.steps) if self.believes else None,
            look_again=lambda queue, partition: self.heard.append((queue.name, partition)),
        )  # fmt: skip

    @property
    def done(self) -> dict[str, int]:
        return {kind: count for kind, count in self.cleaned.items() if count}


async def zadd(line: Line, stage: str, member: str | bytes, score: float) -> None:
    await line.store.client.zadd(line.keys[stage], {member: score})


async def score(line: Line, stage: str, member: str) -> float | None:
    found: float | None = await line.store.client.zscore(line.keys[stage], member)
    return found


async def state(line: Line) -> dict[str, Any]:
    """All that is in Redis, without who called when."""
    return {key: value for key, value in (await line.dump()).items() if not key.startswith("sessions")}


# Suspects stand apart, with a score that no other has


async def set_apart(line: Line, member: str) -> float:
    """A run that was recovered twice. Its score."""
    await line.put(member)
    for _ in range(2):
        await line.take(member)
        await line.recover()
    found = await score(line, "waiting", member)
    assert found is not None
    assert found < -(2**51)
    return found


@pytest.fixture
def line(store: Store, queue: OpenQueue, clock: ManualClock) -> Line:
    return Line(store, queue, clock)


@pytest.fixture
def cleaner(line: Line) -> Cleaner:
    return Cleaner(line.store, [line.queue], line.clock)


@pytest.fixture
def after_look(monkeypatch) -> Callable[[Callable[[], Awaitable[Any]]], None]:
    """Let something happen between the look that found a stray and what is done about it."""

    def arrange(happens: Callable[[], Awaitable[Any]]) -> None:
        look = StrayReader.look

        async def look_then(self: StrayReader, *args: Any) -> StrayPage:
            page = await look(self, *args)
            if page.found:
                await happens()
            return page

        monkeypatch.setattr(StrayReader, "look", look_then)

    return arrange
