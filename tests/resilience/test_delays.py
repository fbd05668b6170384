"""How long failures wait: the seed's table, and what holds for all settings."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin import InvalidArgument
from tocsin.resilience.backoff import BackoffSettings, Streaks, delay_ms
from tocsin.resilience.classify import FailureClass

FORBIDDEN, THROTTLED = FailureClass.PERMANENT_FORBIDDEN, FailureClass.THROTTLED
TRANSIENT, SERVER_ERROR, UNKNOWN = FailureClass.TRANSIENT, FailureClass.SERVER_ERROR, FailureClass.UNKNOWN
ERROR_INTERVAL = 7_000
# The middle of the jitter.
EXACT = 0.5


def on(**changes) -> BackoffSettings:
    return BackoffSettings(enabled=True, **changes)


def test_the_settings_are_the_seeds():
    assert BackoffSettings() == BackoffSettings(False, 0, 1_800_000, 30_000, 2.0, 600_000, 0.1)


@pytest.mark.parametrize(
    ("settings", "failure", "streak", "delay"),
    [
        (on(), FORBIDDEN, 1, 1_800_000),
        (on(), FORBIDDEN, 50, 1_800_000),
        (on(), THROTTLED, 1, 30_000),
        (on(), THROTTLED, 2, 60_000),
        (on(), THROTTLED, 5, 480_000),
        (on(), THROTTLED, 6, 600_000),
        (on(), THROTTLED, 10_000, 600_000),
        (on(), THROTTLED, 0, 30_000),
        (on(throttled_multiplier=1.5), THROTTLED, 3, 67_500),
        (on(throttled_multiplier=2), THROTTLED, 10**9, 600_000),
        (on(throttled_multiplier=1), THROTTLED, 10**9, 30_000),
        (on(throttled_base_ms=0), THROTTLED, 10_000, 0),
        (on(throttled_cap_ms=1_000), THROTTLED, 1, 1_000),
        (on(), TRANSIENT, 1, ERROR_INTERVAL),
        (on(max_immediate_retries=2), TRANSIENT, 1, 0),
        (on(max_immediate_retries=2), TRANSIENT, 2, 0),
        (on(max_immediate_retries=2), TRANSIENT, 3, ERROR_INTERVAL),
        (on(max_immediate_retries=2), SERVER_ERROR, 2, 0),
        (on(max_immediate_retries=2), SERVER_ERROR, 3, ERROR_INTERVAL),
        (on(max_immediate_retries=2), UNKNOWN, 1, ERROR_INTERVAL),
        (on(max_immediate_retries=2), THROTTLED, 1, 30_000),
        (on(max_immediate_retries=-1), TRANSIENT, 1, ERROR_INTERVAL),
    ],
)
def test_each_class_has_its_delay(settings, failure, streak, delay):
    assert delay_ms(settings, failure, streak, ERROR_INTERVAL, EXACT) == delay


@pytest.mark.parametrize("failure", FailureClass)
@pytest.mark.parametrize(("chance", "share"), [(0.0, 0.9), (0.5, 1.0), (0.9999999, 1.1)])
def test_disabled_every_failure_waits_the_error_interval_with_jitter(failure, chance, share):
    settings = BackoffSettings(max_immediate_retries=5)
    assert delay_ms(settings, failure, 1, ERROR_INTERVAL, chance) == pytest.approx(ERROR_INTERVAL * share, abs=1)


@pytest.mark.parametrize(
    ("failure", "lowest", "highest"),
    [(FORBIDDEN, 1_620_000, 1_980_000), (THROTTLED, 540_000, 660_000), (UNKNOWN, 6_300, 7_700)],
)
def test_jitter_is_symmetric_and_comes_after_the_cap(failure, lowest, highest):
    assert delay_ms(on(), failure, 100, ERROR_INTERVAL, 0.0) == lowest
    assert delay_ms(on(), failure, 100, ERROR_INTERVAL, math.nextafter(1, 0)) == highest


def test_an_immediate_retry_has_no_jitter():
    assert delay_ms(on(max_immediate_retries=1, jitter_ratio=1), TRANSIENT, 1, ERROR_INTERVAL, 0.99) == 0


@given(
    st.builds(
        on,
        max_immediate_retries=st.integers(-1, 5),
        permanent_forbidden_backoff_ms=st.integers(0, 10**9),
        throttled_base_ms=st.integers(0, 10**9),
        throttled_multiplier=st.floats(1, 1e308),
        throttled_cap_ms=st.integers(0, 10**9),
        jitter_ratio=st.floats(0, 1),
    ),
    st.sampled_from(FailureClass),
    st.one_of(st.integers(1, 20), st.integers(1, 10**12)),
    st.integers(0, 10**9),
    st.floats(0, 1, exclude_max=True),
)
def test_jitter_stays_within_its_ratio_and_delays_do_not_shrink_with_the_streak(
    settings, failure, streak, error_interval, chance
):
    delay = delay_ms(settings, failure, streak, error_interval, chance)
    middle = delay_ms(settings, failure, streak, error_interval, EXACT)
    assert isinstance(delay, int)
    # Rounded to whole milliseconds, both of them.
    assert abs(delay - middle) <= middle * settings.jitter_ratio + 1
    assert 0 <= delay <= 2 * 10**9
    assert middle <= delay_ms(settings, failure, streak + 1, error_interval, EXACT)
    if failure is THROTTLED:
        assert middle <= settings.throttled_cap_ms


@pytest.mark.parametrize(
    "wrong",
    [
        {"permanent_forbidden_backoff_ms": -1},
        {"throttled_base_ms": -1},
        {"throttled_cap_ms": -1},
        {"throttled_multiplier": 0.5},
        {"throttled_multiplier": math.inf},
        {"throttled_multiplier": math.nan},
        {"jitter_ratio": -0.1},
        {"jitter_ratio": 1.1},
        {"jitter_ratio": math.nan},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        BackoffSettings(**wrong)


def test_a_streak_grows_with_each_failure_and_ends_with_a_success():
    streaks = Streaks()
    assert [streaks.failed("a"), streaks.failed("a"), streaks.failed("b"), streaks.failed("a")] == [1, 2, 1, 3]
    streaks.succeeded("a")
    streaks.succeeded("never failed")
    assert (streaks.of("a"), streaks.of("b"), streaks.failed("a")) == (0, 1, 1)
    assert len(streaks.by_job) == 2


def test_beyond_the_limit_the_job_that_failed_longest_ago_is_forgotten():
    streaks = Streaks(limit=2)
    for job_id in ("a", "b", "a", "c"):
        streaks.failed(job_id)
    assert [streaks.of(job_id) for job_id in "abc"] == [2, 0, 1]
    assert len(streaks.by_job) == 2
