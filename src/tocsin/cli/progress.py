"""Show the progress of long work: a bar on a terminal, otherwise a line for each tenth, nothing with --json."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tocsin.cli.options import Options
from tocsin.cli.printing import say

LINES = 10
# Work on fewer items is done before anybody could read a line.
WORTH_A_LINE = 10_000

# Called with how many items are done, and how many there are.
Show = Callable[[int, int], None]


@contextmanager
def progress(options: Options, what: str) -> Iterator[Show]:
    """`what` names the work, like "looking at jobs"."""
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
