"""The delay queue: the three primitives, and what the original's script gets wrong."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta

import pytest

from tocsin import ClaimLost, InvalidArgument, InvalidConfig, Stage, Tocsin
from tocsin.model.run import MAX_RECOVERIES
from tocsin.patterns import DelayQueue


@pytest.fixture
def delays(tocsin_app):
    return DelayQueue(tocsin_app, "delays")


@pytest.fixture
async def program(tocsin_app, tocsin_server, tocsin_clock):
    """The queue as one program after the other has it, each on connections of its own."""
    async with contextlib.AsyncExitStack() as opened:

        async def begin() -> DelayQueue:
            app = Tocsin(tocsin_server.url, prefix=tocsin_app.store.keys.prefix, clock=tocsin_clock)
            return DelayQueue(await opened.enter_async_context(app), "delays")

        yield begin


@pytest.fixture
async def other(program):
    return await program()


def in_seconds(clock, seconds):
    return clock.now + timedelta(seconds=seconds)


async def test_an_object_is_got_when_it_has_expired_and_not_before(delays, tocsin_clock):
    await delays.enqueue("tea", in_seconds(tocsin_clock, 10))
    tocsin_clock.advance("9999ms")
    assert await delays.get_expired("1m") is None
    tocsin_clock.advance("1ms")
    item = await delays.get_expired("1m")
    assert (item.obj, item.due) == ("tea", tocsin_clock.now)


async def test_the_one_that_expired_first_comes_first(delays, tocsin_clock):
    await delays.enqueue("later", in_seconds(tocsin_clock, 2))
    await delays.enqueue("sooner", in_seconds(tocsin_clock, 1))
    tocsin_clock.advance("5s")
    assert [(await delays.get_expired("1m")).obj for _ in range(2)] == ["sooner", "later"]
    assert await delays.get_expired("1m") is None


async def test_enqueueing_an_object_again_gives_it_another_time(delays, tocsin_clock):
    assert await delays.enqueue("tea", in_seconds(tocsin_clock, 1))
    assert not await delays.enqueue("tea", in_seconds(tocsin_clock, 100))
    tocsin_clock.advance("50s")
    assert await delays.get_expired("1m") is None


async def test_objects_of_any_shape_are_kept_by_their_content(delays, tocsin_clock):
    for obj in ({"a": [1, 2]}, 7, "", "x" * 600, {"a": [1, 2]}):
        await delays.enqueue(obj, tocsin_clock.now)
    got = [(await delays.get_expired("1m")).obj for _ in range(4)]
    assert sorted(map(str, got)) == sorted(map(str, [{"a": [1, 2]}, 7, "", "x" * 600]))
    assert await delays.get_expired("1m") is None


async def test_an_object_that_is_locked_is_given_to_nobody_else(delays, other, tocsin_clock):
    await delays.enqueue("tea", tocsin_clock.now)
    assert await delays.get_expired("10s") is not None
    tocsin_clock.advance("9s")
    assert await other.get_expired("10s") is None


async def test_an_object_not_removed_in_time_is_given_to_another_with_its_due_time(delays, other, tocsin_clock):
    due = tocsin_clock.now
    await delays.enqueue("tea", due)
    first = await delays.get_expired("10s")
    tocsin_clock.advance("10s")
    second = await other.get_expired("10s")
    assert (second.obj, second.due) == ("tea", due)
    assert second.token > first.token


async def test_a_removed_object_never_comes_back(delays, tocsin_clock):
    await delays.enqueue("tea", tocsin_clock.now)
    assert await delays.remove(await delays.get_expired("10s"))
    tocsin_clock.advance("1d")
    assert await delays.get_expired("10s") is None


async def test_a_slow_worker_cannot_remove_what_another_holds(delays, other, tocsin_clock):
    await delays.enqueue("tea", tocsin_clock.now)
    slow = await delays.get_expired("10s")
    tocsin_clock.advance("11s")
    quick = await other.get_expired("10s")
    with pytest.raises(ClaimLost):
        await delays.remove(slow)
    assert await other.remove(quick)


async def test_an_object_that_nobody_holds_can_be_withdrawn(delays, tocsin_clock):
    await delays.enqueue("tea", in_seconds(tocsin_clock, 60))
    assert await delays.remove("tea")
    assert not await delays.remove("tea")
    tocsin_clock.advance("1h")
    assert await delays.get_expired("10s") is None


async def test_an_object_that_somebody_holds_cannot_be_withdrawn(delays, other, tocsin_clock):
    await delays.enqueue("tea", tocsin_clock.now)
    item = await delays.get_expired("10s")
    assert not await other.remove("tea")
    assert await delays.remove(item)


async def test_an_object_that_is_never_removed_becomes_a_dead_letter(delays, tocsin_app, tocsin_clock):
    await delays.enqueue("poison", tocsin_clock.now)
    for _ in range(MAX_RECOVERIES):
        assert (await delays.get_expired("10s")).obj == "poison"
        tocsin_clock.advance("10s")
    assert await delays.get_expired("10s") is None
    [dead] = [job async for job in tocsin_app.dead(queue="delays")]
    assert (dead.id, dead.stage) == ("poison", Stage.DEAD)
    assert "never removed" in dead.failure.error


async def test_concurrent_callers_of_one_queue_get_different_objects(delays, tocsin_clock):
    for n in range(20):
        await delays.enqueue(f"object {n}", tocsin_clock.now)
    items = await asyncio.gather(*(delays.get_expired("10s") for _ in range(25)))
    got = [item.obj for item in items if item is not None]
    assert len(got) == len(set(got)) == 20


async def test_programs_that_ask_at_once_get_each_object_once(delays, program, tocsin_clock):
    objects = {f"object {n}" for n in range(100)}
    for obj in objects:
        await delays.enqueue(obj, tocsin_clock.now)
    programs = [await program() for _ in range(8)]

    async def work(queue: DelayQueue) -> list[str]:
        got = []
        while (item := await queue.get_expired("10s")) is not None:
            got.append(item.obj)
        return got

    shares = await asyncio.gather(*map(work, programs))
    assert sorted(obj for share in shares for obj in share) == sorted(objects)
    # They really took turns: nobody had all.
    assert sum(map(bool, shares)) > 1


async def test_an_object_whose_lock_is_over_goes_to_one_of_the_programs_that_ask(delays, program, tocsin_clock):
    await delays.enqueue("tea", tocsin_clock.now)
    slow, programs = await delays.get_expired("10s"), [await program() for _ in range(8)]
    assert await asyncio.gather(*(queue.get_expired("10s") for queue in programs)) == [None] * 8
    tocsin_clock.advance("10s")
    items = await asyncio.gather(*(queue.get_expired("10s") for queue in programs))
    [(holder, item)] = [(queue, item) for queue, item in zip(programs, items, strict=True) if item is not None]
    assert item.token > slow.token
    with pytest.raises(ClaimLost):
        await delays.remove(slow)
    assert await holder.remove(item)


async def test_a_queue_that_workers_serve_cannot_be_a_delay_queue(tocsin_app):
    with pytest.raises(InvalidArgument, match="declared"):
        DelayQueue(tocsin_app, "default")


async def test_naive_times_are_refused(delays, tocsin_clock):
    with pytest.raises(InvalidArgument, match="zone"):
        await delays.enqueue("tea", tocsin_clock.now.replace(tzinfo=None))


async def test_what_was_got_is_ended_in_a_queue_that_another_process_repartitioned(
    delays, tocsin_app, tocsin_server, tocsin_clock
):
    for obj in "abcd":
        await delays.enqueue(obj, tocsin_clock.now)
    items = [await delays.get_expired("1m") for _ in range(2)]
    async with Tocsin(tocsin_server.url, prefix=tocsin_app.store.keys.prefix, clock=tocsin_clock) as operator:
        await operator.repartition_queue("delays", 3)
        assert await delays.remove(items[0])
        with pytest.raises(InvalidConfig, match="run `tocsin queues repartition delays 1`"):
            await delays.get_expired("1m")
        await operator.repartition_queue("delays", 1)
    assert await delays.remove(items[1])
    assert {(await delays.get_expired("1m")).obj for _ in range(2)} == set("abcd") - {item.obj for item in items}
    assert await delays.get_expired("1m") is None
