"""Triggers: data that says when a job is due. Making one checks it, also when it is decoded from a record.

`|` joins two triggers and `-` leaves out days:

    Cron("0 9 * * mon-fri", tz="Europe/Paris") - Holidays("FR") | Cron("0 11 * * sat", tz="Europe/Paris")
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from msgspec import Struct
from msgspec.structs import force_setattr

from tocsin.model import cron, holidays, rrule
from tocsin.model.durations import Duration, ceil_ms, epoch_ms, seconds
from tocsin.model.errors import InvalidTrigger, did_you_mean
from tocsin.model.step_budget import STEPS
from tocsin.model.zones import zone_name

DST = ("cron", "skip", "earlier", "later", "later-first", "both")
# Maximum parts of a union and calendars of an exception: each tick checks all of them.
MOST_PARTS = 100


class _Joinable(Struct, frozen=True, array_like=True, gc=False):
    """The operators `|` and `-`, for all triggers."""

    def __or__(self, other: Any) -> AnyOf:
        if not isinstance(other, _Joinable):
            return NotImplemented
        return AnyOf(tuple(dict.fromkeys((*_parts(self), *_parts(other)))))

    def __sub__(self, other: Any) -> Any:
        if not isinstance(other, Calendar):
            return NotImplemented
        parts = tuple(dict.fromkeys(_without(part, other) for part in _parts(self)))
        return AnyOf(parts) if isinstance(self, AnyOf) else parts[0]


class Every(_Joinable, frozen=True, array_like=True, tag="every"):
    """Fire each `interval`, counted from the last due time, so the cadence does not drift. With an anchor, fire at the
    anchor and at whole intervals before and after it."""

    interval: float
    anchor: datetime | None = None

    if TYPE_CHECKING:

        def __init__(self, interval: Duration, anchor: datetime | None = None) -> None: ...

    def __post_init__(self) -> None:
        if type(self.interval) is float and 0.001 <= self.interval < 1e9 and self.anchor is None:
            # Fast path for decoding: each claimed run passes here, and stored values have this form.
            return
        interval = seconds(self.interval, "an interval")
        if ceil_ms(interval) < 1:
            raise InvalidTrigger(f"an interval must be at least 1 ms, not {self.interval!r}")
        force_setattr(self, "interval", interval)
        if self.anchor is not None:
            epoch_ms(self.anchor, "the anchor of Every")


class Once(_Joinable, frozen=True, array_like=True, tag="once"):
    """Fire at one moment and end."""

    at: datetime

    def __post_init__(self) -> None:
        epoch_ms(self.at, "the moment of Once")


class Cron(_Joinable, frozen=True, array_like=True, tag="cron"):
    """Fire by the local time of a zone: 5 fields, 6 with the second first, or @daily and the like.

    `dst` chooses what happens to local times that a change of the clock skips or repeats.
    """

    expression: str
    tz: str = "UTC"
    dst: str = "cron"

    if TYPE_CHECKING:

        def __init__(self, expression: str, tz: str | ZoneInfo = "UTC", dst: str = "cron") -> None: ...

    def __post_init__(self) -> None:
        given: tuple[Any, ...] = (self.expression, self.tz, self.dst)
        for value, what in zip(given[::2], ("a cron expression", "dst"), strict=True):
            if not isinstance(value, str):
                raise InvalidTrigger(f"{what} is text, not {value!r:.100}")
        if type(given[1]) is not str:
            force_setattr(self, "tz", zone_name(given[1]))
        _check_cron(self.expression, self.tz, self.dst)


@lru_cache(maxsize=4096)
def _check_cron(expression: str, tz: str, dst: str) -> None:
    cron.parse(expression)
    zone_name(tz)
    if dst not in DST:
        raise InvalidTrigger(f"there is no dst={dst[:100]!r}; {did_you_mean(dst[:100], DST)}")


class Rrule(_Joinable, frozen=True, array_like=True, tag="rrule"):
    """Fire by an RRULE (RFC 5545) in the local time of a zone, from `start` on."""

    text: str
    start: datetime
    tz: str = "UTC"

    if TYPE_CHECKING:

        def __init__(self, text: str, start: datetime, tz: str | ZoneInfo = "UTC") -> None: ...

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise InvalidTrigger(f"a rule is text like 'FREQ=WEEKLY;BYDAY=MO', not {self.text!r:.100}")
        epoch_ms(self.start, "the start of Rrule")
        # The form in which a record stores it.
        force_setattr(self, "start", self.start.astimezone(UTC))
        force_setattr(self, "tz", zone_name(self.tz))
        rrule.parse(self.text, self.start, self.tz)


class Holidays(Struct, frozen=True, array_like=True, tag="holidays"):
    """The public holidays of a country, or of a part of it: Holidays("DE", subdiv="BY")."""

    country: str
    subdiv: str | None = None

    def __post_init__(self) -> None:
        holidays.check(self.country, self.subdiv)


class Dates(Struct, frozen=True, array_like=True, tag="dates"):
    """A list of days, each a date or text like 2030-12-24."""

    days: tuple[date, ...]

    if TYPE_CHECKING:

        def __init__(self, days: Iterable[date | str]) -> None: ...

    def __post_init__(self) -> None:
        days: Any = self.days
        if isinstance(days, (str, date)) or not isinstance(days, Iterable):
            raise InvalidTrigger(f"Dates takes a list of dates, not {days!r:.100}")
        force_setattr(self, "days", tuple(sorted({_as_date(day) for day in days})))


def _as_date(day: Any) -> date:
    if isinstance(day, str):
        try:
            return date.fromisoformat(day)
        except ValueError:
            raise InvalidTrigger(f"{day[:100]!r} is not a date: write it like 2030-12-24") from None
    if isinstance(day, datetime) or not isinstance(day, date):
        raise InvalidTrigger(f"a day is a date, or text like 2030-12-24, not {day!r:.100}")
    return day


Calendar = Holidays | Dates


class Except(_Joinable, frozen=True, array_like=True, tag="except"):
    """A trigger without its ticks on some days, by its own zone (UTC if it has none). Written with `-`."""

    trigger: Every | Once | Cron | Rrule
    calendars: tuple[Holidays | Dates, ...]

    def __post_init__(self) -> None:
        _check_number(self.calendars, "a trigger leaves out")


class AnyOf(_Joinable, frozen=True, array_like=True, tag="any"):
    """Fire when one of several triggers fires, once if several fire at the same time. Written with `|`."""

    triggers: tuple[Every | Once | Cron | Rrule | Except, ...]

    def __post_init__(self) -> None:
        _check_number(self.triggers, "a union has")
        _check_cost(self.triggers)


Trigger = Every | Once | Cron | Rrule | Except | AnyOf


def _check_number(parts: tuple[Any, ...], what: str) -> None:
    if not 1 <= len(parts) <= MOST_PARTS:
        raise InvalidTrigger(f"{what} 1 to {MOST_PARTS} parts, not {len(parts)}")


def _check_cost(parts: Iterable[Any]) -> None:
    """Limit the cost of all rules together to that of one: decoding a record parses all of them."""
    rules = [part.trigger if isinstance(part, Except) else part for part in parts]
    steps = sum(rrule.parse(rule.text, rule.start, rule.tz).cost for rule in rules if isinstance(rule, Rrule))
    if steps > STEPS:
        raise InvalidTrigger("the rules of this union take too long to work out: use UNTIL for COUNT, or several jobs")


def _parts(trigger: Any) -> tuple[Any, ...]:
    return trigger.triggers if isinstance(trigger, AnyOf) else (trigger,)


def _without(trigger: Any, calendar: Holidays | Dates) -> Except:
    if isinstance(trigger, Except):
        return Except(trigger.trigger, tuple(dict.fromkeys((*trigger.calendars, calendar))))
    return Except(trigger, (calendar,))


def check_trigger(trigger: Any) -> Trigger:
    if not isinstance(trigger, Trigger):
        raise InvalidTrigger(
            f"a trigger is Every(...), Once(...), Cron(...) or Rrule(...), these joined with |, not {trigger!r:.100}"
        )
    return trigger


def zone_of(trigger: Trigger | None) -> str:
    """The zone to show a trigger's ticks in: its own, or UTC if it has none or several."""
    if isinstance(trigger, AnyOf):
        zones = {zone_of(part) for part in trigger.triggers}
        return zones.pop() if len(zones) == 1 else "UTC"
    if isinstance(trigger, Except):
        return zone_of(trigger.trigger)
    return trigger.tz if isinstance(trigger, (Cron, Rrule)) else "UTC"


def by_the_wall_clock(trigger: Trigger | None) -> bool:
    """Whether a trigger's ticks depend on the zone database."""
    if isinstance(trigger, AnyOf):
        return any(by_the_wall_clock(part) for part in trigger.triggers)
    return isinstance(trigger, (Cron, Rrule)) or (isinstance(trigger, Except) and by_the_wall_clock(trigger.trigger))


def likely_mistakes(trigger: Trigger | None) -> tuple[str, ...]:
    """A sentence about each part that is valid but probably a mistake."""
    if isinstance(trigger, AnyOf):
        return tuple(each for part in trigger.triggers for each in likely_mistakes(part))
    if isinstance(trigger, Except):
        return likely_mistakes(trigger.trigger)
    return cron.parse(trigger.expression).mistakes if isinstance(trigger, Cron) else ()


def phrase(trigger: Trigger | None) -> str:
    """A trigger in a few words, for output to people."""
    if isinstance(trigger, AnyOf):
        return " | ".join(map(phrase, trigger.triggers))
    if isinstance(trigger, Except):
        return " - ".join([phrase(trigger.trigger), *map(_days, trigger.calendars)])
    if isinstance(trigger, (Cron, Rrule)):
        text = trigger.expression if isinstance(trigger, Cron) else trigger.text
        return text if trigger.tz == "UTC" else f"{text} {trigger.tz}"
    if isinstance(trigger, Every):
        return f"every {trigger.interval:g}s"
    return "" if trigger is None else f"once at {trigger.at.isoformat()}"


def _days(calendar: Holidays | Dates) -> str:
    if isinstance(calendar, Dates):
        return f"{len(calendar.days)} days"
    return f"holidays {calendar.country}" + (f"-{calendar.subdiv}" if calendar.subdiv else "")
