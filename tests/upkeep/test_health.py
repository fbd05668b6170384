"""Health: readings go in; state, reasons, signals and lines come out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.captured_logs import capture_logs
from tocsin.model.errors import StoreUnavailable
from tocsin.resilience.breaker import BreakerState
from tocsin.testing import ManualClock
from tocsin.upkeep.health import (
    ACTIONS,
    Health,
    HealthState,
    Signal,
    Snapshot,
    Watchdogs,
    assess,
    summary_line,
)
from tocsin.upkeep.health_check import HealthCheck

# The worker of the seed's example line.
FINE = Snapshot(
    registered=500,
    active=45,
    scripts=11,
    ready=10,
    oldest_overdue_s=0.2,
    interval_s=30.0,
    capacity_per_cycle=50,
    permits_free=55,
    permits_total=100,
    acquired=10,
    zombies_cleaned=2,
    queue_depth=5,
)


def but(**changes: Any) -> Snapshot:
    return replace(FINE, **changes)


# State and reasons


@pytest.mark.parametrize(
    "fine",
    [
        FINE,
        Snapshot(),
        but(ready=500, permits_free=0),
        # It got through more than it promised, so it can.
        but(ready=5000, acquired=500, permits_free=0),
        but(ready=10**6, capacity_per_cycle=math.inf, permits_free=0, permits_total=math.inf),
        but(oldest_overdue_s=60.0),
        # A cycle is as exact as it gets.
        but(oldest_overdue_s=0.9, interval_s=0.01),
        # Nothing recurs here.
        but(oldest_overdue_s=9999.0, interval_s=0.0),
        # It fell due just now.
        but(acquired=0, oldest_overdue_s=0.9),
        # No permit is free.
        but(acquired=0, oldest_overdue_s=5.0, permits_free=0),
        but(acquired=5, oldest_overdue_s=5.0),
        but(ready=100, acquired=28, oldest_overdue_s=5.0),
    ],
)
def test_a_worker_that_keeps_up_is_healthy(fine: Snapshot):
    assert assess(fine) == Health(HealthState.HEALTHY, ())


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (but(ready=501, permits_free=0), "501 jobs are ready, more than 10 times the 50"),
        (but(ready=9000, ready_is_estimate=True, permits_free=0), "~9000 jobs are ready"),
        (but(ready=1, capacity_per_cycle=0, acquired=0, permits_free=0), "1 jobs are ready"),
        (but(oldest_overdue_s=61.0), "waits for 61 s, more than 2 times the average interval of 30 s"),
        (but(acquired=4, oldest_overdue_s=1.0), "slot filling: 4 acquired with 55 permits free and 10 jobs ready"),
        (but(acquired=0, oldest_overdue_s=2.0, permits_free=math.inf), "with unbounded permits free"),
        (but(redis_breaker=BreakerState.OPEN), "the redis breaker is OPEN"),
        (but(acquisition_breaker=BreakerState.HALF_OPEN), "the acquisition breaker is HALF_OPEN"),
        (but(stuck=3), "3 runs are past their timeout"),
        (but(away=True), "the server is away"),
    ],
)
def test_a_worker_that_does_not_is_degraded_and_says_why(bad: Snapshot, words: str):
    health = assess(bad)
    assert health.degraded
    assert len(health.reasons) == 1
    assert words in health.reasons[0]


def test_every_reason_is_told():
    bad = but(ready=9000, oldest_overdue_s=90.0, acquired=0, stuck=1, redis_breaker=BreakerState.OPEN)
    assert [reason.split()[0] for reason in assess(bad).reasons] == ["the", "1", "backlog:", "backlog:", "slot"]


def test_a_worker_without_a_server_is_not_blamed_for_old_numbers():
    assert len(assess(but(away=True, ready=9000, oldest_overdue_s=90.0, acquired=0)).reasons) == 1


def test_a_disabled_worker_is_healthy_and_visible_whatever_waits():
    idle = but(enabled=False, ready=9000, oldest_overdue_s=90.0, acquired=0)
    health = assess(idle)
    assert (health.state, len(health.reasons)) == (HealthState.HEALTHY, 1)
    assert "redis.scheduler.enabled" in health.reasons[0]


def test_a_disabled_worker_may_be_degraded_by_what_it_still_does():
    health = assess(but(enabled=False, redis_breaker=BreakerState.OPEN))
    assert (health.state, len(health.reasons)) == (HealthState.DEGRADED, 2)


# Watchdogs

LEAK = but(permits_free=9, active=0, acquired=0, oldest_overdue_s=0.0)
SKEW = but(acquired=2, oldest_overdue_s=2.0)
ZERO = but(acquired=0, oldest_overdue_s=2.0)
STALL = but(redis_breaker=BreakerState.HALF_OPEN)


def look(dogs: Watchdogs, snapshot: Snapshot, *times: float) -> list[Signal]:
    """What was to be warned of in all these cycles."""
    return [signal for at in times for signal in dogs.observe(snapshot, at)]


@pytest.mark.parametrize(
    ("bad", "signals"),
    [
        (LEAK, [Signal.PERMIT_LEAK_SUSPECT]),
        (replace(LEAK, acquired=99), [Signal.PERMIT_LEAK_SUSPECT]),
        (replace(LEAK, acquired=100), []),
        (replace(LEAK, ready=0, backlog=4), [Signal.PERMIT_LEAK_SUSPECT]),
        (replace(LEAK, permits_total=1, permits_free=0), [Signal.PERMIT_LEAK_SUSPECT]),
        (SKEW, [Signal.CAPACITY_SKEW]),
        (ZERO, [Signal.CAPACITY_SKEW, Signal.ZERO_PROGRESS]),
        (replace(ZERO, permits_free=math.inf, permits_total=math.inf), [Signal.CAPACITY_SKEW, Signal.ZERO_PROGRESS]),
        (STALL, [Signal.REDIS_STALL]),
        (but(acquisition_breaker=BreakerState.OPEN), [Signal.REDIS_STALL]),
        (replace(ZERO, away=True), [Signal.REDIS_STALL]),
        (replace(ZERO, enabled=False), []),
        (FINE, []),
        # Something runs, or is stuck, or nothing waits, or there are permits enough.
        (replace(LEAK, active=1), []),
        (replace(LEAK, stuck=1), []),
        (replace(LEAK, ready=0), []),
        (replace(LEAK, permits_free=10), []),
        (replace(LEAK, permits_free=math.inf, permits_total=math.inf), []),
        # All permits are taken: that is a backlog, not a filter.
        (replace(ZERO, permits_free=0), []),
    ],
)
def test_each_signal_has_its_condition(bad: Snapshot, signals: list[Signal]):
    dogs = Watchdogs()
    assert look(dogs, bad, 0, 1, 2) == signals
    assert list(dogs.raised) == signals


@pytest.mark.parametrize(
    ("bad", "signal"),
    [
        (LEAK, Signal.PERMIT_LEAK_SUSPECT),
        (SKEW, Signal.CAPACITY_SKEW),
        (ZERO, Signal.ZERO_PROGRESS),
        (STALL, Signal.REDIS_STALL),
    ],
)
def test_a_signal_is_raised_after_three_cycles_in_a_row_and_falls_with_its_condition(bad: Snapshot, signal: Signal):
    dogs = Watchdogs()
    look(dogs, bad, 0, 1)
    look(dogs, FINE, 2)
    look(dogs, bad, 3, 4)
    assert dogs.raised == ()
    assert signal in look(dogs, bad, 5)
    assert signal in dogs.raised
    look(dogs, FINE, 6)
    assert dogs.raised == ()


def test_warnings_come_once_a_minute_per_signal_however_often_it_is_raised():
    dogs = Watchdogs()
    assert look(dogs, STALL, *range(62)) == [Signal.REDIS_STALL]
    assert look(dogs, STALL, 62) == [Signal.REDIS_STALL]
    look(dogs, FINE, 63)
    assert look(dogs, STALL, 64, 65, 66) == []
    assert look(dogs, SKEW, 67, 68, 69) == [Signal.CAPACITY_SKEW]


# The line


def test_the_summary_is_the_line_of_the_seed():
    assert summary_line(but(oldest_overdue_s=0.0), Health()) == (
        "Scheduler health | health=HEALTHY | [agents registered=500 active=futures=45 scripts=11] "
        "[backlog ready=10 oldest_overdue=0s capacity_per_cycle=50] [permits 55/100 (55.0%)] "
        "[cleanup zombies_cleaned=2 orphans_cleaned=0] queue_depth=5"
    )


def test_the_summary_of_an_unbounded_worker_behind_its_work():
    behind = but(
        ready=12000, ready_is_estimate=True, oldest_overdue_s=90.0, capacity_per_cycle=math.inf,
        permits_free=math.inf, permits_total=math.inf, orphans_cleaned=7,
    )  # fmt: skip
    assert summary_line(behind, Health(HealthState.DEGRADED, ("one", "two"))) == (
        "Scheduler health | health=DEGRADED | [agents registered=500 active=futures=45 scripts=11] "
        "[backlog ready=~12000 oldest_overdue=90s capacity_per_cycle=unbounded] [permits unbounded] "
        "[cleanup zombies_cleaned=2 orphans_cleaned=7] queue_depth=5 | one; two"
    )


def test_the_summary_of_a_worker_that_nothing_was_read_of():
    assert "[permits 0/0 (0.0%)]" in summary_line(Snapshot(), Health())


# The pass


class Bench:
    """A check whose readings the test gives; an exception among them is raised."""

    def __init__(self, clock: ManualClock, summary_s: float = 600.0) -> None:
        self.clock = clock
        self.reading: Snapshot | Exception = FINE
        self.check = HealthCheck(self.read, clock, every_s=1.0, summary_s=summary_s)
        self.logs: list[Any] = []

    def read(self) -> Snapshot:
        if isinstance(self.reading, Exception):
            raise self.reading
        return self.reading

    async def cycles(self, n: int, reading: Snapshot | Exception | None = None) -> list[str]:
        """So many cycles, a second apart; the events that they logged."""
        self.reading = self.reading if reading is None else reading
        told = len(self.logs)
        for _ in range(n):
            assert await self.check.step() == 1.0
            self.clock.advance("1s")
        return [entry["event"] for entry in self.logs[told:]]


@pytest.fixture
def bench(clock: ManualClock) -> Iterator[Bench]:
    made = Bench(clock)
    with capture_logs() as logs:
        made.logs = logs
        yield made


async def test_a_pass_keeps_what_it_read_and_made_of_it(bench: Bench):
    await bench.cycles(1, STALL)
    assert bench.check.snapshot == STALL
    assert bench.check.health == assess(STALL)
    assert bench.check.signals == ()
    await bench.cycles(2)
    assert bench.check.signals == (Signal.REDIS_STALL,)


async def test_readings_may_be_awaited(bench: Bench, clock: ManualClock):
    async def read() -> Snapshot:
        return STALL

    check = HealthCheck(read, clock, every_s=2.5, summary_s=0)
    assert await check.step() == 2.5
    assert check.health.degraded


async def test_changes_of_state_are_told_once(bench: Bench):
    assert await bench.cycles(20) == []
    assert await bench.cycles(20, but(stuck=1)) == ["worker is degraded"]
    assert bench.logs[-1]["reasons"] == assess(but(stuck=1)).reasons
    assert await bench.cycles(20, FINE) == ["worker is healthy again"]


async def test_a_state_that_flaps_is_told_now_and_then_and_its_end_always(bench: Bench):
    for _ in range(10):
        await bench.cycles(1, but(stuck=1))
        await bench.cycles(1, FINE)
    await bench.cycles(20, FINE)
    events = [entry["event"] for entry in bench.logs]
    assert 2 <= len(events) <= 4
    assert events[-1] == "worker is healthy again"


async def test_a_watchdog_warns_with_what_to_do(bench: Bench):
    events = await bench.cycles(10, ZERO)
    assert events.count("watchdog") == 2
    told = {entry["signal"]: entry["action"] for entry in bench.logs if entry["event"] == "watchdog"}
    assert told == {signal.value: ACTIONS[signal] for signal in (Signal.CAPACITY_SKEW, Signal.ZERO_PROGRESS)}


async def test_the_summary_comes_each_period(bench: Bench):
    assert await bench.cycles(600) == []
    assert await bench.cycles(1) == [summary_line(FINE, Health())]
    assert len(await bench.cycles(600)) == 1


@pytest.mark.parametrize("period", [0, -1])
async def test_a_period_of_zero_or_less_means_no_summary(bench: Bench, clock: ManualClock, period: float):
    silent = Bench(clock, summary_s=period)
    await silent.cycles(1000)
    assert bench.logs == []


async def test_a_server_that_is_away_is_a_state_and_not_an_error(bench: Bench):
    await bench.cycles(1)
    await bench.cycles(3, StoreUnavailable("connection refused"))
    assert bench.check.health.reasons == ("the server is away",)
    assert bench.check.signals == (Signal.REDIS_STALL,)
    assert bench.check.snapshot.registered == 500
    await bench.cycles(1, FINE)
    assert bench.check.health == Health()
    assert bench.check.signals == ()


async def test_a_reading_that_fails_is_told_once_and_does_not_end_the_check(bench: Bench):
    assert await bench.cycles(5, ZeroDivisionError("no agents")) == ["health cannot be read"]
    assert bench.check.health == Health(HealthState.DEGRADED, ("health cannot be read: ZeroDivisionError: no agents",))
    assert bench.check.signals == ()
    await bench.cycles(1, FINE)
    assert bench.check.health == Health()


def test_advice_is_shown_and_makes_no_worker_degraded():
    health = assess(Snapshot(advice=("queue 'mail' has outgrown its partitions",)))
    assert (health.state, health.reasons) == (HealthState.HEALTHY, ("queue 'mail' has outgrown its partitions",))


def test_deliveries_that_hang_at_their_limit_make_a_worker_degraded():
    hanging = Snapshot(outside_limit=75, outside_still_s=12, outside_handed_back=3)
    health = assess(hanging)
    assert health.degraded
    assert "hold all 75 permits that they may, and none has ended for 12 s" in health.reasons[0]
    assert len(health.reasons) == 1


def test_deliveries_that_come_and_go_at_their_limit_are_told_only():
    health = assess(Snapshot(outside_limit=75, outside_still_s=0.2, outside_handed_back=3))
    assert not health.degraded
    assert "are at their limit of 75 permits: 3 runs were handed back" in health.reasons[0]
