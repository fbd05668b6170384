"""`tocsin jobs pause|resume|fire|unpark|update|remove`: how an operator changes jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from cyclopts import Parameter

from tocsin.app import Tocsin
from tocsin.app.bulk_control import Removed
from tocsin.cli.confirm import Yes, confirm, count_of_jobs, print_removed
from tocsin.cli.job_listing import first_jobs
from tocsin.cli.options import (
    DueAfter,
    DueBefore,
    Given,
    Options,
    QueueName,
    WrongUsage,
    check_stage,
    check_times,
    connected,
    parse_time,
)
from tocsin.cli.printing import cell, print_json, say
from tocsin.cli.progress import progress
from tocsin.model.errors import InvalidArgument

# Before many jobs are removed, the question shows the ids of this many.
EXAMPLES = 5

JobId = Annotated[str, Parameter(help="The job's id.", allow_leading_hyphen=True)]


async def pause(job_id: JobId, /, *, queue: QueueName = None, options: Given) -> int:
    """Set a job aside. A running job is set aside when its run ends."""
    return await act_on_job(job_id, queue, "paused", lambda app: app.pause(job_id, queue=queue), options)


async def resume(
    job_id: JobId,
    /,
    *,
    replay: Annotated[bool, Parameter(negative="", help="Run at the time that was missed, not the next one.")] = False,
    queue: QueueName = None,
    options: Given,
) -> int:
    """Let a paused job run again."""
    return await act_on_job(job_id, queue, "resumed", lambda app: app.resume(job_id, replay, queue=queue), options)


async def fire(job_id: JobId, /, *, queue: QueueName = None, options: Given) -> int:
    """Run a job now as well; its schedule stays as it is."""

    async def fired(app: Tocsin) -> bool:
        await app.fire(job_id, queue=queue)
        return True

    return await act_on_job(job_id, queue, "fired", fired, options)


async def unpark(job_id: JobId, /, *, queue: QueueName = None, options: Given) -> int:
    """Try a parked job again."""
    return await act_on_job(job_id, queue, "unparked", lambda app: app.unpark(job_id, queue=queue), options)


async def update(
    job_id: JobId,
    /,
    *,
    priority: Annotated[str | None, Parameter(help="critical, high, normal, low or background.")] = None,
    tenant: str | None = None,
    timeout: Annotated[str | None, Parameter(help="Like 30s or 5m.")] = None,
    queue: QueueName = None,
    options: Given,
) -> int:
    """Change some of a job's definition. The job keeps its due time and its age in line."""
    values = {"priority": priority, "tenant": tenant, "timeout": timeout}
    changes = {name: value for name, value in values.items() if value is not None}
    if not changes:
        raise WrongUsage("say what to change, like --priority high")

    async def updated(app: Tocsin) -> bool:
        try:
            return await app.update(job_id, queue=queue, **changes)
        except InvalidArgument as error:
            raise WrongUsage(str(error)) from None

    return await act_on_job(job_id, queue, "updated", updated, options)


async def act_on_job(
    job_id: str, queue: str | None, done: str, act: Callable[[Tocsin], Awaitable[Any]], options: Options
) -> int:
    """Change one job and print whether that worked. `done` names the change, like "paused"."""
    async with connected(options) as (app, inspector):
        await inspector.check_queue(queue)
        was_done = bool(await act(app))
    if options.json:
        print_json({"id": job_id, done: was_done})
    elif was_done:
        print(f"{done} {cell(job_id)}")
    if not was_done:
        say(f"tocsin: no job {job_id!r} could be {done}; `tocsin why {job_id!r}` shows its state")
    return 0 if was_done else 1


async def remove(
    job_id: Annotated[str | None, Parameter(help="The job's id; after -- if it begins with a hyphen.")] = None,
    /,
    *,
    queue: QueueName = None,
    stage: Annotated[str | None, Parameter(help="All jobs in this stage.")] = None,
    name: Annotated[str | None, Parameter(help="All jobs of this handler.")] = None,
    tenant: Annotated[str | None, Parameter(help="All jobs of this tenant.")] = None,
    due_before: DueBefore = None,
    due_after: DueAfter = None,
    yes: Yes = False,
    options: Given,
) -> int:
    """Remove one job, or all jobs that match. Running jobs are removed when their runs end."""
    values = {"stage": stage, "name": name, "tenant": tenant, "due_before": due_before, "due_after": due_after}
    filters = {key: value for key, value in values.items() if value is not None}
    if (job_id is None) == (not filters):
        raise WrongUsage("name one job by its id, or say which: --stage, --name, --tenant, --due-before, --due-after")
    if job_id is not None:
        return await act_on_job(job_id, queue, "removed", lambda app: app.remove(job_id, queue=queue), options)
    check_stage(stage)
    check_times(due_before, due_after)
    async with connected(options) as (app, inspector):
        await inspector.check_queue(queue)
        now = await inspector.now()
        chosen: dict[str, Any] = filters | {"queue": queue}
        for key in ("due_before", "due_after"):
            if key in chosen:
                # Resolve the time once, so that the jobs counted are the jobs removed.
                chosen[key] = parse_time(chosen[key], now)
        return await _remove_chosen(app, chosen, yes, options)


async def _remove_chosen(app: Tocsin, chosen: dict[str, Any], yes: bool, options: Options) -> int:
    count = await app.count_jobs(**chosen)
    first = [job.id for job in await first_jobs(app.jobs(**chosen), EXAMPLES)]
    if options.json and not yes:
        print_json({"would_remove": count, "first": first})
    elif not options.json:
        say(f"{count_of_jobs(count)} match: {', '.join(map(cell, first))}{', …' if count > len(first) else ''}")
    if not count:
        removed = Removed(0, 0)
    elif not confirm(options, yes, f"remove {count_of_jobs(count)}?"):
        return 1
    else:
        with progress(options, "removing jobs") as show:
            removed = await app.remove_many(**chosen, progress=show)
    if count or yes or not options.json:
        print_removed(removed, options)
    return 0
