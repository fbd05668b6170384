"""Handles: how a job stands and what came of it, for whoever put it and for anybody else."""

from __future__ import annotations

import pytest

from tests.support.waiting import Gate, eventually
from tocsin import (
    ConflictingJobs,
    Every,
    InvalidArgument,
    Retry,
    RunCancelled,
    RunFailed,
    Tocsin,
    UnknownJob,
)
from tocsin.config import Config
from tocsin.config.schema import Limits, ResultsGroup
from tocsin.engine.handlers import Handler
from tocsin.testing import ManualClock, run_until_idle


async def test_the_result_of_a_job_that_was_just_put_can_be_asked_for(tocsin_app: Tocsin) -> None:
    @tocsin_app.job
    async def greet(name: str) -> str:
        return f"hello {name}"

    handle = await tocsin_app.enqueue(greet, "ada")
    await run_until_idle(tocsin_app)
    assert await handle.result() == "hello ada"


async def test_a_status_says_whether_it_has_ended_and_how(tocsin_app: Tocsin, note: Handler) -> None:
    gate = Gate()

    @tocsin_app.job
    async def held() -> None:
        await gate.enter()

    working = await tocsin_app.enqueue(held)
    waiting = await tocsin_app.enqueue(note, delay="1h")
    cancelled = await tocsin_app.enqueue(note, delay="1h")
    await cancelled.cancel()
    succeeded = await tocsin_app.enqueue(note)
    failed = await tocsin_app.enqueue(note, fail="no")
    blocked = await tocsin_app.enqueue(note, after=[waiting])
    removed = await tocsin_app.enqueue(note, delay="1h")
    await tocsin_app.remove(removed.id)
    worker = await tocsin_app.worker()
    await worker.start()

    async def has_failed() -> bool:
        return await failed.status() == "failed"

    await eventually(has_failed, "it failed")
    handles = (waiting, working, succeeded, failed, cancelled, blocked, removed, tocsin_app.handle("nobody"))
    assert [await handle.status() for handle in handles] == [
        "waiting", "working", "succeeded", "failed", "cancelled", "blocked", "unknown", "unknown",
    ]  # fmt: skip
    gate.open()
    await worker.stop()


# Elsewhere


@pytest.mark.parametrize("queue", [None, "mail"])
async def test_another_program_asks_by_id(
    tocsin_app: Tocsin, stranger: Tocsin, note: Handler, queue: str | None
) -> None:
    tocsin_app.queue("mail")
    put = await tocsin_app.enqueue(note, "hello", queue="mail")
    handle = stranger.handle(put.id, queue)
    assert (handle.id, handle.new, await handle.status()) == (put.id, False, "waiting")
    assert handle.queue == "mail"
    await run_until_idle(tocsin_app)
    assert (await handle.status(), await handle.result()) == ("succeeded", "hello")
    assert await stranger.handle(put.id, queue).result() == "hello"


async def test_another_program_cancels_by_id(tocsin_app: Tocsin, stranger: Tocsin, note: Handler) -> None:
    put = await tocsin_app.enqueue(note, delay="1h")
    assert await stranger.handle(put.id).cancel()
    assert not await stranger.handle("nobody").cancel()
    with pytest.raises(RunCancelled):
        await put.result()


async def test_an_id_that_two_queues_have_needs_its_queue(tocsin_app: Tocsin, note: Handler) -> None:
    tocsin_app.queue("mail")
    for queue in ("mail", "default"):
        await tocsin_app.enqueue(note, id="twice", queue=queue)
    for ask in (tocsin_app.handle("twice").status, tocsin_app.handle("twice").cancel):
        with pytest.raises(ConflictingJobs, match="queue="):
            await ask()
    assert await tocsin_app.handle("twice", queue="mail").status() == "waiting"


async def test_others_can_wait_for_a_job_of_another_program(
    tocsin_app: Tocsin, stranger: Tocsin, note: Handler
) -> None:
    first = await tocsin_app.enqueue(note, "first", delay="1h")
    there = stranger.job(name="note")(note.fn)
    second = await stranger.enqueue(there, "second", after=[stranger.handle(first.id)])
    assert await second.status() == "blocked"


async def test_an_id_that_cannot_be_is_refused_at_once(tocsin_app: Tocsin) -> None:
    with pytest.raises(InvalidArgument):
        tocsin_app.handle("")


def test_blocking_calls_have_handles_too(tocsin_server, tmp_path) -> None:
    app = Tocsin(tocsin_server.url, prefix=f"{tmp_path.name}:")

    @app.job
    async def double(n: int) -> int:
        return 2 * n

    put = app.sync.enqueue(double, 21)
    app.sync.work(until="idle")
    handle = app.sync.handle(put.id)
    assert (handle.queue, handle.status(), handle.queue, handle.result()) == (None, "succeeded", "default", 42)
    app.sync.close()


# Failures


async def test_a_failure_says_what_was_raised_where_and_after_how_many_attempts(
    tocsin_app: Tocsin, tocsin_clock: ManualClock, note: Handler
) -> None:
    handle = await tocsin_app.enqueue(note, fail="out of: paper", retry=Retry(2, "1s"))
    for _ in range(3):
        await run_until_idle(tocsin_app)
        tocsin_clock.advance("10s")
    with pytest.raises(RunFailed, match=r"^ValueError: out of: paper$") as raised:
        await tocsin_app.handle(handle.id).result()
    failed = raised.value
    assert (failed.type, failed.message, failed.attempts) == ("ValueError", "out of: paper", 3)
    assert "raise ValueError(fail)" in failed.traceback


async def test_a_run_that_timed_out_says_so(tocsin_app: Tocsin, tocsin_clock: ManualClock) -> None:
    gate = Gate()

    @tocsin_app.job(timeout="1m")
    async def hangs() -> None:
        await gate.enter()

    handle = await tocsin_app.enqueue(hangs)
    worker = await tocsin_app.worker()
    await worker.start()
    await eventually(lambda: gate.inside, "it runs")
    tocsin_clock.advance("61s")
    with pytest.raises(RunFailed, match="timed out") as raised:
        await handle.result("10s")
    assert (raised.value.type, raised.value.attempts) == ("TimeoutError", 1)
    await worker.stop()


async def test_a_schedule_has_no_result_to_wait_for(tocsin_app: Tocsin, note: Handler) -> None:
    handle = await tocsin_app.schedule(note, Every("1h"), id="hourly")
    with pytest.raises(InvalidArgument, match="never ends"):
        await handle.result()


# As configured


@pytest.fixture
async def configured(tocsin_server, tocsin_clock: ManualClock, tmp_path):
    """Opens an app with that configuration."""
    opened: list[Tocsin] = []

    async def configured(**groups) -> Tocsin:
        app = Tocsin(tocsin_server.url, prefix=f"{tmp_path.name}:", clock=tocsin_clock, config=Config(**groups))
        await app.open()
        opened.append(app)
        return app

    yield configured
    for app in opened:
        await app.close()


async def test_no_outcomes_are_kept_where_nobody_wants_them(configured) -> None:
    app = await configured(results=ResultsGroup(keep="0"))

    @app.job
    async def returns() -> int:
        return 42

    handle, chosen = await app.enqueue(returns), await app.enqueue(returns, id="chosen")
    await run_until_idle(app)
    assert (await handle.status(), await chosen.status()) == ("unknown", "succeeded")
    with pytest.raises(UnknownJob, match=r"results\.keep"):
        await handle.result()


async def test_the_oldest_outcomes_go_and_chosen_ids_stay(configured) -> None:
    app = await configured(results=ResultsGroup(max=8))
    app.queue("mail", partitions=4)

    @app.job(queue="mail")
    async def returns(n: int) -> int:
        return n

    chosen = [await app.enqueue(returns, n, id=f"c{n}", keep="10s") for n in range(20)]
    await run_until_idle(app)
    handles = []
    for n in range(40):
        handles.append(await app.enqueue(returns, n))
        await run_until_idle(app)
        app.store.clock.advance("1ms")
    queue = await app.store.find_queue("mail")
    statuses = [await handle.status() for handle in handles]
    for partition in range(4):
        there = [status for h, status in zip(handles, statuses, strict=True) if queue.partition_of(h.id) == partition]
        assert there == ["unknown"] * (len(there) - 2) + ["succeeded"] * 2
    assert {await handle.status() for handle in chosen} == {"succeeded"}
    assert not (await app.enqueue(returns, 1, id="c1")).new


async def test_cancelling_jobs_keeps_no_more_outcomes_than_are_wanted(configured) -> None:
    app = await configured(results=ResultsGroup(max=8))

    @app.job
    async def job() -> None: ...

    handles = [await app.enqueue(job, delay="1h") for _ in range(12)]
    for handle in handles:
        assert await handle.cancel()
        app.store.clock.advance("1ms")
    statuses = [await handle.status() for handle in handles]
    assert statuses == ["unknown"] * 4 + ["cancelled"] * 8


async def test_larger_arguments_can_be_let_in(configured) -> None:
    app, large = await configured(limits=Limits(arguments_bytes=2 * 1024 * 1024)), b"x" * 1024 * 1024

    @app.job
    async def size(data: bytes) -> int:
        return len(data)

    handle = await app.enqueue(size, large)
    await app.enqueue_many(size, [(large,)])
    await app.schedule(size, Every("1h"), large, id="s")
    await app.schedule_many(size, [("m", Every("1h"), (large,))])
    assert await app.update("s", args=(large + b"x",))
    await run_until_idle(app)
    assert await handle.result() == len(large)


async def test_smaller_arguments_can_be_demanded(configured) -> None:
    app, large = await configured(limits=Limits(arguments_bytes=1024)), b"x" * 2000

    @app.job
    async def size(data: bytes) -> int:
        return len(data)

    await app.schedule(size, Every("1h"), b"", id="s")
    for put in (
        app.enqueue(size, large),
        app.enqueue_many(size, [(large,)]),
        app.schedule(size, Every("1h"), large, id="t"),
        app.schedule_many(size, [("m", Every("1h"), (large,))]),
        app.update("s", args=(large,)),
    ):
        with pytest.raises(InvalidArgument, match=r"the limit is 1024.*limits\.arguments-bytes"):
            await put


async def test_larger_results_can_be_let_in(configured) -> None:
    app = await configured(limits=Limits(result_bytes=2 * 1024 * 1024))

    @app.job
    async def large() -> bytes:
        return b"x" * 1024 * 1024

    handle = await app.enqueue(large)
    await run_until_idle(app)
    assert len(await handle.result()) == 1024 * 1024
