"""Durations and times as users write them."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin import InvalidArgument
from tocsin.model.durations import EARLIEST_MS, LATEST_MS, LONGEST_MS, ceil_ms, epoch_ms, millis, moment, seconds
from tocsin.model.human_time import iso, local


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("200ms", 0.2),
        ("30s", 30),
        ("5m", 300),
        ("2h", 7200),
        ("1d", 86_400),
        ("1.5h", 5400),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        (" 2 s ", 2),
        ("0s", 0),
        (0, 0),
        (2, 2),
        (0.25, 0.25),
        (timedelta(minutes=1, milliseconds=5), 60.005),
        (timedelta(0), 0),
    ],
)
def test_a_duration_is_a_number_of_seconds_a_timedelta_or_text(given, expected):
    assert seconds(given) == pytest.approx(expected)


@pytest.mark.parametrize(
    "given",
    ["", " ", "5", "s", "5 parsecs", "-5s", "5s-", "1e3s", "1,5s", "5S", "now", None, [], b"5s", object(), True, False],
)
def test_anything_else_is_refused_with_an_example(given):
    with pytest.raises(InvalidArgument, match="'30s'"):
        seconds(given)


@pytest.mark.parametrize(
    "given",
    [-1, -0.001, float("nan"), float("inf"), timedelta(seconds=-1), "400000d", 10**400, timedelta.max],
    ids=lambda given: f"{given}"[:12],
)
def test_a_duration_is_never_negative_endless_or_not_a_number(given):
    with pytest.raises(InvalidArgument, match="between 0 and 1000 years"):
        seconds(given)


def test_the_message_names_what_was_meant():
    with pytest.raises(InvalidArgument, match=r"^delay must be"):
        millis(-1, "delay")


@pytest.mark.parametrize(
    ("given", "expected"),
    [(0.2, 200), (0.2001, 201), (0.0001, 1), (0, 0), ("1.5s", 1500), (1 / 3, 334), (timedelta(microseconds=1), 1)],
)
def test_milliseconds_are_rounded_up_so_that_nothing_is_early(given, expected):
    assert millis(given) == expected


@given(st.integers(0, LONGEST_MS))
def test_whole_milliseconds_survive_the_way_through_seconds(ms):
    assert ceil_ms(ms / 1000) == ms


def test_a_naive_datetime_is_refused_and_told_how_to_be_aware():
    with pytest.raises(InvalidArgument, match=r"at must say its zone.*use datetime\.now\(UTC\)"):
        epoch_ms(datetime(2030, 1, 1), "at")


class _Undecided(tzinfo):
    def utcoffset(self, when):
        return None


def test_a_zone_that_does_not_know_its_offset_is_as_good_as_none():
    with pytest.raises(InvalidArgument, match="must say its zone"):
        epoch_ms(datetime(2030, 1, 1, tzinfo=_Undecided()))


@pytest.mark.parametrize("given", [1_700_000_000, "2030-01-01", None, datetime(2030, 1, 1, tzinfo=UTC).date()])
def test_a_time_is_a_datetime_and_nothing_else(given):
    with pytest.raises(InvalidArgument, match="must be a datetime"):
        epoch_ms(given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 1, microsecond=1, tzinfo=UTC), 1),
        (datetime(1970, 1, 1, microsecond=1000, tzinfo=UTC), 1),
        (datetime(1970, 1, 1, microsecond=1001, tzinfo=UTC), 2),
        (datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 0),
        (datetime(2030, 7, 1, 12, tzinfo=ZoneInfo("Europe/Paris")), 1_909_130_400_000),
        # The clocks go back: the same wall time, an hour apart.
        (datetime(2030, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Paris")), 1_919_291_400_000),
        (datetime(2030, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Paris")), 1_919_295_000_000),
    ],
)
def test_a_time_in_any_zone_becomes_epoch_milliseconds_rounded_up(given, expected):
    assert epoch_ms(given) == expected


@given(st.integers(0, 200_000_000_000_000))
def test_a_moment_of_whole_milliseconds_comes_back_unchanged(ms):
    assert epoch_ms(moment(ms)) == ms


@pytest.mark.parametrize("ms", [10**30, -(10**30), LATEST_MS, EARLIEST_MS, 0])
@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago", "UTC"])
def test_any_number_of_milliseconds_can_be_shown_in_any_zone(ms, zone, monkeypatch):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert moment(ms).year in (1, 1970, 9999)
        assert local(ms)
        assert iso(ms)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("hours", [-12, 12])
def test_a_time_outside_the_years_that_can_be_shown_is_refused(hours):
    zone = timezone(timedelta(hours=hours))
    edge = datetime(9999, 12, 31, 23, 59, tzinfo=zone) if hours < 0 else datetime(1, 1, 1, tzinfo=zone)
    with pytest.raises(InvalidArgument, match="at must be within the years 1 to 9999 in UTC"):
        epoch_ms(edge, "at")
