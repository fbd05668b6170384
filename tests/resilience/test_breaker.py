"""The circuit breaker, with a clock that the test moves: seconds, and the seed's settings unless said."""

from __future__ import annotations

import msgspec
import pytest

from tocsin import InvalidArgument, StoreUnavailable
from tocsin.model.errors import StoreError
from tocsin.resilience.breaker import (
    PROBES,
    Breaker,
    BreakerSettings,
    BreakerState,
    BreakerStatus,
    redis_breaker_settings,
)


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def breaker(time) -> Breaker:
    return Breaker(BreakerSettings(), time)


def fail(breaker: Breaker, times: int = 1) -> None:
    for _ in range(times):
        breaker.failed(breaker.allow())


def opened(breaker: Breaker) -> Breaker:
    fail(breaker, 5)
    assert breaker.state is BreakerState.OPEN
    return breaker


def half_opened(breaker: Breaker, time: Time) -> Breaker:
    opened(breaker)
    time.now += 30
    return breaker


def test_the_settings_are_the_seeds():
    assert BreakerSettings() == BreakerSettings(True, 5, 10_000, 30_000, 5_000)
    assert redis_breaker_settings(BreakerSettings()) == BreakerSettings(True, 3, 5_000, 21_000, 3_000)


@pytest.mark.parametrize(
    ("acquisition", "of_redis"),
    [
        (BreakerSettings(failure_threshold=1), BreakerSettings(True, 3, 5_000, 21_000, 3_000)),
        (BreakerSettings(failure_threshold=9), BreakerSettings(True, 7, 5_000, 21_000, 3_000)),
        (BreakerSettings(failure_window_ms=900), BreakerSettings(True, 3, 900, 21_000, 3_000)),
        (BreakerSettings(enabled=False), BreakerSettings(False, 3, 5_000, 21_000, 3_000)),
        (BreakerSettings(cooldown_ms=1, half_open_duration_ms=1), BreakerSettings(True, 3, 5_000, 1, 1)),
    ],
)
def test_the_redis_breaker_derives_from_the_acquisition_breaker(acquisition, of_redis):
    assert redis_breaker_settings(acquisition) == of_redis


@pytest.mark.parametrize("name", ["failure_threshold", "failure_window_ms", "cooldown_ms", "half_open_duration_ms"])
@pytest.mark.parametrize("value", [0, -1])
def test_settings_below_one_are_refused(name, value):
    with pytest.raises(InvalidArgument, match=name):
        BreakerSettings(**{name: value})


def test_it_trips_at_the_threshold_and_not_before(breaker):
    fail(breaker, 4)
    assert breaker.state is BreakerState.CLOSED
    fail(breaker)
    assert breaker.state is BreakerState.OPEN
    assert breaker.allow() is None


def test_failures_outside_the_window_are_forgotten_one_by_one(breaker, time):
    for _ in range(20):
        # Never five within ten seconds.
        fail(breaker)
        time.now += 2.5
    assert breaker.status().failures == 3
    assert breaker.state is BreakerState.CLOSED
    fail(breaker, 2)
    assert breaker.state is BreakerState.OPEN


def test_a_failure_leaves_the_window_when_it_is_as_old_as_the_window(breaker, time):
    fail(breaker)
    time.now += 9.999
    assert breaker.status().failures == 1
    time.now = 1010.0
    assert breaker.status().failures == 0


def test_successes_while_closed_do_not_hide_failures(breaker):
    for _ in range(5):
        breaker.succeeded(breaker.allow())
        fail(breaker)
    assert breaker.state is BreakerState.OPEN
    assert breaker.status().recoveries == 0


def test_a_blocked_call_is_counted_once(breaker):
    opened(breaker)
    assert [breaker.allow() for _ in range(3)] == [None] * 3
    assert breaker.status().blocked == 3


def test_after_the_cooldown_a_few_probes_go_through(breaker, time):
    opened(breaker)
    time.now += 29.999
    assert breaker.state is BreakerState.OPEN
    time.now = 1030.0
    assert breaker.state is BreakerState.HALF_OPEN
    assert all(breaker.allow() for _ in range(PROBES))
    assert breaker.allow() is None
    assert breaker.status().blocked == 1


def test_a_probe_that_succeeds_closes_it(breaker, time):
    half_opened(breaker, time)
    breaker.succeeded(breaker.allow())
    assert breaker.status() == BreakerStatus(BreakerState.CLOSED, 0, 0.0, trips=1, blocked=0, recoveries=1)
    fail(breaker, 4)
    assert breaker.state is BreakerState.CLOSED


def test_a_probe_that_fails_opens_it_for_a_full_cooldown(breaker, time):
    half_opened(breaker, time)
    permit = breaker.allow()
    time.now += 4
    breaker.failed(permit)
    assert breaker.status() == BreakerStatus(BreakerState.OPEN, 0, 30.0, trips=2, blocked=0, recoveries=0)


def test_probes_without_an_answer_open_it_when_the_half_open_time_is_over(breaker, time):
    half_opened(breaker, time)
    permit = breaker.allow()
    time.now += 4.999
    assert breaker.state is BreakerState.HALF_OPEN
    time.now = 1035.0
    assert breaker.status() == BreakerStatus(BreakerState.OPEN, 0, 30.0, trips=2, blocked=0, recoveries=0)
    breaker.succeeded(permit)
    assert breaker.state is BreakerState.OPEN


def test_the_cooldown_after_unanswered_probes_does_not_wait_for_somebody_to_look(breaker, time):
    half_opened(breaker, time)
    breaker.allow()
    time.now += 5 + 30
    assert breaker.allow() is not None
    assert breaker.status().trips == 2


def test_the_half_open_time_begins_with_the_first_probe(breaker, time):
    half_opened(breaker, time)
    time.now += 3600
    assert breaker.state is BreakerState.HALF_OPEN
    permit = breaker.allow()
    time.now += 4.999
    breaker.succeeded(permit)
    assert breaker.state is BreakerState.CLOSED


@pytest.mark.parametrize("answer", [Breaker.succeeded, Breaker.failed])
def test_answers_to_calls_from_before_the_trip_change_nothing(breaker, time, answer):
    late = breaker.allow()
    opened(breaker)
    for moment in (0, 30, 31):
        time.now = 1000.0 + moment
        before = breaker.status()
        answer(breaker, late)
        assert breaker.status() == before
    breaker.succeeded(breaker.allow())
    for _ in range(5):
        answer(breaker, late)
    assert breaker.status().failures == 0


def test_the_other_probes_come_too_late_once_one_has_answered(breaker, time):
    half_opened(breaker, time)
    first, *others = [breaker.allow() for _ in range(PROBES)]
    breaker.succeeded(first)
    for permit in others:
        breaker.failed(permit)
    assert breaker.status().failures == 0
    opened(breaker)
    time.now += 30
    first, *others = [breaker.allow() for _ in range(PROBES)]
    breaker.failed(first)
    for permit in others:
        breaker.succeeded(permit)
    assert breaker.state is BreakerState.OPEN


def test_a_person_may_close_it(breaker, time):
    late = breaker.allow()
    opened(breaker).allow()
    breaker.reset()
    assert breaker.status() == BreakerStatus(BreakerState.CLOSED, 0, 0.0, trips=1, blocked=1, recoveries=0)
    for _ in range(5):
        breaker.failed(late)
    assert breaker.state is BreakerState.CLOSED
    half_opened(breaker, time).allow()
    breaker.reset()
    time.now += 5
    assert breaker.state is BreakerState.CLOSED


def test_a_reset_while_closed_forgets_the_failures(breaker):
    fail(breaker, 4)
    breaker.reset()
    fail(breaker, 4)
    assert breaker.state is BreakerState.CLOSED


def test_a_reset_does_not_hide_that_probes_stayed_without_an_answer(breaker, time):
    half_opened(breaker, time).allow()
    time.now += 5
    breaker.reset()
    assert breaker.status().trips == 2


def test_a_disabled_breaker_always_allows(time):
    breaker = Breaker(BreakerSettings(enabled=False, failure_threshold=1), time)
    fail(breaker, 100)
    assert breaker.allow()
    assert breaker.status() == BreakerStatus(BreakerState.CLOSED, 0, 0.0, 0, 0, 0)


def test_the_status_tells_when_the_next_probe_may_go(breaker, time):
    assert breaker.status().probe_in == 0
    opened(breaker)
    time.now += 12
    assert breaker.status().probe_in == 18
    time.now += 18
    assert breaker.status().probe_in == 0
    for _ in range(PROBES):
        breaker.allow()
        time.now += 1
    assert breaker.status().probe_in == 1 + 30


def test_the_status_can_be_written_down(breaker):
    assert msgspec.json.decode(msgspec.json.encode(breaker.status()))["state"] == "CLOSED"


def test_a_success_may_make_up_for_one_failure(breaker, time):
    fail(breaker, 4)
    breaker.drop_oldest_failure(breaker.allow())
    fail(breaker)
    assert breaker.state is BreakerState.CLOSED
    fail(breaker)
    assert breaker.state is BreakerState.OPEN


def test_a_success_of_before_the_trip_makes_up_for_nothing(breaker, time):
    early = breaker.allow()
    opened(breaker)
    breaker.reset()
    fail(breaker, 4)
    breaker.drop_oldest_failure(early)
    fail(breaker)
    assert breaker.state is BreakerState.OPEN


@pytest.mark.parametrize("age", [0, 20, 30])
def test_who_knows_better_may_open_it_for_a_full_cooldown(breaker, time, age):
    opened(breaker)
    time.now += age
    breaker.trip()
    assert breaker.status().probe_in == 30
    assert breaker.allow() is None


def test_a_late_answer_does_not_hide_that_the_server_is_away(breaker):
    late = breaker.allow()
    for _ in range(5):
        breaker.answered(breaker.allow(), [StoreUnavailable("away")])
    breaker.answered(late, [object()])
    assert (breaker.state, breaker.away, breaker.failing) == (BreakerState.OPEN, True, True)
    breaker.probe_now()
    breaker.answered(late, [object()])
    assert breaker.away
    breaker.answered(breaker.allow(), [object()])
    assert (breaker.state, breaker.away, breaker.failing) == (BreakerState.CLOSED, False, False)


def test_a_server_that_fails_a_script_is_not_away(breaker):
    breaker.answered(breaker.allow(), [object(), StoreError("a script failed")])
    assert (breaker.away, breaker.failing) == (False, True)
    breaker.answered(breaker.allow(), [])
    assert not breaker.failing


@pytest.mark.parametrize(
    ("settings", "failures"), [(BreakerSettings(), 5), (redis_breaker_settings(BreakerSettings()), 3)]
)
def test_calls_that_hang_open_it_although_the_window_never_holds_enough_of_them(time, settings, failures):
    """Each fails after the 3 s of redis.connection.timeout."""
    breaker = Breaker(settings, time, in_a_row=True)
    for _ in range(failures - 1):
        time.now += 3
        fail(breaker)
    assert breaker.state is BreakerState.CLOSED
    time.now += 3
    fail(breaker)
    assert (breaker.state, breaker.status().trips) == (BreakerState.OPEN, 1)


def test_a_success_ends_a_row_of_failures(time):
    breaker = Breaker(BreakerSettings(), time, in_a_row=True)
    for _ in range(10):
        for _ in range(4):
            time.now += 3
            fail(breaker)
        breaker.succeeded(breaker.allow())
    assert breaker.status().trips == 0


def test_a_row_begins_anew_when_it_is_closed(time):
    breaker = half_opened(Breaker(BreakerSettings(), time, in_a_row=True), time)
    breaker.succeeded(breaker.allow())
    for _ in range(4):
        time.now += 3
        fail(breaker)
    assert breaker.state is BreakerState.CLOSED


def test_answers_from_before_the_trip_do_not_belong_to_the_row(time):
    breaker = Breaker(BreakerSettings(), time, in_a_row=True)
    late = breaker.allow()
    opened(breaker)
    breaker.reset()
    for _ in range(4):
        time.now += 3
        fail(breaker)
        breaker.failed(late)
        breaker.succeeded(late)
    assert breaker.state is BreakerState.CLOSED
    time.now += 3
    fail(breaker)
    assert breaker.state is BreakerState.OPEN
