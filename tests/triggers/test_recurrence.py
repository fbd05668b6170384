"""When a recurring job is due first, and when again: tables. Times are ms, the interval is 10 s."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tocsin import Every, InvalidTrigger, Once
from tocsin.model.job import Policy, Spec
from tocsin.triggers import misfires
from tocsin.triggers.misfires import is_misfire
from tocsin.triggers.recurrence import first_due, occurrences, phase, tick_after, tick_from, upcoming

T = 1_900_000_000_000
TEN = Every("10s")


def spec(**rules) -> Spec:
    return Spec("handler", trigger=TEN, policy=Policy(**rules) if rules else None)


ONCE = Spec("handler", trigger=Once(datetime(2030, 1, 1, tzinfo=UTC)))


@pytest.mark.parametrize(
    ("rules", "now", "due"),
    [
        ({}, T, T + 10_000),
        ({"starts": T + 3}, T, T + 3),
        ({"starts": T}, T, T),
        ({"starts": T - 1}, T, T + 9_999),
        ({"starts": T - 10_000}, T, T),
        ({"starts": T - 10_001}, T, T + 9_999),
        ({"starts": T - 1_000_000_003}, T, T + 9_997),
        ({"starts": T, "ends": T}, T, T),
        ({"ends": T + 10_000}, T, T + 10_000),
    ],
)
def test_a_new_schedule_is_due_after_one_interval_or_on_the_cadence_of_its_start(rules, now, due):
    assert first_due(TEN, Policy(**rules), "job", now) == due


def test_once_is_due_at_its_moment_also_a_past_one():
    at = datetime(2020, 1, 1, tzinfo=UTC)
    assert first_due(Once(at), Policy(), "job", T) == int(at.timestamp() * 1000)


@pytest.mark.parametrize("rules", [{"ends": T + 9_999}, {"starts": T + 5, "ends": T + 4}, {"starts": 0, "ends": T - 1}])
def test_a_schedule_that_would_never_run_is_refused(rules):
    with pytest.raises(InvalidTrigger, match="would never run"):
        first_due(TEN, Policy(**rules), "job", T)


@pytest.mark.parametrize(
    ("rules", "late", "following"),
    [
        ({}, 0, 10_000),
        ({}, 9_999, 10_000),
        ({}, 10_000, 10_000),
        ({}, 10_001, 20_000),
        ({}, 35_000, 40_000),
        ({}, 40_000, 40_000),
        ({"misfire": "skip"}, 35_000, 40_000),
        ({"misfire": "all"}, 35_000, 10_000),
        ({"misfire": "all", "catch_up": 15.0}, 35_000, 20_000),
        ({"misfire": "all", "catch_up": 14.999}, 35_000, 30_000),
        ({"misfire": "all", "catch_up": 0.0}, 35_000, 40_000),
        ({"misfire": "all", "catch_up": 3600.0}, 35_000, 10_000),
        # How long is owed is a question of misfire `all` alone.
        ({"misfire": "coalesce", "catch_up": 15.0}, 35_000, 40_000),
        ({"ends": T + 10_000}, 0, 10_000),
        ({"ends": T + 9_999}, 0, None),
        ({"ends": T + 39_999}, 35_000, None),
        # A clock that was set back does not bring an occurrence again.
        ({}, -50_000, 10_000),
    ],
)
def test_the_next_occurrence_is_on_the_cadence_and_as_the_misfire_policy_wants_it(rules, late, following):
    found = misfires.after_run(spec(**rules), T, T + late, T + late).next_due
    assert found == (None if following is None else T + following)


@pytest.mark.parametrize("one_shot", [ONCE, Spec("handler")])
def test_what_fires_once_has_no_next_occurrence(one_shot):
    assert tick_after(one_shot, T) is None
    assert upcoming(one_shot, T, 5) == [T]
    assert not is_misfire(one_shot, T, T + 10**9)


@pytest.mark.parametrize(
    ("rules", "late", "misfire"),
    [
        ({}, 10**9, False),
        ({"misfire": "all"}, 10**9, False),
        ({"misfire": "skip"}, 0, False),
        ({"misfire": "skip"}, 9_999, False),
        ({"misfire": "skip"}, 10_000, True),
        ({"misfire": "skip", "grace": 2.0}, 2_000, False),
        ({"misfire": "skip", "grace": 2.0}, 2_001, True),
        ({"misfire": "skip", "grace": 0.0}, 1, True),
        ({"misfire": "coalesce", "grace": 2.0}, 10**9, False),
        ({"misfire": "skip"}, -50_000, False),
    ],
)
def test_a_run_is_too_late_only_where_late_runs_are_to_be_skipped(rules, late, misfire):
    assert is_misfire(spec(**rules), T, T + late) is misfire


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        (0, 30_000, [0, 10_000, 20_000]),
        (1, 30_000, [10_000, 20_000]),
        (0, 30_001, [0, 10_000, 20_000, 30_000]),
        (-25_000, 1, [-20_000, -10_000, 0]),
        (5, 6, []),
        (30_000, 0, []),
    ],
)
def test_the_occurrences_of_a_span_stand_on_the_cadence_its_end_excluded(start, end, found):
    assert occurrences(spec(), T, T + start, T + end, 100) == [T + each for each in found]


def test_occurrences_are_limited_and_far_spans_cost_nothing():
    assert occurrences(spec(), T, 0, T, 2) == [0, 10_000]


def test_a_one_shot_occurs_where_it_is_due():
    assert occurrences(ONCE, T, T, T + 1, 9) == [T]
    assert occurrences(ONCE, T, T + 1, T + 9, 9) == []


def test_upcoming_times_begin_with_the_one_that_is_due_and_end_with_the_schedule():
    assert upcoming(spec(), T, 3) == [T, T + 10_000, T + 20_000]
    assert upcoming(spec(ends=T + 15_000), T, 9) == [T, T + 10_000]
    assert upcoming(spec(), T, 0) == []


def test_a_schedule_whose_end_has_passed_has_nothing_to_go_on_with():
    assert tick_from(spec(ends=T + 15_000), T, T + 10_000) == T + 10_000
    assert tick_from(spec(ends=T + 15_000), T, T + 10_001) is None
    assert tick_from(ONCE, T, T + 99) is None


def test_jitter_moves_the_phase_of_a_schedule_by_a_stable_hash():
    assert phase("job", 0.0) == 0
    assert [phase(f"job-{n}", 60.0) for n in range(4)] == [13_891, 17_873, 49_990, 38_038]
    assert first_due(TEN, Policy(jitter=60.0), "job-0", T) == T + 10_000 + 13_891


def test_jitter_spreads_many_schedules_evenly():
    buckets = [0] * 10
    for n in range(10_000):
        buckets[phase(f"job-{n}", 60.0) // 6_000] += 1
    assert min(buckets) > 800
    assert max(buckets) < 1200
