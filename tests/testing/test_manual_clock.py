"""The clock that users move in their tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tocsin import InvalidArgument
from tocsin.testing import ManualClock


def test_it_stands_still_until_it_is_moved():
    clock = ManualClock()
    assert clock.now == datetime(2030, 1, 1, tzinfo=UTC)
    assert clock.now == clock.now
    clock.advance("1h30m")
    assert clock.now == datetime(2030, 1, 1, 1, 30, tzinfo=UTC)
    clock.advance(timedelta(milliseconds=1))
    assert clock.ms == 1_893_461_400_001


def test_it_begins_where_it_is_told_to():
    start = datetime(2024, 3, 31, 0, 59, tzinfo=UTC)
    assert ManualClock(start).now == start


def test_it_can_be_set_also_backwards_as_real_clocks_are():
    clock = ManualClock()
    clock.move_to(datetime(2029, 1, 1, tzinfo=UTC))
    assert clock.now.year == 2029


@pytest.mark.parametrize("step", [-1, "-1s", "soon", None])
def test_a_step_is_a_duration(step):
    with pytest.raises(InvalidArgument, match="a step of the clock must be"):
        ManualClock().advance(step)


@pytest.mark.parametrize("when", [datetime(2030, 1, 1), "2030-01-01", 5])
def test_a_moment_is_an_aware_datetime(when):
    with pytest.raises(InvalidArgument):
        ManualClock().move_to(when)
    with pytest.raises(InvalidArgument):
        ManualClock(when)


def test_durations_follow_it():
    clock = ManualClock()
    before = clock.monotonic()
    clock.advance("90s")
    assert clock.monotonic() - before == 90
    assert clock.override() == clock.server_ms() == clock.ms


def test_no_reply_of_a_server_changes_it():
    clock = ManualClock()
    before = clock.ms
    clock.observe(5.0, 0.0, 1.0)
    assert clock.ms == before
