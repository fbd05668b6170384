"""What a schedule owes, as a table: the interval is 10 s, times are seconds after the due time T."""

from __future__ import annotations

import pytest

from tocsin import Every
from tocsin.model.job import OVERLAPS, Policy, Spec
from tocsin.triggers import misfires

T = 1_900_000_000_000
# Nothing passed: what is due is due.
NONE: list[tuple[float, float, str]] = []


def ms(seconds: float) -> int:
    return T + round(seconds * 1000)


def spec(**rules) -> Spec:
    return Spec("handler", trigger=Every("10s"), policy=Policy(**rules))


def told(step: misfires.NextTick) -> tuple[float | None, list[tuple[float, float, str]]]:
    """The next due time and the ranges, as the tables have them."""
    following = None if step.next_due is None else (step.next_due - T) / 1000
    return following, [((s.first - T) / 1000, (s.until - T) / 1000, s.why.name.lower()) for s in step.skips]


AFTER = [
    # rules, started, now -> next, passed
    # In time: nothing passes, whatever the rules.
    *[({"overlap": overlap}, 0, 9.999, 10, NONE) for overlap in OVERLAPS],
    *[({"overlap": overlap, "misfire": "all"}, 0, 10, 10, NONE) for overlap in OVERLAPS],
    # A clock that was set back does not bring a tick again.
    ({}, -50, -40, 10, NONE),
    # Late by downtime: the run stands for all that were due.
    ({}, 35, 36, 40, [(10, 35, "coalesced")]),
    ({}, 30, 30, 30, [(10, 30, "coalesced")]),
    # Long: what passed meanwhile overlapped.
    ({}, 0, 35, 40, [(10, 40, "overlap")]),
    ({}, 5, 10.001, 20, [(10, 20, "overlap")]),
    # Both.
    ({}, 25, 47, 50, [(10, 25, "coalesced"), (30, 50, "overlap")]),
    # A tick at the very start was not due before it.
    ({}, 20, 41, 50, [(10, 20, "coalesced"), (20, 50, "overlap")]),
    # Within a long grace it ran, and stands for the others.
    ({"misfire": "skip", "grace": 60.0}, 25, 47, 50, [(10, 25, "coalesced"), (30, 50, "overlap")]),
    # All that is owed from before the start runs, one after the other.
    ({"misfire": "all"}, 35, 36, 10, NONE),
    ({"misfire": "all"}, 35, 360, 10, NONE),
    ({"misfire": "all", "catch_up": 15.0}, 35, 35, 20, [(10, 20, "misfire")]),
    ({"misfire": "all", "catch_up": 14.999}, 35, 35, 30, [(10, 30, "misfire")]),
    ({"misfire": "all", "catch_up": 0.0}, 35, 35, 40, [(10, 35, "misfire")]),
    ({"misfire": "all", "catch_up": 15.0}, 35, 47, 50, [(10, 35, "misfire"), (40, 50, "overlap")]),
    # Nothing owed from before: what passed meanwhile is skipped.
    ({"misfire": "all"}, 0, 35, 40, [(10, 40, "overlap")]),
    # A buffer of one: the first that passed since the start.
    ({"overlap": "buffer_one"}, 0, 35, 10, NONE),
    ({"overlap": "buffer_one"}, 25, 47, 30, [(10, 25, "coalesced")]),
    ({"overlap": "buffer_one"}, 35, 36, 40, [(10, 35, "coalesced")]),
    ({"overlap": "buffer_one", "misfire": "skip"}, 25, 47, 30, [(10, 30, "overlap")]),
    ({"overlap": "buffer_one", "misfire": "all"}, 25, 47, 10, NONE),
    ({"overlap": "buffer_one", "misfire": "all", "catch_up": 20.0}, 25, 47, 30, [(10, 30, "misfire")]),
    # A buffer of all: each, in order. Only beyond an explicit grace is one late.
    ({"overlap": "buffer_all"}, 0, 35, 10, NONE),
    ({"overlap": "buffer_all"}, 35, 36, 10, NONE),
    ({"overlap": "buffer_all", "grace": 30.0}, 35, 36, 40, [(10, 35, "coalesced")]),
    ({"overlap": "buffer_all", "grace": 30.0}, 35, 47, 40, [(10, 35, "coalesced")]),
    ({"overlap": "buffer_all", "grace": 35.0}, 35, 47, 10, NONE),
    ({"overlap": "buffer_all", "misfire": "skip", "grace": 1.0}, 0, 47, 10, NONE),
    ({"overlap": "buffer_all", "misfire": "all", "catch_up": 17.0}, 0, 47, 30, [(10, 30, "misfire")]),
    # The end of a schedule.
    ({"ends": T + 9_999}, 0, 100, None, NONE),
    ({"ends": T + 25_000}, 0, 30, None, [(10, 30, "overlap")]),
    ({"ends": T + 25_000}, 15, 30, None, [(10, 15, "coalesced"), (20, 30, "overlap")]),
    ({"ends": T + 25_000, "misfire": "all"}, 30, 31, 10, NONE),
    ({"ends": T + 25_000, "misfire": "all", "catch_up": 1.0}, 30, 31, None, [(10, 30, "misfire")]),
]


@pytest.mark.parametrize(("rules", "started", "now", "following", "passed"), AFTER)
def test_after_a_run_the_next_tick_and_those_that_pass(rules, started, now, following, passed):
    assert told(misfires.after_run(spec(**rules), T, ms(started), ms(now))) == (following, passed)


@pytest.mark.parametrize("overlap", sorted(misfires.EXTRA_RUN_OVERLAPS))
@pytest.mark.parametrize(
    ("rules", "now", "following", "passed"),
    [
        ({}, 0, 10, NONE),
        ({}, 10, 10, NONE),
        ({}, 35, 40, [(10, 35, "coalesced")]),
        ({"misfire": "all"}, 35, 10, NONE),
        ({"misfire": "all", "catch_up": 15.0}, 35, 20, [(10, 20, "misfire")]),
        # Each is judged by its own grace.
        ({"misfire": "skip", "grace": 60.0}, 35, 10, NONE),
    ],
)
def test_a_tick_with_a_run_of_its_own_moves_the_job_on_at_once(overlap, rules, now, following, passed):
    assert told(misfires.plan_extra_run(spec(overlap=overlap, **rules), T, ms(now))) == (following, passed)


@pytest.mark.parametrize(
    ("rules", "late", "misfire"),
    [
        ({}, 10**6, False),
        ({"grace": 2.0}, 10**6, False),
        ({"misfire": "skip"}, 9.999, False),
        ({"misfire": "skip"}, 10, True),
        ({"misfire": "skip", "ends": T + 5}, 9.999, False),
        ({"misfire": "skip", "ends": T + 5}, 10, True),
        ({"misfire": "skip", "grace": 2.0}, 2, False),
        ({"misfire": "skip", "grace": 2.0}, 2.001, True),
        ({"misfire": "skip", "grace": 20.0}, 20, False),
        ({"misfire": "skip"}, -50, False),
        ({"misfire": "skip", "overlap": "allow"}, 10, True),
        ({"misfire": "skip", "overlap": "buffer_one"}, 10**6, False),
        ({"misfire": "skip", "overlap": "buffer_all"}, 10**6, False),
        ({"misfire": "skip", "overlap": "buffer_one", "grace": 2.0}, 2.001, True),
        ({"misfire": "skip", "overlap": "buffer_all", "grace": 2.0}, 2, False),
        ({"misfire": "all"}, 10**6, False),
        ({"misfire": "all", "catch_up": 30.0}, 30, False),
        ({"misfire": "all", "catch_up": 30.0}, 30.001, True),
        # Late for its catch_up, and yet no misfire: the next tick is not due.
        ({"misfire": "all", "catch_up": 0.0}, 9.999, False),
        ({"misfire": "all", "catch_up": 0.0}, 10, True),
        ({"misfire": "all", "catch_up": 0.0, "grace": 60.0}, 60, False),
    ],
)
def test_a_run_is_too_late_where_late_runs_are_to_be_skipped(rules, late, misfire):
    assert misfires.is_misfire(spec(**rules), T, ms(late)) is misfire


@pytest.mark.parametrize(
    ("rules", "now", "following", "passed"),
    [
        ({"misfire": "skip"}, 10, 10, [(0, 10, "misfire")]),
        ({"misfire": "skip"}, 35, 40, [(0, 40, "misfire")]),
        ({"misfire": "skip", "grace": 2.0}, 3, 10, [(0, 10, "misfire")]),
        ({"misfire": "skip", "ends": T + 15_000}, 35, None, [(0, 35, "misfire")]),
        ({"misfire": "all", "catch_up": 15.0}, 35, 20, [(0, 20, "misfire")]),
    ],
)
def test_a_misfire_is_passed_over_with_all_that_are_as_late(rules, now, following, passed):
    assert told(misfires.skip_misfire(spec(**rules), T, ms(now))) == (following, passed)


@pytest.mark.parametrize(
    ("started", "now", "held", "passed"),
    [
        (25, 47, 12, [(10, 12, "coalesced"), (20, 25, "capped"), (30, 50, "overlap")]),
        (25, 47, 0, [(10, 25, "capped"), (30, 50, "overlap")]),
        (25, 47, 10, [(10, 25, "capped"), (30, 50, "overlap")]),
        (25, 47, 24, [(10, 24, "coalesced"), (30, 50, "overlap")]),
        # The cap began to hold others when this one was running.
        (25, 47, 40, [(10, 25, "coalesced"), (30, 50, "overlap")]),
        (0, 25, 0, [(10, 30, "overlap")]),
    ],
)
def test_what_passes_while_the_cap_of_the_queue_holds_a_run_back_is_capped(started, now, held, passed):
    assert told(misfires.after_run(spec(), T, ms(started), ms(now), held_since=ms(held)))[1] == passed


@pytest.mark.parametrize(
    ("held", "passed"),
    [(-5, [(0, 40, "capped")]), (15, [(0, 15, "misfire"), (20, 40, "capped")]), (35, [(0, 35, "misfire")])],
)
def test_a_run_that_the_cap_made_too_late_was_capped(held, passed):
    assert told(misfires.skip_misfire(spec(misfire="skip"), T, ms(35), held_since=ms(held)))[1] == passed


@pytest.mark.parametrize(
    ("started", "now", "step", "passed"),
    [
        (0, 3, 10, NONE),
        # Sooner than the next tick: nothing passes, the cadence moves.
        (0, 3, 5, NONE),
        (0, 3, 30, [(10, 30, "backoff")]),
        (0, 3, 33, [(10, 33, "backoff")]),
        (15, 27, 40, [(10, 15, "coalesced"), (20, 27, "overlap"), (30, 40, "backoff")]),
    ],
)
def test_what_passes_while_a_failure_is_waited_out(started, now, step, passed):
    assert told(misfires.after_failure(spec(), T, ms(started), ms(now), ms(step))) == (step, passed)


def test_a_schedule_that_ends_during_a_backoff_has_told_of_all_its_ticks():
    step = misfires.after_failure(spec(ends=T + 25_000), T, ms(0), ms(3), None)
    assert told(step) == (None, [(10, 25.001, "backoff")])
