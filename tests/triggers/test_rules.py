"""Rules of RFC 5545: what they mean, what is refused, and that none blocks who asks it."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import time
from datetime import UTC, datetime, timedelta

import pytest
from dateutil.rrule import rrulestr
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import force_setattr

from tocsin import Cron, Dates, Every, InvalidTrigger, Rrule
from tocsin.model.errors import TriggerFailed
from tocsin.model.step_budget import Budget, BudgetSpent
from tocsin.triggers.next_tick import next_at, shortest_distance

START = datetime(2026, 1, 5, 9, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1)
# A budget is counted in steps; in seconds this is what a slow, busy machine may take for one.
LONGEST_S = 0.5


def times(text: str, start: str, n: int) -> list[str]:
    begin = datetime.fromisoformat(start).replace(tzinfo=UTC)
    rule, found, at = Rrule(text, start=begin), [], int(begin.timestamp() * 1000)
    while len(found) < n and (at := next_at(rule, at)) is not None:
        found.append(f"{datetime.fromtimestamp(at / 1000, UTC):%a %Y-%m-%d %H:%M}")
        at += 1
    return found


@pytest.mark.parametrize(
    ("text", "start", "expected"),
    [
        # Days with and without a number are a union (ical.js, sabre/vobject).
        ("FREQ=MONTHLY;BYDAY=3MO,WE", "2026-01-13",
         ["Wed 2026-01-14 00:00", "Mon 2026-01-19 00:00", "Wed 2026-01-21 00:00", "Wed 2026-01-28 00:00"]),
        ("FREQ=MONTHLY;BYDAY=MO,1MO", "2026-01-05", ["Mon 2026-01-05 00:00", "Mon 2026-01-12 00:00"]),
        ("FREQ=YEARLY;BYDAY=1MO,-1FR", "2026-01-01", ["Mon 2026-01-05 00:00", "Fri 2026-12-25 00:00"]),
        ("FREQ=YEARLY;BYMONTH=3;BYDAY=1MO,SU", "2026-01-01", ["Sun 2026-03-01 00:00", "Mon 2026-03-02 00:00"]),
        ("FREQ=YEARLY;BYDAY=53TH", "2026-01-01", ["Thu 2026-12-31 00:00", "Thu 2032-12-30 00:00"]),
        # Positions are those of the whole week, also of the first (libical).
        ("FREQ=WEEKLY;BYDAY=MO,TU,SU,SA,TH;BYSETPOS=3,2", "2024-01-02T12:00",
         ["Tue 2024-01-02 12:00", "Thu 2024-01-04 12:00", "Tue 2024-01-09 12:00"]),
        ("FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=1,3", "2024-10-23",
         ["Wed 2024-10-23 00:00", "Mon 2024-10-28 00:00", "Wed 2024-10-30 00:00"]),
        ("FREQ=DAILY;BYHOUR=8,10,12;BYSETPOS=-1,1", "2026-01-05T09:00",
         ["Mon 2026-01-05 12:00", "Tue 2026-01-06 08:00", "Tue 2026-01-06 12:00"]),
        ("FREQ=HOURLY;BYMINUTE=10,20,50;BYSETPOS=2", "2026-01-05T09:30",
         ["Mon 2026-01-05 10:20", "Mon 2026-01-05 11:20"]),
        # A week alone has the weekday of the start.
        ("FREQ=YEARLY;BYWEEKNO=20", "1997-05-13", ["Tue 1997-05-13 00:00", "Tue 1998-05-12 00:00"]),
        ("FREQ=YEARLY;BYWEEKNO=1,-1;BYDAY=MO", "2024-12-01", ["Mon 2024-12-23 00:00", "Mon 2024-12-30 00:00"]),
        # Long intervals.
        ("FREQ=SECONDLY;INTERVAL=90061", "1997-09-02T09:00", ["Tue 1997-09-02 09:00", "Wed 1997-09-03 10:01"]),
        ("FREQ=MINUTELY;INTERVAL=20160", "2026-01-05", ["Mon 2026-01-05 00:00", "Mon 2026-01-19 00:00"]),
        ("FREQ=YEARLY;INTERVAL=20000", "2026-01-05", ["Mon 2026-01-05 00:00"]),
        ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29;BYDAY=MO", "2026-01-05",
         ["Mon 2044-02-29 00:00", "Mon 2072-02-29 00:00"]),
        ("FREQ=YEARLY;COUNT=10000", "2026-01-05", ["Mon 2026-01-05 00:00", "Tue 2027-01-05 00:00"]),
    ],
)  # fmt: skip
def test_rules_mean_what_the_rfc_says(text, start, expected):
    assert times(text, start, len(expected)) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        # What the RFC forbids.
        ("FREQ=MONTHLY;BYWEEKNO=20", "forbids BYWEEKNO with FREQ=MONTHLY.*use FREQ=YEARLY"),
        ("FREQ=SECONDLY;BYWEEKNO=20", "forbids BYWEEKNO with FREQ=SECONDLY"),
        ("FREQ=DAILY;BYYEARDAY=1", "forbids BYYEARDAY with FREQ=DAILY"),
        ("FREQ=WEEKLY;BYYEARDAY=1", "forbids BYYEARDAY with FREQ=WEEKLY"),
        ("FREQ=MONTHLY;BYYEARDAY=1", "forbids BYYEARDAY with FREQ=MONTHLY"),
        ("FREQ=WEEKLY;BYMONTHDAY=1", "forbids BYMONTHDAY with FREQ=WEEKLY"),
        ("FREQ=DAILY;BYDAY=1MO", "'1MO' needs FREQ=MONTHLY or FREQ=YEARLY"),
        ("FREQ=YEARLY;BYDAY=1MO;BYWEEKNO=20", "forbids '1MO' with BYWEEKNO: write MO"),
        ("FREQ=DAILY;BYSETPOS=1", "BYSETPOS needs another"),
        # Days that do not exist.
        ("FREQ=YEARLY;BYDAY=64WE", "'64WE' does not exist: a year has at most 53"),
        ("FREQ=YEARLY;BYDAY=1WE,-55WE", "'-55WE' does not exist"),
        ("FREQ=MONTHLY;BYDAY=1MO,9MO", "'9MO' does not exist: a month has at most 5"),
        ("FREQ=YEARLY;BYMONTH=3;BYDAY=6MO", "'6MO' does not exist: a month has at most 5"),
        ("FREQ=MONTHLY;BYDAY=0MO", "'0MO' does not exist"),
        # What never comes.
        ("FREQ=MONTHLY;BYDAY=1TH;BYSETPOS=2", "never fires"),
        ("FREQ=MONTHLY;BYDAY=1TH;BYMONTHDAY=8", "never fires"),
        ("FREQ=DAILY;INTERVAL=7;BYDAY=TU", "never fires"),
        ("FREQ=HOURLY;INTERVAL=4;BYHOUR=8,10", "never fires"),
        ("FREQ=DAILY;INTERVAL=1000000000", "INTERVAL must be a whole number from 1 to 999999999"),
    ],
)
def test_what_is_forbidden_or_does_not_exist_is_refused_with_its_part(text, why):
    with pytest.raises(InvalidTrigger, match=why):
        Rrule(text, start=START)


COSTLY = [
    "FREQ=MINUTELY;BYHOUR=9;BYSETPOS=5",
    "FREQ=HOURLY;BYDAY=TH;BYSETPOS=-2",
    "FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=29;BYHOUR=1;BYMINUTE=1;BYSECOND=1;COUNT=10000",
    "FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=29;COUNT=10000",
    "FREQ=SECONDLY;INTERVAL=59;BYHOUR=3;BYMINUTE=3;BYSECOND=3;COUNT=10000",
    "FREQ=SECONDLY;BYHOUR=9;BYMINUTE=0;BYSECOND=0;BYDAY=MO;COUNT=10000",
    "FREQ=SECONDLY;INTERVAL=86399;BYHOUR=9;BYMINUTE=0;BYSECOND=0",
    "FREQ=SECONDLY;INTERVAL=2;BYSECOND=1,3,5,7,9",
    "FREQ=MINUTELY;INTERVAL=7919;BYMONTH=2;BYMONTHDAY=29;BYHOUR=9;BYMINUTE=0",
    "FREQ=WEEKLY;BYDAY=MO,TU;BYSETPOS=366",
    "FREQ=MONTHLY;BYDAY=" + ",".join(["5MO", "5TU"] * 50) + ";BYSETPOS=-300",
    "FREQ=YEARLY;BYWEEKNO=53;BYDAY=MO;BYMONTH=6",
    "FREQ=DAILY;INTERVAL=999999937;BYMONTH=2;BYMONTHDAY=30",
]


@pytest.mark.parametrize("text", COSTLY, ids=lambda text: text[:60])
@pytest.mark.parametrize("tz", ["UTC", "Europe/Paris"])
def test_no_rule_blocks_whoever_makes_it_or_asks_for_its_times(text, tz):
    began = [time.process_time()]
    try:
        rule, at = Rrule(text, start=START, tz=tz), 1_900_000_000_000
        while at is not None and len(began) < 5:
            began.append(time.process_time())
            at = next_at(rule, at + 1)
    except InvalidTrigger as error:
        refused = str(error)
    else:
        refused = "never fires"
    assert "never fires" in refused or "reasonable time" in refused
    began.append(time.process_time())
    assert max(after - before for before, after in itertools.pairwise(began)) < LONGEST_S


def test_what_people_write_takes_a_small_part_of_the_budget():
    for text in ("FREQ=MONTHLY;BYDAY=-1FR", "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29", "FREQ=SECONDLY;BYHOUR=9;BYMINUTE=0"):
        budget = Budget()
        assert next_at(Rrule(text, start=START, tz="Europe/Paris"), 1_900_000_000_000, budget) is not None
        assert budget.left > 0.99 * Budget().left
    with pytest.raises(BudgetSpent):
        Budget(10).spend(11)


@pytest.mark.parametrize(
    "trigger",
    [
        # Each of its times falls into the gap of that year.
        Cron("30 2 * 3 7L", tz="Europe/Paris", dst="skip"),
        functools.reduce(operator.or_, [Cron(f"{n} 2 * 3 7L", tz="Europe/Paris", dst="skip") for n in range(60)]),
        # Every other day is left out, so that the look goes from one to the next.
        Rrule("FREQ=DAILY;INTERVAL=2", start=START)
        - Dates([(START + timedelta(days=2 * n)).date() for n in range(20_000)]),
    ],
    ids=["in the gap", "a union", "every other day"],
)
def test_a_trigger_that_hardly_ever_fires_is_given_up(trigger):
    begin = time.process_time()
    with pytest.raises(TriggerFailed, match="not found in reasonable time"):
        next_at(trigger, 1_800_000_000_000)
    assert shortest_distance(trigger) is None
    assert time.process_time() - begin < 2 * LONGEST_S


def test_the_rules_of_a_union_may_cost_together_what_one_may():
    def union(text: str, n: int):
        rules = [Rrule(text, start=START + timedelta(seconds=at)) for at in range(n)]
        return functools.reduce(operator.or_, rules)

    assert next_at(union("FREQ=WEEKLY;BYDAY=MO,WE;COUNT=52", 100), 1_800_000_000_000) is None
    assert next_at(union("FREQ=MONTHLY;BYDAY=-1FR", 100), 1_800_000_000_000) is not None
    with pytest.raises(InvalidTrigger, match="the rules of this union take too long"):
        union("FREQ=DAILY;COUNT=10000", 10)


def test_a_long_row_of_days_is_left_out_at_once():
    begin = time.process_time()
    trigger = Cron("0 0 * * *") - Dates([(START + timedelta(days=n)).date() for n in range(10_000)])
    assert (
        next_at(trigger, int(START.timestamp()) * 1000) == int(START.replace(hour=0).timestamp() + 1e4 * 86_400) * 1000
    )
    assert time.process_time() - begin < LONGEST_S


def test_whatever_a_trigger_raises_names_the_trigger():
    cron = Cron("0 9 * * *", tz="Europe/Paris")
    # As on a machine whose zone database does not have it.
    force_setattr(cron, "tz", "Europe/Atlantis")
    with pytest.raises(TriggerFailed, match=r"0 9 \* \* \* Europe/Atlantis .*cannot be worked out: .*no zone"):
        next_at(Every("1h") | cron, 1_800_000_000_000)


# Against dateutil, with all that both can read


def chosen(name: str, low: int, high: int, *, backwards: bool = False) -> st.SearchStrategy[str]:
    one = st.integers(low, high)
    if backwards:
        one = one | one.map(lambda n: -n)
    return st.lists(one, min_size=1, max_size=4, unique=True).map(lambda some: f"{name}={','.join(map(str, some))}")


def weekdays(freq: str) -> st.SearchStrategy[str]:
    names = st.sampled_from(["MO", "TU", "WE", "TH", "FR", "SA", "SU"])
    counted = st.tuples(st.integers(1, 5) | st.integers(-5, -1), names).map("{0[0]}{0[1]}".format)
    # Mixed they are a union to the RFC, and nothing to dateutil.
    kinds = names if freq not in ("MONTHLY", "YEARLY") else names | counted
    return (
        st.lists(kinds, min_size=1, max_size=4, unique=True)
        .filter(lambda some: len({len(day) > 2 for day in some}) == 1)
        .map(lambda some: f"BYDAY={','.join(some)}")
    )


@st.composite
def rules(draw) -> str:
    freq = draw(st.sampled_from(["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY"]))
    named = {
        "BYMONTH": chosen("BYMONTH", 1, 12),
        "BYDAY": weekdays(freq),
        "BYHOUR": chosen("BYHOUR", 0, 23),
        "BYMINUTE": chosen("BYMINUTE", 0, 59),
        "BYSECOND": chosen("BYSECOND", 0, 59),
        "WKST": st.sampled_from(["WKST=SU", "WKST=WE"]),
        "INTERVAL": st.integers(1, 20).map("INTERVAL={}".format),
    }
    if freq != "WEEKLY":
        named["BYMONTHDAY"] = chosen("BYMONTHDAY", 1, 31, backwards=True)
        named["BYSETPOS"] = chosen("BYSETPOS", 1, 6, backwards=True)
    if freq not in ("MONTHLY", "WEEKLY", "DAILY"):
        named["BYYEARDAY"] = chosen("BYYEARDAY", 1, 366, backwards=True)
    parts = [draw(named[name]) for name in draw(st.sets(st.sampled_from(sorted(named)), max_size=4))]
    if freq == "YEARLY" and draw(st.booleans()):
        parts = [part for part in parts if not part.startswith("BYDAY")]
        # To dateutil the first week, counted from the end, has no days in the year before.
        weeks = chosen("BYWEEKNO", 1, 53) | st.sampled_from(["BYWEEKNO=-1", "BYWEEKNO=-30,-2,7"])
        parts += [draw(weeks), "BYDAY=MO,TH"]
    return ";".join([f"FREQ={freq}", *parts])


# How far dateutil walks in little time: through each period from the start on.
FAR = {"SECONDLY": 0.1, "MINUTELY": 3, "HOURLY": 100, "DAILY": 1000, "WEEKLY": 1500, "MONTHLY": 3000, "YEARLY": 10_000}


@settings(max_examples=300, deadline=None)
@given(text=rules(), start=st.datetimes(datetime(1995, 1, 1), datetime(2035, 1, 1)), part=st.floats(0, 0.5))
def test_rules_give_the_times_that_dateutil_walks_to(text, start, part):
    start, far = start.replace(microsecond=0), FAR[text.partition(";")[0].removeprefix("FREQ=")] * 86_400
    try:
        rule = Rrule(text, start=start.replace(tzinfo=UTC))
    except InvalidTrigger:
        return
    begin = int(start.replace(tzinfo=UTC).timestamp())
    after = int(begin + part * far)
    ours, at = [], after * 1000
    with contextlib.suppress(TriggerFailed):
        while len(ours) < 4 and (found := next_at(rule, at)) is not None and found < (begin + far) * 1000:
            ours.append(EPOCH + timedelta(milliseconds=found))
            at = found + 1
    if ours:
        theirs = rrulestr(text, dtstart=start).xafter(EPOCH + timedelta(seconds=after), count=len(ours), inc=True)
        assert list(theirs) == ours


@settings(max_examples=100, deadline=None)
@given(text=rules(), start=st.datetimes(datetime(1995, 1, 1), datetime(2035, 1, 1)), count=st.integers(1, 40))
def test_a_rule_with_a_count_ends_with_the_last_of_so_many(text, start, count):
    start = start.replace(microsecond=0, tzinfo=UTC)
    try:
        endless, counted = Rrule(text, start=start), Rrule(f"{text};COUNT={count}", start=start)
        first = list(itertools.islice(_ticks(endless, start), count))
        assert list(_ticks(counted, start)) == first
    except (InvalidTrigger, TriggerFailed):
        assume(False)


def _ticks(trigger, start):
    at = int(start.timestamp() * 1000)
    while (at := next_at(trigger, at)) is not None:
        yield at
        at += 1
