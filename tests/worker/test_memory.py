"""A worker keeps nothing of the runs that have ended."""

from __future__ import annotations

import asyncio

import pytest

from tests.support import process_handlers
from tests.support.memory_use import kept_by
from tests.support.waiting import eventually
from tocsin import Run

RUNS, SIZE = 100, 20_000


@pytest.fixture
def kinds(tocsin_app):
    @tocsin_app.job
    async def plain(data):
        await asyncio.sleep(0)

    @tocsin_app.job
    async def with_run(data, run: Run):
        await run.extend("1m")

    @tocsin_app.job(batch=10)
    async def batch(runs: list[Run]):
        await runs[0].extend("1m")

    @tocsin_app.job
    def thread(data, run: Run):
        pass

    @tocsin_app.job(batch=10)
    def thread_batch(runs: list[Run]):
        pass

    @tocsin_app.job
    async def failing(data, run: Run):
        raise RuntimeError("no")

    @tocsin_app.job(batch=10)
    async def failing_batch(runs: list[Run]):
        return [RuntimeError("no") for _ in runs]

    process = tocsin_app.job(executor="process")(process_handlers.ignores)
    return locals()


@pytest.mark.parametrize(
    "kind", ["plain", "with_run", "batch", "thread", "thread_batch", "process", "failing", "failing_batch"]
)
async def test_what_a_run_was_given_is_freed_when_it_has_ended_without_the_garbage_collector(
    tocsin_app, make_worker, kinds, kind
):
    worker = await make_worker(start=True)

    async def run_some() -> None:
        so_far = worker.pool.ran
        await tocsin_app.enqueue_many(kinds[kind], (["x" * SIZE] for _ in range(RUNS)))
        await eventually(lambda: worker.pool.ran == so_far + RUNS, "all have run", within=60)
        await eventually(worker.finisher.idle, "all are written down")

    # Imports, caches, threads and connections are made by the first.
    await run_some()
    kept = await kept_by(run_some)
    assert kept < RUNS * SIZE / 4, f"{kept / RUNS:.0f} bytes a run are kept"
