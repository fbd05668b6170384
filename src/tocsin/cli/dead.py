"""`tocsin dead`: list, retry or drop jobs that are out of retries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from cyclopts import App, Parameter

from tocsin.cli.job_listing import Limit, show_jobs
from tocsin.cli.options import Given, Options, QueueName, Watch, WrongUsage, connected
from tocsin.cli.printing import print_json, say
from tocsin.cli.progress import progress
from tocsin.model.errors import TocsinError

dead = App(name="dead", help="Jobs that are out of retries.")

All = Annotated[
    bool, Parameter(name="--all", negative="", help="All jobs that are dead now, of --queue or of every queue.")
]
Act = Callable[..., Awaitable[bool]]


@dead.command(name="list")
async def list_dead(*, queue: QueueName = None, limit: Limit = 50, watch: Watch = False, options: Given) -> int:
    """List dead jobs, the longest dead first."""
    async with connected(options) as (app, inspector):
        await inspector.check_queue(queue)
        return await show_jobs(options, watch, inspector, lambda now: app.dead(queue=queue), limit, "no job is dead")


@dead.command
async def retry(*ids: str, everything: All = False, queue: QueueName = None, options: Given) -> int:
    """Run dead jobs again, with all their retries."""
    _check(ids, everything)
    async with connected(options) as (app, inspector):
        await inspector.check_queue(queue)
        if not everything:
            return await _each("retried", app.retry_dead, ids, queue, options)
        with progress(options, "retrying dead jobs") as show:
            return _print("retried", await app.retry_dead_many(queue=queue, progress=show), options)


@dead.command
async def drop(*ids: str, everything: All = False, queue: QueueName = None, options: Given) -> int:
    """Remove dead jobs for good."""
    _check(ids, everything)
    async with connected(options) as (app, inspector):
        await inspector.check_queue(queue)
        if not everything:
            return await _each("dropped", app.drop_dead, ids, queue, options)
        with progress(options, "dropping dead jobs") as show:
            return _print("dropped", await app.drop_dead_many(queue=queue, progress=show), options)


def _check(ids: tuple[str, ...], everything: bool) -> None:
    if bool(ids) == everything:
        raise WrongUsage("name the jobs by their ids, or say --all")


async def _each(done: str, act: Act, ids: tuple[str, ...], queue: str | None, options: Options) -> int:
    changed, refused = list[str](), dict[str, str]()
    for job_id in ids:
        try:
            if await act(job_id, queue=queue):
                changed.append(job_id)
            else:
                refused[job_id] = f"no dead job has the id {job_id!r}"
        except TocsinError as error:
            refused[job_id] = str(error)
    for why in refused.values():
        say(f"tocsin: {why}")
    if options.json:
        print_json({done: changed, "refused": refused})
    else:
        _print(done, len(changed), options)
    return 1 if refused else 0


def _print(done: str, count: int, options: Options) -> int:
    if options.json:
        print_json({done: count})
    else:
        print(f"{done} {count} dead job{'' if count == 1 else 's'}")
    return 0
