"""How far long work has come: a bar on a terminal, a line for each tenth otherwise, nothing beside JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tocsin.cli.options import Options
from tocsin.cli.printing import say

LINES = 10
# Work on fewer than this is done before anybody could read of it.
WORTH_A_LINE = 10_000

# How much is done, and of how much.
Show = Callable[[int, int], None]


@contextmanager
def progress(options: Options, what: str) -> Iterator[Show]:
    """`what`: what is being done, like "looking at jobs"."""
    if options.json:
        yield lambda done, total: None
        return
    if not sys.stderr.isatty():
        yield _PlainProgress(what).show
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _PlainProgress:
    def __init__(self, what: str) -> None:
        self._what = what
        self._tenth = 0

    def show(self, done: int, total: int) -> None:
        if total >= WORTH_A_LINE and done * LINES // total > self._tenth:
            self._tenth = done * LINES // total
            say(f"{self._what}: {done} of {total}")
