"""`tocsin dead`: jobs that are out of retries, to be given another life or dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

from cyclopts import App, Parameter

from tocsin.app import Tocsin
from tocsin.cli.look import Limit, show_jobs
from tocsin.cli.options import Given, Options, QueueName, Watch, WrongUsage, connected
from tocsin.cli.show import print_json, say
from tocsin.model.errors import TocsinError

dead = App(name="dead", help="Jobs that are out of retries.")

All = Annotated[bool, Parameter(name="--all", negative="", help="All that are dead now, of --queue or of every queue.")]
Act = Callable[..., Awaitable[bool]]
AT_ONCE = 50


@dead.command(name="list")
async def list_dead(*, queue: QueueName = None, limit: Limit = 50, watch: Watch = False, options: Given) -> int:
    """Dead jobs, the longest dead first."""
    async with connected(options) as (app, inspector):
        await inspector.check_queue(queue)
        return await show_jobs(options, watch, inspector, lambda now: app.dead(queue=queue), limit, "no job is dead")


@dead.command
async def retry(*ids: str, everything: All = False, queue: QueueName = None, options: Given) -> int:
    """Give dead jobs another life, with all their retries."""
    return await _each("retried", lambda app: app.retry_dead, ids, everything, queue, options)


@dead.command
async def drop(*ids: str, everything: All = False, queue: QueueName = None, options: Given) -> int:
    """Remove dead jobs for good."""
    return await _each("dropped", lambda app: app.drop_dead, ids, everything, queue, options)


async def _each(
    done: str, act: Callable[[Tocsin], Act], ids: tuple[str, ...], everything: bool, queue: str | None, options: Options
) -> int:
    if bool(ids) == everything:
        raise WrongUsage("name the jobs by their ids, or say --all")
    async with connected(options) as (app, inspector):
        await inspector.check_queue(queue)
        # Known before the first is touched: a retried one may be dead again before the walk is over.
        wanted: list[tuple[str, str | None]] = [(job_id, queue) for job_id in ids]
        if everything:
            wanted = [(job.id, job.queue) async for job in app.dead(queue=queue)]
        outcomes = await _in_chunks(act(app), wanted)
    refused = {job_id: error for (job_id, _), error in zip(wanted, outcomes, strict=True) if error is not None}
    changed = [job_id for job_id, _ in wanted if job_id not in refused]
    for error in refused.values():
        say(f"tocsin: {error}")
    if options.json:
        print_json({done: changed, "refused": refused})
    else:
        print(f"{done} {len(changed)} dead job{'' if len(changed) == 1 else 's'}")
    return 1 if refused and not everything else 0


async def _in_chunks(act: Act, wanted: list[tuple[str, str | None]]) -> list[str | None]:
    """What stood in the way of each, or None."""

    async def one(job_id: str, queue: str | None) -> str | None:
        try:
            return None if await act(job_id, queue=queue) else f"no dead job has the id {job_id!r}"
        except TocsinError as error:
            return str(error)

    outcomes: list[str | None] = []
    for start in range(0, len(wanted), AT_ONCE):
        outcomes += await asyncio.gather(*(one(*pair) for pair in wanted[start : start + AT_ONCE]))
    return outcomes
