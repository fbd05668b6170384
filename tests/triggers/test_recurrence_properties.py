"""When a recurring job is due: what holds for all of them."""

from __future__ import annotations

import itertools

from hypothesis import assume, given
from hypothesis import strategies as st

from tocsin import Every
from tocsin.model.durations import ceil_ms
from tocsin.model.job import Policy, Spec
from tocsin.triggers import misfires
from tocsin.triggers.misfires import is_misfire
from tocsin.triggers.recurrence import first_due, occurrences, phase, tick_from, upcoming

times = st.integers(1_000_000_000_000, 3_000_000_000_000)
intervals = st.one_of(st.integers(1, 10_000), st.integers(1, 366 * 86_400_000)).map(lambda ms: ms / 1000)
lateness = st.one_of(st.integers(-100_000, 100_000), st.integers(0, 10_000_000_000))
job_ids = st.text(min_size=1, max_size=8).filter(lambda text: text.isprintable())


def spec(interval: float, **rules) -> Spec:
    return Spec("handler", trigger=Every(interval), policy=Policy(**rules))


def next_due(rules: Spec, due: int, now: int) -> int | None:
    """After a run that took no time."""
    return misfires.after_run(rules, due, now, now).next_due


@given(times, intervals, lateness, st.sampled_from(["coalesce", "skip"]))
def test_the_next_occurrence_is_not_in_the_past_on_the_cadence_and_the_first_such(due, interval, late, misfire):
    now, step = due + late, ceil_ms(interval)
    following = next_due(spec(interval, misfire=misfire), due, now)
    assert following > due
    assert following >= now
    assert (following - due) % step == 0
    assert following == due + step or following - step < now


@given(times, intervals, lateness)
def test_with_misfire_all_no_occurrence_is_left_out(due, interval, late):
    assert next_due(spec(interval, misfire="all"), due, due + late) == due + ceil_ms(interval)


@given(times, intervals, lateness, st.floats(0, 1e6))
def test_catch_up_leaves_out_only_what_is_older(due, interval, late, catch_up):
    now, step = due + late, ceil_ms(interval)
    following = next_due(spec(interval, misfire="all", catch_up=catch_up), due, now)
    oldest = now - ceil_ms(catch_up)
    assert (following - due) % step == 0
    assert following >= oldest
    assert following == due + step or following - step < oldest


@given(times, intervals, lateness, lateness, st.sampled_from(["coalesce", "skip", "all"]))
def test_a_later_look_never_gives_an_earlier_occurrence(due, interval, late, later, misfire):
    sooner, after = sorted((due + late, due + later))
    rules = spec(interval, misfire=misfire)
    assert next_due(rules, due, sooner) <= next_due(rules, due, after)


@given(times, intervals, st.integers(0, 10**10), st.integers(-(10**10), 10**10))
def test_no_occurrence_is_after_the_end(due, interval, late, end):
    following = next_due(spec(interval, ends=due + end), due, due + late)
    assert following is None or following <= due + end


@given(times, intervals, st.integers(-(10**11), 10**11), st.floats(0, 1e5), job_ids)
def test_the_first_occurrence_is_not_in_the_past_and_on_the_cadence_of_its_start(now, interval, start, jitter, job_id):
    rules = Policy(starts=max(now + start, 0), jitter=jitter)
    due = first_due(Every(interval), rules, job_id, now)
    assert due >= max(now, rules.starts)
    assert (due - rules.starts - phase(job_id, jitter)) % ceil_ms(interval) == 0


@given(times, intervals, st.floats(0, 1e5), job_ids)
def test_without_a_start_the_first_occurrence_is_an_interval_from_now_and_jitter_adds_less_than_itself(
    now, interval, jitter, job_id
):
    wait = first_due(Every(interval), Policy(jitter=jitter), job_id, now) - now - ceil_ms(interval)
    assert 0 <= wait < max(ceil_ms(jitter), 1)


@given(times, intervals, st.integers(-(10**8), 10**8), st.integers(0, 10**8), st.integers(0, 50))
def test_occurrences_are_on_the_cadence_inside_the_span_and_rise(due, interval, start, length, limit):
    step = ceil_ms(interval)
    found = occurrences(spec(interval), due, due + start, due + start + length, limit)
    assert len(found) <= limit
    assert all(due + start <= each < due + start + length and (each - due) % step == 0 for each in found)
    assert all(after - before == step for before, after in itertools.pairwise(found))
    assume(limit > 0)
    assert found or length < step


@given(times, intervals, st.integers(1, 20))
def test_upcoming_times_are_those_that_next_due_gives_when_nothing_is_late(due, interval, n):
    rules = spec(interval)
    found = upcoming(rules, due, n)
    assert found[0] == due
    assert len(found) == n
    assert all(next_due(rules, before, before) == after for before, after in itertools.pairwise(found))


@given(times, intervals, lateness)
def test_what_is_skipped_as_too_late_has_its_next_tick_due_as_well(due, interval, late):
    now = due + late
    assert is_misfire(spec(interval, misfire="skip"), due, now) is (due + ceil_ms(interval) <= now)


@given(times, intervals, lateness, st.sampled_from(["coalesce", "skip", "all"]))
def test_going_on_after_a_pause_replays_nothing_whatever_the_misfire_policy(due, interval, late, misfire):
    now, step = due + late, ceil_ms(interval)
    found = tick_from(spec(interval, misfire=misfire), due, now)
    assert found >= max(due, now)
    assert (found - due) % step == 0
    assert found == due or found - step < now
