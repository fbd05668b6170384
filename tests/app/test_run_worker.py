"""`work`: a worker in this process, on the server's own time."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal

import pytest

from tests.support.captured_logs import capture_logs
from tests.support.waiting import Gate, eventually
from tocsin import Every, InvalidArgument, Tocsin
from tocsin.model.clock import monotonic


@pytest.fixture
async def app(tocsin_server):
    async with Tocsin(tocsin_server.url, prefix=f"work-{secrets.token_hex(4)}:") as app:
        yield app


async def test_until_idle_returns_when_nothing_is_due_and_nothing_is_working(app):
    ran = []

    @app.job
    async def job(n):
        ran.append(n)
        if n < 3:
            await app.enqueue(job, n + 1)

    @app.job
    def in_thread():
        ran.append("thread")

    await app.enqueue(job, 0)
    await app.enqueue(in_thread)
    await app.enqueue(job, 99, delay="1h")
    await app.schedule(job, Every("1h"), 98)
    await asyncio.wait_for(app.work(until="idle"), 10)
    assert sorted(ran, key=str) == [0, 1, 2, 3, "thread"]


async def test_until_idle_with_nothing_to_do_returns_at_once(app):
    await asyncio.wait_for(app.work(until="idle"), 5)


async def test_until_idle_waits_for_what_another_worker_is_doing(app, tocsin_server):
    gate = Gate()
    other = Tocsin(tocsin_server.url, prefix=app.store.keys.prefix)

    for each in (app, other):

        @each.job(name="held")
        async def held():
            await gate.enter()

    async with other:
        await app.enqueue(held)
        theirs = asyncio.create_task(other.work(until="idle"))
        await eventually(lambda: gate.inside, "the other runs it")
        ours = asyncio.create_task(app.work(until="idle"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(ours), 0.1)
        gate.open()
        await asyncio.wait_for(asyncio.gather(ours, theirs), 10)


async def test_until_idle_does_not_wait_for_what_a_paused_queue_holds(app):
    @app.job
    async def job():
        pass

    await app.enqueue(job)
    await app.pause_queue("default")
    await asyncio.wait_for(app.work(until="idle"), 1)


async def test_a_delayed_job_starts_on_time_and_never_early(app):
    @app.job
    async def job():
        return monotonic()

    working = asyncio.create_task(app.work())
    begun = monotonic()
    handles = [await app.enqueue(job, delay=n / 10, id=f"j{n}") for n in range(1, 6)]
    started = [await handle.result("10s") - begun for handle in handles]
    assert all(at >= n / 10 - 0.002 for n, at in enumerate(started, 1))
    assert all(at < n / 10 + 5 for n, at in enumerate(started, 1))
    working.cancel()
    await asyncio.wait([working])


async def test_a_cancelled_worker_hands_over_and_ends(app):
    gate = Gate()

    @app.job
    async def held():
        await gate.enter()

    handle = await app.enqueue(held, id="j")
    working = asyncio.create_task(app.work(grace=0))
    await eventually(lambda: gate.inside, "it runs")
    working.cancel()
    await asyncio.wait([working], timeout=10)
    await eventually(lambda: not gate.inside, "its run was cancelled")

    async def waits() -> bool:
        return await handle.status() == "waiting"

    await eventually(waits, "its run was handed over")


@pytest.mark.parametrize("until", ["stopped", "idle"])
async def test_a_worker_can_be_cancelled_at_any_moment(app, until):
    @app.job
    async def job():
        pass

    for turns in range(0, 60, 3):
        working = asyncio.create_task(app.work(until=until, grace=0))
        for _ in range(turns):
            await asyncio.sleep(0)
        working.cancel()
        done, _ = await asyncio.wait([working], timeout=20)
        assert done, f"cancelled after {turns} turns, it goes on"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_runs_end_within_the_grace_period(app, number):
    gate = Gate()

    @app.job
    async def held():
        await gate.enter()
        return "ended"

    handle = await app.enqueue(held, id="j")
    working = asyncio.create_task(app.work(grace="30s", signals=True))
    await eventually(lambda: gate.inside, "it runs")
    with capture_logs() as logs:
        os.kill(os.getpid(), number)
        await eventually(lambda: "claiming nothing more" in [entry["event"] for entry in logs], "it has heard")
    late = await app.enqueue(held, id="late")
    gate.open()
    await asyncio.wait_for(working, 10)
    assert await handle.result() == "ended"
    assert await late.status() == "waiting"


async def test_a_second_signal_hurries(app):
    gate = Gate()

    @app.job
    async def held():
        await gate.enter()

    handle = await app.enqueue(held, id="j")
    working = asyncio.create_task(app.work(grace="10m", signals=True))
    await eventually(lambda: gate.inside, "it runs")
    with capture_logs() as logs:
        os.kill(os.getpid(), signal.SIGTERM)
        await eventually(lambda: "claiming nothing more" in [entry["event"] for entry in logs], "it has heard")
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(working, 10)
    assert await handle.status() == "waiting"


async def test_a_worker_serves_only_the_queues_it_is_given(app):
    app.queue("mail")

    @app.job
    async def job():
        return "ran"

    mail = await app.enqueue(job, id="m", queue="mail")
    other = await app.enqueue(job, id="d")
    await asyncio.wait_for(app.work(queues=["mail"], until="idle"), 10)
    assert [await mail.status(), await other.status()] == ["succeeded", "waiting"]


@pytest.mark.agents
async def test_agents_run_for_ever_one_at_a_time(app):
    inside, most, ran = 0, 0, 0

    @app.agent(every="20ms")
    async def refresh():
        nonlocal inside, most, ran
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.03)
        inside -= 1
        ran += 1

    working = asyncio.create_task(app.work())
    await eventually(lambda: ran >= 3, "it has run three times")
    working.cancel()
    await asyncio.wait([working])
    assert most == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"until": "tomorrow"}, "'stopped' or 'idle'"),
        ({"grace": -1}, "grace must be"),
        ({"queues": ["nowhere"]}, "is not declared"),
    ],
    ids=str,
)
async def test_an_option_that_cannot_be_is_refused(app, options, why):
    with pytest.raises(InvalidArgument, match=why):
        await asyncio.wait_for(app.work(**options), 5)


@pytest.mark.parametrize("concurrency", ["many", 1.5, True])
async def test_concurrency_is_a_whole_number(app, concurrency):
    with pytest.raises(InvalidArgument, match="concurrency must be"):
        await asyncio.wait_for(app.work(concurrency=concurrency, until="idle"), 5)
    with pytest.raises(InvalidArgument, match="concurrency must be"):
        await app.worker(concurrency=concurrency)
