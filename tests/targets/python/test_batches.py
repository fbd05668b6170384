"""`batch=N`: a list of runs in; None or one outcome per run out."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.waiting import eventually
from tocsin import Retry, Run
from tocsin.testing import run_until_idle


async def put(app, handler, n: int) -> list:
    return [await app.enqueue(handler, i, id=f"j{i}") for i in range(n)]


async def statuses(handles) -> list[str]:
    return [await handle.status() for handle in handles]


async def test_a_batch_handler_gets_its_runs_in_a_list(tocsin_app, tocsin_clock):
    batches = []

    @tocsin_app.job(batch=500)
    async def index(items: list[Run]):
        batches.append(items)

    await tocsin_app.enqueue(index, "a", id="one", tenant="acme")
    await tocsin_app.enqueue(index, word="b", id="two")
    assert await run_until_idle(tocsin_app) == 2
    [items] = batches
    assert {run.job_id: (run.args, run.kwargs, run.tenant) for run in items} == {
        "one": (("a",), {}, "acme"),
        "two": ((), {"word": "b"}, None),
    }
    assert {run.id for run in items} == {f"one@{tocsin_clock.ms}", f"two@{tocsin_clock.ms}"}


async def test_none_means_that_all_are_done(tocsin_app):
    @tocsin_app.job(batch=10)
    async def index(items):
        return None

    handles = await put(tocsin_app, index, 5)
    await run_until_idle(tocsin_app)
    assert await statuses(handles) == ["succeeded"] * 5


@pytest.mark.parametrize("kind", [list, tuple])
async def test_a_list_has_one_outcome_per_run_and_an_exception_fails_its_own(tocsin_app, kind):
    @tocsin_app.job(batch=10)
    async def index(items):
        return kind(ValueError("three") if run.args[0] == 3 else run.args[0] * 2 for run in items)

    handles = await put(tocsin_app, index, 5)
    await run_until_idle(tocsin_app)
    assert await statuses(handles) == ["succeeded"] * 3 + ["failed", "succeeded"]
    assert await handles[4].result() == 8
    assert (await tocsin_app.get("j3")).failure.error == "ValueError: three"


async def test_raising_fails_all(tocsin_app):
    @tocsin_app.job(batch=10)
    async def index(items):
        raise ValueError("all of them")

    handles = await put(tocsin_app, index, 4)
    await run_until_idle(tocsin_app)
    assert await statuses(handles) == ["failed"] * 4
    assert "all of them" in (await tocsin_app.get("j2")).failure.error


@pytest.mark.parametrize("returned", [[], [1], list(range(9)), "done", 0, {"a": 1}, True], ids=repr)
async def test_anything_else_fails_all_and_says_what_was_expected(tocsin_app, returned):
    @tocsin_app.job(batch=10)
    async def index(items):
        return returned

    handles = await put(tocsin_app, index, 4)
    await run_until_idle(tocsin_app)
    assert await statuses(handles) == ["failed"] * 4
    assert "must return None or a list of 4 outcomes" in (await tocsin_app.get("j2")).failure.error


async def test_only_those_that_failed_are_tried_again_on_their_own_attempts(tocsin_app, tocsin_clock):
    calls = []

    @tocsin_app.job(batch=10, retry=Retry(2, "1s"))
    async def index(items):
        calls.append(sorted((run.args[0], run.attempt) for run in items))
        return [OSError() if run.args[0] % 2 and run.attempt < 3 else None for run in items]

    handles = await put(tocsin_app, index, 4)
    for _ in range(3):
        await run_until_idle(tocsin_app)
        tocsin_clock.advance("5s")
    assert calls == [[(0, 1), (1, 1), (2, 1), (3, 1)], [(1, 2), (3, 2)], [(1, 3), (3, 3)]]
    assert await statuses(handles) == ["succeeded"] * 4


async def test_a_batch_has_at_most_its_size_and_takes_one_permit(tocsin_app):
    sizes, inside, most = [], 0, 0

    @tocsin_app.job(batch=7)
    async def index(items):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        sizes.append(len(items))
        await asyncio.sleep(0)
        inside -= 1

    await tocsin_app.enqueue_many(index, [(n,) for n in range(100)])
    assert await run_until_idle(tocsin_app, concurrency=2) == 100
    assert sum(sizes) == 100
    assert max(sizes) <= 7
    assert most <= 2


async def test_jobs_of_other_handlers_are_not_drawn_into_a_batch(tocsin_app):
    seen = []

    @tocsin_app.job(batch=50)
    async def one(items):
        seen.extend(run.name for run in items)

    @tocsin_app.job(batch=50)
    async def two(items):
        seen.extend(run.name for run in items)
        assert {run.name for run in items} == {two.name}

    @tocsin_app.job
    async def single(n):
        seen.append("single")

    for n in range(10):
        for handler in (one, two, single):
            await tocsin_app.enqueue(handler, n)
    assert await run_until_idle(tocsin_app) == 30
    assert sorted(seen) == sorted([one.name, two.name, "single"] * 10)
    assert [job async for job in tocsin_app.dead()] == []


async def test_a_plain_function_takes_batches_in_a_thread(tocsin_app):
    @tocsin_app.job(batch=10)
    def index(items):
        return [run.args[0] + 1 for run in items]

    handles = await put(tocsin_app, index, 3)
    await run_until_idle(tocsin_app)
    assert [await handle.result() for handle in handles] == [1, 2, 3]


async def test_recurring_jobs_of_a_batch_wait_for_their_next_time(tocsin_app, tocsin_clock):
    from tocsin import Every

    @tocsin_app.job(batch=10)
    async def index(items):
        return [ValueError() if run.job_id == "b" else None for run in items]

    for job_id in "abc":
        await tocsin_app.schedule(index, Every("1m"), id=job_id)
    tocsin_clock.advance("1m")
    assert await run_until_idle(tocsin_app) == 3
    jobs = {job.id: job async for job in tocsin_app.jobs()}
    assert {(job.due_ms - tocsin_clock.ms, job.stage) for job in jobs.values()} == {(60_000, "waiting")}
    assert {job_id: (job.succeeded, job.failed) for job_id, job in jobs.items()} == {
        "a": (1, 0),
        "b": (0, 1),
        "c": (1, 0),
    }


async def test_a_batch_past_the_earliest_deadline_of_its_runs_is_cancelled_as_a_whole(
    tocsin_app, tocsin_clock, make_worker
):
    begun, told = asyncio.Event(), []

    @tocsin_app.job(batch=10)
    async def index(items):
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            told.extend(run.cancelled for run in items)

    short = await tocsin_app.enqueue(index, 1, timeout="10s")
    long = await tocsin_app.enqueue(index, 2, timeout="10m")
    worker = await make_worker(start=True)
    await asyncio.wait_for(begun.wait(), 10)
    assert worker.pool.busy == 1
    tocsin_clock.advance("11s")

    async def dead() -> bool:
        return await statuses([short, long]) == ["failed", "failed"]

    await eventually(dead, "both have failed")
    assert told == [True, True]


async def test_a_batch_goes_on_until_the_furthest_extension_of_its_runs(tocsin_app, tocsin_clock, make_worker):
    begun = asyncio.Event()

    @tocsin_app.job(batch=10, timeout="10s")
    async def index(items):
        await items[1].extend("10m")
        begun.set()
        await asyncio.Event().wait()

    handles = await put(tocsin_app, index, 3)
    worker = await make_worker()
    await worker.fetcher.step()
    await asyncio.wait_for(begun.wait(), 10)
    tocsin_clock.advance("9m")
    await worker.sweep.step()
    assert [runner.reason for runner, _ in worker.pool.running()] == [""]
    tocsin_clock.advance("2m")
    await worker.sweep.step()
    await eventually(lambda: len(worker.finisher.outcomes.ended) == 3, "it was cancelled")
    await worker.finisher.step()
    assert await statuses(handles) == ["failed"] * 3
