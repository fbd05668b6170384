"""Who is dead: looks go in, the dead come out. Beats come every 2 s, the ttl is 8 s, a look later than 4 s is late."""

from __future__ import annotations

import pytest

from tocsin.store.fleet import Beat
from tocsin.upkeep.reaper import Watch

T = 1_900_000_000_000
AWAY = None


@pytest.fixture
def watch() -> Watch:
    return Watch(ttl_s=8.0, late_s=4.0)


def beat(at: float, counters: dict[str, int], *, step_ms: int = 0, accepted: bool = True) -> Beat:
    return Beat(accepted, T + int(at * 1000) + step_ms, counters, [])


def looks(watch: Watch, *times: float, counter: int = 7) -> list[tuple[str, int]]:
    """Look at one other worker whose counter stands still; who was dead at the last look."""
    dead: list[tuple[str, int]] = []
    for at in times:
        dead = watch.look(beat(at, {"other": counter}), at)
    return dead


@pytest.mark.parametrize(
    ("times", "dead"),
    [
        ((0,), False),
        ((0, 2, 4, 6), False),
        ((0, 2, 4, 6, 7.9), False),
        ((0, 2, 4, 6, 8), True),
        ((0, 4, 8), True),
        ((0, 2, 4, 6, 8.5), True),
        # A late look starts over, at that look.
        ((0, 9), False),
        ((0, 2, 4, 8.1), False),
        ((0, 2, 6.1, 8, 10, 12, 14), False),
        ((0, 2, 6.1, 8, 10, 12, 14.1), True),
        ((0, 2, 4, 6, 60), False),
    ],
)
def test_a_worker_is_dead_when_its_counter_stood_still_for_the_ttl_with_every_look_on_time(watch, times, dead):
    assert looks(watch, *times) == ([("other", 7)] if dead else [])


def test_a_counter_that_moves_is_alive(watch):
    for n in range(20):
        assert watch.look(beat(2.0 * n, {"other": n}), 2.0 * n) == []


def test_a_counter_that_goes_back_has_moved_too(watch):
    looks(watch, 0, 2, 4, 6)
    assert looks(watch, 8, counter=1) == []


def test_only_those_that_stand_still_are_dead(watch):
    dead = []
    for n in range(5):
        dead = watch.look(beat(2.0 * n, {"still": 1, "moving": n, "also still": 4}), 2.0 * n)
    assert sorted(dead) == [("also still", 4), ("still", 1)]


def test_a_worker_that_joins_later_is_watched_from_then_on(watch):
    looks(watch, 0, 2, 4)
    for at in (6.0, 8.0, 10.0, 12.0):
        assert watch.look(beat(at, {"new": 1}), at) == []
    assert watch.look(beat(14.0, {"new": 1}), 14.0) == [("new", 1)]


def test_a_worker_that_left_and_came_back_is_watched_anew(watch):
    looks(watch, 0, 2, 4)
    watch.look(beat(6.0, {}), 6.0)
    assert looks(watch, 8, 10, 12, 14) == []
    assert looks(watch, 16) == [("other", 7)]


@pytest.mark.parametrize("failed", [AWAY, beat(6.0, {}, accepted=False)])
def test_a_failed_look_starts_over(watch, failed):
    looks(watch, 0, 2, 4)
    assert watch.look(failed, 6.0) == []
    assert looks(watch, 7, 9, 11, 13) == []
    assert looks(watch, 15) == [("other", 7)]


def test_after_an_outage_nobody_is_dead_for_what_nobody_saw(watch):
    looks(watch, 0, 2, 4, 6)
    for at in range(8, 70, 2):
        assert watch.look(AWAY, float(at)) == []
    assert looks(watch, 70) == []
    assert looks(watch, 72, 74, 76) == []


def test_deadlines_are_believed_after_an_unbroken_watch_only(watch):
    assert not watch.settled(0.0)
    looks(watch, 0, 2, 4, 6)
    assert not watch.settled(7.9)
    assert watch.settled(8.0)
    watch.look(AWAY, 9.0)
    assert not watch.settled(100.0)
    looks(watch, 100)
    assert not watch.settled(107.9)
    assert watch.settled(108.0)


def test_a_late_look_doubts_deadlines_again(watch):
    looks(watch, 0, 4, 8)
    assert watch.settled(8.0)
    looks(watch, 30)
    assert not watch.settled(30.0)


def test_a_server_clock_that_jumps_ahead_kills_nobody_and_adds_its_jump_to_deadlines(watch):
    looks(watch, 0, 2, 4, 6)
    assert watch.look(beat(7.0, {"other": 7}, step_ms=3_600_000), 7.0) == []
    assert watch.jump_ms == 3_600_000
    assert not watch.settled(8.0)
    assert watch.settled(15.0)


def test_the_jump_is_counted_once(watch):
    for n in range(10):
        at = 2.0 * n
        watch.look(beat(at, {"other": n}, step_ms=0 if n < 3 else 60_000), at)
    assert watch.jump_ms == 60_000


def test_a_server_clock_that_is_set_back_makes_deadlines_no_nearer(watch):
    looks(watch, 0, 2)
    watch.look(beat(4.0, {"other": 8}, step_ms=-60_000), 4.0)
    assert watch.jump_ms == 0
    assert not watch.settled(11.9)
    assert watch.settled(12.0)


def test_small_drift_is_no_step(watch):
    for n in range(5):
        watch.look(beat(2.0 * n, {"other": n}, step_ms=200 * n), 2.0 * n)
    assert watch.jump_ms == 0
    assert watch.settled(8.0)
