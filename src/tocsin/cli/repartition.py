"""`tocsin queues repartition`: another number of partitions for a live queue."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from tocsin.cli.options import Given, connected
from tocsin.cli.printing import print_json
from tocsin.cli.progress import progress
from tocsin.cli.queues import queues
from tocsin.model.clock import monotonic
from tocsin.model.queue import MOST_PARTITIONS

__all__ = ["queues", "repartition"]


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
        with progress(options, "looking at jobs") as show:
            done = await app.repartition_queue(name, partitions, show)
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
