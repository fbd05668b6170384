"""Parses cron expressions. Errors quote the wrong part and say what to write instead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from tocsin.model import cron_fields as fields
from tocsin.model.cron_fields import Field, FieldError
from tocsin.model.cron_walk import Crontab, CrontabSearch
from tocsin.model.errors import InvalidTrigger, did_you_mean
from tocsin.model.local_time import DAY, TimesOfDay, day_number

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
# Aliases of other schedulers, and what to write here.
_ELSEWHERE = {
    "@minutely": "write '* * * * *'",
    "@every_minute": "write '* * * * *'",
    "@always": "write '* * * * *'",
    "@secondly": "write '* * * * * *'",
    "@every_second": "write '* * * * * *'",
    "@reboot": "enqueue the job where your program starts",
}
_ZONE = re.compile(r"(?:CRON_)?TZ=(\S*)\s*(.*)", re.IGNORECASE | re.DOTALL)
_YEAR = re.compile(r"(?:19|20)\d\d([-,/]|$)", re.ASCII)
_NO_YEAR = "there is no field for the year: leave it out, and bound the schedule with starts= and ends="
_LONGEST = 500
# Every date that exists occurs within 28 years from here.
_EPOCH = day_number(2000) * DAY


@lru_cache(maxsize=4096)
def parse(expression: str) -> Crontab:
    """Raises InvalidTrigger."""
    if len(expression) > _LONGEST:
        raise InvalidTrigger(f"a cron expression has at most {_LONGEST} characters, not {len(expression)}")
    texts = _texts(expression)
    minute, hour, day, month, weekday = texts[-5:]
    mistakes: list[str] = []
    with _naming(fields.SECOND, expression):
        seconds = fields.read(texts[0], fields.SECOND, mistakes) if len(texts) == 6 else {0}
    with _naming(fields.MINUTE, expression):
        minutes = fields.read(minute, fields.MINUTE, mistakes)
    with _naming(fields.HOUR, expression):
        hours = fields.read(hour, fields.HOUR, mistakes)
    with _naming(fields.DAY, expression):
        days, day_specials = fields.read_days(day, mistakes)
    with _naming(fields.MONTH, expression):
        months = fields.read(month, fields.MONTH, mistakes)
    with _naming(fields.WEEKDAY, expression):
        weekdays, nth_weekdays = fields.read_weekdays(weekday, mistakes)
    crontab = Crontab(
        TimesOfDay(hours, minutes, seconds),
        frozenset(months),
        frozenset(days),
        tuple(day_specials),
        frozenset(weekdays),
        tuple(nth_weekdays),
        both_days=day[0] in "*?" or weekday[0] in "*?",
        fixed=len(texts) == 5 and minute[0] != "*" and hour[0] != "*",
        mistakes=tuple(mistakes),
    )
    if CrontabSearch(crontab).after(_EPOCH) is None:
        reason = (
            "no month that it names has such a day" if weekday[0] in "*?" and len(weekdays) == 7 else "no date fits"
        )
        raise InvalidTrigger(f"{expression!r} never fires: {reason}")
    return crontab


def _texts(expression: str) -> list[str]:
    text = expression.strip()
    if text.startswith("@"):
        text = _meant_by(text)
    if match := _ZONE.fullmatch(text):
        raise InvalidTrigger(
            f"{expression!r} names its zone, which stands apart here: write Cron({match[2]!r}, tz={match[1]!r})"
        )
    texts = text.split()
    if len(texts) == 7 or (len(texts) == 6 and _YEAR.match(texts[-1])):
        raise InvalidTrigger(f"{expression!r} has {len(texts)} fields: {_NO_YEAR}")
    if len(texts) not in (5, 6):
        raise InvalidTrigger(
            f"{expression!r} has {len(texts)} fields: write 5 (minute, hour, day, month, day of the week), "
            "or 6 with the second first"
        )
    return texts


def _meant_by(alias: str) -> str:
    word = alias.lower()
    name, _, rest = word.partition(" ")
    if name == "@every":
        raise InvalidTrigger(f"{alias!r} is an interval, not a cron expression: use Every({rest.strip() or '5m'!r})")
    if word in _ELSEWHERE:
        raise InvalidTrigger(f"there is no {alias!r}: {_ELSEWHERE[word]}")
    if word not in ALIASES:
        raise InvalidTrigger(f"there is no {alias!r}; {did_you_mean(word, ALIASES)}")
    return ALIASES[word]


@contextmanager
def _naming(field: Field, expression: str) -> Iterator[None]:
    try:
        yield
    except FieldError as fault:
        raise InvalidTrigger(
            f"the {field.name} in {expression!r} is wrong: {fault}; it can be {field.takes}, *, lists (1,2), "
            "ranges (1-5) and steps (*/5)"
        ) from None
