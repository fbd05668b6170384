"""Retry, Every, Once and the small checks around a job."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin import Every, InvalidArgument, InvalidTrigger, Once, Retry
from tocsin.model.job import check_keep, check_priority, check_timeout


def test_the_worst_case_of_three_retries_is_the_sum_of_their_longest_delays():
    assert Retry(3, "200ms", "500ms").worst_case() == pytest.approx(2.9)


@pytest.mark.parametrize(
    ("retry", "seconds"),
    [
        (Retry(0, "1h"), 0),
        (Retry(1, "1s"), 1),
        (Retry(4, "1s", factor=1), 4),
        (Retry(4, "1s", factor=10, max_interval="50s"), 1 + 10 + 50 + 50),
        (Retry(2, 0, jitter="1s"), 2),
    ],
)
def test_the_worst_case_of_other_policies(retry, seconds):
    assert retry.worst_case() == pytest.approx(seconds)


def test_the_delay_doubles_and_jitter_is_added_to_it():
    retry = Retry(3, "200ms", "500ms")
    assert [retry.delay(n, 0.0) for n in range(3)] == pytest.approx([0.2, 0.4, 0.8])
    assert [retry.delay(n, 0.5) for n in range(3)] == pytest.approx([0.45, 0.65, 1.05])


def test_a_huge_factor_does_not_overflow():
    year = 365 * 86_400
    assert Retry(10_000, "1s", factor=1e300).delay(9_999, 0.0) == 1000 * year
    assert Retry(10_000, "1s", factor=1e300, max_interval="1m").delay(9_999, 0.0) == 60


def test_no_interval_stays_no_interval_however_often_it_is_doubled():
    assert Retry(5000, 0).delay(4999, 0.0) == 0


@given(
    retries=st.integers(0, 50),
    interval=st.floats(0, 1e6),
    jitter=st.floats(0, 1e6),
    factor=st.floats(1, 1e308),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_delays_never_shrink_and_stay_below_the_worst_case(retries, interval, jitter, factor, chance):
    retry = Retry(retries, interval, jitter, factor)
    delays = [retry.delay(n, chance) for n in range(retries)]
    assert delays == sorted(delays)
    assert sum(delays) <= retry.worst_case() * (1 + 1e-9)


@pytest.mark.parametrize(
    "arguments",
    [
        {"retries": -1},
        {"retries": 1.5},
        {"retries": True},
        {"retries": "3"},
        {"interval": -1},
        {"interval": "soon"},
        {"jitter": "-1s"},
        {"factor": 0.5},
        {"factor": float("nan")},
        {"factor": float("inf")},
        {"factor": "2"},
        {"max_interval": -1},
    ],
)
def test_a_retry_that_cannot_be_is_refused(arguments):
    with pytest.raises(InvalidArgument):
        Retry(**{"retries": 1, "interval": 1, **arguments})


def test_policies_are_the_same_however_they_were_written():
    assert Every("1m") == Every(60) == Every(60.0)
    assert Retry(1, "1s", "500ms") == Retry(1, 1, 0.5)


@pytest.mark.parametrize("interval", [0, "0s", 1e-9])
def test_an_interval_below_a_millisecond_is_no_trigger(interval):
    with pytest.raises(InvalidTrigger, match="at least 1 ms"):
        Every(interval)


@pytest.mark.parametrize("interval", [-1, "soon", None, True, float("nan")])
def test_an_interval_is_a_duration(interval):
    with pytest.raises(InvalidArgument):
        Every(interval)


def test_once_needs_an_aware_moment():
    assert Once(datetime(2030, 1, 1, tzinfo=UTC)).at.year == 2030
    with pytest.raises(InvalidArgument, match="the moment of Once must say its zone"):
        Once(datetime(2030, 1, 1))


@pytest.mark.parametrize(
    ("given", "band"), [("critical", 0), ("HIGH", 1), ("Normal", 2), ("low", 3), ("background", 4)]
)
def test_priorities_are_read_in_any_case(given, band):
    assert check_priority(given) == band


def test_an_unknown_priority_names_the_nearest():
    with pytest.raises(InvalidArgument, match="did you mean 'critical'"):
        check_priority("critcal")


@pytest.mark.parametrize("timeout", [0, -1, "50d", 1e-9])
def test_a_timeout_is_between_a_millisecond_and_49_days(timeout):
    with pytest.raises(InvalidArgument):
        check_timeout(timeout)


def test_timeouts_are_milliseconds_and_keeps_are_seconds_both_rounded_up():
    assert check_timeout("1.5s") == 1500
    assert check_timeout(0.0011) == 2
    assert [check_keep(0), check_keep("200ms"), check_keep("1d")] == [0, 1, 86_400]
    with pytest.raises(InvalidArgument, match="136 years"):
        check_keep("50000d")
