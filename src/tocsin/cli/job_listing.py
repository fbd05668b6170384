"""Show jobs, as a table and as JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from tocsin.cli.job_arguments import shown_arguments
from tocsin.cli.options import Options
from tocsin.cli.printing import Listing, distance, iso, local, show, span
from tocsin.inspection.inspector import Inspector
from tocsin.model.durations import Millis
from tocsin.model.job import Job, Stage
from tocsin.model.trigger import Every, phrase

Limit = Annotated[int, Parameter(validator=Number(gte=1), help="At most this many.")]


async def show_jobs(
    options: Options,
    watch: bool,
    inspector: Inspector,
    walk: Callable[[Millis], AsyncIterator[Job]],
    limit: int,
    empty: str,
) -> int:
    """Show the first `limit` jobs of a walk. `walk` gets the server's time, from which distances like +1h count."""

    async def fetch() -> tuple[list[Job], Millis]:
        now = await inspector.now()
        # Fetch one more than is shown, to know whether the list is cut.
        return await first_jobs(walk(now), limit + 1), now

    def listing(found: tuple[list[Job], Millis]) -> Listing:
        jobs, now = found
        more = f"and more: --limit {limit} was reached" if len(jobs) > limit else ""
        return job_listing(jobs[:limit], now, empty, more)

    return await show(options, watch, fetch, listing, lambda found: [as_dict(job) for job in found[0][:limit]])


async def first_jobs(found: Any, count: int) -> list[Job]:
    """The first jobs of a walk; the walk is closed."""
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
    """Leave out columns that are empty in every row: they only take room."""
    kept = [i for i in range(len(columns)) if any(row[i] not in (None, "") for row in rows)]
    return [columns[i] for i in kept], [[row[i] for i in kept] for row in rows]


def every(job: Job) -> str | None:
    if not isinstance(job.trigger, Every):
        return phrase(job.trigger) if job.recurring else None
    interval = job.trigger.interval
    return span(interval) if interval >= 60 else f"{interval:g}s"


def as_dict(job: Job) -> dict[str, Any]:
    """A job as JSON."""
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
        **shown_arguments(job),
        "error": job.failure.error if job.failure else None,
    }
