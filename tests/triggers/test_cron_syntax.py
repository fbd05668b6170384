"""What cron expressions may say, and what is said to those who write it as elsewhere."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta

import pytest
from cronsim import CronSim, CronSimError
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.dst_oracle import DAY_NAMES, MONTH_NAMES
from tocsin import Cron, InvalidTrigger
from tocsin.model.cron import parse
from tocsin.triggers.next_tick import next_at


def days(expression: str, since: str, n: int) -> list[str]:
    found, at = [], int(datetime.fromisoformat(since).replace(tzinfo=UTC).timestamp() * 1000)
    while len(found) < n and (at := next_at(Cron(expression), at)) is not None:
        found.append(f"{datetime.fromtimestamp(at / 1000, UTC):%a %Y-%m-%d}")
        at += 86_400_000
    return found


@pytest.mark.parametrize(
    ("expression", "since", "expected"),
    [
        # The weekday nearest to a day, in the same month. From Quartz, Cronos, croner and hashicorp/cronexpr.
        ("0 0 15W * *", "2024-06-01", ["Fri 2024-06-14", "Mon 2024-07-15", "Thu 2024-08-15"]),
        ("0 0 19W 7 *", "2025-07-01", ["Fri 2025-07-18"]),
        ("0 0 20W 7 *", "2025-07-01", ["Mon 2025-07-21"]),
        ("0 0 1W * *", "2024-05-31", ["Mon 2024-06-03", "Mon 2024-07-01", "Thu 2024-08-01"]),
        ("0 0 31W 8 *", "2025-08-01", ["Fri 2025-08-29"]),
        # A month that has no such day is left out.
        ("0 0 31W * *", "2026-12-31", ["Thu 2026-12-31", "Fri 2027-01-29", "Wed 2027-03-31"]),
        ("0 0 29W 2 *", "2025-02-01", ["Tue 2028-02-29"]),
        ("0 0 1W,15,LW * *", "2019-12-30", ["Tue 2019-12-31", "Wed 2020-01-01", "Wed 2020-01-15"]),
        ("0 0 2w,16 * *", "2010-10-01", ["Fri 2010-10-01", "Sat 2010-10-16", "Tue 2010-11-02"]),
        # Days before the last.
        ("0 0 L-3 * *", "2008-01-04", ["Mon 2008-01-28", "Tue 2008-02-26", "Fri 2008-03-28"]),
        ("0 0 L-1 2 *", "2016-01-01", ["Sun 2016-02-28", "Mon 2017-02-27"]),
        ("0 0 l-30 * *", "2016-01-02", ["Tue 2016-03-01", "Sun 2016-05-01"]),
        ("0 0 L-1W * *", "2010-10-01", ["Fri 2010-10-29", "Mon 2010-11-29"]),
        ("0 0 L-0W 2 *", "2016-02-01", ["Mon 2016-02-29"]),
        # The last of a weekday, by name.
        ("0 0 * * FRIL", "2025-01-01", ["Fri 2025-01-31", "Fri 2025-02-28"]),
        ("0 0 * * monl,fril", "2025-01-01", ["Mon 2025-01-27", "Fri 2025-01-31"]),
        ("0 0 * * SUNL", "2017-01-01", ["Sun 2017-01-29"]),
        # Over the end of the week.
        ("0 0 * * sat-sun", "2015-11-06", ["Sat 2015-11-07", "Sun 2015-11-08", "Sat 2015-11-14"]),
        ("0 0 * * fri-mon", "2024-01-02", ["Fri 2024-01-05", "Sat 2024-01-06", "Sun 2024-01-07", "Mon 2024-01-08"]),
        ("0 0 * * 6-1", "2024-01-02", ["Sat 2024-01-06", "Sun 2024-01-07", "Mon 2024-01-08", "Sat 2024-01-13"]),
        ("0 0 * * 7-2", "2024-01-03", ["Sun 2024-01-07", "Mon 2024-01-08", "Tue 2024-01-09", "Sun 2024-01-14"]),
        ("0 0 * * mon-0", "2024-01-06", ["Sat 2024-01-06", "Sun 2024-01-07", "Mon 2024-01-08"]),
        ("0 0 * * sat-tue/2", "2016-12-10", ["Sat 2016-12-10", "Mon 2016-12-12", "Sat 2016-12-17"]),
        ("0 0 * * thu-tue/3", "2024-01-01", ["Thu 2024-01-04", "Sun 2024-01-07", "Thu 2024-01-11"]),
        # Any day, as Quartz writes it: the other field decides.
        ("0 0 ? * mon", "2024-01-02", ["Mon 2024-01-08", "Mon 2024-01-15"]),
        ("0 0 15 * ?", "2024-01-02", ["Mon 2024-01-15", "Thu 2024-02-15"]),
        ("0 0 ?/10 * *", "2024-01-02", ["Thu 2024-01-11", "Sun 2024-01-21"]),
        ("0 0 0 ? * MON#5", "2025-01-01", ["Mon 2025-03-31"]),
    ],
)  # fmt: skip
def test_what_many_schedulers_take_is_taken(expression, since, expected):
    assert days(expression, since, len(expected)) == expected


@pytest.mark.parametrize(
    ("expression", "quoted", "advice"),
    [
        ("* 22-4 * * *", "'22-4'", "write 22-23,0-4"),
        ("58-2 * * * *", "'58-2'", "write 58-59,0-2"),
        ("0 20-4/2 * * *", "'20-4/2'", "write 0,2,4,20,22"),
        ("0 0 25-5 * *", "'25-5'", "write 25-31,1-5"),
        ("0 0 1 Nov-Mar *", "'Nov-Mar'", "write 11-12,1-3"),
        ("0 0 1 12-1 *", "'12-1'", "write 12,1"),
        ("*/0 * * * *", "'*/0'", "a step is 1 or more"),
        ("0 5/0 * * *", "'5/0'", "a step is 1 or more"),
        ("@minutely", "'@minutely'", r"write '\* \* \* \* \*'"),
        ("@every 5m", "'@every 5m'", r"use Every\('5m'\)"),
        ("@EVERY 1h30m", "'@EVERY 1h30m'", r"use Every\('1h30m'\)"),
        ("@reboot", "'@reboot'", "enqueue the job where your program starts"),
        ("@dayly", "'@dayly'", "did you mean '@daily'"),
        ("CRON_TZ=Europe/Paris 0 9 * * *", "'CRON_TZ=", r"write Cron\('0 9 \* \* \*', tz='Europe/Paris'\)"),
        ("TZ=UTC 0 9 * * *", "'TZ=UTC", r"write Cron\('0 9 \* \* \*', tz='UTC'\)"),
        ("0 15 10 * * ? 2030", "'0 15 10 ", "no field for the year.* starts= and ends="),
        ("0 9 * * * 2030", "'0 9 ", "no field for the year"),
        ("0 9 * * * 2030-2035", "'0 9 ", "no field for the year"),
        ("H * * * *", "'H'", "jitter="),
        ("H/15 * * * *", "'H/15'", "jitter="),
        ("0 H(0-7) * * *", r"'H(0-7)'", "jitter="),
        ("0 0 L/2 * *", "'L/2'", "no range and no step"),
        ("0 0 LW/2 * *", "'LW/2'", "no step"),
        ("0 0 29-L * *", "'29-L'", "write 29-31"),
        ("0 0 W15 * *", "'W15'", "write 15W"),
        ("0 0 10-15W * *", "'10-15W'", "W follows one day"),
        ("0 0 1/2W * *", "'1/2W'", "W follows one day"),
        ("0 0 1,32W * *", "'32W'", "from 1 to 31"),
        ("0 0 0W * *", "'0W'", "from 1 to 31"),
        ("0 0 L-31 * *", "'L-31'", "31 days before its last"),
        ("0 0 -2 * *", "'-2'", "L-1, L-2"),
        ("0 0 * * FRI#L", "'FRI#L'", "FRIL"),
        ("0 0 * * L5", "'L5'", "5L"),
        ("0 0 * * 1,L", "'L'", "FRIL"),
        ("0 0 * * mon-fri#1", "'mon-fri#1'", "MON#1,TUE#1"),
        ("0 0 * * MON-FRIL", "'MON-FRIL'", "MONL,TUEL"),
        ("0 0 * * fri#6", "'fri#6'", "#1 to #5"),
        ("0 0 * * friday", "'friday'", "write FRI"),
        ("0 0 * january *", "'january'", "write JAN"),
        ("0 0 * * mon-foo", "'foo' in 'mon-foo'", "SUN to SAT"),
        ("0 24 * * *", "'24'", "midnight is 0"),
        ("? * * * *", "'?'", r"any day; write \*"),
        ("0 0 ?,1 * *", "'?'", r"write \*"),
        ("1,,2 * * * *", "''", "between two commas"),
        ("1-2-3 * * * *", "'1-2-3'", "cannot be read"),
        ("0 0 9 * * 8", "'8'", "not from 0 to 7"),
    ],
)  # fmt: skip
def test_an_error_quotes_what_is_wrong_and_says_what_to_write(expression, quoted, advice):
    with pytest.raises(InvalidTrigger, match=advice) as raised:
        Cron(expression)
    assert quoted in str(raised.value)


@pytest.mark.parametrize(
    "expression",
    ["0 0 30 2 *", "0 0 31 4,6,9,11 ?", "* * L-30 2 *", "0 0 31W 2 *", "0 0 L-29 2 *", "* * */20 * 1L", "0 0 31 2 */2"],
)
def test_what_never_fires_is_refused_at_once(expression):
    begin = time.process_time()
    with pytest.raises(InvalidTrigger, match="never fires"):
        Cron(expression)
    assert time.process_time() - begin < 0.5


def test_long_lists_cost_little():
    numbers = ",".join(str(n % 60) for n in range(160))
    begin = time.process_time()
    cron = Cron(f"{numbers} 0 29 2 1")
    for year in range(20):
        assert next_at(cron, year * 366 * 86_400_000) is not None
    assert time.process_time() - begin < 0.5


@pytest.mark.parametrize(
    ("expression", "odd"),
    [
        (
            "*/90 * * * *",
            "'*/90' is the same as 0: steps begin anew with each hour; for one run in 90m use Every('90m')",
        ),
        (
            "0 */25 * * *",
            "'*/25' is the same as 0: steps begin anew with each day; for one run in 25h use Every('25h')",
        ),
        ("0 0 1 */13 *", "'*/13' is the same as 1: steps begin anew with each year"),
        (
            "5/61 * * * *",
            "'5/61' is the same as 5: steps begin anew with each hour; for one run in 61m use Every('61m')",
        ),
        ("*/60 */24 */31 */12 */7", None),
        ("*/59 * * * *", None),
        ("1-5/9 * * * *", None),
    ],
)
def test_steps_beyond_a_field_are_odd(expression, odd):
    assert list(parse(expression).mistakes) == ([] if odd is None else [odd])


# Against cronsim, with all that both can read


def numbers(low: int, high: int, names: tuple[str, ...] = ()) -> st.SearchStrategy[str]:
    one = st.integers(low, high)
    single = one.map(str) | (st.sampled_from(names) if names else st.nothing())
    span = st.tuples(one, one).filter(lambda pair: pair[0] < pair[1]).map("{0[0]}-{0[1]}".format)
    stepped = st.tuples(st.just("*") | span | single, st.integers(1, 2 * high)).map("{0[0]}/{0[1]}".format)
    return st.just("*") | st.lists(single | span | stepped, min_size=1, max_size=3).map(",".join)


EXPRESSIONS = st.tuples(
    numbers(0, 59),
    numbers(0, 23),
    numbers(1, 31) | st.sampled_from(["L", "LW", "L,15", "1,LW"]),
    numbers(1, 12, MONTH_NAMES),
    numbers(0, 7, DAY_NAMES) | st.sampled_from(["5L", "0L", "7L", "MON#2", "fri#5", "0#1,7#3", "1L,2"]),
)


@settings(max_examples=300, deadline=None)
@given(
    fields=EXPRESSIONS,
    second=st.none() | numbers(0, 59),
    start=st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1)),
)
def test_expressions_say_what_cronsim_reads_in_them(fields, second, start):
    expression = " ".join(fields if second is None else (second, *fields))
    start = start.replace(microsecond=0)
    try:
        theirs = CronSim(expression, start)
        expected = [next(theirs) for _ in range(3)]
    except (CronSimError, StopIteration):
        with pytest.raises(InvalidTrigger, match="never fires"):
            Cron(expression)
        return
    found, at = [], start
    for _ in expected:
        moment = int(at.replace(tzinfo=UTC).timestamp()) * 1000 + 1
        at = datetime(1970, 1, 1) + timedelta(milliseconds=next_at(Cron(expression), moment))
        found.append(at)
    assert found == expected, re.sub(" +", " ", expression)
