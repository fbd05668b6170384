"""Which workers are dead: looks go in, the dead come out. Beats come every 2 s, a worker is late after 2.5 s
without one, the ttl is 8 s, looks more than 4 s apart break the watch."""

from __future__ import annotations

import pytest

from tocsin.store.transitions.fleet import HeartbeatReply
from tocsin.upkeep.liveness_watch import LivenessWatch

T = 1_900_000_000_000
AWAY = None


@pytest.fixture
def watch() -> LivenessWatch:
    return LivenessWatch(ttl_s=8.0, look_s=4.0, late_s=2.5)


def beat(at: float, late: dict[str, int], *, step_ms: int = 0, accepted: bool = True) -> HeartbeatReply:
    counters = {worker: b"%d" % counter for worker, counter in late.items()}
    return HeartbeatReply(accepted, T + int(at * 1000) + step_ms, counters, step=float(step_ms))


def looks(watch: LivenessWatch, *times: float, counter: int = 7, alive_until: float = -60.0) -> list[tuple[str, bytes]]:
    """Look at one other worker, late from 2.5 s after its last beat on; the dead of the last look."""
    dead: list[tuple[str, bytes]] = []
    for at in times:
        dead = watch.look(beat(at, {"other": counter} if at - alive_until >= 2.5 else {}), at)
    return dead


DEAD = [("other", b"7")]


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
    assert looks(watch, *times) == (DEAD if dead else [])


@pytest.mark.parametrize(("last", "dead"), [(17.9, False), (18.0, True)])
def test_the_silence_before_a_worker_is_late_counts_for_an_unbroken_watch(watch, last, dead):
    """It beats until 10.0, and is late at the first look from 12.5 on."""
    assert looks(watch, *range(12), 12.5, 14.5, 16.5, last, alive_until=10.0) == (DEAD if dead else [])


def test_a_counter_that_moves_is_alive(watch):
    for n in range(20):
        assert watch.look(beat(2.0 * n, {"other": n}), 2.0 * n) == []


def test_a_worker_that_is_not_late_is_alive(watch):
    assert looks(watch, 0, 2, 4, 6) == []
    assert watch.look(beat(7.0, {}), 7.0) == []
    assert looks(watch, 8, 10, 12) == []


def test_a_counter_that_goes_back_has_moved_too(watch):
    looks(watch, 0, 2, 4, 6)
    assert looks(watch, 8, counter=1) == []


def test_only_those_that_stand_still_are_dead(watch):
    dead = []
    for n in range(5):
        dead = watch.look(beat(2.0 * n, {"still": 1, "moving": n, "also still": 4}), 2.0 * n)
    assert sorted(dead) == [("also still", b"4"), ("still", b"1")]


@pytest.mark.parametrize("failed", [AWAY, beat(6.0, {}, accepted=False)])
def test_a_failed_look_starts_over(watch, failed):
    looks(watch, 0, 2, 4)
    assert watch.look(failed, 6.0) == []
    assert looks(watch, 7, 9, 11, 13) == []
    assert looks(watch, 15) == DEAD


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


@pytest.mark.parametrize("step_ms", [3_600_000, -60_000])
def test_a_server_clock_that_is_set_kills_nobody_and_doubts_deadlines_for_a_while(watch, step_ms):
    looks(watch, 0, 2, 4, 6, alive_until=6.0)
    # Now all others are late at once, by the server's clock.
    assert watch.look(beat(7.0, {"other": 7}, step_ms=step_ms), 7.0) == []
    assert not watch.settled(14.9)
    assert watch.settled(15.0)
    assert looks(watch, 9, 11, 13, 14.9) == []
    assert looks(watch, 15) == DEAD


def test_the_time_of_the_server_is_as_the_last_look_showed_it(watch):
    looks(watch, 0, 2)
    assert watch.server_ms(3.5) == T + 3500
    watch.look(AWAY, 4.0)
    watch.look(beat(20.0, {}, step_ms=600_000), 20.0)
    assert watch.server_ms(21.0) == T + 621_000
