"""Triggers that cannot be are refused when they are made, with what to write instead."""

from __future__ import annotations

import contextlib
import functools
import operator
import subprocess
import sys
from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin import Cron, Dates, Every, Holidays, InvalidTrigger, Once, Rrule
from tocsin.model.errors import InvalidArgument, RecordUnreadable
from tocsin.model.job import Spec
from tocsin.model.record import decode_spec, encode_header, encode_spec
from tocsin.model.trigger import check_trigger

START = datetime(2026, 1, 5, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        (
            "60 * * * *",
            r"the minute in '60 \* \* \* \*' is wrong: '60' is not from 0 to 59; it can be 0 to 59, \*, lists",
        ),
        ("* 24 * * *", "the hour in"),
        ("* * 0 * *", "the day of the month in"),
        ("* * * 13 *", "the month in .* 1 to 12 or JAN to DEC"),
        ("* * * * 8", "the day of the week in .*0 and 7 are Sunday"),
        ("61 * * * * *", "the second in"),
        ("* * * * mon#6", "the day of the week in"),
        ("*/0 * * * *", "the minute in"),
        ("5-1 * * * *", "the minute in"),
        ("* * * *", "has 4 fields: write 5"),
        ("", "has 0 fields"),
        ("* * * * * * *", "has 7 fields"),
        ("@dayly", "did you mean '@daily'"),
        ("@reboot", "there is no '@reboot'"),
        ("0 0 31 2 *", "never fires: no month that it names has such a day"),
        ("0 0 30 feb *", "never fires"),
        ("* * */20 * 1L", "never fires: no date fits"),
        ("9" * 400 + " * * * *", "the minute in"),
        ("1," * 500 + "1 * * * *", "at most 500 characters"),
        (7, "a cron expression is text, not 7"),
    ],
)
def test_a_wrong_expression_is_told_with_its_field(expression, why):
    with pytest.raises(InvalidTrigger, match=why):
        Cron(expression)


@pytest.mark.parametrize(
    ("zone", "why"),
    [
        ("Europe/Pariss", "did you mean 'Europe/Paris'"),
        ("paris", "did you mean 'Europe/Paris'"),
        ("new york", "did you mean 'America/New_York'"),
        ("Europe", "there is no zone 'Europe'"),
        ("", "there is no zone ''"),
        ("../UTC", "there is no zone"),
        ("right/UTC", "there is no zone"),
        ("localtime", "there is no zone"),
        ("\0", "there is no zone"),
        ("qqqqqqqqqq", "IANA names like 'Europe/Paris'"),
        ("x" * 5000, "there is no zone"),
        (None, "a zone is a name like 'Europe/Paris', not None"),
    ],
)
def test_an_unknown_zone_is_told_with_the_nearest(zone, why):
    with pytest.raises(InvalidTrigger, match=why):
        Cron("0 9 * * *", tz=zone)


def test_an_unknown_rule_for_daylight_saving_is_told_with_the_nearest():
    with pytest.raises(InvalidTrigger, match="there is no dst='skipp'; did you mean 'skip'"):
        Cron("0 9 * * *", dst="skipp")


@pytest.mark.parametrize("interval", [0, "0s", -1])
def test_an_interval_of_nothing_is_refused(interval):
    with pytest.raises(InvalidArgument, match="interval"):
        Every(interval, anchor=START)


def test_moments_must_say_their_zone():
    for make in (lambda at: Every("1h", anchor=at), Once, lambda at: Rrule("FREQ=DAILY", start=at)):
        with pytest.raises(InvalidArgument, match="must say its zone"):
            make(datetime(2026, 1, 1))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not NAME=VALUE"),
        ("BYDAY=MO", "needs a FREQ"),
        ("FREQ=WEAKLY", "did you mean 'WEEKLY'"),
        ("FREQ=DAILY;BYDAYS=MO", "did you mean 'BYDAY'"),
        ("FREQ=DAILY;FREQ=DAILY", "only one FREQ"),
        ("FREQ=DAILY;INTERVAL=0", "INTERVAL must be a whole number from 1"),
        ("FREQ=DAILY;COUNT=99999999999", "COUNT must be a whole number from 1 to 10000"),
        ("FREQ=DAILY;COUNT=2;UNTIL=20300101", "COUNT or UNTIL, not both"),
        ("FREQ=DAILY;UNTIL=tomorrow", "UNTIL must be like 20301231"),
        ("FREQ=DAILY;UNTIL=20200101", "never fires"),
        ("FREQ=DAILY;BYHOUR=24", "BYHOUR must be numbers from 0 to 23"),
        ("FREQ=MONTHLY;BYMONTHDAY=-32", "or -31 to -1, not '-32'"),
        ("FREQ=WEEKLY;BYDAY=1MO", "needs FREQ=MONTHLY"),
        ("FREQ=MONTHLY;BYDAY=MON", "BYDAY must be days like MO,FR"),
        ("FREQ=DAILY;BYSETPOS=1", "BYSETPOS needs another"),
        ("FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30", "never fires"),
        ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=31", "never fires"),
        ("DTSTART:20260101T000000", "is not NAME=VALUE"),
        (3, "a rule is text"),
    ],
)
def test_a_wrong_rule_is_told(text, why):
    with pytest.raises(InvalidTrigger, match=why):
        Rrule(text, start=START)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Holidays("ZZ"), "no holidays are known of 'ZZ'"),
        (lambda: Holidays("DE", subdiv="XX"), "no holidays are known of 'XX' in DE"),
        (lambda: Holidays(3), "a country is a code"),
        (lambda: Dates(["2026-13-01"]), "is not a date: write it like"),
        (lambda: Dates("2026-12-24"), "takes a list of dates"),
        (lambda: Dates([START]), "a day is a date"),
        (lambda: check_trigger("0 9 * * *"), "a trigger is Every"),
    ],
)
def test_calendars_and_other_things_that_cannot_be_are_told(make, why):
    with pytest.raises(InvalidTrigger, match=why):
        make()


def test_holidays_without_their_package_name_the_extra():
    code = "import sys; sys.modules['holidays'] = None\nfrom tocsin import Holidays\nHolidays('FR')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "install tocsin[holidays]" in done.stderr


def test_what_is_joined_must_be_triggers_and_what_is_left_out_days():
    with pytest.raises(TypeError):
        Cron("0 9 * * *") | "0 10 * * *"
    with pytest.raises(TypeError):
        Cron("0 9 * * *") - Every("1h")
    with pytest.raises(InvalidTrigger, match="1 to 100 parts"):
        functools.reduce(operator.or_, [Every(n) for n in range(1, 103)])


TRIGGERS = [
    Every("1h"),
    Every("90s", anchor=datetime(2026, 1, 1, 0, 0, 7, tzinfo=ZoneInfo("Europe/Paris"))),
    Once(START),
    Cron("0 9 * * mon-fri", tz=ZoneInfo("Europe/Paris"), dst="both"),
    Rrule("FREQ=MONTHLY;BYDAY=-1FR", start=START, tz="America/New_York"),
    Cron("0 9 * * *") - Holidays("FR") - Dates([date(2026, 12, 24), "2026-12-31"]),
    Cron("0 9 * * *") | Every("1h") | Rrule("FREQ=DAILY", start=START) - Holidays("DE", subdiv="BY") | Once(START),
]


@pytest.mark.parametrize("trigger", TRIGGERS, ids=lambda trigger: type(trigger).__name__)
def test_triggers_come_back_from_a_record_as_they_were(trigger):
    record = encode_header(_header()) + encode_spec(Spec("handler", trigger=trigger))
    assert decode_spec(record).trigger == trigger
    assert hash(decode_spec(record).trigger) == hash(trigger)


def _header():
    from tocsin.model.job import Header

    return Header(recurring=True, timeout=1000, handler=1)


def test_a_record_whose_trigger_cannot_be_is_unreadable_and_says_why():
    good = encode_header(_header()) + encode_spec(Spec("handler", trigger=Cron("0 9 * * *")))
    with pytest.raises(RecordUnreadable, match="never fires"):
        decode_spec(good.replace(b"\xa90 9 * * *", b"\xaa0 9 31 2 *"))


@given(st.text(alphabet="0123456789*/,-#LWlw@ MONJAN?\t.", max_size=30))
def test_any_text_is_an_expression_or_refused(text):
    with contextlib.suppress(InvalidTrigger):
        Cron(text)
