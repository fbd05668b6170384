"""What Schedulinator says of tasks that are requests, and what it gets wrong (docs/origins/schedulinator.md)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web

from tests.support.http_receiver import Receiver
from tocsin import Every, Http, Retry, Tocsin
from tocsin.model.ids import idempotency_key
from tocsin.store.embedded.server import EmbeddedServer
from tocsin.testing import ManualClock, run_until_idle

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The seed's own example: five tasks, and a moment at which three of them should have been executed.
SCHEDULES = [1693964754, 1693965795, 1693974803, 1694064809, 1704064809]
TODAY = 1694044800


def at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def paths(receiver: Receiver) -> list[str]:
    return [each.path for each in receiver.received]


async def test_the_tasks_of_the_seeds_example_are_delivered_in_order_up_to_the_present_moment(
    tocsin_app: Tocsin, tocsin_clock: ManualClock, receiver: Receiver
) -> None:
    tocsin_app.queue("schedules", partitions=1)
    tocsin_clock.move_to(at(SCHEDULES[0] - 1))
    for number, score in reversed(list(enumerate(SCHEDULES, 1))):
        name = f"task{number}"
        await tocsin_app.enqueue(Http.get(f"{receiver.url}/{name}"), id=name, at=at(score), queue="schedules")
    await run_until_idle(tocsin_app, concurrency=1)
    assert receiver.received == []
    tocsin_clock.move_to(at(TODAY))
    jobs = [job.id async for job in tocsin_app.jobs(queue="schedules")]
    assert jobs == ["task1", "task2", "task3", "task4", "task5"]
    due = [(job.id, job.due) async for job in tocsin_app.jobs(queue="schedules", due_before=at(TODAY))]
    assert due == [(f"task{number}", at(score)) for number, score in enumerate(SCHEDULES[:3], 1)]
    await run_until_idle(tocsin_app, concurrency=1)
    assert paths(receiver) == ["/task1", "/task2", "/task3"]
    assert [job.id async for job in tocsin_app.jobs(queue="schedules")] == ["task4", "task5"]


async def test_a_task_with_score_0_is_claimed_and_tried_again_like_any_other(
    tocsin_app: Tocsin, tocsin_clock: ManualClock, receiver: Receiver
) -> None:
    receiver.answers = [500, 200]
    # What is put for a time that is over would be due when it is put.
    tocsin_clock.move_to(EPOCH)
    await tocsin_app.enqueue(Http.get(receiver.url), id="first", at=EPOCH, retry=Retry(1, "1s"))
    await run_until_idle(tocsin_app)
    tocsin_clock.advance("1s")
    await run_until_idle(tocsin_app)
    assert [each.headers["Tocsin-Due"] for each in receiver.received] == ["1970-01-01T00:00:00.000Z"] * 2
    assert [each.headers["Tocsin-Run"] for each in receiver.received] == ["first@0"] * 2
    assert await tocsin_app.get("first") is None


async def test_the_identifier_is_made_of_the_task_and_its_score_and_of_nothing_else(
    tocsin_app: Tocsin, tocsin_clock: ManualClock, receiver: Receiver
) -> None:
    start, later = tocsin_clock.now, tocsin_clock.now + timedelta(milliseconds=1)
    puts: list[tuple[str, datetime, dict[str, Any]]] = [
        ("a", start, {"json": 1}),
        # The same task at the same score, as it is put back after all was lost; what it says does not matter.
        ("a", start, {"json": 2}),
        ("a", later, {"json": 1}),
        ("b", start, {"json": 1}),
    ]
    for name, due, content in puts:
        tocsin_clock.move_to(due)
        await tocsin_app.enqueue(Http.post(receiver.url, **content), id=name, at=due, keep=0)
        await run_until_idle(tocsin_app)
    namespace = tocsin_app.store.keys.prefix
    expected = [idempotency_key(namespace, "default", name, round(due.timestamp() * 1000)) for name, due, _ in puts]
    assert receiver.keys() == expected
    assert expected[0] == expected[1]
    assert len(set(expected)) == 3


async def test_a_request_that_was_not_answered_in_time_is_sent_again_with_its_identifier(
    tocsin_app: Tocsin, tocsin_clock: ManualClock, receiver: Receiver
) -> None:
    """It may have been processed: with the same identifier the receiver can know."""
    heard = asyncio.Event()

    async def never(request: web.Request) -> web.StreamResponse:
        await heard.wait()
        return web.Response()

    receiver.answers = [never, 200]
    await tocsin_app.enqueue(Http.get(receiver.url, timeout="50ms"), id="a", retry=Retry(1, "1s"))
    await run_until_idle(tocsin_app)
    tocsin_clock.advance("1s")
    await run_until_idle(tocsin_app)
    heard.set()
    first, second = receiver.keys()
    assert first == second
    assert [each.headers["Tocsin-Attempt"] for each in receiver.received] == ["1", "2"]


async def test_the_seeds_policy_sends_four_times_and_waits_no_longer_than_the_seed_works_out(
    tocsin_app: Tocsin, tocsin_clock: ManualClock, receiver: Receiver
) -> None:
    """attempts=3, interval=200ms, jitterLimit=500ms: at worst 700, 900 and 1300 ms, 2900 in all."""
    receiver.answers = [500] * 4
    await tocsin_app.enqueue(Http.get(receiver.url), id="task1", retry=Retry(3, "200ms", "500ms"))
    for shortest, longest in ((200, 700), (400, 900), (800, 1300)):
        await run_until_idle(tocsin_app)
        job = await tocsin_app.get("task1")
        assert job is not None
        assert job.not_before_ms is not None
        wait = job.not_before_ms - tocsin_clock.ms
        assert shortest <= wait <= longest
        tocsin_clock.advance((wait - 1) / 1000)
        assert await run_until_idle(tocsin_app) == 0
        tocsin_clock.advance("1ms")
    await run_until_idle(tocsin_app)
    assert len(receiver.received) == 4
    assert [job.id async for job in tocsin_app.dead()] == ["task1"]


async def test_five_instances_deliver_each_occurrence_once(
    tocsin_server: EmbeddedServer, tocsin_app: Tocsin, tocsin_clock: ManualClock, receiver: Receiver
) -> None:
    url, prefix = tocsin_server.url, tocsin_app.store.keys.prefix
    tasks = [f"t{number}" for number in range(40)]
    for name in tasks:
        await tocsin_app.schedule(Http.get(f"{receiver.url}/{name}"), Every("1m"), id=name)
    instances = [Tocsin(url, prefix=prefix, clock=tocsin_clock) for _ in range(5)]
    for instance in instances:
        await instance.open()
    ran = Counter[int]()
    for tick in range(1, 6):
        tocsin_clock.advance("1m")
        for _ in range(10):
            # So few at a time that none can take them all before the others have come.
            counts = await asyncio.gather(*(run_until_idle(instance, concurrency=2) for instance in instances))
            ran.update(dict(enumerate(counts)))
            if len(receiver.received) >= tick * len(tasks):
                break
            # One that found no room at the receiver comes back a little later.
            tocsin_clock.advance("1s")
    for instance in instances:
        await instance.close()
    assert Counter(paths(receiver)) == {f"/{name}": 5 for name in tasks}
    assert len(set(receiver.keys())) == 5 * len(tasks)
    assert all(ran[number] > 0 for number in range(5))


async def test_a_slow_url_does_not_stall_those_that_were_taken_with_it(tocsin_app: Tocsin, receiver: Receiver) -> None:
    others = 20
    arrived = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/slow":
            await arrived.wait()
        elif len(receiver.received) == others + 1:
            arrived.set()
        return web.Response()

    receiver.answers = [answer]
    tocsin_app.queue("schedules", partitions=1)
    start = datetime(2029, 1, 1, tzinfo=UTC)
    names = ["slow", *(f"t{number}" for number in range(others))]
    for number, name in enumerate(names):
        due = start + timedelta(seconds=number)
        await tocsin_app.enqueue(Http.get(f"{receiver.url}/{name}"), id=name, at=due, queue="schedules")
    await run_until_idle(tocsin_app)
    assert {run.outcome async for run in tocsin_app.runs()} == {"succeeded"}
    assert len(receiver.received) == len(names)


async def _hang_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def _endless(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    return web.Response()


@pytest.mark.parametrize(
    "trouble",
    [500, 404, 401, _hang_up, _endless],
    ids=["server error", "not found", "forbidden", "hangs up", "never answers"],
)
async def test_no_failure_locks_a_task(
    tocsin_app: Tocsin,
    tocsin_clock: ManualClock,
    receiver: Receiver,
    trouble: int | Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> None:
    receiver.answers = [trouble, 200]
    await tocsin_app.schedule(Http.post(receiver.url, timeout="100ms"), Every("1m"), id="ping")
    for _ in range(3):
        tocsin_clock.advance("1m")
        await run_until_idle(tocsin_app)
    assert len(receiver.received) == 3
    assert [run.outcome async for run in tocsin_app.runs()] == ["succeeded", "succeeded", "failed"]
    job = await tocsin_app.get("ping")
    assert job is not None
    assert (job.stage, job.due) == ("waiting", tocsin_clock.now + timedelta(minutes=1))


async def test_a_success_counts_once_for_each_occurrence_and_attempts_are_counted_beside_it(
    tocsin_app: Tocsin, tocsin_clock: ManualClock, receiver: Receiver
) -> None:
    receiver.answers = [500, 200, 200, 500, 500, 200]
    await tocsin_app.schedule(Http.get(receiver.url), Every("1m"), id="ping", retry=Retry(1, "1s"))
    for _ in range(8):
        tocsin_clock.advance("30s")
        await run_until_idle(tocsin_app)
    job = await tocsin_app.get("ping")
    assert job is not None
    assert (job.succeeded, job.failed, job.attempts) == (3, 1, 6)


async def test_the_last_failure_of_a_task_names_the_request_and_the_status(
    tocsin_app: Tocsin, tocsin_clock: ManualClock, receiver: Receiver
) -> None:
    receiver.answers = [500]
    await tocsin_app.schedule(Http.get(receiver.url), Every("1m"), id="ping")
    tocsin_clock.advance("1m")
    await run_until_idle(tocsin_app)
    job = await tocsin_app.get("ping")
    assert job is not None
    assert job.failure is not None
    assert f"GET {receiver.url} answered 500" in job.failure.error
