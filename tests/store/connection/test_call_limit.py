"""The line for a connection: served in order, and nobody fails for being far back in a line that moves."""

from __future__ import annotations

import asyncio
import time

import pytest
from redis.exceptions import MaxConnectionsError

from tocsin.store.connection.call_limit import CallLimit
from tocsin.store.connection.pool import ConnectionSettings
from tocsin.store.store import Store


async def settled() -> None:
    """Let those that can go on do so."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_turn_goes_to_the_one_that_waited_longest_not_to_a_newcomer():
    turns, served = CallLimit(1, 60), []

    async def call(name: str) -> None:
        await turns.take()
        served.append(name)

    await turns.take()
    waiting = [asyncio.ensure_future(call(name)) for name in "abc"]
    await settled()
    turns.end(served=True)
    newcomer = asyncio.ensure_future(call("newcomer"))
    for _ in range(3):
        await settled()
        turns.end(served=True)
    await asyncio.gather(*waiting, newcomer)
    assert served == ["a", "b", "c", "newcomer"]


async def test_a_wait_that_is_cancelled_passes_its_turn_on():
    turns = CallLimit(1, 60)
    await turns.take()
    given_up, next_one = asyncio.ensure_future(turns.take()), asyncio.ensure_future(turns.take())
    await settled()
    turns.end(served=True)
    # It has its turn by now, and does not know it yet.
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    await next_one
    turns.end(served=True)
    assert turns.take_free()
    assert not turns.take_free()


async def test_a_line_in_which_calls_fail_does_not_count_as_one_that_moves():
    turns = CallLimit(1, 0.2)
    await turns.take()
    waiting = [asyncio.ensure_future(turns.take()) for _ in range(1000)]

    async def fail_one_after_the_other() -> None:
        while not waiting[-1].done():
            await asyncio.sleep(0.01)
            turns.end(served=False)

    await asyncio.gather(fail_one_after_the_other(), *waiting, return_exceptions=True)
    assert isinstance(waiting[-1].exception(), MaxConnectionsError)


async def test_an_event_loop_that_stood_still_is_no_reason_to_give_up():
    turns = CallLimit(1, 0.2)
    await turns.take()
    waiting = asyncio.ensure_future(turns.take())
    await settled()
    time.sleep(0.5)
    # What came meanwhile is read a few turns of the loop later.
    await settled()
    turns.end(served=True)
    await waiting


async def test_calls_that_take_longer_than_max_wait_altogether_do_not_fail_for_being_many(valkey):
    store = Store(valkey.url, connections=ConnectionSettings(max_total=2, max_wait_s=0.1))
    await store.open()
    try:
        slow = "for n = 1, 2000 do redis.sha1hex('') end return ARGV[1]"
        answers = await asyncio.gather(*(store.run_once(lambda c, n=n: c.eval(slow, 0, n)) for n in range(3000)))
        assert answers == [b"%d" % n for n in range(3000)]
    finally:
        await store.close()
