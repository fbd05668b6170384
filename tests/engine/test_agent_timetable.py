"""What a worker believes about the times of its own jobs: a hint, never a reason to be early or to forget one."""

from __future__ import annotations

import math

from tocsin.engine.agent_timetable import AGAIN_MS, AgentTimetable
from tocsin.model.ids import extra_member


def table(*members: str) -> AgentTimetable:
    """Due since time began, as far as is known."""
    made = AgentTimetable()
    made.own(members)
    made.hear(dict.fromkeys(members, 0))
    return made


def test_what_is_new_is_asked_for_when_it_is_due_or_in_doubt():
    own = AgentTimetable()
    own.own(["a", "b"])
    assert own.take(10, 10) == []
    own.hear({"a": 20})
    assert (own.take(19, 10), own.take(20, 10)) == ([], ["a"])
    own.recheck_all()
    assert own.take(20, 1) == ["a"]
    assert own.take(20, 1) == ["b"]


def test_what_becomes_due_sooner_is_heard_and_what_becomes_due_later_is_not():
    own = table("a", "b")
    own.take(0, 10)
    own.expect("a", 50)
    own.expect("b", 50)
    own.hear({"a": 30, "b": 70, "stranger": 1})
    assert own.take(49, 10) == ["a"]
    assert own.take(50, 10) == ["b"]


def test_a_doubt_asks_behind_what_is_known_to_be_due():
    own = table("a", "b")
    own.take(100, 10)
    own.expect("b", 40)
    own.recheck_all()
    assert own.take(100, 10) == ["b", "a"]


def test_what_was_taken_and_not_asked_for_keeps_its_place():
    own = table("a", "b")
    own.take(0, 10)
    own.expect("a", 70)
    own.expect("b", 40)
    own.put_back(own.take(100, 10))
    assert own.take(100, 10) == ["b", "a"]


def test_what_was_taken_is_not_taken_again_before_something_is_heard_of_it():
    own = table("a")
    own.take(1, 10)
    assert own.take(10**15, 10) == []
    own.expect("a", 50)
    assert (own.take(49, 10), own.take(50, 10)) == ([], ["a"])


def test_the_longest_due_comes_first_and_no_more_than_asked_for():
    own = table()
    own.own(["a", "b", "c"])
    own.take(0, 10)
    for member, due in [("a", 30), ("b", 10), ("c", 20)]:
        own.expect(member, due)
    assert own.take(100, 2) == ["b", "c"]
    assert own.soonest() == 30


def test_a_time_that_is_no_longer_believed_is_passed_over():
    own = table("a")
    own.take(0, 1)
    own.expect("a", 10)
    own.expect("a", 99)
    assert own.take(50, 1) == []
    assert own.soonest() == 99


def test_what_is_owned_no_more_is_forgotten_with_its_extra_runs():
    own = table("a", "b")
    own.expect(extra_member("a", 5), 5)
    own.disown(["a"])
    assert own.take(100, 10) == ["b"]
    assert "a" not in own
    own.expect("b", 3)
    own.own(["b"])
    assert own.soonest() == 3


def test_a_doubt_asks_for_all_that_was_not_waiting_and_leaves_the_others():
    own = table("a", "b")
    own.take(0, 10)
    own.expect("b", 70)
    own.curious = False
    own.recheck_all()
    assert own.curious
    assert own.take(0, 10) == ["a"]
    assert own.soonest() == 70


def test_a_claim_tells_when_each_waits_next():
    own = table("a", "b", "c")
    asked = own.take(0, 10)
    dues = {"a": 500, "b": -1, "c": 40}
    own.learn(asked, [dues[member] for member in asked], {"b"}, now=50)
    assert own.take(50 + AGAIN_MS - 1, 10) == []
    assert own.take(50 + AGAIN_MS, 10) == ["c"], "due and not given: not asked for without a pause"
    assert own.take(500, 10) == ["a"]
    assert own.soonest() == math.inf


def test_an_extra_run_that_is_gone_is_forgotten_and_one_of_a_stranger_is_not_ours():
    own = table("a")
    extra = extra_member("a", 7)
    own.expect(extra, 7)
    assert extra in own
    assert extra_member("z", 7) not in own
    own.learn([extra], [-1], set(), now=9)
    own.recheck_all()
    assert own.take(10, 10) == ["a"]


def test_what_our_own_finishes_decide_counts_when_they_are_answered():
    own = table("a", "b", "c")
    own.take(0, 10)
    own.plan("finish", "a", 100)
    own.plan("finish", "b", 200)
    own.sent("finish", 1)
    own.answered("finish")
    assert own.soonest() == 100
    own.sent("finish", 1)
    assert own.take(300, 10) == ["a"]
    own.answered("finish")
    assert own.take(300, 10) == ["b"]


def test_an_extra_run_that_ended_is_forgotten():
    own = table("a")
    extra = extra_member("a", 7)
    own.expect(extra, 7)
    own.take(10, 10)
    own.plan("finish", extra, 0)
    own.sent("finish", 10)
    own.answered("finish")
    own.recheck_all()
    assert own.take(10, 10) == ["a"]


def test_what_was_taken_and_not_asked_for_is_taken_again():
    own = table("a", "b")
    taken = own.take(0, 10)
    own.expect("b", 50)
    own.put_back(taken)
    assert own.take(0, 10) == ["a"]
    assert own.soonest() == 50
