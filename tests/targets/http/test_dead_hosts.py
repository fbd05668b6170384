"""Workers and receivers that are dead, fail or hang."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support.http_receiver import Receiver
from tests.support.subprocess_programs import STAYS, make
from tests.support.waiting import eventually, run_dry
from tocsin import Every, Http, Message, Retry, Subprocess, Tocsin
from tocsin.model.job import Stage
from tocsin.store.embedded.server import EmbeddedServer
from tocsin.targets.external import TargetPermissions
from tocsin.testing import ManualClock
from tocsin.worker import Worker, WorkerSettings

MakeWorker = Callable[..., Awaitable[Worker]]


@pytest.fixture
async def make_worker(tocsin_app: Tocsin) -> AsyncIterator[MakeWorker]:
    """One that does nothing by itself."""
    made: list[Worker] = []

    async def make(app: Tocsin | None = None, **settings: Any) -> Worker:
        reach = TargetPermissions(http_allow=("127.0.0.0/8",))
        worker = await (app or tocsin_app).worker(settings=WorkerSettings(**{"reach": reach, **settings}))
        made.append(worker)
        return worker

    yield make
    for worker in made:
        await worker.kill()


@pytest.fixture
async def other_app(
    tocsin_app: Tocsin, tocsin_server: EmbeddedServer, tocsin_clock: ManualClock
) -> AsyncIterator[Tocsin]:
    """Another program in the same namespace."""
    async with Tocsin(tocsin_server.url, prefix=tocsin_app.store.keys.prefix, clock=tocsin_clock) as app:
        yield app


@pytest.fixture
async def live_app(tocsin_server: EmbeddedServer) -> AsyncIterator[Tocsin]:
    """An app on the server's own time."""
    async with Tocsin(tocsin_server.url, prefix=f"live-{secrets.token_hex(4)}:") as app:
        yield app


async def work(*workers: Worker) -> None:
    """All that is due, and a look at what the fleet tells."""
    for worker in workers:
        for served in worker.served.values():
            served.forget_dues()
        await run_dry(worker)
        await worker.parts.host_gates.step()


async def an_outage(app: Tocsin, receiver: Receiver, worker: Worker) -> None:
    """Five requests fail."""
    receiver.answers = [500]
    for _ in range(5):
        await app.enqueue(Http.get(receiver.url), retry=Retry(9, "1h"))
    await work(worker)
    assert len(receiver.received) == 5


async def test_runs_for_a_host_that_fails_go_back_without_an_attempt(
    tocsin_app: Tocsin, tocsin_clock: ManualClock, receiver: Receiver, make_worker: MakeWorker
) -> None:
    worker = await make_worker()
    await an_outage(tocsin_app, receiver, worker)
    await tocsin_app.enqueue(Http.get(receiver.url), id="a")
    await work(worker)
    job = await tocsin_app.get("a")
    assert job is not None
    assert (job.stage, job.attempt, job.due_ms) == (Stage.WAITING, 1, tocsin_clock.ms)
    assert job.not_before_ms is not None
    assert 30_000 <= job.not_before_ms - tocsin_clock.ms <= 31_000
    assert len(receiver.received) == 5


async def test_another_worker_sends_nothing_either_although_it_saw_no_failure(
    tocsin_app: Tocsin, other_app: Tocsin, receiver: Receiver, make_worker: MakeWorker
) -> None:
    await an_outage(tocsin_app, receiver, await make_worker())
    await tocsin_app.enqueue(Http.get(receiver.url), id="a")
    await work(await make_worker(other_app))
    assert len(receiver.received) == 5


async def test_one_run_of_the_fleet_finds_out_and_then_all_go_on(
    tocsin_app: Tocsin, other_app: Tocsin, tocsin_clock: ManualClock, receiver: Receiver, make_worker: MakeWorker
) -> None:
    one, two = await make_worker(), await make_worker(other_app)
    await an_outage(tocsin_app, receiver, one)
    for n in range(10):
        await tocsin_app.enqueue(Http.get(receiver.url), id=f"{n}")
    await work(two)
    receiver.answers = [500, 200]
    tocsin_clock.advance("31s")
    await work(one, two)
    assert len(receiver.received) == 6
    tocsin_clock.advance("31s")
    await work(two, one)
    # Some were sent away while that probe was under way.
    tocsin_clock.advance("6s")
    await work(one, two)
    assert len(receiver.received) == 5 + 10


async def test_a_one_shot_with_few_retries_outlives_an_outage_of_its_host(
    tocsin_app: Tocsin, tocsin_clock: ManualClock, receiver: Receiver, make_worker: MakeWorker
) -> None:
    worker = await make_worker()
    await an_outage(tocsin_app, receiver, worker)
    await receiver.stop()
    handle = await tocsin_app.enqueue(Http.get(receiver.url), id="a", retry=Retry(1, "1s"))
    for _ in range(20):
        await work(worker)
        tocsin_clock.advance("31s")
    job = await tocsin_app.get("a")
    assert job is not None
    assert job.attempt == 1
    receiver.answers = []
    await receiver.start()
    await work(worker)
    assert (await handle.result())["status"] == 200


async def test_a_recurring_job_goes_on_after_an_outage_with_its_cadence(
    tocsin_app: Tocsin, tocsin_clock: ManualClock, receiver: Receiver, make_worker: MakeWorker
) -> None:
    worker = await make_worker()
    await an_outage(tocsin_app, receiver, worker)
    await receiver.stop()
    await tocsin_app.schedule(Http.get(f"{receiver.url}/tick"), Every("1m"), id="a")
    for _ in range(20):
        tocsin_clock.advance("31s")
        await work(worker)
    receiver.answers = []
    await receiver.start()
    tocsin_clock.advance("31s")
    await work(worker)
    tocsin_clock.advance("1m")
    await work(worker)
    ticks = [each.headers["Tocsin-Due"] for each in receiver.received if each.path == "/tick"]
    assert ticks == ["2030-01-01T00:01:00.000Z", "2030-01-01T00:11:00.000Z"]
    runs = [run async for run in tocsin_app.runs() if run.job_id == "a"]
    assert {run.outcome for run in runs} == {"succeeded"}


async def test_a_host_that_hangs_does_not_take_the_permits_of_others(
    live_app: Tocsin, receiver: Receiver, make_worker: MakeWorker
) -> None:
    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    hanging = Receiver()
    hanging.answers = [hang]
    await hanging.start()
    try:
        for _ in range(50):
            await live_app.enqueue(Http.get(hanging.url))
        for _ in range(50):
            await live_app.enqueue(Http.get(receiver.url))
        worker = await make_worker(live_app, concurrency=4)
        await worker.start()
        await eventually(lambda: len(receiver.received) == 50, "all of the other host are delivered")
        assert len(hanging.received) == 2
        await worker.kill()
    finally:
        await hanging.stop()


@contextlib.contextmanager
def hosts_that_hang(number: int) -> Iterator[list[str]]:
    """The kernel accepts connections to them, and nobody answers."""
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        yield [f"127.0.0.1:{each.getsockname()[1]}" for each in made]


async def test_as_many_hosts_that_hang_as_there_are_permits_leave_some_to_the_programs_own_jobs(
    live_app: Tocsin, make_worker: MakeWorker
) -> None:
    @live_app.job
    async def innocent() -> str:
        return "done"

    with hosts_that_hang(12) as hosts:
        await live_app.enqueue_many(Http, [Http.get(f"http://{host}/", timeout="10m") for host in hosts for _ in "ab"])
        reach = TargetPermissions(http_allow=("127.0.0.0/8",))
        worker = await make_worker(live_app, concurrency=8, poll_s=0.1, reach=reach)
        await worker.start()
        await eventually(lambda: worker.parts.host_gates.permits.turned_away >= 6, "some find no room")
        assert worker.running == worker.parts.host_gates.permits.held == 6
        handle = await live_app.enqueue(innocent)
        assert await handle.result(timeout=10) == "done"
        await eventually(lambda: worker.stats().health.degraded, "health sees it")
        assert "hold all 6 permits that they may" in worker.stats().health.reasons[0]
        await worker.kill()


async def test_programs_that_hang_leave_some_permits_to_the_programs_own_jobs(
    live_app: Tocsin, make_worker: MakeWorker, tmp_path: Path
) -> None:
    @live_app.job
    async def innocent() -> str:
        return "done"

    program = make(tmp_path, STAYS)
    for _ in range(6):
        await live_app.enqueue(Subprocess([program], timeout="1h"))
    worker = await make_worker(live_app, concurrency=4, reach=TargetPermissions(programs={program: ()}))
    await worker.start()
    await eventually(lambda: worker.parts.host_gates.permits.turned_away >= 3, "some find no room")
    assert worker.parts.host_gates.permits.held == 3
    handle = await live_app.enqueue(innocent)
    assert await handle.result(timeout=10) == "done"
    await worker.kill()


async def test_a_worker_without_jobs_of_its_own_has_all_permits_for_hosts(
    live_app: Tocsin, make_worker: MakeWorker
) -> None:
    with hosts_that_hang(4) as hosts:
        await live_app.enqueue_many(Http, [Http.get(f"http://{host}/") for host in hosts])
        worker = await make_worker(live_app, concurrency=4)
        await worker.start()
        await eventually(lambda: worker.parts.host_gates.permits.held == 4, "all are under way")
        await worker.kill()


@pytest.mark.parametrize("scheme", ["http", "redis", "nats"])
async def test_no_delivery_takes_longer_than_the_operator_says(
    live_app: Tocsin, make_worker: MakeWorker, scheme: str
) -> None:
    """Also one that was put before the operator said so, or by a program with another configuration."""
    with hosts_that_hang(1) as [host]:
        target = (
            Http.get(f"http://{host}/", timeout="5m")
            if scheme == "http"
            else Message(f"{scheme}://{host}/x", timeout="5m")
        )
        await live_app.enqueue(target, id="a")
        reach = TargetPermissions(http_allow=("127.0.0.0/8",), message_allow=("127.0.0.0/8",), max_timeout_s=0.2)
        worker = await make_worker(live_app, reach=reach)
        await worker.start()
        await eventually(lambda: worker.stats().ran == 1, "it is given up")
        await worker.stop()
    [dead] = [job async for job in live_app.dead()]
    assert dead.failure is not None
    assert "within 0.2 s" in dead.failure.error


async def test_no_more_requests_than_allowed_are_at_one_host_at_a_time(
    live_app: Tocsin, receiver: Receiver, make_worker: MakeWorker
) -> None:
    inside = most = 0

    async def count(request: web.Request) -> web.StreamResponse:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.001)
        inside -= 1
        return web.Response()

    receiver.answers = [count]
    for _ in range(100):
        await live_app.enqueue(Http.get(receiver.url))
    worker = await make_worker(
        live_app, concurrency=20, reach=TargetPermissions(http_allow=("127.0.0.0/8",), max_per_host=3)
    )
    await worker.start()
    await eventually(lambda: len(receiver.received) == 100, "all are delivered")
    assert most == 3


async def test_why_tells_of_the_host(
    tocsin_app: Tocsin, tocsin_clock: ManualClock, receiver: Receiver, make_worker: MakeWorker
) -> None:
    worker = await make_worker()
    await an_outage(tocsin_app, receiver, worker)
    began = tocsin_clock.now
    await tocsin_app.enqueue(Http.get(receiver.url), id="a")
    tocsin_clock.advance("1s")
    await work(worker)
    answer = await tocsin_app.why("a")
    assert answer.kinds == ["handed_back", "host_fails"]
    facts = answer.reasons[1].facts
    assert (facts["host"], facts["since"]) == (receiver.url, began)
    assert (facts["until"] - began).total_seconds() == 30
    assert receiver.url in answer.reasons[1].do[0]
