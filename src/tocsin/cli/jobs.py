"""`tocsin jobs`: list and show jobs; the commands that change them are in job_actions.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from tocsin.cli import job_actions
from tocsin.cli.job_listing import Limit, as_dict, show_jobs
from tocsin.cli.options import (
    DueAfter,
    DueBefore,
    Given,
    QueueName,
    Watch,
    check_stage,
    check_times,
    connected,
    parse_time,
)
from tocsin.cli.printing import cell, distance, iso, local, plain, print_json
from tocsin.inspection.inspector import JobView
from tocsin.model.durations import Millis
from tocsin.model.job import Job, Stage
from tocsin.store.views.events import Decision

jobs = App(name="jobs", help="Look at jobs, and change them.")
jobs.command(job_actions.pause)
jobs.command(job_actions.resume)
jobs.command(job_actions.fire)
jobs.command(job_actions.unpark)
jobs.command(job_actions.update)
jobs.command(job_actions.remove)

# `jobs show` lists at most this many spans of ticks that had no run.
MOST_PASSED = 3


@jobs.command(name="list")
async def list_jobs(
    *,
    queue: QueueName = None,
    stage: Annotated[str | None, Parameter(help="ready, waiting, working, blocked, paused, parked or dead.")] = None,
    name: Annotated[str | None, Parameter(help="Only jobs of this handler.")] = None,
    tenant: Annotated[str | None, Parameter(help="Only jobs of this tenant.")] = None,
    due_before: DueBefore = None,
    due_after: DueAfter = None,
    limit: Limit = 50,
    watch: Watch = False,
    options: Given,
) -> int:
    """List jobs stage by stage, in the order in which they run."""
    check_times(due_before, due_after)
    check_stage(stage)
    async with connected(options) as (app, inspector):
        await inspector.check_queue(queue)

        def walk(now: Millis) -> AsyncIterator[Job]:
            before = None if due_before is None else parse_time(due_before, now)
            after = None if due_after is None else parse_time(due_after, now)
            wanted = Stage(stage) if stage is not None else None
            return app.jobs(queue=queue, tenant=tenant, stage=wanted, name=name, due_before=before, due_after=after)

        return await show_jobs(options, watch, inspector, walk, limit, "no job matches")


@jobs.command(name="show")
async def show_job(id: str, /, *, queue: QueueName = None, options: Given) -> int:
    """Show everything about one job, or how it ended as long as its outcome is kept.

    Parameters
    ----------
    id
        The job's id.
    """
    async with connected(options) as (app, inspector):
        view = await inspector.find(id, queue)
        now = await inspector.now()
        passed = await _passed(app.decisions(id, queue=view.queue)) if view.job and view.job.recurring else []
    about = describe(view) | {"passed": [_as_span(decision) for decision in passed]}
    if options.json:
        print_json(about)
        return 0
    for name, value in about.items():
        if value not in (None, [], {}, ""):
            print(f"{name + ':':<14}{_value_text(name, value, view, now)}")
    return 0


def describe(view: JobView) -> dict[str, Any]:
    """A job with all that `jobs list` leaves out. A job that has ended has stage "done" and its outcome."""
    outcome = view.outcome
    about: dict[str, Any] = {"id": view.id, "queue": view.queue}
    if view.job is not None:
        failure = view.job.failure
        about |= as_dict(view.job)
        about["after"] = [{"queue": upstream.queue, "id": upstream.id} for upstream in view.after]
        about["deadline"] = iso(view.deadline_ms)
        about["ahead"] = view.ahead
        about["failed_at"] = iso(failure.at) if failure and failure.at else None
        about["traceback"] = failure.traceback or None if failure else None
    elif outcome is not None:
        about |= {"stage": "done", "outcome": outcome.name, "ended": iso(outcome.at), "result": plain(outcome.result)}
        about["lost"] = outcome.lost or None
    return about


async def _passed(decisions: AsyncIterator[Decision]) -> list[Decision]:
    """The last few spans of ticks that had no run of their own: skipped, or coalesced into another run."""
    found: list[Decision] = []
    async for decision in decisions:
        if decision.what != "ran":
            found.append(decision)
        if len(found) == MOST_PASSED:
            break
    return found


def _as_span(decision: Decision) -> dict[str, Any]:
    return {
        "first": iso(decision.first_ms),
        "until": iso(decision.until_ms),
        "what": decision.what,
        "why": decision.why or None,
        "at": iso(decision.at_ms),
    }


_TIMES = {"due", "not_before", "deadline", "failed_at", "ended"}


def _value_text(name: str, value: Any, view: JobView, now: Millis) -> str:
    if name == "traceback":
        return "\n" + "\n".join(map(cell, str(value).splitlines()))
    if name == "passed":
        return cell(
            ", ".join(f"{each['why'] or each['what']} from {each['first']} to {each['until']}" for each in value)
        )
    if name in _TIMES:
        ms = _ms_of(name, view)
        return f"{local(ms)}  ({distance(ms, now)})"
    return cell(value if isinstance(value, str) else msgspec.json.encode(value).decode())


def _ms_of(name: str, view: JobView) -> Millis | None:
    job, outcome = view.job, view.outcome
    times = {"deadline": view.deadline_ms, "ended": outcome.at if outcome else None}
    if job is not None:
        times |= {
            "due": job.due_ms,
            "not_before": job.not_before_ms,
            "failed_at": job.failure.at if job.failure else None,
        }
    return times[name]
