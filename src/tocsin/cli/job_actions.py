"""`tocsin jobs pause|resume|fire|unpark|update`: what an operator may do to one job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from cyclopts import Parameter

from tocsin.app import Tocsin
from tocsin.cli.jobs import jobs
from tocsin.cli.options import Given, Options, QueueName, WrongUsage, connected
from tocsin.cli.printing import cell, print_json, say
from tocsin.model.errors import InvalidArgument

__all__ = ["jobs"]

JobId = Annotated[str, Parameter(help="The job's id.", allow_leading_hyphen=True)]


@jobs.command
async def pause(job_id: JobId, /, *, queue: QueueName = None, options: Given) -> int:
    """Set a job aside. One that runs is set aside when its run ends."""
    return await act_on_job(job_id, queue, "paused", lambda app: app.pause(job_id, queue=queue), options)


@jobs.command
async def resume(
    job_id: JobId,
    /,
    *,
    replay: Annotated[bool, Parameter(negative="", help="At the time that it missed, not at its next.")] = False,
    queue: QueueName = None,
    options: Given,
) -> int:
    """Put a paused job back in line."""
    return await act_on_job(job_id, queue, "resumed", lambda app: app.resume(job_id, replay, queue=queue), options)


@jobs.command
async def fire(job_id: JobId, /, *, queue: QueueName = None, options: Given) -> int:
    """Run a job now as well, without touching its cadence."""

    async def fired(app: Tocsin) -> bool:
        await app.fire(job_id, queue=queue)
        return True

    return await act_on_job(job_id, queue, "fired", fired, options)


@jobs.command
async def unpark(job_id: JobId, /, *, queue: QueueName = None, options: Given) -> int:
    """Try a parked job again."""
    return await act_on_job(job_id, queue, "unparked", lambda app: app.unpark(job_id, queue=queue), options)


@jobs.command
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
    """Change some of a job's definition. It keeps its due time, and its age in line."""
    given = {"priority": priority, "tenant": tenant, "timeout": timeout}
    changes = {name: value for name, value in given.items() if value is not None}
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
    """Do it, and say whether it could be done."""
    async with connected(options) as (app, inspector):
        await inspector.check_queue(queue)
        was_done = bool(await act(app))
    if options.json:
        print_json({"id": job_id, done: was_done})
    elif was_done:
        print(f"{done} {cell(job_id)}")
    if not was_done:
        say(f"tocsin: no job {job_id!r} could be {done}; tocsin why {job_id!r} tells how it stands")
    return 0 if was_done else 1
