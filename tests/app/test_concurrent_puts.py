"""Many puts at once: they go together, and each is what it would be alone."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import threading

import pytest

from tocsin import Every, InvalidArgument, Tocsin
from tocsin.store.transitions.queue_settings import settings_of

AT_ONCE = 5000


@pytest.fixture
def one(tocsin_app):
    """A queue of one partition, so that calls can be counted there."""
    tocsin_app.queue("one", partitions=1)
    return "one"


async def calls_in(app, queue):
    """How many calls have changed something in the partitions of a queue."""
    opened = await app.store.find_queue(queue)
    seqs = [await app.store.client.hget(keys["meta"], "seq") for keys in opened.keys[: opened.partitions]]
    return sum(int(seq or 0) for seq in seqs)


async def scripts_called(app):
    return (await app.store.client.info("commandstats"))["cmdstat_evalsha"]["calls"]


async def test_a_burst_is_one_call_for_each_thousand(tocsin_app, note, one):
    handles = await asyncio.gather(*(tocsin_app.enqueue(note, n, queue=one) for n in range(2001)))
    assert all(handle.new for handle in handles)
    assert sorted([job.args[0] async for job in tocsin_app.jobs(queue=one)]) == list(range(2001))
    # The first goes at once, and the others while it is under way.
    assert await calls_in(tocsin_app, one) == 3


async def test_five_thousand_puts_on_a_fresh_app_open_the_queue_once(tocsin_app, note):
    before = await scripts_called(tocsin_app)
    handles = await asyncio.gather(*(tocsin_app.enqueue(note, n, delay="1h") for n in range(AT_ONCE)))
    called = await scripts_called(tocsin_app) - before
    assert len({handle.id for handle in handles if handle.new}) == AT_ONCE
    partitions = (await tocsin_app.store.find_queue("default")).partitions
    # For each partition: it is opened, a put goes alone, the others together, and two bells at most.
    assert called <= 1 + partitions * 5 + AT_ONCE // 1000


async def test_the_settings_of_a_queue_are_declared_once_for_all_that_wait_for_it(tocsin_app, note):
    tocsin_app.queue("capped", partitions=1, max_active=3)
    before = await scripts_called(tocsin_app)
    await asyncio.gather(*(tocsin_app.enqueue(note, n, queue="capped", delay="1h") for n in range(500)))
    assert await scripts_called(tocsin_app) - before <= 10
    opened = await tocsin_app.store.find_queue("capped")
    assert await settings_of(tocsin_app.store, opened) == {"max_active": "3"}


@pytest.mark.one_server(reason="counts the calls of one server")
async def test_a_lone_put_is_one_call(tocsin_app, note, one):
    await tocsin_app.enqueue(note, queue=one, delay="1h")
    await tocsin_app._parts.ringer.quiet()
    before = await tocsin_app.store.client.info("commandstats")
    await tocsin_app.enqueue(note, queue=one, delay="2h")
    after = await tocsin_app.store.client.info("commandstats")
    assert after["cmdstat_evalsha"]["calls"] - before["cmdstat_evalsha"]["calls"] == 1


async def test_jobs_are_in_line_in_the_order_of_the_calls(tocsin_app, note, ran):
    tocsin_app.queue("line", order="priority", partitions=1)
    await asyncio.gather(*(tocsin_app.enqueue(note, n, queue="line") for n in range(1500)))
    await tocsin_app.work(queues=["line"], concurrency=1, until="idle")
    assert ran == list(range(1500))


async def test_puts_of_one_id_are_as_if_one_came_after_the_other(tocsin_app, note, one):
    named = [f"id-{n % 7}" for n in range(100)]
    handles = await asyncio.gather(*(tocsin_app.enqueue(note, n, id=id, queue=one) for n, id in enumerate(named)))
    assert [handle.new for handle in handles] == [n < 7 for n in range(100)]
    modes = ("replace", "ignore", "postpone")
    await asyncio.gather(
        *(tocsin_app.enqueue(note, n, id="id-0", queue=one, if_exists=modes[n % 3]) for n in range(99))
    )
    assert (await tocsin_app.get("id-0", queue=one)).args == (98,)


async def test_schedules_and_changes_go_along(tocsin_app, note, one):
    await asyncio.gather(
        *(tocsin_app.schedule(note, Every("1h"), n, id=f"s-{n}", queue=one) for n in range(200)),
        *(tocsin_app.enqueue(note, n, id=f"e-{n}", queue=one) for n in range(200)),
    )
    assert await calls_in(tocsin_app, one) == 2
    changed = await asyncio.gather(*(tocsin_app.update(f"s-{n}", trigger=Every("2h"), queue=one) for n in range(200)))
    assert changed == [True] * 200


async def test_a_put_that_is_refused_fails_no_other(tocsin_app, note, one):
    def arguments(n):
        return {3: ("x" * 600_000,), 5: (object(),), 7: (1, 2, 3)}.get(n, (n,))

    made = await asyncio.gather(
        *(tocsin_app.enqueue(note, *arguments(n), queue=one) for n in range(300)), return_exceptions=True
    )
    assert {n for n, one in enumerate(made) if isinstance(one, InvalidArgument)} == {3, 5, 7}
    assert sum(getattr(one, "new", False) for one in made) == 297


async def test_callers_that_are_cancelled_take_nobody_along(tocsin_app, note, one):
    await tocsin_app.enqueue(note, "opens the queue", queue=one)
    puts = [asyncio.ensure_future(tocsin_app.enqueue(note, n, queue=one)) for n in range(600)]
    await asyncio.sleep(0)
    # The first is under way, and the others wait.
    for put in puts[:200:2]:
        put.cancel()
    await asyncio.wait(puts[:1])
    await asyncio.sleep(0)
    # Now the others are.
    for put in puts[200::2]:
        put.cancel()
    made = await asyncio.gather(*puts, return_exceptions=True)
    assert all(isinstance(cancelled, asyncio.CancelledError) for cancelled in made[::2])
    assert all(handle.new for handle in made[1::2])
    stored = {job.args[0] async for job in tocsin_app.jobs(queue=one)} - {"opens the queue"}
    assert stored >= set(range(1, 600, 2))
    # Those that were cancelled while they waited were never sent.
    assert not stored & set(range(2, 200, 2))


async def test_a_caller_that_is_cancelled_does_not_stop_the_others_from_opening_the_queue(tocsin_app, note):
    puts = [asyncio.ensure_future(tocsin_app.enqueue(note, n)) for n in range(50)]
    await asyncio.sleep(0)
    puts[0].cancel()
    made = await asyncio.gather(*puts, return_exceptions=True)
    assert isinstance(made[0], asyncio.CancelledError)
    assert all(handle.new for handle in made[1:])


async def test_a_queue_that_is_repartitioned_meanwhile_gets_each_put_once(tocsin_app, note):
    tocsin_app.queue("wide", partitions=2)
    await asyncio.gather(*(tocsin_app.enqueue(note, n, queue="wide") for n in range(AT_ONCE)))
    moving = asyncio.ensure_future(tocsin_app.repartition_queue("wide", 5))
    numbers = itertools.count(AT_ONCE)

    async def go_on_putting() -> int:
        handles = []
        while not moving.done():
            handles.append(await tocsin_app.enqueue(note, next(numbers), queue="wide"))
        assert all(handle.new for handle in handles)
        return len(handles)

    more = sum(await asyncio.gather(*(go_on_putting() for _ in range(100))))
    assert (await tocsin_app.store.find_queue("wide")).partitions == 5
    stored = sorted([job.args[0] async for job in tocsin_app.jobs(queue="wide")])
    assert stored == list(range(AT_ONCE + more))


async def test_closing_waits_for_puts_that_are_on_their_way(tocsin_app, note, one):
    other = tocsin_app.with_same_declarations()
    await other.open()
    await other.enqueue(note, queue=one, delay="1m")
    # Not the first in line: closing has no bells to wait for.
    puts = [asyncio.ensure_future(other.enqueue(note, n, queue=one, delay="1h")) for n in range(2 * AT_ONCE)]
    await asyncio.sleep(0)
    await other.close()
    assert all(put.done() and put.result().new for put in puts)


def test_threads_share_calls(tocsin_server, tocsin_clock):
    app = Tocsin(tocsin_server.url, prefix=f"sync-{secrets.token_hex(4)}:", clock=tocsin_clock)
    app.queue("one", partitions=1)

    @app.job(name="job", queue="one")
    async def job(n): ...

    together, new = threading.Barrier(200), []

    def put():
        together.wait()
        new.extend(app.sync.enqueue(job, n).new for n in range(10))

    try:
        threads = [threading.Thread(target=put) for _ in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert new == [True] * 2000
        assert app.sync.run(lambda opened: calls_in(opened, "one")) < 1000
    finally:
        app.sync.close()


@pytest.mark.parametrize("under_way", ["the first", "the others"])
def test_an_event_loop_that_ends_with_puts_under_way_does_not_hang(tocsin_server, under_way):
    app = Tocsin(tocsin_server.url, prefix=f"ends-{secrets.token_hex(4)}:")
    app.queue("one", partitions=1)

    @app.job(name="job", queue="one")
    async def job(n): ...

    async def serve(opened):
        async with app:
            await app.enqueue(job, -1)
            opened.set()
            await asyncio.Event().wait()

    async def main():
        opened = asyncio.Event()
        serving = asyncio.ensure_future(serve(opened))
        await opened.wait()
        puts = [asyncio.ensure_future(app.enqueue(job, n)) for n in range(1000)]
        if under_way == "the others":
            await asyncio.wait(puts[:1])
        await asyncio.sleep(0)
        return serving, puts

    serving, puts = asyncio.run(main())
    assert serving.cancelled()
    assert all(put.done() for put in puts)
