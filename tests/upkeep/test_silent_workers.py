"""Which workers are alive, for a reader that looks once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.support.two_queues import MakeTwoQueues
from tocsin.store.transitions.fleet import Fleet, HeartbeatSender, WorkerInfo, WorkerRecord
from tocsin.testing import ManualClock
from tocsin.upkeep import silent_workers

ABOUT = WorkerInfo(host="h", pid=1, started=0, queues=["one"], handlers=[], concurrency=1, health="HEALTHY")


@pytest.mark.parametrize(
    ("age", "silent", "pulse"),
    [
        (0, None, "live"),
        (4999, None, "live"),
        (5000, None, "missing"),
        (7999, {"w"}, "missing"),
        (8000, None, "dead"),
        (8000, {"w"}, "dead"),
        # Heard while we listened: the server's clock was set.
        (3_600_000, set(), "live"),
        # A worker of a version that leaves no time.
        (None, None, "unknown"),
        (None, {"w"}, "missing"),
        (None, set(), "live"),
    ],
)
def test_the_age_of_the_last_beat_says_how_a_worker_stands(
    age: int | None, silent: set[str] | None, pulse: str
) -> None:
    assert silent_workers.pulse_of(WorkerRecord("w", 1, ABOUT, age), silent) == pulse


@pytest.fixture
async def fleet(make_yard: MakeTwoQueues) -> Fleet:
    return Fleet((await make_yard()).store)


@pytest.fixture
def heart(fleet: Fleet) -> Iterator[HeartbeatSender]:
    pulse = HeartbeatSender(fleet._store, "w")
    yield pulse
    pulse.close()


async def beat(heart: HeartbeatSender, counter: int) -> None:
    assert (await asyncio.to_thread(heart.beat, counter, ABOUT, counter == 1, 2500)).accepted


async def test_a_worker_that_beat_a_moment_ago_is_not_listened_for(
    fleet: Fleet, heart: HeartbeatSender, clock: ManualClock
) -> None:
    await beat(heart, 1)
    clock.advance("2s")
    [worker], silent = await silent_workers.find_silent(fleet, 5)
    assert (worker.age, silent) == (2000, set())


async def test_a_late_worker_is_silent_unless_it_is_heard(
    fleet: Fleet, heart: HeartbeatSender, clock: ManualClock
) -> None:
    await beat(heart, 1)
    clock.advance("10s")
    _, silent = await silent_workers.find_silent(fleet, 0)
    assert silent == {"w"}
    listening = asyncio.create_task(silent_workers.find_silent(fleet, 5))
    await beat(heart, 2)
    assert (await listening)[1] == set()


async def test_a_worker_that_left_or_was_buried_leaves_no_time(fleet: Fleet, heart: HeartbeatSender) -> None:
    await beat(heart, 1)
    await fleet.leave("w")
    assert not await fleet.declare_dead("w", b"1", 1)
    key = fleet._store.keys.fleet()["pulses"]
    assert await fleet._store.client.zcard(key) == 0
    await beat(heart, 1)
    assert await fleet.declare_dead("w", b"1", 1)
    assert await fleet._store.client.zcard(key) == 0
