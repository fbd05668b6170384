"""Cron expressions: read once, by cronsim, with errors that say what a field may be."""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache

from cronsim import CronSim, CronSimError
from msgspec import Struct

from tocsin.model.errors import InvalidTrigger, nearest

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_LONGEST = 500
# A range of one with steps is that one: cronsim takes 2-2/10 for 2/10.
_ONE_STEPPED = re.compile(r"\b(\w+)-\1/0*[1-9][0-9]*(?![^\s,])", re.ASCII | re.IGNORECASE)
# Whatever fires at all does so within the 28 years after which the calendar repeats; cronsim looks 50 years ahead.
_EPOCH = datetime(2000, 1, 1)
_FIELDS = {
    "Bad second": ("second", "0 to 59"),
    "Bad minute": ("minute", "0 to 59"),
    "Bad hour": ("hour", "0 to 23"),
    "Bad day-of-month": ("day of the month", "1 to 31, L for the last or LW for the last weekday"),
    "Bad month": ("month", "1 to 12 or JAN to DEC"),
    "Bad day-of-week": (
        "day of the week",
        "0 to 7 (0 and 7 are Sunday), SUN to SAT, 5L for the last Friday or 1#2 for the second Monday",
    ),
}


class Crontab(Struct, frozen=True):
    """What an expression says. `sim` is a pattern to copy: it walks in local time and knows no zones."""

    sim: CronSim
    # At times of day that are written down, without seconds: what Debian's cron treats apart when the clock changes.
    fixed: bool


@lru_cache(maxsize=4096)
def parse(expression: str) -> Crontab:
    """Raises InvalidTrigger."""
    if len(expression) > _LONGEST:
        raise InvalidTrigger(f"a cron expression has at most {_LONGEST} characters, not {len(expression)}")
    text = _ONE_STEPPED.sub(r"\1", _without_alias(expression))
    fields = text.split()
    if len(fields) not in (5, 6):
        raise InvalidTrigger(
            f"{expression!r} has {len(fields)} fields: write 5 (minute, hour, day, month, day of the week), "
            "or 6 with the second first"
        )
    try:
        sim = CronSim(text, _EPOCH)
        next(CronSim(text, _EPOCH))
    except CronSimError as error:
        raise InvalidTrigger(_explained(expression, fields[-3:], str(error))) from None
    except StopIteration:
        raise InvalidTrigger(f"{expression!r} never fires: no date fits its day, month and day of the week") from None
    minute, hour = fields[-5], fields[-4]
    return Crontab(sim, len(fields) == 5 and not minute.startswith("*") and not hour.startswith("*"))


def _without_alias(expression: str) -> str:
    word = expression.strip().lower()
    if not word.startswith("@"):
        return expression
    if word not in ALIASES:
        raise InvalidTrigger(f"there is no {expression!r}; {nearest(word, ALIASES)}")
    return ALIASES[word]


def _explained(expression: str, days: list[str], error: str) -> str:
    name, may_be = _FIELDS[error]
    if error == "Bad day-of-month" and _is_days(days[0]):
        return f"{expression!r} never fires: no month that it names has such a day"
    return f"the {name} in {expression!r} is wrong: it can be {may_be}, *, lists (1,2), ranges (1-5) and steps (*/5)"


def _is_days(field: str) -> bool:
    """Whether a field is right by itself, so that only the months can be the reason."""
    try:
        CronSim(f"0 0 {field} * *", _EPOCH)
    except CronSimError:
        return False
    return True
