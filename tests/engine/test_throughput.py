"""How fast runs come to their end, as the fetcher measures it."""

from __future__ import annotations

import math

from tocsin.engine.throughput import HEADROOM, KEEP, LONGEST_S, WINDOW_S, Throughput


def test_it_does_not_hold_back_before_it_is_measured() -> None:
    pace = Throughput()
    assert pace.rate == math.inf
    pace.look(10, 100.0)
    pace.look(20, 100.0 + WINDOW_S / 2)
    assert pace.rate == math.inf


def test_it_is_what_ran_in_a_window_and_somewhat_more() -> None:
    pace = Throughput()
    pace.look(0, 100.0)
    pace.look(60, 100.03)
    assert round(pace.rate) == HEADROOM * 2000


def test_a_slower_window_counts_slowly_and_a_faster_one_at_once() -> None:
    pace = Throughput()
    for ran, now in ((0, 100.0), (100, 100.05), (100, 100.1)):
        pace.look(ran, now)
    assert round(pace.rate) == HEADROOM * 2000 * KEEP
    pace.look(600, 100.15)
    assert round(pace.rate) == HEADROOM * 10_000


def test_a_long_time_says_nothing() -> None:
    pace = Throughput()
    for ran, now in ((0, 100.0), (100, 100.05), (101, 100.05 + LONGEST_S + 1)):
        pace.look(ran, now)
    assert round(pace.rate) == HEADROOM * 2000
