"""`get`, `jobs`, `next_runs` and `runs`: looking at what there is."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import pytest

from tests.support.waiting import Gate, eventually
from tocsin import ConflictingJobs, Every, InvalidArgument, Retry, UnknownJob
from tocsin.app import lookup
from tocsin.testing import run_until_idle


async def listed(app, **wanted) -> list[str]:
    return [job.id async for job in app.jobs(**wanted)]


async def test_a_job_shows_what_it_is(tocsin_app, tocsin_clock, note):
    await tocsin_app.schedule(note, Every("1m"), "x", id="j", tenant="acme", retry=Retry(1, 1), fail=None)
    job = await tocsin_app.get("j")
    assert (job.id, job.queue, job.name, job.args, job.kwargs) == ("j", "default", "note", ("x",), {"fail": None})
    assert (job.trigger, job.retry, job.recurring, job.tenant) == (Every("1m"), Retry(1, 1), True, "acme")
    assert (job.stage, job.attempt, job.owner, job.failure) == ("waiting", 1, None, None)
    assert job.due == tocsin_clock.now + timedelta(minutes=1)
    assert await tocsin_app.get("nobody") is None


async def test_a_working_job_shows_its_owner_and_its_due_time(tocsin_app, tocsin_clock):
    gate = Gate()

    @tocsin_app.job
    async def held():
        await gate.enter()

    await tocsin_app.enqueue(held, id="j")
    due = tocsin_clock.now
    working = asyncio.create_task(run_until_idle(tocsin_app))
    await eventually(lambda: gate.inside, "it runs")
    job = await tocsin_app.get("j")
    assert (job.stage, job.due) == ("working", due)
    assert job.owner
    gate.open()
    await working


async def test_jobs_are_listed_in_due_order_over_all_partitions_and_pages(tocsin_app, note, monkeypatch):
    monkeypatch.setattr(lookup, "PAGE", 7)
    delays = random.Random(4).sample(range(1, 10_000), 500)
    rows = [(f"job-{delay}", Every(delay), ()) for delay in delays]
    assert await tocsin_app.schedule_many(note, rows) == 500
    assert await listed(tocsin_app) == [f"job-{delay}" for delay in sorted(delays)]


async def test_jobs_that_are_due_together_are_listed_by_id_and_none_is_left_out(tocsin_app, note, monkeypatch):
    monkeypatch.setattr(lookup, "PAGE", 5)
    ids = [f"job-{n:03}" for n in range(300)]
    await tocsin_app.enqueue_many(note, [() for _ in ids], ids=ids, delay="1m")
    assert await listed(tocsin_app) == ids


async def test_queues_are_merged_in_due_order(tocsin_app, note):
    tocsin_app.queue("other", partitions=3)
    for n in range(10):
        await tocsin_app.enqueue(note, id=f"{n}", delay=60 + n, queue="other" if n % 2 else "default")
    assert await listed(tocsin_app) == [f"{n}" for n in range(10)]
    assert await listed(tocsin_app, queue="other") == ["1", "3", "5", "7", "9"]
    assert await listed(tocsin_app, queue="nowhere") == []


async def test_filters_choose_and_combine(tocsin_app, tocsin_clock, note):
    @tocsin_app.job(name="other")
    async def other():
        pass

    now = tocsin_clock.now
    await tocsin_app.enqueue(note, id="a", tenant="acme", delay="1m")
    await tocsin_app.enqueue(note, id="b", tenant="acme", delay="2m")
    await tocsin_app.enqueue(note, id="c", delay="3m")
    await tocsin_app.enqueue(other, id="d", tenant="acme", delay="4m")
    await tocsin_app.pause("b")
    assert await listed(tocsin_app, tenant="acme") == ["a", "d", "b"]
    assert await listed(tocsin_app, tenant="nobody") == []
    assert await listed(tocsin_app, name="other") == ["d"]
    assert await listed(tocsin_app, stage="paused") == ["b"]
    assert await listed(tocsin_app, stage="waiting") == ["a", "c", "d"]
    assert await listed(tocsin_app, stage="waiting", tenant="acme", name="note") == ["a"]
    assert await listed(tocsin_app, due_before=now + timedelta(minutes=3)) == ["a", "b"]
    assert await listed(tocsin_app, due_after=now + timedelta(minutes=3)) == ["c", "d"]
    span = {"due_after": now + timedelta(minutes=2), "due_before": now + timedelta(minutes=4)}
    assert await listed(tocsin_app, **span) == ["c", "b"]


@pytest.mark.parametrize("stage", ["waiting", "ready", "working", "paused", "parked", "blocked", "dead"])
async def test_any_stage_may_be_asked_for_also_one_that_this_order_does_not_have(tocsin_app, note, stage):
    await tocsin_app.enqueue(note, id="a")
    assert await listed(tocsin_app, stage=stage) == (["a"] if stage == "waiting" else [])


async def test_due_before_finds_a_retry_by_its_due_time_not_by_its_backoff(tocsin_app, tocsin_clock, note, monkeypatch):
    monkeypatch.setattr(lookup, "PAGE", 2)
    await tocsin_app.enqueue(note, id="retry", fail="x", retry=Retry(1, "1d"))
    await run_until_idle(tocsin_app)
    for n in range(50):
        await tocsin_app.enqueue(note, id=f"later-{n}", delay="1h")
    assert await listed(tocsin_app, due_before=tocsin_clock.now + timedelta(seconds=1)) == ["retry"]


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({"stage": "wating"}, "did you mean 'waiting'"),
        ({"due_before": 5}, "due_before must be a datetime"),
        ({"due_after": "now"}, "due_after must be a datetime"),
    ],
    ids=str,
)
async def test_a_filter_that_cannot_be_is_refused(tocsin_app, wanted, why):
    with pytest.raises(InvalidArgument, match=why):
        await listed(tocsin_app, **wanted)


async def test_a_list_may_be_left_half_read(tocsin_app, note):
    await tocsin_app.enqueue_many(note, [() for _ in range(100)], delay="1m")
    async for job in tocsin_app.jobs():
        assert job.stage == "waiting"
        break
    assert len(await listed(tocsin_app)) == 100


async def test_an_id_in_two_queues_must_be_said_which(tocsin_app, note):
    tocsin_app.queue("mail")
    await tocsin_app.enqueue(note, "d", id="j", delay="1h")
    await tocsin_app.enqueue(note, "m", id="j", delay="1h", queue="mail")
    calls = {
        "get": (), "update": (), "remove": (), "pause": (), "resume": (), "fire": (), "next_runs": (),
        "retry_dead": (), "drop_dead": (), "unpark": (),
    }  # fmt: skip
    for call, args in calls.items():
        with pytest.raises(ConflictingJobs, match="default, mail") as conflict:
            await getattr(tocsin_app, call)("j", *args)
        assert conflict.value.queues == ["default", "mail"]
    assert (await tocsin_app.get("j", queue="mail")).args == ("m",)
    assert await tocsin_app.remove("j", queue="mail")
    assert (await tocsin_app.get("j")).args == ("d",)


async def test_a_job_is_found_in_a_queue_that_this_program_did_not_declare(tocsin_app, stranger, note):
    tocsin_app.queue("far", partitions=3)
    await tocsin_app.enqueue(note, id="j", queue="far", delay="1h")
    assert (await stranger.get("j")).queue == "far"
    assert await stranger.pause("j")
    assert await listed(stranger, stage="paused") == ["j"]


async def test_the_next_runs_of_a_schedule(tocsin_app, tocsin_clock, note):
    await tocsin_app.schedule(note, Every("1m"), id="j", ends=tocsin_clock.now + timedelta(minutes=3))
    now = tocsin_clock.now
    assert await tocsin_app.next_runs("j", 2) == [now + timedelta(minutes=1), now + timedelta(minutes=2)]
    assert len(await tocsin_app.next_runs("j")) == 3
    await tocsin_app.enqueue(note, id="o", delay="1h")
    assert await tocsin_app.next_runs("o", 5) == [now + timedelta(hours=1)]
    with pytest.raises(UnknownJob):
        await tocsin_app.next_runs("nobody")


@pytest.mark.parametrize("n", [0, -1])
async def test_no_next_runs_are_no_next_runs(tocsin_app, note, n):
    await tocsin_app.schedule(note, Every("1m"), id="j")
    assert await tocsin_app.next_runs("j", n) == []


async def test_the_runs_that_ended_lately_newest_first(tocsin_app, tocsin_clock, note):
    await tocsin_app.schedule(note, Every("1m"), id="j")
    await tocsin_app.enqueue(note, id="bad", fail="x", retry=Retry(1, "90s"), delay="30s")
    for _ in range(8):
        tocsin_clock.advance("30s")
        await run_until_idle(tocsin_app)
    runs = [run async for run in tocsin_app.runs()]
    assert [run.ended_ms for run in runs] == sorted((run.ended_ms for run in runs), reverse=True)
    mine = [run async for run in tocsin_app.runs("j")]
    assert [run.outcome for run in mine] == ["succeeded"] * 4
    assert [run.due for run in mine] == sorted((run.due for run in mine), reverse=True)
    assert mine[0].id == f"j@{mine[0].due_ms}"
    bad = [(run.attempt, run.outcome) async for run in tocsin_app.runs("bad")]
    assert bad == [(2, "dead"), (1, "retried")]


@pytest.mark.parametrize("order", ["priority", "fair"])
async def test_ready_jobs_are_listed_band_by_band_over_all_partitions_and_pages(
    tocsin_app, tocsin_clock, note, monkeypatch, order
):
    monkeypatch.setattr(lookup, "PAGE", 7)
    tocsin_app.queue("line", order=order, partitions=3)
    bands = ["critical", "normal", "background"]
    for band in reversed(bands):
        for tenant in ("b", "a"):
            ids = [f"{band} {tenant} {n:02}" for n in range(20)]
            tocsin_clock.advance("1ms")
            await tocsin_app.enqueue_many(note, [() for _ in ids], ids=ids, queue="line", priority=band, tenant=tenant)
    await tocsin_app.enqueue(note, id="later", queue="line", delay="1h")
    found = [job async for job in tocsin_app.jobs(stage="ready")]
    assert {job.stage for job in found} == {"ready"}
    assert [job.priority for job in found] == [band for band in bands for _ in range(40)]
    if order == "priority":
        # Within a band by due time: the tenant b was first.
        assert [job.tenant for job in found] == (["b"] * 20 + ["a"] * 20) * 3
    assert len({job.id for job in found}) == 120
    assert await listed(tocsin_app, stage="ready", tenant="a", due_before=tocsin_clock.now) == [
        job.id for job in found if job.tenant == "a" and job.due < tocsin_clock.now
    ]
    assert len(await listed(tocsin_app, queue="line")) == 121
