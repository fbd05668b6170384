"""What each kind of trigger ticks at, alone and joined with others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import rrulestr
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin import Cron, Dates, Every, Holidays, InvalidTrigger, Once, Retry, Rrule
from tocsin.model.job import Policy, Spec
from tocsin.model.trigger import phrase, zone_of
from tocsin.triggers import misfires
from tocsin.triggers.next_tick import TickCache, next_at, shortest_distance
from tocsin.triggers.recurrence import (
    first_due,
    occurrences,
    phase,
    tick_after,
    tick_from,
    upcoming,
)

PARIS = ZoneInfo("Europe/Paris")


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def local(trigger, since: str, n: int, zone: str | None = None) -> list[str]:
    found, at = [], ms(since)
    while len(found) < n and (at := next_at(trigger, at)) is not None:
        found.append(f"{datetime.fromtimestamp(at / 1000, ZoneInfo(zone or zone_of(trigger))):%Y-%m-%d %H:%M:%S}")
        at += 1
    return found


@pytest.mark.parametrize(
    ("expression", "ticks"),
    [
        ("@hourly", ["2026-01-01 01:00:00", "2026-01-01 02:00:00"]),
        ("@daily", ["2026-01-02 00:00:00", "2026-01-03 00:00:00"]),
        ("@midnight", ["2026-01-02 00:00:00", "2026-01-03 00:00:00"]),
        ("@weekly", ["2026-01-04 00:00:00", "2026-01-11 00:00:00"]),
        ("@monthly", ["2026-02-01 00:00:00", "2026-03-01 00:00:00"]),
        ("@yearly", ["2027-01-01 00:00:00", "2028-01-01 00:00:00"]),
        ("@Annually", ["2027-01-01 00:00:00", "2028-01-01 00:00:00"]),
        ("*/20 * * * * *", ["2026-01-01 00:00:20", "2026-01-01 00:00:40"]),
        ("0 12 L * *", ["2026-01-31 12:00:00", "2026-02-28 12:00:00"]),
        ("0 12 LW * *", ["2026-01-30 12:00:00", "2026-02-27 12:00:00"]),
        ("0 12 * * fri#2", ["2026-01-09 12:00:00", "2026-02-13 12:00:00"]),
        ("0 12 * * 5L", ["2026-01-30 12:00:00", "2026-02-27 12:00:00"]),
        ("0 0 29 2 *", ["2028-02-29 00:00:00", "2032-02-29 00:00:00"]),
        ("0 0 13 * 5", ["2026-01-02 00:00:00", "2026-01-09 00:00:00"]),
        ("5 4 * JAN,mar MON-fri", ["2026-01-01 04:05:00", "2026-01-02 04:05:00"]),
    ],
)
def test_cron_expressions_mean_what_cron_takes_them_for(expression, ticks):
    assert local(Cron(expression), "2026-01-01T00:00:00.001Z", 2) == ticks


def test_a_tick_is_never_early_and_on_whole_seconds():
    cron = Cron("* * * * * *")
    assert next_at(cron, 1_700_000_000_000) == 1_700_000_000_000
    assert next_at(cron, 1_700_000_000_001) == 1_700_000_001_000


def test_far_and_early_moments_find_an_end():
    assert next_at(Cron("0 9 * * *"), 250_000_000_000_000_000) is None
    assert next_at(Cron("0 9 * * *", tz="Europe/Paris"), -60_000_000_000_000) is not None
    assert next_at(Rrule("FREQ=YEARLY", start=datetime(9990, 1, 1, tzinfo=UTC)), ms("2026-01-01T00:00Z")) is None


# Every, with an anchor


def test_an_anchored_every_keeps_to_its_anchor_whatever_it_was_put():
    every = Every("1h", anchor=datetime(2026, 1, 1, 0, 10, tzinfo=UTC))
    assert local(every, "2026-01-05T09:30Z", 2) == ["2026-01-05 10:10:00", "2026-01-05 11:10:00"]
    assert local(every, "2025-12-31T22:15Z", 1) == ["2025-12-31 23:10:00"]
    spec, off = Spec("h", trigger=every), ms("2026-01-05T09:33Z")
    assert first_due(every, Policy(), "j", off) == tick_after(spec, off) == ms("2026-01-05T10:10Z")


# Unions and days left out


def test_a_union_ticks_when_any_of_it_does_and_once_when_several_do():
    union = (
        Cron("0 9 * * *", tz="Europe/Paris")
        | Cron("0 9,17 * * *", tz="Europe/Paris")
        | Once(datetime(2026, 1, 1, 12, tzinfo=PARIS))
    )
    assert [tick[-14:] for tick in local(union, "2026-01-01T00:00Z", 5)] == [
        "01-01 08:00:00", "01-01 11:00:00", "01-01 16:00:00", "01-02 08:00:00", "01-02 16:00:00",
    ]  # fmt: skip
    assert local(Every("6h") | Cron("0 1 * * *"), "2026-01-01T00:00:01Z", 3) == [
        "2026-01-01 01:00:00", "2026-01-01 06:00:00", "2026-01-01 12:00:00",
    ]  # fmt: skip


def test_days_are_left_out_in_the_zone_of_the_trigger():
    assert local(Cron("0 9 * * *", tz="Europe/Paris") - Holidays("FR"), "2026-04-30T00:00Z", 3) == [
        "2026-04-30 09:00:00", "2026-05-02 09:00:00", "2026-05-03 09:00:00",
    ]  # fmt: skip
    late = Cron("30 23 * * *", tz="America/New_York") - Dates(["2026-03-03"])
    assert local(late, "2026-03-02T12:00Z", 2) == ["2026-03-02 23:30:00", "2026-03-04 23:30:00"]


def test_a_day_that_is_left_out_costs_little_however_many_ticks_it_has():
    seconds = Every("1s") - Dates([datetime(2026, 1, 1).date() + timedelta(days=n) for n in range(1000)])
    assert local(seconds, "2026-01-01T00:00Z", 2) == ["2028-09-27 00:00:00", "2028-09-27 00:00:01"]


def test_a_midnight_that_does_not_exist_ends_a_day_all_the_same():
    havana = Cron("*/30 * * * *", tz="America/Havana") - Dates(["2026-03-07"])
    assert local(havana, "2026-03-07T04:00Z", 2) == ["2026-03-06 23:00:00", "2026-03-06 23:30:00"]
    assert local(havana, "2026-03-07T05:00Z", 2) == ["2026-03-08 01:00:00", "2026-03-08 01:30:00"]


def test_days_of_a_union_are_left_out_of_each_part():
    union = (Cron("0 9 * * *") | Cron("0 10 * * *")) - Dates(["2026-01-01"])
    assert union == Cron("0 9 * * *") - Dates(["2026-01-01"]) | Cron("0 10 * * *") - Dates(["2026-01-01"])
    assert local(union, "2026-01-01T00:00Z", 1) == ["2026-01-02 09:00:00"]


def test_a_trigger_whose_days_are_all_left_out_would_never_run():
    christmas = Cron("0 0 25 12 *") - Holidays("US")
    with pytest.raises(InvalidTrigger, match="would never run: its trigger has no time left"):
        first_due(christmas, Policy(), "job", ms("2026-01-01T00:00Z"))


# Rules of RFC 5545


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        ("FREQ=WEEKLY;INTERVAL=2;BYDAY=MO", ["2026-04-13 09:00:00", "2026-04-27 09:00:00"]),
        ("RRULE:FREQ=MONTHLY;BYDAY=-1FR", ["2026-04-24 09:00:00", "2026-05-29 09:00:00"]),
        ("FREQ=DAILY;INTERVAL=3", ["2026-04-02 09:00:00", "2026-04-05 09:00:00"]),
        ("FREQ=HOURLY;INTERVAL=36", ["2026-04-02 09:00:00", "2026-04-03 21:00:00"]),
        ("FREQ=YEARLY;BYMONTH=5;BYMONTHDAY=-1", ["2026-05-31 09:00:00", "2027-05-31 09:00:00"]),
        ("FREQ=MONTHLY;BYMONTHDAY=31", ["2026-05-31 09:00:00", "2026-07-31 09:00:00"]),
        ("FREQ=DAILY;COUNT=90", ["2026-04-01 09:00:00", "2026-04-02 09:00:00"]),
        ("FREQ=DAILY;UNTIL=20260402", ["2026-04-01 09:00:00", "2026-04-02 09:00:00"]),
        ("FREQ=DAILY;UNTIL=20260401T070000Z", ["2026-04-01 09:00:00"]),
        ("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1", ["2026-04-30 09:00:00", "2026-05-29 09:00:00"]),
    ],
)
def test_rules_keep_their_phase_far_from_their_start(text, ticks):
    rule = Rrule(text, start=datetime(2026, 1, 5, 9, tzinfo=PARIS), tz="Europe/Paris")
    assert local(rule, "2026-04-01T00:00Z", 2) == ticks


def test_a_rule_that_has_counted_to_its_end_is_over():
    rule = Rrule("FREQ=DAILY;COUNT=3", start=datetime(2026, 1, 5, 9, tzinfo=UTC))
    assert local(rule, "2020-01-01T00:00Z", 9) == ["2026-01-05 09:00:00", "2026-01-06 09:00:00", "2026-01-07 09:00:00"]
    assert tick_after(Spec("h", trigger=rule), ms("2026-01-07T09:00Z")) is None


def test_a_rule_reads_a_time_that_does_not_exist_with_the_offset_before_and_takes_the_first_of_two():
    rule = Rrule("FREQ=DAILY", start=datetime(2026, 1, 1, 2, 30, tzinfo=PARIS), tz="Europe/Paris")
    assert local(rule, "2026-03-29T00:00Z", 1) == ["2026-03-29 03:30:00"]
    assert next_at(rule, ms("2026-10-25T00:00Z")) == ms("2026-10-25T00:30Z")
    assert next_at(rule, ms("2026-10-25T00:30:01Z")) == ms("2026-10-26T01:30Z")


FREQS = st.sampled_from(["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY"])
PARTS = st.lists(
    st.sampled_from(
        ["BYMONTH=3,7", "BYMONTHDAY=1,15", "BYDAY=MO,SU", "BYHOUR=3,21", "BYMINUTE=0,45", "WKST=SU", "BYSECOND=9"]
    ),
    max_size=3,
    unique_by=lambda part: part.partition("=")[0],
)


@settings(max_examples=60)
@given(
    freq=FREQS,
    interval=st.integers(1, 9),
    parts=PARTS,
    days=st.integers(0, 900),
    start=st.datetimes(datetime(2024, 1, 1), datetime(2025, 1, 1), timezones=st.just(UTC)),
)
def test_a_rule_started_anew_near_its_time_is_the_rule_from_its_start(freq, interval, parts, days, start):
    start, text = start.replace(microsecond=0), ";".join([f"FREQ={freq}", f"INTERVAL={interval}", *parts])
    try:
        rule = Rrule(text, start=start)
    except InvalidTrigger:
        return
    after = start.replace(tzinfo=None) + timedelta(days=days)
    slow = rrulestr(text, dtstart=start.replace(tzinfo=None)).after(after, inc=True)
    found = next_at(rule, int(after.replace(tzinfo=UTC).timestamp()) * 1000)
    assert found == (None if slow is None else int(slow.replace(tzinfo=UTC).timestamp()) * 1000)


# Due times


DAILY = Spec("h", trigger=Cron("0 9 * * *", tz="Europe/Paris"), policy=Policy(jitter=3600.0))
SHIFT = phase("job", 3600.0)
NINE = ms("2026-01-05T08:00Z") + SHIFT
DAY = 86_400_000


def test_jitter_moves_all_due_times_of_a_job_alike():
    assert 0 < SHIFT < 3_600_000
    assert first_due(DAILY.trigger, DAILY.rules, "job", NINE - 1) == NINE
    assert first_due(DAILY.trigger, DAILY.rules, "job", NINE) == NINE + DAY
    assert tick_after(DAILY, NINE, SHIFT) == NINE + DAY
    assert upcoming(DAILY, NINE, 3, SHIFT) == [NINE, NINE + DAY, NINE + 2 * DAY]
    assert occurrences(DAILY, NINE, NINE - DAY, NINE + DAY, 9, SHIFT) == [NINE - DAY, NINE]


def test_ticks_are_told_from_a_tick_and_a_moment():
    assert tick_from(DAILY, NINE, NINE - 99, SHIFT) == NINE
    assert tick_from(DAILY, NINE, NINE + 1, SHIFT) == NINE + DAY
    assert misfires.after_run(DAILY, NINE, NINE, NINE + 3 * DAY + 5, SHIFT).next_due == NINE + 4 * DAY
    assert tick_from(DAILY, NINE, NINE + 3 * DAY, SHIFT) == NINE + 3 * DAY
    ends = Spec("h", trigger=DAILY.trigger, policy=Policy(ends=ms("2026-01-06T08:00Z")))
    assert tick_after(ends, ms("2026-01-05T08:00Z")) == ms("2026-01-06T08:00Z")
    assert tick_after(ends, ms("2026-01-06T08:00Z")) is None
    assert tick_from(ends, ms("2026-01-05T08:00Z"), ms("2026-01-06T08:01Z")) is None


def test_a_schedule_begins_at_its_start_and_not_at_this_very_moment():
    cron, nine = Cron("0 9 * * *"), ms("2026-01-05T09:00Z")
    assert first_due(cron, Policy(), "j", nine) == nine + DAY
    assert first_due(cron, Policy(starts=nine + 3 * DAY), "j", nine) == nine + 3 * DAY
    with pytest.raises(InvalidTrigger, match="its first time is after `ends`"):
        first_due(cron, Policy(ends=nine + 99), "j", nine)


def test_what_is_remembered_of_a_trigger_is_what_it_says():
    known, cron = TickCache(), Cron("*/7 3-5 * * *", tz="Europe/Paris")
    for since in range(ms("2026-03-28T00:00Z"), ms("2026-03-30T00:00Z"), 311_000):
        assert known.next_at(cron, since) == next_at(cron, since)


@pytest.mark.parametrize(
    ("trigger", "distance"),
    [
        (Every("90s"), 90_000),
        (Cron("0 9,10 * * mon"), 3_600_000),
        (Cron("0 9 * * *") | Cron("1 9 * * *"), 60_000),
        (Once(datetime(2026, 1, 1, tzinfo=UTC)), None),
    ],
)
def test_the_shortest_distance_between_two_ticks(trigger, distance):
    assert shortest_distance(trigger) == distance


def test_the_worst_case_of_endless_retries_is_told_at_once():
    assert Retry(3, "200ms", "500ms").worst_case() == pytest.approx(2.9)
    assert Retry(10**12, "1ms", factor=1).worst_case() == pytest.approx(1e9)


@given(
    st.sampled_from(
        [Cron("*/3 * * * *"), Every("7s") | Cron("0 * * * *"), Every("1m", anchor=datetime(2026, 1, 1, tzinfo=UTC))]
    ),
    st.integers(0, 4_000_000_000_000),
)
def test_ticks_rise_and_none_is_left_out(trigger, since):
    first = next_at(trigger, since)
    assert first >= since
    ticks = occurrences(Spec("h", trigger=trigger), 0, since, since + 1_000_000, 999)
    assert ticks[0] == first
    assert all(before < after == next_at(trigger, before + 1) for before, after in pairwise(ticks))


def test_triggers_are_told_in_a_few_words():
    told = phrase(Cron("0 9 * * *", tz="Europe/Paris") - Holidays("DE", subdiv="BY") | Every("90s"))
    assert told == "0 9 * * * Europe/Paris - holidays DE-BY | every 90s"
