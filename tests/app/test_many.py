"""Many jobs at once: counted, removed and retried by a filter; queues emptied and deleted."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tests.support.waiting import Gate, eventually
from tocsin import Every, Tocsin
from tocsin.app.bulk_control import Removed
from tocsin.model.errors import InvalidArgument
from tocsin.testing import run_until_idle

ORDERS = pytest.mark.parametrize("order", ["due", "priority", "fair"])


@pytest.fixture
def other(tocsin_app):
    @tocsin_app.job(name="other")
    async def other() -> None: ...

    return other


async def left(app: Tocsin, **filters: object) -> list[str]:
    return sorted([job.id async for job in app.jobs(**filters)])


@ORDERS
async def test_all_that_match_are_counted_and_removed(tocsin_app, tocsin_clock, note, other, order):
    tocsin_app.queue("line", order=order)
    await tocsin_app.enqueue_many(note, [() for _ in range(30)], queue="line", tenant="acme")
    await tocsin_app.enqueue_many(note, [() for _ in range(5)], queue="line", tenant="acme", delay="1h")
    await tocsin_app.enqueue(note, id="ours", queue="line", tenant="mine")
    await tocsin_app.enqueue(other, id="another", queue="line", tenant="acme")
    which = {"queue": "line", "tenant": "acme", "name": "note"}
    soon = tocsin_clock.now + timedelta(minutes=1)
    assert await tocsin_app.count_jobs(**which) == 35
    assert await tocsin_app.count_jobs(**which, due_before=soon) == 30
    assert await tocsin_app.remove_many(**which, due_before=soon) == Removed(30, 0)
    assert await tocsin_app.remove_many(**which) == Removed(5, 0)
    assert await left(tocsin_app) == ["another", "ours"]
    assert await run_until_idle(tocsin_app) == 2


async def test_only_the_stage_that_was_named_is_touched(tocsin_app, note):
    for n in range(3):
        await tocsin_app.enqueue(note, id=f"d{n}", fail="bad")
    await run_until_idle(tocsin_app)
    await tocsin_app.enqueue(note, id="alive", delay="1h")
    await tocsin_app.enqueue(note, id="aside", delay="1h")
    await tocsin_app.pause("aside")
    assert await tocsin_app.remove_many(stage="paused") == Removed(1, 0)
    assert await left(tocsin_app) == ["alive", "d0", "d1", "d2"]
    assert await tocsin_app.drop_dead_many() == 3
    assert await left(tocsin_app) == ["alive"]


async def test_two_handlers_of_one_digest_are_told_apart(tocsin_app, tocsin_clock):
    # crc32("plumless") == crc32("buckeroo")
    for name in ("plumless", "buckeroo"):

        @tocsin_app.job(name=name)
        async def work() -> None: ...

        await tocsin_app.enqueue(work, id=name)
    assert await tocsin_app.count_jobs(name="plumless") == 1
    assert await tocsin_app.remove_many(name="plumless") == Removed(1, 0)
    assert await left(tocsin_app) == ["buckeroo"]


async def test_without_a_filter_nothing_is_removed(tocsin_app, note):
    await tocsin_app.enqueue(note, id="a")
    with pytest.raises(InvalidArgument, match="purge_queue"):
        await tocsin_app.remove_many(queue="default")
    assert await left(tocsin_app) == ["a"]


async def test_all_dead_jobs_get_another_life_and_those_that_die_again_stay_dead(tocsin_app, tocsin_clock, note, ran):
    for n in range(20):
        await tocsin_app.enqueue(note, n, id=f"d{n}", fail="bad", queue="default")
    await run_until_idle(tocsin_app)
    tocsin_clock.advance("1s")
    seen = []
    assert await tocsin_app.retry_dead_many(name="another") == 0
    assert await tocsin_app.retry_dead_many(progress=lambda *at: seen.append(at)) == 20
    assert seen[-1] == (20, 20)
    assert await run_until_idle(tocsin_app) == 20
    assert len([job async for job in tocsin_app.dead()]) == 20


async def test_one_that_dies_while_others_are_retried_is_not_retried_twice(tocsin_app, tocsin_clock, note):
    await tocsin_app.enqueue(note, id="old", fail="bad")
    await run_until_idle(tocsin_app)
    tocsin_clock.advance("1s")
    at_first = tocsin_app.store.now

    async def then_one_more_dies() -> int:
        now = await at_first()
        tocsin_app.store.now = at_first
        tocsin_clock.advance("1s")
        await tocsin_app.enqueue(note, id="new", fail="bad")
        await run_until_idle(tocsin_app)
        return now

    tocsin_app.store.now = then_one_more_dies
    assert await tocsin_app.retry_dead_many() == 1
    assert [job.id async for job in tocsin_app.dead()] == ["new"]


@ORDERS
async def test_a_purged_queue_is_empty_and_works_on(tocsin_app, tocsin_clock, note, order):
    tocsin_app.queue("line", order=order)
    await tocsin_app.enqueue(note, id="dead", queue="line", fail="bad")
    await tocsin_app.enqueue(note, id="done", queue="line")
    await run_until_idle(tocsin_app)
    await tocsin_app.enqueue_many(note, [() for _ in range(30)], queue="line")
    await tocsin_app.schedule(note, Every("1h"), id="hourly", queue="line")
    await tocsin_app.enqueue(note, id="later", queue="line", delay="1h")
    await tocsin_app.enqueue(note, id="aside", queue="line", delay="1h")
    await tocsin_app.pause("aside")
    await tocsin_app.enqueue(note, id="far", delay="1d")
    await tocsin_app.enqueue(note, id="after", queue="line", after=["far"])
    await tocsin_app.enqueue(note, id="elsewhere")
    assert await tocsin_app.purge_queue("line") == Removed(35, 0)
    assert await left(tocsin_app, queue="line") == []
    # It is remembered that this one was done.
    assert not (await tocsin_app.enqueue(note, id="done", queue="line")).new
    assert (await tocsin_app.enqueue(note, id="later", queue="line")).new
    assert await run_until_idle(tocsin_app) == 2


async def test_a_run_that_goes_on_is_removed_when_it_ends(tocsin_app, tocsin_clock):
    gate = Gate()

    @tocsin_app.job(name="slow")
    async def slow() -> None:
        await gate.enter()

    await tocsin_app.schedule(slow, Every("1m"), id="often")
    tocsin_clock.advance("1m")
    working = asyncio.create_task(run_until_idle(tocsin_app))
    await eventually(lambda: gate.inside, "it runs")
    assert await tocsin_app.purge_queue("default") == Removed(0, 1)
    assert await tocsin_app.purge_queue("default") == Removed(0, 0)
    gate.open()
    await working
    assert await tocsin_app.get("often") is None


async def test_those_that_wait_for_a_purged_job_are_told(tocsin_app, note):
    tocsin_app.queue("line")
    await tocsin_app.enqueue(note, id="first", queue="line", delay="1h")
    after = await tocsin_app.enqueue(note, id="second", after=["first"], keep="1h")
    await tocsin_app.purge_queue("line")
    assert await after.status() == "cancelled"


# Deleting


async def test_a_deleted_queue_leaves_nothing(tocsin_app, note, prefix):
    tocsin_app.queue("line", order="fair", max_active=5)
    await tocsin_app.enqueue(note, id="done", queue="line", tenant="acme", keep="1d")
    await run_until_idle(tocsin_app)
    await tocsin_app.delete_queue("line")
    assert await tocsin_app.store.queues.names() == ["default"]
    keys = [key async for key in tocsin_app.store.client.scan_iter(match=f"{prefix}*line*")]
    assert keys == []
    assert await tocsin_app.get("done") is None


async def test_a_program_that_uses_a_deleted_queue_again_creates_it_anew(tocsin_app, note, stranger, ran):
    tocsin_app.queue("line")
    await tocsin_app.enqueue(note, "before", queue="line")
    await run_until_idle(tocsin_app)
    await stranger.delete_queue("line")
    await tocsin_app.enqueue(note, "after", queue="line")
    await run_until_idle(tocsin_app)
    assert ran == ["before", "after"]
    assert "line" in await tocsin_app.store.queues.names()


async def test_a_queue_with_jobs_is_not_deleted_and_works_on(tocsin_app, note, ran):
    await tocsin_app.enqueue(note, "a", queue="default")
    with pytest.raises(InvalidArgument, match="has 1 job"):
        await tocsin_app.delete_queue("default")
    await tocsin_app.enqueue(note, "b", queue="default")
    assert await run_until_idle(tocsin_app) == 2
    await tocsin_app.delete_queue("default")


async def test_a_queue_that_live_workers_serve_is_not_deleted_unless_it_is_forced(tocsin_app, tocsin_clock, note):
    worker = await tocsin_app.worker(queues=["default"])
    await asyncio.to_thread(worker.heart.beat)
    with pytest.raises(InvalidArgument, match=f"is served by {worker.name}"):
        await tocsin_app.delete_queue("default")
    await tocsin_app.delete_queue("default", force=True)
    assert await tocsin_app.store.queues.names() == []
    await worker.kill()


@pytest.mark.parametrize("call", ["purge_queue", "delete_queue"])
async def test_a_queue_that_nobody_registered_is_named_with_the_nearest(tocsin_app, note, call):
    await tocsin_app.enqueue(note, id="a")
    with pytest.raises(InvalidArgument, match="did you mean 'default'"):
        await getattr(tocsin_app, call)("defualt")
