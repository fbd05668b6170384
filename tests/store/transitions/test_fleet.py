"""Heartbeats as the server keeps them: which workers are late, who brings back the runs of the dead, how its clock was
set."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from tocsin.store.store import Store
from tocsin.store.transitions.fleet import Fleet, HeartbeatReply, HeartbeatSender, WorkerInfo
from tocsin.testing import ManualClock

ABOUT = WorkerInfo(host="h", pid=1, started=0, queues=["one"], handlers=[], concurrency=1)
LATE, HOUR = 2500, 3_600_000

Sends = Callable[..., Awaitable[HeartbeatReply]]


@pytest.fixture
def fleet(store: Store) -> Fleet:
    return Fleet(store)


@pytest.fixture
def sends(store: Store) -> Iterator[Sends]:
    """A beat of a worker of that name."""
    pulses: dict[str, tuple[HeartbeatSender, list[int]]] = {}
    with ExitStack() as stack:

        async def send(name: str, step: int | None = None, known: int = 0) -> HeartbeatReply:
            if name not in pulses:
                pulses[name] = (stack.enter_context(closing(HeartbeatSender(store, name))), [0])
            pulse, counter = pulses[name]
            counter[0] += 1
            return await asyncio.to_thread(pulse.beat, counter[0], ABOUT, counter[0] == 1, LATE, step, known)

        yield send


async def test_a_beat_shows_only_the_workers_that_are_late(sends: Sends, clock: ManualClock) -> None:
    for name in "abc":
        await sends(name)
    clock.advance("2.4s")
    await sends("b")
    assert (await sends("a")).late == {}
    clock.advance("0.1s")
    beat = await sends("a")
    assert (beat.late, beat.workers) == ({"c": b"1"}, 3)


@pytest.mark.parametrize("by", ["-1h", "1h"])
async def test_a_clock_that_is_set_hides_nobody(sends: Sends, clock: ManualClock, by: str) -> None:
    await sends("a")
    await sends("gone")
    clock.advance("1h") if by == "1h" else clock.move_to(clock.now.replace(year=clock.now.year - 1))
    assert (await sends("a")).late == {"gone": b"1"}


async def test_names_that_are_no_text_end_no_beat(sends: Sends, store: Store, clock: ManualClock) -> None:
    keys = store.keys.fleet()
    await sends("a")
    await store.client.hset(keys["beats"], b"\xff\xfe", b"x")
    await store.client.zadd(keys["pulses"], {b"\xff\xfe": 1, b"text": 1})
    await store.client.zadd(keys["buried"], {b"\xff": 1})
    await store.client.set(keys["steps"], b"\xffgarbage 1e400 nan 7")
    beat = await sends("a")
    garbage = {"\udcff\udcfe": b"x", "text": b""}
    assert (beat.accepted, beat.late, beat.buried) == (True, garbage, ["\udcff"])


async def test_one_worker_at_a_time_brings_back_the_runs_of_a_dead_one(
    sends: Sends, fleet: Fleet, clock: ManualClock
) -> None:
    await sends("dead")
    held = await fleet.declare_dead("dead", b"1", 10_000)
    assert held == clock.ms + 10_000
    assert not await fleet.declare_dead("dead", b"1", 10_000)
    assert (await sends("other")).buried == []
    assert not await fleet.take_burial("dead", 0, 10_000)
    clock.advance("9s")
    # It goes on.
    held = await fleet.take_burial("dead", held, 10_000)
    assert held == clock.ms + 10_000
    clock.advance("10s")
    # It does not.
    assert (await sends("other")).buried == ["dead"]
    assert await fleet.take_burial("dead", 0, 10_000)
    assert not await fleet.take_burial("dead", held, 10_000)
    assert (await sends("other")).buried == []
    await fleet.leave("dead")
    assert not await fleet.take_burial("dead", 0, 10_000)


async def test_a_clock_that_is_set_back_leaves_no_burial_undone(sends: Sends, fleet: Fleet, clock: ManualClock) -> None:
    await sends("dead")
    await fleet.declare_dead("dead", b"1", 10_000)
    clock.move_to(clock.now.replace(year=clock.now.year - 1))
    assert (await sends("other")).buried == ["dead"]
    assert await fleet.take_burial("dead", 0, 10_000)


async def test_a_step_that_many_workers_see_is_counted_once(sends: Sends, clock: ManualClock) -> None:
    for name in "abc":
        await sends(name)
    clock.advance("1h")
    at = clock.ms
    for name in "abc":
        await sends(name, HOUR)
    beat = await sends("a")
    assert (beat.stepped, beat.steps) == (HOUR, b"%d %d %d" % (HOUR, at, HOUR))


async def test_what_one_worker_saw_more_than_the_others_is_added(sends: Sends) -> None:
    await sends("a", 10_000)
    assert (await sends("b", 60_000)).stepped == 60_000
    # Less than what is known, and a difference as clocks drift.
    assert (await sends("c", 30_000)).stepped == 60_000
    assert (await sends("d", 60_900)).stepped == 60_000


async def test_what_is_set_back_takes_away_from_the_steps_before(sends: Sends, clock: ManualClock) -> None:
    await sends("a", HOUR)
    first = clock.ms
    clock.advance("10s")
    assert (await sends("a", 2 * HOUR, HOUR)).stepped == 3 * HOUR
    beat = await sends("a", -2 * HOUR - 60_000, 3 * HOUR)
    assert beat.steps == b"%d %d %d" % (HOUR - 60_000, first, HOUR - 60_000)
    assert (await sends("a", -HOUR, beat.stepped)).steps == b"%d" % -60_000


async def test_many_steps_are_kept_in_little_room(sends: Sends, clock: ManualClock) -> None:
    stepped = 0
    for _ in range(50):
        clock.advance("1m")
        stepped = (await sends("a", 5000, stepped)).stepped
    _, first_at, first, *rest = map(int, (await sends("a")).steps.split())
    assert (stepped, first, len(rest)) == (250_000, 43 * 5000, 14)
    assert first_at == clock.ms - 7 * 60_000
