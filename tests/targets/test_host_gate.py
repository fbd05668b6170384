"""A gate: as many inside as there is room for, a short line, and everybody else comes again later."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tocsin.engine.handlers import TryLater
from tocsin.resilience.breaker import Breaker, BreakerSettings
from tocsin.targets import host_gate as module
from tocsin.targets.host_gate import LONGEST_WAIT_S, HostGate, HostPermits, limit_of
from tocsin.testing import ManualClock


class Street:
    """Gates of one worker."""

    def __init__(self, clock: ManualClock, permits: float = 100, most: int = 50, shared: bool = False) -> None:
        self._clock = clock
        self.permits = HostPermits(permits, most, limit_of(permits, shared), clock.monotonic)

    def gate(self, host: str = "http://a:80") -> HostGate:
        breaker = Breaker(BreakerSettings(), self._clock.monotonic)
        return HostGate(host, self.permits, breaker, self._clock.monotonic)


async def fill(gate: HostGate) -> int:
    """Until there is no more room. How many."""
    before = gate.held
    while gate._has_free_permit():
        assert await gate.acquire()
    return gate.held - before


def away(gate: HostGate) -> float:
    """For how long a run is sent away."""
    with pytest.raises(TryLater) as sent:
        gate.check_free()
    return sent.value.delay


async def turn() -> None:
    """Let who can go on."""
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("permits", "most", "inside"),
    [
        (1, 50, 1),
        (2, 50, 1),
        (3, 50, 2),
        (4, 50, 2),
        (100, 50, 50),
        (100, 10, 10),
        (1000, 50, 50),
        (float("inf"), 7, 7),
    ],
)
async def test_a_host_gets_half_of_the_permits_and_no_more_than_it_may(
    clock: ManualClock, permits: float, most: int, inside: int
):
    assert await fill(Street(clock, permits, most).gate()) == inside


async def test_hosts_that_hang_never_hold_all_permits(clock: ManualClock):
    street = Street(clock, permits=100)
    held = [await fill(street.gate(f"http://{n}:80")) for n in range(4)]
    assert held == [50, 25, 13, 6]
    assert sum(held) < 100


@pytest.mark.parametrize(
    ("permits", "limit"), [(1, 1), (2, 1), (3, 2), (4, 3), (8, 6), (100, 75), (float("inf"), float("inf"))]
)
def test_a_quarter_of_the_permits_is_for_handlers_of_the_workers_own(permits: float, limit: float):
    assert limit_of(permits, shared=True) == limit
    assert limit_of(permits, shared=False) == permits


async def test_as_many_hosts_as_there_are_permits_leave_some_to_others(clock: ManualClock):
    """Each is let in once, however many hold a permit already, until all that may go outside are held."""
    street = Street(clock, permits=8, shared=True)
    gates = [street.gate(f"http://{n}:80") for n in range(8)]
    assert [await gate.acquire() for gate in gates[:6]] == [True] * 6
    for gate in gates:
        away(gate)
    assert street.permits.held == 6
    gates[0].release()
    assert await gates[7].acquire()
    away(gates[0])


async def test_what_waits_in_line_leaves_permits_to_others_too(clock: ManualClock):
    street = Street(clock, permits=8, most=4, shared=True)
    gate = street.gate()
    await fill(gate)
    for _ in range(20):
        gate.release()
        await fill(gate)
    clock.advance("250ms")
    waiting = [asyncio.create_task(gate.acquire()) for _ in range(2)]
    await turn()
    away(gate)
    gate.dismiss_waiters()
    assert await asyncio.gather(*waiting) == [False] * 2


async def test_who_finds_all_hosts_full_comes_again_one_after_the_other(clock: ManualClock):
    """Whatever hosts they are for: a thousand hosts with a hundred runs each cost what one with all of them costs."""
    street = Street(clock, permits=2, shared=True)
    assert await street.gate().acquire()
    clock.advance("1s")
    waits = [away(street.gate(f"http://{n}:80")) for n in range(5000)]
    assert max(Counter(int(wait) for wait in waits).values()) <= module.RETURNS_PER_S + 1
    assert street.permits.turned_away == 5000


async def test_a_room_stands_still_while_it_is_full_and_missed(clock: ManualClock):
    street = Street(clock, permits=2, shared=True)
    gate, other = street.gate(), street.gate("http://b:80")
    assert await gate.acquire()
    clock.advance("5s")
    assert street.permits.stalled_for_s() == 0
    away(other)
    clock.advance("5s")
    assert street.permits.stalled_for_s() == 10
    gate.release()
    assert street.permits.stalled_for_s() == 0


async def test_who_finds_no_room_waits_in_line_and_is_let_in_in_turn(clock: ManualClock):
    gate = Street(clock, permits=8).gate()
    await fill(gate)
    entered: list[int] = []

    async def enter(n: int) -> None:
        await gate.acquire()
        entered.append(n)

    waiting = [asyncio.create_task(enter(n)) for n in range(2)]
    await turn()
    assert entered == []
    for expected in ([0], [0, 1]):
        gate.release()
        await turn()
        assert entered == expected
        assert gate.held == 4
    await asyncio.gather(*waiting)


async def test_while_nothing_is_known_of_a_host_half_of_what_is_left_may_wait_for_it(clock: ManualClock):
    """It may hang, and others need the rest."""
    gate = Street(clock, permits=100).gate()
    assert await fill(gate) == 50
    waiting = []
    for _ in range(25):
        waiting.append(asyncio.create_task(gate.acquire()))
        await turn()
    away(gate)
    gate.dismiss_waiters()
    assert await asyncio.gather(*waiting) == [False] * 25


async def test_who_leaves_because_the_host_failed_makes_no_room_in_line(clock: ManualClock):
    gate = Street(clock, permits=8).gate()
    await fill(gate)
    clock.advance("1s")
    for _ in range(4):
        gate.release(progress=False)
        await fill(gate)
    assert away(gate) >= module.SHORTEST_AWAY_S


async def test_as_many_may_wait_as_have_left_in_a_quarter_of_a_second(clock: ManualClock):
    gate = Street(clock, permits=100, most=4).gate()
    await fill(gate)
    for _ in range(7):
        gate.release()
        await fill(gate)
    clock.advance("250ms")
    waiting = [asyncio.create_task(gate.acquire()) for _ in range(7)]
    await turn()
    away(gate)
    gate.dismiss_waiters()
    assert await asyncio.gather(*waiting) == [False] * 7


async def test_nobody_waits_for_a_host_that_stands_still(clock: ManualClock):
    gate = Street(clock).gate()
    await fill(gate)
    gate.check_free()
    clock.advance("250ms")
    assert away(gate) >= module.SHORTEST_AWAY_S


async def test_the_longer_a_host_stands_still_the_later_runs_come_again(clock: ManualClock):
    gate = Street(clock).gate()
    await fill(gate)
    waits = []
    for _ in range(5):
        clock.advance("4s")
        waits.append(round(away(gate) - LONGEST_WAIT_S / 2))
    assert waits == [4, 8, 10, 10, 10]


async def test_who_waits_too_long_in_line_is_sent_away_and_leaves_its_place(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "LONGEST_WAIT_S", 0.01)
    gate = Street(clock, permits=2).gate()
    await fill(gate)
    with pytest.raises(TryLater):
        await gate.acquire()
    gate.check_free()
    gate.release()
    assert gate.is_idle


async def test_a_run_that_is_stopped_in_line_leaves_no_place_behind(clock: ManualClock):
    gate = Street(clock, permits=2).gate()
    await fill(gate)
    waiting = asyncio.create_task(gate.acquire())
    await turn()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.release()
    assert gate.is_idle


async def test_a_run_that_is_stopped_as_it_is_let_in_gives_its_place_to_the_next(clock: ManualClock):
    gate = Street(clock, permits=8).gate()
    await fill(gate)
    first, second = asyncio.create_task(gate.acquire()), asyncio.create_task(gate.acquire())
    await turn()
    gate.release()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await second
    assert gate.held == 4


async def test_runs_come_again_one_after_the_other(clock: ManualClock):
    """However many they are: so many a second, and not all at once."""
    gate = Street(clock).gate()
    await fill(gate)
    clock.advance("1s")
    seconds = Counter(int(away(gate)) for _ in range(20_000))
    assert max(seconds.values()) <= module.RETURNS_PER_S + 1
    assert max(seconds) in (20, 21)


async def test_after_a_standstill_runs_come_soon_again(clock: ManualClock):
    gate = Street(clock, permits=2).gate()
    await fill(gate)
    clock.advance("1s")
    for _ in range(20_000):
        away(gate)
    await turn()
    gate.release()
    await fill(gate)
    clock.advance("300ms")
    assert away(gate) < 2
