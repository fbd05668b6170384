"""Parses the fields of a cron expression term by term. Errors quote the term and say what to write instead."""

from __future__ import annotations

import re

from msgspec import Struct

_TERM = re.compile(r"(\*|[A-Z0-9]+)(?:-([A-Z0-9]+))?(?:/([0-9]+))?", re.ASCII | re.IGNORECASE)
# 15W, L, LW, L-3 and L-3W.
_DAY = re.compile(r"(?:([0-9]{1,2})W|L(?:-([0-9]{1,2}))?(W)?)", re.ASCII | re.IGNORECASE)
# 5L, FRIL and 1#2.
_WEEKDAY = re.compile(r"([A-Z0-9]+)(?:L|#([0-9]+))", re.ASCII | re.IGNORECASE)
_HASHED = re.compile(r"H(\([^)]*\))?(/\d+)?", re.ASCII | re.IGNORECASE)
DAY_NAMES = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
MONTH_NAMES = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")


class Field(Struct, frozen=True):
    """One of the six fields: its name, and the numbers and names it takes."""

    name: str
    low: int
    high: int
    # The period at which steps begin again, and the unit of the same steps in Every.
    round: str
    unit: str = ""
    names: tuple[str, ...] = ()
    # What the field takes, in words, if it is more than numbers.
    may_be: str = ""

    @property
    def takes(self) -> str:
        return self.may_be or f"{self.low} to {self.high}"

    def number(self, text: str) -> int | None:
        if text.upper() in self.names:
            return self.names.index(text.upper()) + self.low
        value = int(text) if text.isdigit() and len(text) < 4 else -1
        return value if self.low <= value <= self.high else None


SECOND = Field("second", 0, 59, "minute", "s")
MINUTE = Field("minute", 0, 59, "hour", "m")
HOUR = Field("hour", 0, 23, "day", "h")
DAY = Field(
    "day of the month", 1, 31, "month", "d", (),
    "1 to 31, L for the last, L-3 for the third before it, 15W for the weekday nearest to the 15th, LW for the last",
)  # fmt: skip
MONTH = Field("month", 1, 12, "year", "", MONTH_NAMES, "1 to 12 or JAN to DEC")
WEEKDAY = Field(
    "day of the week", 0, 7, "week", "d", DAY_NAMES,
    "0 to 7 (0 and 7 are Sunday), SUN to SAT, FRIL for the last Friday, MON#2 for the second Monday",
)  # fmt: skip


class DaySpecial(Struct, frozen=True):
    """A day that depends on the month: `day` days before the last if `from_end`, else day number `day`. With `weekday`
    it is the weekday nearest to that day in the same month."""

    day: int
    from_end: bool
    weekday: bool


class NthWeekday(Struct, frozen=True):
    """`weekday` counts from Sunday, 0. `nth` 0 is the last one of the month."""

    weekday: int
    nth: int


class FieldError(Exception):
    """What is wrong with a term. cron.py adds the field and the expression."""


def read(text: str, field: Field, mistakes: list[str]) -> set[int]:
    """Raises FieldError. Appends to `mistakes` a sentence about each term that is valid but probably a mistake."""
    return {number for term in text.split(",") for number in _numbers(term, field, mistakes)}


def read_days(text: str, mistakes: list[str]) -> tuple[set[int], list[DaySpecial]]:
    numbers: set[int] = set()
    special = []
    for term in _any_day(text).split(","):
        match = _DAY.fullmatch(term)
        if match is None:
            numbers |= _numbers(term, DAY, mistakes)
        elif match[1] is not None:
            if DAY.number(match[1]) is None:
                raise FieldError(f"{term!r}: a day is from 1 to 31")
            special.append(DaySpecial(int(match[1]), from_end=False, weekday=True))
        else:
            before = int(match[2] or 0)
            if before > 30:
                raise FieldError(f"{term!r}: no month has a day that is {before} days before its last")
            special.append(DaySpecial(before, from_end=True, weekday=match[3] is not None))
    return numbers, special


def read_weekdays(text: str, mistakes: list[str]) -> tuple[set[int], list[NthWeekday]]:
    """The weekdays, from Sunday: 0 to 6."""
    numbers: set[int] = set()
    special = []
    for term in _any_day(text).split(","):
        match = _WEEKDAY.fullmatch(term)
        weekday = None if match is None else WEEKDAY.number(match[1])
        if match is None or weekday is None:
            numbers |= {number % 7 for number in _numbers(term, WEEKDAY, mistakes)}
            continue
        nth = int(match[2]) if match[2] and len(match[2]) == 1 else 0
        if match[2] is not None and not 1 <= nth <= 5:
            raise FieldError(f"{term!r}: a month has at most five of a weekday, so #1 to #5")
        special.append(NthWeekday(weekday % 7, nth))
    return numbers, special


def _any_day(text: str) -> str:
    """Read Quartz's ? as *: it means that the other day field decides."""
    return "*" + text[1:] if text == "?" or text.startswith("?/") else text


def _numbers(term: str, field: Field, mistakes: list[str]) -> set[int]:
    match = _TERM.fullmatch(term)
    if match is None or (match[1] == "*" and match[2]):
        raise _unknown(term, term, field)
    first, last, step = match[1], match[2], None if match[3] is None else int(match[3])
    if step == 0:
        raise FieldError(f"{term!r} has a step of 0: a step is 1 or more")
    low, high = (field.low, field.high) if first == "*" else _span(term, first, last, step, field)
    if step is not None and last is None and step > len(_values(field)):
        mistakes.append(_same_as(term, low, step, field))
    return set(range(low, high + 1, step or 1))


def _values(field: Field) -> range:
    """The distinct values: Sunday has two numbers, 0 and 7."""
    return range(7) if field is WEEKDAY else range(field.low, field.high + 1)


def _span(term: str, first: str, last: str | None, step: int | None, field: Field) -> tuple[int, int]:
    """The first and last number of a range. A range of weekdays may run past Sunday, so its end may be above 7."""
    low, high = field.number(first), None if last is None else field.number(last)
    if low is None or (last is not None and high is None):
        raise _unknown(term, str(first if low is None else last), field)
    if high is None:
        return low, low if step is None else field.high
    if high >= low:
        return low, high
    if field is WEEKDAY:
        # Like FRI-MON. A range that begins with 7 begins with Sunday.
        return (0, high) if low == 7 else (low, high + 7)
    raise FieldError(f"{term!r} runs backwards: write {_forwards(low, high, step or 1, field)}")


def _forwards(low: int, high: int, step: int, field: Field) -> str:
    """A range that runs over the end of the field, written as two ranges or as a list."""
    size = field.high - field.low + 1
    if step > 1:
        numbers = sorted((at - field.low) % size + field.low for at in range(low, high + size + 1, step))
        return ",".join(map(str, numbers))
    return ",".join(f"{a}-{b}" if a != b else str(a) for a, b in ((low, field.high), (field.low, high)))


def _same_as(term: str, low: int, step: int, field: Field) -> str:
    instead = f"; for one run in {step}{field.unit} use Every('{step}{field.unit}')" if field.unit else ""
    return f"{term!r} is the same as {low}: steps begin anew with each {field.round}{instead}"


def _unknown(term: str, word: str, field: Field) -> FieldError:
    advice = _advice(term.upper(), field)
    if advice is not None:
        return FieldError(f"{term!r}: {advice}")
    where = repr(term) if word == term else f"{word!r} in {term!r}"
    return FieldError(
        f"{where} is not from {field.low} to {field.high}" if word.isdigit() else f"{where} cannot be read"
    )


def _advice(term: str, field: Field) -> str | None:
    """What to write instead of syntax from other schedulers."""
    if term == "":
        return "a value is missing between two commas"
    if _HASHED.fullmatch(term):
        return "H is Jenkins's, write a number there, and spread the jobs with jitter="
    if "?" in term:
        return "? must stand alone and means any day; write *"
    if field is HOUR and term == "24":
        return "midnight is 0 of the next day"
    for name in field.names:
        long = re.search(rf"\b{name}[A-Z]+\b", term)
        if long is not None and not long[0].endswith("L"):
            return f"names have three letters, write {name}"
    if field is DAY:
        return _day_advice(term)
    return _weekday_advice(term) if field is WEEKDAY else None


def _day_advice(term: str) -> str | None:
    if match := re.fullmatch(r"(\d+)-L", term):
        return f"a range ends with a number, write {match[1]}-31"
    if match := re.fullmatch(r"W(\d+)", term):
        return f"write {match[1]}W"
    if re.fullmatch(r"-\d+", term):
        return "the last day is L, those before it are L-1, L-2 and so on"
    if "W" in term:
        return "W follows one day, like 15W or LW, and goes with no range and no step"
    return "L goes with no range and no step, write L, LW, L-3 or L-3W" if "L" in term else None


def _weekday_advice(term: str) -> str | None:
    if match := re.fullmatch(r"L(\d|[A-Z]{3})", term) or re.fullmatch(r"(\d|[A-Z]{3})#(?:L|LAST|-1)", term):
        return f"the last one of a month is {match[1]}L"
    if match := re.fullmatch(r"\w+-\w+?(#\d|L)", term):
        return f"{match[1]} follows one day, write them one by one, like MON{match[1]},TUE{match[1]}"
    return "L follows a day, like FRIL" if term == "L" else None
