"""A worker that sleeps wakes for what comes due, also for what it made due itself. Polling is as good as off."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime

from tests.support.waiting import eventually
from tocsin import Every, Retry, Run

NEVER_POLLS = 600.0


async def test_a_job_that_is_enqueued_rings_for_an_idle_worker(live_app, make_worker):
    @live_app.job
    async def job():
        return "ran"

    worker = await make_worker(live_app, start=True, poll_s=NEVER_POLLS)
    for n in range(20):
        handle = await live_app.enqueue(job, id=f"j{n}")
        assert await handle.result("10s") == "ran"
    assert worker.stats().ran == 20


async def test_a_job_that_becomes_the_first_in_line_moves_the_worker_forward(live_app, make_worker):
    @live_app.job
    async def job():
        return "ran"

    await make_worker(live_app, start=True, poll_s=NEVER_POLLS)
    await live_app.enqueue(job, delay="1h")
    handle = await live_app.enqueue(job, id="sooner", delay="50ms")
    assert await handle.result("10s") == "ran"


async def test_a_recurring_job_wakes_the_worker_for_its_next_time(live_app, make_worker):
    late = []

    @live_app.job
    async def job(run: Run):
        late.append(live_app.store.clock.server_ms() - run.due.timestamp() * 1000)

    await make_worker(live_app, start=True, poll_s=NEVER_POLLS)
    await live_app.schedule(job, Every("50ms"), id="j")
    await eventually(lambda: len(late) >= 5, "it has run five times")


async def test_a_retry_wakes_the_worker_when_its_backoff_is_over(live_app, make_worker):
    @live_app.job(retry=Retry(3, "20ms"))
    async def flaky(run: Run):
        if run.attempt < 4:
            raise ValueError
        return run.attempt

    await make_worker(live_app, start=True, poll_s=NEVER_POLLS)
    handle = await live_app.enqueue(flaky, id="j")
    assert await handle.result("10s") == 4


async def test_a_resumed_job_wakes_the_worker(live_app, make_worker):
    @live_app.job
    async def job():
        return "ran"

    await live_app.enqueue(job, id="j")
    await live_app.pause("j")
    await make_worker(live_app, start=True, poll_s=NEVER_POLLS)
    handle = await live_app.enqueue(job, id="j")
    await live_app.resume("j")
    assert await handle.result("10s") == "ran"


async def test_a_job_that_is_changed_fired_or_revived_wakes_the_worker(live_app, make_worker):
    ran = asyncio.Queue()
    broken = True

    @live_app.job
    async def job(what):
        ran.put_nowait(what)
        if what == "dead" and broken:
            raise ValueError

    await make_worker(live_app, start=True, poll_s=NEVER_POLLS)
    await live_app.schedule(job, Every("1h"), "fired", id="j")
    await live_app.fire("j")
    assert await asyncio.wait_for(ran.get(), 10) == "fired"
    await live_app.update("j", trigger=Every("50ms"), args=("changed",))
    assert await asyncio.wait_for(ran.get(), 10) == "changed"
    await live_app.pause("j")

    await live_app.enqueue(job, "dead", id="d")
    while await asyncio.wait_for(ran.get(), 10) != "dead":
        pass

    async def revived() -> bool:
        return await live_app.retry_dead("d")

    broken = False
    await eventually(revived, "it is dead and is revived")
    while await asyncio.wait_for(ran.get(), 10) != "dead":
        pass


async def test_an_answer_on_its_way_does_not_hide_what_was_heard_since_it_was_asked_for(tocsin_app, make_worker):
    tocsin_app.queue("default", partitions=16)

    @tocsin_app.job
    async def job():
        pass

    worker = await make_worker()
    served = worker.served["default"]
    for partition in range(16):
        served.note_reply(partition, math.inf, 0, 0)
    served.note_asked(3, 1)
    assert served.expect(3, 500)
    served.note_reply(3, math.inf, 400, 0)
    assert served.next_due[3] == 500
    served.note_asked(3, 1)
    served.note_reply(3, math.inf, 600, 1)
    assert served.next_due[3] == math.inf


async def test_a_backdated_job_is_claimed_after_all_that_were_put_before_it_in_the_same_millisecond(
    live_app, make_worker
):
    live_app.queue("line", partitions=1)
    ran = []

    @live_app.job(queue="line")
    async def job(x):
        ran.append(x)

    # In one call, so that most are due in one millisecond, and by id the last would be the first.
    await live_app.enqueue_many(job, [(n,) for n in range(50)], ids=[f"n{n:02}" for n in range(50)])
    await live_app.enqueue(job, "back", id="a", at=datetime(1990, 1, 1, tzinfo=UTC))
    await make_worker(live_app, start=True, queues=["line"], concurrency=1)
    await eventually(lambda: len(ran) == 51, "all have run")
    assert ran == [*range(50), "back"]
