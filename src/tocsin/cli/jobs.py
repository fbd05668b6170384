"""`tocsin jobs`, `tocsin workers`: looking, without changing anything."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter
from cyclopts.validators import Number

from tocsin.cli.job_arguments import given
from tocsin.cli.options import Given, Options, QueueName, Watch, WrongUsage, check_time, connected, parse_time
from tocsin.cli.printing import Listing, cell, distance, iso, local, plain, print_json, show, span
from tocsin.inspection.inspector import Inspector, JobView, WorkerView
from tocsin.model.durations import Millis
from tocsin.model.errors import did_you_mean
from tocsin.model.job import Job, Stage
from tocsin.model.trigger import Every, phrase
from tocsin.store.keys import STAGE_KEYS
from tocsin.store.views.events import Decision

jobs = App(name="jobs", help="Look at jobs.")

# How many spans of ticks without runs `jobs show` tells of.
MOST_PASSED = 3

STAGES = ("ready", *STAGE_KEYS)
Limit = Annotated[int, Parameter(validator=Number(gte=1), help="At most this many.")]
Time = Annotated[str | None, Parameter(allow_leading_hyphen=True)]


@jobs.command(name="list")
async def list_jobs(
    *,
    queue: QueueName = None,
    stage: Annotated[str | None, Parameter(help="ready, waiting, working, blocked, paused, parked or dead.")] = None,
    name: Annotated[str | None, Parameter(help="Only those of this handler.")] = None,
    tenant: Annotated[str | None, Parameter(help="Only those of this tenant.")] = None,
    due_before: Time = None,
    due_after: Time = None,
    limit: Limit = 50,
    watch: Watch = False,
    options: Given,
) -> int:
    """Jobs stage by stage, in the order in which they run.

    Parameters
    ----------
    due_before
        ISO 8601 with a zone (2030-01-31T09:00Z), or a distance from now (+1h, -5m).
    due_after
        Likewise.
    """
    for time in (due_before, due_after):
        if time is not None:
            check_time(time)
    if stage is not None and stage not in STAGES:
        raise WrongUsage(f"there is no stage {stage!r}; {did_you_mean(stage, STAGES)}")
    async with connected(options) as (app, inspector):
        await inspector.check_queue(queue)

        def walk(now: Millis) -> AsyncIterator[Job]:
            before = None if due_before is None else parse_time(due_before, now)
            after = None if due_after is None else parse_time(due_after, now)
            wanted = Stage(stage) if stage is not None else None
            return app.jobs(queue=queue, tenant=tenant, stage=wanted, name=name, due_before=before, due_after=after)

        return await show_jobs(options, watch, inspector, walk, limit, "no such jobs")


async def show_jobs(
    options: Options,
    watch: bool,
    inspector: Inspector,
    walk: Callable[[Millis], AsyncIterator[Job]],
    limit: int,
    empty: str,
) -> int:
    """The first of a walk over jobs, which may depend on the server's now."""

    async def fetch() -> tuple[list[Job], Millis]:
        now = await inspector.now()
        # One more than is shown, to know whether there are more.
        return await first_jobs(walk(now), limit + 1), now

    def listing(found: tuple[list[Job], Millis]) -> Listing:
        jobs, now = found
        more = f"and more: --limit {limit} was reached" if len(jobs) > limit else ""
        return job_listing(jobs[:limit], now, empty, more)

    return await show(options, watch, fetch, listing, lambda found: [as_dict(job) for job in found[0][:limit]])


async def first_jobs(found: Any, count: int) -> list[Job]:
    """The first of a walk, which is ended there."""
    kept: list[Job] = []
    async with aclosing(found):
        async for job in found:
            kept.append(job)
            if len(kept) == count:
                break
    return kept


def job_listing(found: list[Job], now: Millis, empty: str, more: str) -> Listing:
    columns = ["id", "queue", "stage", "due", "", "name", "#attempt", "tenant", "priority", "every", "worker", "error"]
    rows = [
        [
            job.id,
            job.queue,
            job.stage.value,
            local(job.due_ms),
            distance(job.due_ms, now),
            job.name,
            job.attempt,
            job.tenant,
            job.priority if job.stage is Stage.READY else None,
            every(job),
            job.owner,
            job.failure.error[:60] if job.failure else None,
        ]
        for job in found
    ]
    return Listing(*_without_empty(columns, rows), empty=empty, more=more)


def _without_empty(columns: list[str], rows: list[list[Any]]) -> tuple[list[str], list[list[Any]]]:
    """Columns that say nothing in any row only take room."""
    kept = [i for i in range(len(columns)) if any(row[i] not in (None, "") for row in rows)]
    return [columns[i] for i in kept], [[row[i] for i in kept] for row in rows]


def every(job: Job) -> str | None:
    if not isinstance(job.trigger, Every):
        return phrase(job.trigger) if job.recurring else None
    interval = job.trigger.interval
    return span(interval) if interval >= 60 else f"{interval:g}s"


def as_dict(job: Job) -> dict[str, Any]:
    """A job for JSON."""
    retry = job.retry
    return {
        "id": job.id,
        "queue": job.queue,
        "stage": job.stage.value,
        "name": job.name,
        "due": iso(job.due_ms),
        "not_before": iso(job.not_before_ms),
        "attempt": job.attempt,
        "recoveries": job.recoveries,
        "worker": job.owner,
        "tenant": job.tenant,
        "priority": job.priority,
        "recurring": job.recurring,
        "every": job.trigger.interval if isinstance(job.trigger, Every) else None,
        "trigger": phrase(job.trigger) or None,
        "overlap": job.spec.rules.overlap if job.recurring else None,
        "misfire": job.spec.rules.misfire if job.recurring else None,
        "timeout": job.timeout,
        "retry": None if retry is None else {name: getattr(retry, name) for name in retry.__struct_fields__},
        "criticality": job.criticality,
        "version": job.version,
        "succeeded": job.succeeded,
        "failed": job.failed,
        "attempts": job.attempts,
        **given(job),
        "error": job.failure.error if job.failure else None,
    }


@jobs.command(name="show")
async def show_job(id: str, /, *, queue: QueueName = None, options: Given) -> int:
    """Everything about one job, or how it ended while that is remembered.

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
            print(f"{name + ':':<14}{_told(name, value, view, now)}")
    return 0


def describe(view: JobView) -> dict[str, Any]:
    """A job with all that `jobs list` leaves out; a remembered one has its outcome as its stage."""
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
    """The last few spans of ticks that have no run of their own."""
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


def _told(name: str, value: Any, view: JobView, now: Millis) -> str:
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


async def list_workers(*, watch: Watch = False, options: Given) -> int:
    """All workers, what they do, and whether their hearts beat."""
    async with connected(options) as (_, inspector):

        async def fetch() -> tuple[list[WorkerView], Millis]:
            return await inspector.workers(listen=True), await inspector.now()

        def as_json(found: tuple[list[WorkerView], Millis]) -> list[dict[str, Any]]:
            return [worker_dict(view) for view in found[0]]

        return await show(options, watch, fetch, lambda found: worker_listing(*found), as_json)


def worker_dict(view: WorkerView) -> dict[str, Any]:
    about: dict[str, Any] = msgspec.to_builtins(view.about)
    said: dict[str, Any] = {"state": view.state, "health": view.health}
    if view.alive is False:
        said |= {"reasons": view.reasons, "signals": []}
    beat = None if view.age is None else round(view.age / 1000, 1)
    return {"id": view.id, "alive": view.alive, "last_beat_s": beat, **about, **said, "started": iso(about["started"])}


def worker_listing(views: list[WorkerView], now: Millis) -> Listing:
    columns = [
        "worker",
        "state",
        "health",
        "up",
        "last beat",
        "#running",
        "#finished",
        "#concurrency",
        "#stuck",
        "queues",
        "#handlers",
    ]
    rows = [
        [
            view.id,
            view.state,
            "; ".join([view.health, *view.reasons]),
            span(max(0, now - view.about.started) / 1000),
            None if view.age is None else f"{span(view.age / 1000)} ago",
            view.about.running,
            view.about.finished,
            view.about.concurrency,
            view.about.stuck,
            ",".join(view.about.queues),
            len(view.about.handlers),
        ]
        for view in views
    ]
    return Listing(columns, rows, empty="no worker is running: start one with `tocsin worker MODULE:APP`")
