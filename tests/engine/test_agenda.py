"""The agenda: what is to be asked now, and when the next is due."""

from __future__ import annotations

import math

import pytest

from tocsin.engine.agenda import SLACK, Agenda
from tocsin.engine.served_queue import ServedQueue
from tocsin.model.queue import Queue
from tocsin.store.keys import Keys
from tocsin.store.open_queue import OpenQueue


@pytest.fixture
def agenda() -> Agenda:
    return Agenda()


@pytest.fixture
def queues(agenda) -> tuple[ServedQueue, ServedQueue]:
    """Of two queues, of which nothing is to be asked."""
    made = [ServedQueue(OpenQueue(Queue(name, partitions=4), Keys(), [b"e"] * 4), agenda) for name in ("a", "b")]
    for served in made:
        served.expect_all([math.inf] * 4)
        for partition in range(4):
            served.note_reply(partition, math.inf, 0, 0)
    return made[0], made[1]


def ripe(agenda: Agenda) -> dict[str, set[int]]:
    return {served.name: set(served.ripe) for served in agenda.ripe}


def test_what_is_due_becomes_ripe_at_its_time(agenda, queues):
    queues[0].expect(2, 500)
    queues[1].expect(0, 400)
    assert agenda.soonest() == 400
    agenda.ripen(399)
    assert ripe(agenda) == {}
    agenda.ripen(400)
    assert (ripe(agenda), agenda.soonest()) == ({"b": {0}}, 500)
    agenda.ripen(1000)
    assert ripe(agenda) == {"b": {0}, "a": {2}}


def test_a_time_that_was_superseded_counts_no_more(agenda, queues):
    served = queues[0]
    served.expect(1, 500)
    served.note_asked(1, 10)
    served.note_reply(1, 900, 100, 0)
    assert agenda.soonest() == 900
    agenda.ripen(500)
    assert ripe(agenda) == {}


def test_what_is_being_asked_is_not_ripe_until_its_answer_is_there(agenda, queues):
    served = queues[0]
    served.mark_due(3)
    assert ripe(agenda) == {"a": {3}}
    served.note_asked(3, 10)
    served.mark_due(3)
    assert ripe(agenda) == {}
    served.note_reply(3, math.inf, 100, 0)
    assert ripe(agenda) == {"a": {3}}, "a bell rang after it was asked"


def test_after_a_call_that_failed_what_was_known_counts_again(agenda, queues):
    served = queues[0]
    served.expect(0, 50)
    agenda.ripen(60)
    served.note_asked(0, 10)
    served.answered(0)
    agenda.ripen(60)
    assert ripe(agenda) == {"a": {0}}


def test_a_lane_that_was_asked_queues_up_behind_the_others(agenda, queues):
    first, second = queues
    first.mark_due(0)
    first.mark_due(1)
    second.mark_due(0)
    first.note_asked(0, 1)
    assert list(ripe(agenda)) == ["b", "a"]


def test_superseded_times_do_not_pile_up(agenda, queues):
    served = queues[0]
    for number in range(10_000):
        served.note_asked(0, 1)
        served.note_reply(0, 1_000_000 - number % 2, 0, 0)
    assert len(agenda._later) <= 4 * SLACK
    assert agenda.soonest() == 999_999
