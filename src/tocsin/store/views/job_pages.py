"""Pages of the sets that have jobs, in order, and the jobs in them that match a filter.

The server compares headers of records. An index by handler or tenant would cost each put and each run. The server looks
at a thousand records in a millisecond, so a million take about a second, and it sends only those that match.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from msgspec import Struct

from tocsin.model.durations import Millis
from tocsin.model.job import Job, Stage
from tocsin.model.record import handler_digest
from tocsin.store.keys import BANDS, STAGE_KEYS
from tocsin.store.scripts.script import script
from tocsin.store.store import LARGEST_BATCH, OpenQueue, Store

# In the order of lua/job_page.lua.
_SETS = (*STAGE_KEYS, *BANDS)
# The last member that was looked at, and its score.
Place = tuple[float, bytes]


class JobFilter(Struct, frozen=True):
    """Which jobs to find; None: any."""

    tenant: str | None = None
    name: str | None = None
    due_before: Millis | None = None
    due_after: Millis | None = None

    def fits(self, job: Job) -> bool:
        return (
            (self.tenant is None or job.tenant == self.tenant)
            and (self.name is None or job.name == self.name)
            and (self.due_before is None or job.due_ms < self.due_before)
            and (self.due_after is None or job.due_ms >= self.due_after)
        )


ANY = JobFilter()


class JobPage(Struct, frozen=True):
    """The jobs of a page that match, with their scores; how many were looked at; where to go on, None: nowhere."""

    found: list[tuple[bytes, float]]
    looked: int
    end: Place | None


def sets_of(stage: Stage) -> tuple[str, ...]:
    """The sets that have the jobs of a stage."""
    return BANDS if stage is Stage.READY else (stage.value,)


async def look(
    store: Store,
    queue: OpenQueue,
    partition: int,
    base: str,
    after: Place | None = None,
    wanted: JobFilter = ANY,
    size: int = LARGEST_BATCH,
) -> JobPage:
    """One page. Handlers are compared by digest, which two may share: compare the names where that matters."""
    what = script("job_page")
    score, member = ("", b"") if after is None else (repr(after[0]), after[1])
    args = [_SETS.index(base) + 1, score, member, size, *_filters(base, wanted)]
    flat, looked, end, last = await store.run_repeatable(lambda c: what(c, queue.keys_of(what, partition), args))
    found = [(member, float(at)) for member, at in zip(*[iter(flat)] * 2, strict=True)]
    return JobPage(found, int(looked), (float(end), last) if end else None)


async def walk(
    store: Store, queue: OpenQueue, partition: int, stage: Stage, wanted: JobFilter = ANY, size: int = LARGEST_BATCH
) -> AsyncIterator[tuple[str, JobPage]]:
    """Page after page of a stage, each with its set. Ends even if jobs are put faster than we look."""
    for base in sets_of(stage):
        key, after = queue.keys[partition][base], None
        left = 2 * await store.run_repeatable(lambda c, k=key: c.zcard(k)) + LARGEST_BATCH  # type: ignore[misc]
        while left > 0:
            page = await look(store, queue, partition, base, after, wanted, size)
            yield base, page
            after, left = page.end, left - page.looked if page.end else 0


def _filters(base: str, wanted: JobFilter) -> list[Any]:
    if base == "working":
        # A pending edit counts already, and the script does not see it: the caller filters these.
        return ["", "", "", ""]
    return [
        "" if wanted.name is None else handler_digest(wanted.name),
        wanted.tenant or "",
        "" if wanted.due_before is None else wanted.due_before,
        "" if wanted.due_after is None else wanted.due_after,
    ]
