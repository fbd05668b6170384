"""`tocsin queues repartition`: another number of partitions for a live queue."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from tocsin.cli.options import Given, Options, connected
from tocsin.cli.queues import queues
from tocsin.cli.show import print_json, say
from tocsin.model.clock import monotonic
from tocsin.model.queue import MOST_PARTITIONS
from tocsin.store.repartition import Progress as Told

__all__ = ["queues", "repartition"]

# Without a terminal: a line each time another tenth is done.
LINES = 10


@queues.command
async def repartition(
    name: str, partitions: Annotated[int, Parameter(validator=Number(gte=1, lte=MOST_PARTITIONS))], *, options: Given
) -> int:
    """Give a queue another number of partitions, live; run it again if it was stopped half-way.

    Until it is done the queue stands still: programs and workers wait, and go on by themselves. Nothing is lost.

    Parameters
    ----------
    name
        The queue.
    partitions
        How many it shall have.
    """
    began = monotonic()
    async with connected(options) as (app, _):
        with _progress(options) as progress:
            done = await app.repartition_queue(name, partitions, progress)
    took = monotonic() - began
    if options.json:
        print_json(
            {"queue": done.queue, "before": done.before, "after": done.after, "moved": done.moved,
             "resumed": done.resumed, "seconds": round(took, 3)}
        )  # fmt: skip
    elif done.before == done.after:
        print(f"queue {name} has {partitions} partitions already: nothing to do")
    else:
        again = " (going on with what was begun before)" if done.resumed else ""
        print(f"queue {name} has {done.after} partitions, not {done.before}: {done.moved} moved in {took:.1f} s{again}")
    return 0


@contextmanager
def _progress(options: Options) -> Iterator[Told]:
    if options.json:
        yield lambda done, total: None
        return
    if not sys.stderr.isatty():
        yield _Lines().show
        return
    columns = (TextColumn("looking at jobs"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _Lines:
    def __init__(self) -> None:
        self._told = 0

    def show(self, done: int, total: int) -> None:
        if total and done * LINES // total > self._told:
            self._told = done * LINES // total
            say(f"{done} of {total} jobs looked at")
