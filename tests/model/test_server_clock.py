"""The clock of a process: the server's time as the last replies told it."""

from __future__ import annotations

import time

from tocsin.model.clock import ServerClock


def _believes(clock: ServerClock) -> float:
    """The server's time minus our monotonic one, in ms."""
    return clock.server_ms() - time.monotonic() * 1000


def test_before_any_reply_it_is_the_local_time():
    clock = ServerClock()
    assert abs(clock.server_ms() - time.time() * 1000) < 1000
    assert clock.override() is None


def test_half_the_round_trip_is_taken_off():
    clock = ServerClock()
    clock.observe(5_000_000.0, sent=100.0, received=100.2)
    assert abs(_believes(clock) - (5_000_000.0 - 100_100.0)) < 1


def test_a_longer_round_trip_does_not_spoil_a_better_observation():
    clock = ServerClock()
    clock.observe(5_000_000.0, sent=100.0, received=100.001)
    clock.observe(9_000_000.0, sent=101.0, received=103.0)
    assert abs(_believes(clock) - (5_000_000.0 - 100_000.5)) < 1


def test_an_old_observation_gives_way_to_a_newer_one():
    clock = ServerClock()
    clock.observe(5_000_000.0, sent=100.0, received=100.001)
    clock.observe(9_000_000.0, sent=120.0, received=122.0)
    assert abs(_believes(clock) - (9_000_000.0 - 121_000.0)) < 1
