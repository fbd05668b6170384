"""`tocsin jobs remove`, `tocsin purge`, `tocsin queues delete`: removing much at once, after showing what would go."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from tocsin.app import Tocsin
from tocsin.app.bulk_control import Removed
from tocsin.cli.confirm import Yes, confirm
from tocsin.cli.job_actions import act_on_job, jobs
from tocsin.cli.jobs import STAGES, Time, first_jobs
from tocsin.cli.options import Given, Options, QueueName, WrongUsage, check_time, connected, parse_time
from tocsin.cli.printing import cell, print_json, say
from tocsin.cli.progress import progress
from tocsin.cli.queues import Name
from tocsin.cli.repartition import queues
from tocsin.inspection.inspector import Inspector
from tocsin.model.errors import did_you_mean

__all__ = ["jobs", "purge", "queues"]

# Of the jobs that would go, so many are named.
EXAMPLES = 5


@jobs.command
async def remove(
    job_id: Annotated[str | None, Parameter(help="The job's id; after -- if it begins with a hyphen.")] = None,
    /,
    *,
    queue: QueueName = None,
    stage: Annotated[str | None, Parameter(help="All of this stage.")] = None,
    name: Annotated[str | None, Parameter(help="All of this handler.")] = None,
    tenant: Annotated[str | None, Parameter(help="All of this tenant.")] = None,
    due_before: Time = None,
    due_after: Time = None,
    yes: Yes = False,
    options: Given,
) -> int:
    """Remove a job, or all that match. Those that run are removed when their runs end.

    Parameters
    ----------
    due_before
        ISO 8601 with a zone (2030-01-31T09:00Z), or a distance from now (+1h, -5m).
    due_after
        Likewise.
    """
    given = {"stage": stage, "name": name, "tenant": tenant, "due_before": due_before, "due_after": due_after}
    filters = {key: value for key, value in given.items() if value is not None}
    if (job_id is None) == (not filters):
        raise WrongUsage("name one job by its id, or say which: --stage, --name, --tenant, --due-before, --due-after")
    if job_id is not None:
        return await act_on_job(job_id, queue, "removed", lambda app: app.remove(job_id, queue=queue), options)
    if stage is not None and stage not in STAGES:
        raise WrongUsage(f"there is no stage {stage!r}; {did_you_mean(stage, STAGES)}")
    for time in (due_before, due_after):
        if time is not None:
            check_time(time)
    async with connected(options) as (app, inspector):
        await inspector.check_queue(queue)
        now = await inspector.now()
        chosen: dict[str, Any] = filters | {"queue": queue}
        for key in ("due_before", "due_after"):
            if key in chosen:
                # A fixed time from here on: what is shown is what goes.
                chosen[key] = parse_time(chosen[key], now)
        return await _remove_chosen(app, chosen, yes, options)


async def _remove_chosen(app: Tocsin, chosen: dict[str, Any], yes: bool, options: Options) -> int:
    count = await app.count_jobs(**chosen)
    first = [job.id for job in await first_jobs(app.jobs(**chosen), EXAMPLES)]
    if options.json and not yes:
        print_json({"would_remove": count, "first": first})
    elif not options.json:
        say(f"{_jobs(count)} match: {', '.join(map(cell, first))}{', …' if count > len(first) else ''}")
    if not count:
        removed = Removed(0, 0)
    elif not confirm(options, yes, f"remove {_jobs(count)}?"):
        return 1
    else:
        with progress(options, "removing jobs") as show:
            removed = await app.remove_many(**chosen, progress=show)
    if count or yes or not options.json:
        _print_removed(removed, options)
    return 0


async def purge(name: Name, /, *, yes: Yes = False, options: Given) -> int:
    """Remove all jobs of a queue. Its settings stay. Jobs that run are removed when their runs end.

    Jobs that programs put meanwhile may stay: stop the programs first if the queue must be empty.
    """
    async with connected(options) as (app, inspector):
        counts = await _preview(inspector, name, yes, options)
        if counts and not confirm(options, yes, f"remove {_jobs(sum(counts.values()))} from queue {cell(name)}?"):
            return 1
        removed = await _purge(app, name, options)
    _print_removed(removed, options, queue=name)
    return 0


queues.command(purge)


@queues.command
async def delete(
    name: Name,
    /,
    *,
    purge: Annotated[bool, Parameter(negative="", show_default=False, help="Remove its jobs first.")] = False,
    force: Annotated[
        bool, Parameter(negative="", show_default=False, help="Although workers serve it: they create it anew.")
    ] = False,
    yes: Yes = False,
    options: Given,
) -> int:
    """Delete a queue with its settings and all that it remembers; it must be empty, or --purge.

    A program that declares the queue and uses it again creates it anew.
    """
    async with connected(options) as (app, inspector):
        counts = await _preview(inspector, name, yes, options)
        if not confirm(options, yes, f"delete queue {cell(name)}{' and its jobs' if counts and purge else ''}?"):
            return 1
        removed = await _purge(app, name, options) if purge and counts else Removed(0, 0)
        await app.delete_queue(name, force=force)
    if options.json:
        print_json({"queue": name, "deleted": True, "removed": removed.removed})
    else:
        print(f"deleted queue {cell(name)}")
    return 0


async def _purge(app: Tocsin, name: str, options: Options) -> Removed:
    with progress(options, "removing jobs") as show:
        return await app.purge_queue(name, show)


async def _preview(inspector: Inspector, name: str, yes: bool, options: Options) -> dict[str, int]:
    """How many jobs would go, by stage."""
    found = await inspector.queue(name)
    counts = {stage: count for stage, count in found.queue.stages.items() if count}
    if options.json and not yes:
        print_json({"queue": name, "jobs": counts})
    elif not options.json:
        shown = ", ".join(f"{count} {stage}" for stage, count in counts.items())
        say(f"queue {cell(name)} has {_jobs(sum(counts.values()))}{f': {shown}' if shown else ''}")
    return counts


def _print_removed(removed: Removed, options: Options, **more: str) -> None:
    if options.json:
        print_json({**more, "removed": removed.removed, "running": removed.running})
        return
    running = f"; {removed.running} that run are removed when their runs end" if removed.running else ""
    print(f"removed {_jobs(removed.removed)}{running}")


def _jobs(count: int) -> str:
    return f"{count} job{'' if count == 1 else 's'}"
