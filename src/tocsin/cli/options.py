"""The options of every command, types that several commands share, and how values are read from the command line."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Annotated

from cyclopts import Parameter
from msgspec import Struct

from tocsin.app import Tocsin
from tocsin.inspection.inspector import Inspector
from tocsin.model.durations import Millis, millis, moment, seconds
from tocsin.model.errors import InvalidArgument, did_you_mean
from tocsin.store.keys import STAGE_KEYS


class Options(Struct, frozen=True):
    """The options of every command. None: not given, so the app's own value or the default applies."""

    url: str | None = None
    prefix: str | None = None
    hash_tag: str | None = None
    json: bool = False
    log_level: str = "info"
    config: str | None = None

    def where(self) -> dict[str, str]:
        """The given options, as arguments of `Tocsin`."""
        values = {"url": self.url, "prefix": self.prefix, "hash_tag": self.hash_tag, "config": self.config}
        return {name: value for name, value in values.items() if value is not None}


# The launcher fills this in; the parser of the command skips it.
Given = Annotated[Options, Parameter(parse=False)]
Watch = Annotated[bool, Parameter(negative="", help="Show it again each second until Ctrl-C.")]
QueueName = Annotated[str | None, Parameter(help="Only this queue.")]
QueueArgument = Annotated[str, Parameter(help="The queue's name.")]
_TIME = "ISO 8601 with a zone (2030-01-31T09:00Z), or a distance from now (+1h, -5m)."
DueBefore = Annotated[str | None, Parameter(allow_leading_hyphen=True, help=_TIME)]
DueAfter = Annotated[str | None, Parameter(allow_leading_hyphen=True, help="Likewise.")]

STAGES = ("ready", *STAGE_KEYS)


class WrongUsage(Exception):
    """The command line makes no sense: exit code 2."""


@asynccontextmanager
async def connected(options: Options) -> AsyncIterator[tuple[Tocsin, Inspector]]:
    async with Tocsin(**options.where()) as app:  # type: ignore[arg-type]
        yield app, Inspector(app.store)


def check_stage(stage: str | None) -> None:
    if stage is not None and stage not in STAGES:
        raise WrongUsage(f"there is no stage {stage!r}; {did_you_mean(stage, STAGES)}")


def check_times(*texts: str | None) -> None:
    """Refuse a malformed time before connecting; what a distance means is known only with the server's time."""
    for text in texts:
        if text is not None:
            parse_time(text, 0)


def parse_time(text: str, now: Millis) -> datetime:
    """ISO 8601 with a zone, or a distance from `now`, the server's time: +1h, -5m."""
    if text[:1] in ("+", "-"):
        try:
            away = timedelta(milliseconds=millis(text[1:]))
        except InvalidArgument:
            raise WrongUsage(f"{text!r} is not a distance in time: write it like +1h30m or -5m") from None
        return moment(now) + away if text[0] == "+" else moment(now) - away
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise WrongUsage(
            f"{text!r} is not a time: write it like 2030-01-31T09:00Z, or as a distance like +1h or -5m"
        ) from None
    if when.tzinfo is None:
        raise WrongUsage(f"the time {text!r} does not say its zone: add Z for UTC, or an offset like +02:00")
    return when.astimezone(UTC)


def parse_duration(text: str, what: str) -> float:
    try:
        return seconds(float(text) if text.replace(".", "", 1).isdigit() else text, what)
    except InvalidArgument as error:
        raise WrongUsage(str(error)) from None


def split_weights(text: str) -> dict[str, int]:
    """`mail:3,bulk` -> mail 3, bulk 1."""
    weights = {}
    for part in split_names(text):
        name, colon, weight = part.rpartition(":")
        if colon and not weight.isdecimal():
            raise WrongUsage(f"the weight of queue {name!r} must be a whole number, as in {name}:3, not {weight!r}")
        weights[name if colon else part] = int(weight) if colon else 1
    return weights


def split_names(text: str) -> list[str]:
    """a,b -> [a, b]"""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise WrongUsage(f"{text!r} is not a list of names: write it like a,b")
    return names
