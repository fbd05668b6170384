"""Pages of jobs in order, and filters that the server applies."""

from __future__ import annotations

import pytest

from tests.support.one_queue import Line
from tests.support.records import HANDLER, STRANGE, record
from tocsin.model.job import Stage
from tocsin.store.transitions.jobs import PutItem
from tocsin.store.views import job_pages
from tocsin.store.views.job_pages import ANY, JobFilter

in_each_order = pytest.mark.parametrize("queue", ["due", "priority", "fair"], indirect=True)


async def found(line: Line, wanted: JobFilter = ANY, stage: Stage = Stage.WAITING, size: int = 2) -> list[str]:
    """Page by page."""
    walk = job_pages.walk(line.store, line.queue, 0, stage, wanted, size)
    return [member.decode() async for _, page in walk for member, _ in page.found]


async def test_jobs_of_one_millisecond_come_page_by_page_each_once(line: Line):
    names = sorted(f"j{n}" for n in range(7))
    await line.put_all(names)
    assert await found(line) == names


async def test_a_walk_goes_on_where_it_was_when_the_last_one_it_saw_is_gone(line: Line):
    await line.put_all(["a", "b", "c", "d", "é", "f"])
    seen = []
    async for _, page in job_pages.walk(line.store, line.queue, 0, Stage.WAITING, size=2):
        seen += [member.decode() for member, _ in page.found]
        # What was seen last goes, and what was seen before it stays.
        await line.delete(seen[-1])
    assert sorted(seen) == sorted(["a", "b", "c", "d", "é", "f"])


@in_each_order
async def test_what_is_ready_comes_band_by_band_each_once(line: Line):
    for band in (0, 3):
        for tenant in ("x", "y"):
            await line.put_all([f"{band}{tenant}{n}" for n in range(3)], band=band, tenant=tenant)
    stage = Stage.WAITING if line.queue.queue.order == "due" else Stage.READY
    names = await found(line, stage=stage)
    assert sorted(names) == sorted(f"{band}{tenant}{n}" for band in (0, 3) for tenant in "xy" for n in range(3))
    if stage is Stage.READY:
        assert [name[0] for name in names] == ["0"] * 6 + ["3"] * 6


@in_each_order
async def test_the_server_picks_by_handler_tenant_and_due_time(line: Line):
    await line.put("mine", tenant="acme")
    await line.put("theirs", tenant="other", handler=STRANGE)
    await line.put("later", 60_000, tenant="acme", handler=STRANGE)
    ordered = line.queue.queue.order != "due"
    stage = Stage.READY if ordered else Stage.WAITING
    assert await found(line, JobFilter(name=HANDLER), stage) == ["mine"]
    assert await found(line, JobFilter(tenant="other"), stage) == ["theirs"]
    assert await found(line, JobFilter(tenant="acme", name=STRANGE)) == ["later"]
    assert await found(line, JobFilter(due_after=line.now + 1)) == ["later"]
    assert sorted(await found(line, JobFilter(due_before=line.now + 1), stage)) == ["mine", "theirs"]
    assert await found(line, JobFilter(due_before=line.now), stage) == []


async def test_the_due_time_is_that_of_the_run_not_when_it_may_be_tried_again(line: Line):
    await line.put("a")
    due = line.now
    await line.retry(await line.take("a"), 60_000)
    assert await found(line, JobFilter(due_before=due + 1)) == ["a"]
    assert await found(line, JobFilter(due_after=due + 1)) == []


async def test_a_job_that_is_worked_on_matches_by_what_it_will_be(line: Line):
    """So the server leaves those to the caller."""
    await line.put("a")
    await line.take("a")
    assert await found(line, JobFilter(tenant="acme"), Stage.WORKING) == ["a"]


async def test_a_page_of_large_records_is_short(line: Line):
    large = record(args=("x" * 500_000,))
    for n in range(20):
        await line.jobs.put(line.queue, PutItem(f"j{n:02}", large, 0, True))
    page = await job_pages.look(line.store, line.queue, 0, "waiting", wanted=JobFilter(name=HANDLER))
    assert page.looked < 20
    assert page.end is not None
    assert len(await found(line, JobFilter(name=HANDLER), size=1000)) == 20
