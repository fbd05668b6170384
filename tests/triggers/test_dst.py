"""Cron against a walk through every minute: in one whole year, and around each change of the clock for thirty years."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support.dst_oracle import DAY_NAMES, EDGE_H, MONTH_NAMES, YEARS, ZONES, around_changes, ticks, whole_year
from tocsin import Cron
from tocsin.model.trigger import DST
from tocsin.triggers.next_tick import next_after


def numbers(low: int, high: int, names: tuple[str, ...] = ()) -> st.SearchStrategy[str]:
    one = st.integers(low, high)
    single = one.map(str) | (st.sampled_from(names) if names else st.nothing())
    span = st.tuples(one, one).map(lambda pair: f"{min(pair)}-{max(pair)}")
    stepped = st.tuples(st.just("*") | span | one.map(str), st.integers(1, high)).map("{0[0]}/{0[1]}".format)
    term = single | span | stepped
    return st.just("*") | term | st.lists(single | span, min_size=2, max_size=4).map(",".join)


# Mostly when clocks change: in the first hours of a day, in spring, autumn and, for Apia, at the end of the year.
minutes = st.sampled_from(["0", "30", "*/15", "0,30", "59", "*"]) | numbers(0, 59)
hours = st.sampled_from(["0", "1", "2", "3", "0-3", "1,2", "*", "*/2"]) | numbers(0, 23)
days = st.sampled_from(["*", "*", "*", "L", "30"]) | numbers(1, 28)
months = st.sampled_from(["*", "*", "*", "mar-apr,oct-dec"]) | numbers(1, 12, MONTH_NAMES)
weekdays = st.sampled_from(["*", "*", "*", "sun", "0L", "7#2", "SAT#1", "5L"]) | numbers(0, 7, DAY_NAMES)
expressions = st.tuples(minutes, hours, days, months, weekdays).map(" ".join)
with_seconds = st.tuples(st.sampled_from(["0", "30", "15,45", "*/20", "59"]), expressions).map(" ".join)


def check(spans, cron: Cron, rng: Random, asked: int) -> None:
    for span in spans:
        first, last = (span.first + 60 * EDGE_H) * 60, (span.first + len(span.shown) - 60 * EDGE_H) * 60
        expected = ticks(span, cron.expression, cron.dst)
        near = [tick for tick in expected if first <= tick < last]
        moments = [rng.randrange(first, last) for _ in range(asked)]
        # From ticks, and from right before them.
        moments += [rng.choice(near) - rng.randrange(2) for _ in range(asked) if near]
        for after in moments:
            at = bisect_right(expected, after)
            if at < len(expected) and expected[at] < last:
                assert next_after(cron, after) == expected[at], (cron, datetime.fromtimestamp(after, UTC))
            else:
                found = next_after(cron, after)
                assert found is None or found >= last, (cron, datetime.fromtimestamp(after, UTC))


def examples(count: int):
    # An example that fails is told as it is: to make it smaller takes longer than to read it.
    phases = (Phase.explicit, Phase.reuse, Phase.generate)
    return settings(max_examples=count, suppress_health_check=list(HealthCheck), phases=phases)


@pytest.mark.parametrize("zone", ZONES)
@examples(8)
@given(expression=expressions | with_seconds, dst=st.sampled_from(DST), rng=st.randoms(use_true_random=False))
def test_a_year_of_ticks_is_what_a_walk_through_its_minutes_finds(zone, expression, dst, rng):
    check(whole_year(zone), _possible(expression, zone, dst), rng, 100)


@pytest.mark.parametrize("dst", DST)
@pytest.mark.parametrize("zone", [zone for zone in ZONES if zone != "Asia/Kathmandu"])
@examples(4)
@given(expression=expressions | with_seconds, rng=st.randoms(use_true_random=False))
def test_ticks_around_each_change_of_the_clock_are_what_a_walk_finds(zone, dst, expression, rng):
    check(around_changes(zone), _possible(expression, zone, dst), rng, 10)


def _possible(expression: str, zone: str, dst: str) -> Cron:
    try:
        return Cron(expression, tz=zone, dst=dst)
    except ValueError:
        # A day that no month has: it goes on without the day.
        *start, _, _, weekday = expression.split()
        return Cron(" ".join([*start, "*", "*", weekday]), tz=zone, dst=dst)


def test_the_walk_meets_every_kind_of_change():
    """Or the tests above would show nothing."""
    steps = {
        zone: {now - before for span in around_changes(zone) for before, now in itertools.pairwise(span.shown)}
        for zone in ZONES
    }
    assert steps["Europe/Paris"] == steps["America/New_York"] == steps["America/Havana"] == {1, 61, -59}
    assert steps["Australia/Lord_Howe"] == {1, 31, -29}
    assert steps["Africa/Casablanca"] == {1, 61, -59}
    assert steps["Asia/Kathmandu"] == set()
    assert 1441 in steps["Pacific/Apia"]
    assert len(around_changes("Europe/Paris")) == 2 * len(YEARS)


@pytest.mark.parametrize("expression", ["30 2 * * *", "0,30 1-3 * * *", "*/20 * * * *", "15 * * * sun", "0 3 L * *"])
@pytest.mark.parametrize("zone", ["Europe/Paris", "America/New_York"])
def test_debian_s_rules_are_those_that_cronsim_knows(zone, expression):
    start = datetime(2026, 3, 1, tzinfo=ZoneInfo(zone))
    theirs, at = CronSim(expression, start), int(start.timestamp())
    for _ in range(1500):
        at = next_after(Cron(expression, tz=zone), at)
        assert at == next(theirs).timestamp()


# What the guide tells

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "schedules.md"
PARIS = ZoneInfo("Europe/Paris")


def told() -> list[tuple[str, str, list[str]]]:
    found = []
    for line in GUIDE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        if len(cells) == 4 and cells[0].startswith("`"):
            expression, dst = cells[0].strip("`"), cells[1].strip("`")
            days = zip(("2026-03-29", "2026-10-25"), cells[2:], strict=True)
            found.append(
                (expression, dst, [f"{day} {time}" for day, at in days for time in at.split() if at != "never"])
            )
    return found


@pytest.mark.parametrize(("expression", "dst", "ran"), told())
def test_the_guide_tells_what_happens_in_paris_and_so_does_the_walk(expression, dst, ran):
    days = [int(datetime(2026, month, day, tzinfo=PARIS).timestamp()) for month, day in ((3, 29), (10, 25))]
    spans = [(day, day + 24 * 3600 - 1) for day in days]
    cron, ticked = Cron(expression, tz="Europe/Paris", dst=dst), []
    for begin, end in spans:
        at = next_after(cron, begin - 1)
        while at is not None and at < end:
            ticked.append(at)
            at = next_after(cron, at)
    assert [f"{datetime.fromtimestamp(at, PARIS):%Y-%m-%d %H:%M%z}"[:-2] for at in ticked] == ran
    walked = ticks(whole_year("Europe/Paris")[0], expression, dst)
    assert [at for at in walked if any(begin <= at < end for begin, end in spans)] == ticked


def test_the_guide_has_a_row_for_every_rule():
    assert {dst for _, dst, _ in told()} == set(DST)
