"""`tocsin purge` (also `tocsin queues purge`): remove all jobs of a queue."""

from __future__ import annotations

from tocsin.app import Tocsin
from tocsin.app.bulk_control import Removed
from tocsin.cli.confirm import Yes, confirm, count_of_jobs, print_removed
from tocsin.cli.options import Given, Options, QueueArgument, connected
from tocsin.cli.printing import cell, print_json, say
from tocsin.cli.progress import progress
from tocsin.inspection.inspector import Inspector


async def purge(name: QueueArgument, /, *, yes: Yes = False, options: Given) -> int:
    """Remove all jobs of a queue and keep its settings. Running jobs are removed when their runs end.

    Jobs that programs put meanwhile may stay: stop the programs first if the queue must be empty.
    """
    async with connected(options) as (app, inspector):
        counts = await preview(inspector, name, yes, options)
        total = count_of_jobs(sum(counts.values()))
        if counts and not confirm(options, yes, f"remove {total} from queue {cell(name)}?"):
            return 1
        removed = await purge_jobs(app, name, options)
    print_removed(removed, options, queue=name)
    return 0


async def purge_jobs(app: Tocsin, name: str, options: Options) -> Removed:
    with progress(options, "removing jobs") as show:
        return await app.purge_queue(name, show)


async def preview(inspector: Inspector, name: str, yes: bool, options: Options) -> dict[str, int]:
    """Show and return how many jobs would be removed, by stage."""
    found = await inspector.queue(name)
    counts = {stage: count for stage, count in found.queue.stages.items() if count}
    if options.json and not yes:
        print_json({"queue": name, "jobs": counts})
    elif not options.json:
        shown = ", ".join(f"{count} {stage}" for stage, count in counts.items())
        say(f"queue {cell(name)} has {count_of_jobs(sum(counts.values()))}{f': {shown}' if shown else ''}")
    return counts
