"""`tocsin next`: when a cron expression fires, before anything is scheduled."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from tocsin.cli.options import Given, WrongUsage, parse_time
from tocsin.cli.printing import Listing, iso, print_json, print_listing, say
from tocsin.model.clock import wall_ms
from tocsin.model.durations import Millis, epoch_ms
from tocsin.model.errors import InvalidTrigger
from tocsin.model.trigger import Cron, likely_mistakes
from tocsin.triggers.next_tick import next_at
from tocsin.triggers.preview import ComingTick, preview


def next_ticks(
    expression: str,
    /,
    *,
    tz: Annotated[str, Parameter(help="The zone, by its IANA name.")] = "UTC",
    n: Annotated[int, Parameter(name=["-n", "--count"], validator=Number(gte=1, lte=10_000), help="How many.")] = 5,
    after: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    dst: Annotated[str, Parameter(help="cron, skip, earlier, later, later-first or both.")] = "cron",
    options: Given,
) -> int:
    """Show when a cron expression fires next, in local time and UTC, with a note where the clock changes.

    Parameters
    ----------
    expression
        Five fields; or six, the first for seconds; or @daily and the like.
    after
        ISO 8601 with a zone (2030-01-31T09:00Z), or a distance from now (+1h, -5m); without it, now.
    """
    now = wall_ms()
    since = now if after is None else epoch_ms(parse_time(after, now))
    try:
        cron = Cron(expression, tz=tz, dst=dst)
        ticks = _ticks(cron, since, n)
    except InvalidTrigger as error:
        raise WrongUsage(str(error)) from None
    for sentence in likely_mistakes(cron):
        say(f"tocsin: {sentence}")
    coming = preview(ticks, tz, since)
    if options.json:
        print_json([as_dict(each) for each in coming])
    else:
        print_listing(listing(coming, f"{expression} does not fire after that"))
    return 0


def _ticks(cron: Cron, since: Millis, n: int) -> list[Millis]:
    ticks: list[Millis] = []
    while len(ticks) < n and (tick := next_at(cron, (ticks[-1] if ticks else since) + 1)) is not None:
        ticks.append(tick)
    return ticks


def as_dict(coming: ComingTick) -> dict[str, Any]:
    return {"utc": iso(epoch_ms(coming.utc)), "local": coming.local.isoformat(), "note": coming.note}


def listing(coming: list[ComingTick], empty: str) -> Listing:
    rows = [
        [f"{each.local:%a} {each.local.isoformat(' ')}", f"{each.utc:%Y-%m-%d %H:%M:%S}", each.note] for each in coming
    ]
    return Listing(["local", "UTC", ""], rows, empty=empty)
