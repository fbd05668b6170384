"""Print results: tables on a terminal, plain columns otherwise, JSON with --json."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tocsin.cli.options import Options
from tocsin.model.human_time import distance as distance
from tocsin.model.human_time import iso as iso
from tocsin.model.human_time import local as local
from tocsin.model.human_time import span as span
from tocsin.telemetry.logs import printable, safe_json

REFRESH_S = 1.0

T = TypeVar("T")
Row = Sequence[object]


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console() -> Console:
    return _Console(highlight=False)


class Listing(msgspec.Struct, frozen=True):
    """Columns and rows, to be shown as a table or as lines. The name of a column of numbers begins with #."""

    columns: Sequence[str]
    rows: Sequence[Row]
    title: str = ""
    # Printed to stderr: `empty` instead of a table without rows, `more` after a table that was cut.
    empty: str = "nothing"
    more: str = ""

    def table(self) -> Table:
        table = Table(title=self.title or None, title_justify="left", header_style="bold", box=None, pad_edge=False)
        for column in self.columns:
            table.add_column(column.lstrip("#"), justify="right" if column.startswith("#") else "left", overflow="fold")
        for row in self.rows:
            # Text, not markup: ids may hold square brackets.
            table.add_row(*(Text(cell(value)) for value in row))
        return table

    def lines(self) -> Iterator[str]:
        """Lines are never cut or wrapped, so that grep and awk find what they look for."""
        rows = [[column.lstrip("#") for column in self.columns], *([cell(value) for value in row] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def cell(value: object) -> str:
    """Escape the value so that it prints on one line: an id may contain newlines and escape sequences."""
    text = "" if value is None else str(value)
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def say(text: str) -> None:
    """Print a message to stderr. Terminal control characters are escaped, because errors quote foreign text."""
    print(printable(text), file=sys.stderr, flush=True)


def print_listing(listing: Listing) -> None:
    if not listing.rows:
        say(listing.empty)
    elif sys.stdout.isatty():
        console().print(listing.table())
    else:
        print("\n".join(listing.lines()), flush=True)
    if listing.more:
        say(listing.more)


def print_json(value: object, *, indent: bool = True) -> None:
    data = msgspec.json.encode(plain(value))
    print(safe_json((msgspec.json.format(data, indent=2) if indent else data).decode()), flush=True)


def plain(value: Any) -> Any:
    """Make any argument of a job fit for JSON: keys become text, and values of unknown types their repr."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else repr(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    try:
        return msgspec.to_builtins(value)
    except TypeError:
        return repr(value)


async def show(
    options: Options,
    watch: bool,
    fetch: Callable[[], Awaitable[T]],
    listing: Callable[[T], Listing],
    as_json: Callable[[T], object],
) -> int:
    """Print once, or with `watch` each second until Ctrl-C."""
    if not watch:
        found = await fetch()
        print_json(as_json(found)) if options.json else print_listing(listing(found))
        return 0
    with interruptible() as stop:
        if options.json or not sys.stdout.isatty():
            await _repeat(stop, fetch, lambda found: _print_again(options, listing(found), as_json(found)))
        else:
            with Live(console=console(), auto_refresh=False) as live:
                await _repeat(stop, fetch, lambda found: live.update(listing(found).table(), refresh=True))
    return 0


async def _repeat(stop: asyncio.Event, fetch: Callable[[], Awaitable[T]], put: Callable[[T], None]) -> None:
    while not stop.is_set():
        put(await fetch())
        await wait(stop, REFRESH_S)


def _print_again(options: Options, listing: Listing, value: object) -> None:
    if options.json:
        print_json(value, indent=False)
    else:
        print("\n".join([*listing.lines(), ""]), flush=True)


async def wait(stop: asyncio.Event, seconds: float) -> bool:
    """Wait until the time is over, or return True as soon as `stop` is set."""
    try:
        async with asyncio.timeout(seconds):
            return await stop.wait()
    except TimeoutError:
        return False


@contextmanager
def interruptible() -> Iterator[asyncio.Event]:
    """Ctrl-C and SIGTERM set the event instead of interrupting, so that the caller ends at a safe point."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    for number in numbers:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def silence_stdout() -> None:
    """After a broken pipe, discard what is still buffered: the interpreter would fail to flush it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def size(count: int | None) -> str:
    """A number of bytes, like 1.5 MiB."""
    if count is None:
        return "?"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
