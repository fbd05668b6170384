"""Puts that go together: what becomes of each when their call fails."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.proxy import CUTS, Proxy
from tests.support.servers import Server, cluster
from tocsin.model.errors import StoreFull, StoreUnavailable
from tocsin.model.outcome import CHANGED, NEW, REPLACE, UNCHANGED
from tocsin.model.queue import Queue
from tocsin.store import calls as store_calls
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.jobs import Jobs


@pytest.fixture
async def behind(proxy: Proxy, clock) -> AsyncIterator[Store]:
    """A store behind a proxy."""
    store = Store(proxy.url, prefix=f"t{secrets.token_hex(4)}:", clock=clock)
    await store.open()
    yield store
    await store.close()


async def put_all(store: Store, queue: OpenQueue, puts) -> list:
    return await asyncio.gather(*(Jobs(store).put(queue, put) for put in puts), return_exceptions=True)


async def members(store: Store, queue: OpenQueue) -> set[str]:
    return {name.decode() for keys in queue.keys for name in await store.client.hkeys(keys["jobs"])}


@pytest.mark.parametrize("when", CUTS)
@pytest.mark.parametrize("passing", [0, 1])
async def test_a_call_whose_reply_is_lost_puts_each_of_them_once(proxy, behind, make_put, when, passing):
    """The call of one put, and then the one of all the others."""
    queue = await behind.open_queue(Queue("line", partitions=1))
    proxy.cut_at(when, queue.script("job_put").sha.encode(), passing=passing)
    answers = await put_all(behind, queue, [make_put(f"n{n}") for n in range(300)])
    assert proxy.cuts == 1
    assert [answer[0] for answer in answers] == [NEW] * 300
    assert await behind.client.hget(queue.keys[0]["meta"], "put") == b"300"


async def test_a_server_that_comes_back_in_time_fails_nobody(proxy, behind, make_put):
    queue = await behind.open_queue(Queue("line", partitions=1))
    proxy.cut_off()
    putting = asyncio.ensure_future(put_all(behind, queue, [make_put(f"n{n}") for n in range(1500)]))
    await asyncio.sleep(0)
    proxy.mend()
    assert [answer[0] for answer in await putting] == [NEW] * 1500


async def test_if_the_server_stays_away_all_that_waited_as_long_fail_with_it(proxy, behind, make_put, monkeypatch):
    monkeypatch.setattr(store_calls, "PATIENCE_S", 0.2)
    queue = await behind.open_queue(Queue("line", partitions=1))
    tries = 0
    revive = behind.revive_server

    async def count() -> None:
        nonlocal tries
        tries += 1
        await revive()

    monkeypatch.setattr(behind, "revive_server", count)
    proxy.cut_off()
    answers = await put_all(behind, queue, [make_put(f"n{n}") for n in range(5000)])
    assert all(isinstance(answer, StoreUnavailable) for answer in answers)
    # The first, and one for all that waited: five thousand do not take turns in waiting for it.
    assert tries <= 2 * 3
    proxy.mend()
    [(code, _)] = await put_all(behind, queue, [make_put("later")])
    assert code == NEW
    assert await members(behind, queue) == {"later"}


@pytest.fixture(scope="module")
def small_server() -> Iterator[Server]:
    with Server.valkey() as server:
        yield server


@pytest.fixture
async def full(small_server: Server, clock) -> AsyncIterator[Store]:
    store = Store(small_server.url, prefix=f"t{secrets.token_hex(4)}:", clock=clock)
    await store.open()
    yield store
    await store.client.config_set("maxmemory", 0)
    await store.close()


async def test_on_a_full_server_only_those_fail_that_would_add_something(full, make_put):
    queue = await full.open_queue(Queue("line", partitions=1))
    await put_all(full, queue, [make_put(f"old-{n}") for n in range(50)])
    await full.client.config_set("maxmemory", 1)
    puts = [make_put(f"{'old' if n % 2 else 'new'}-{n // 2}") for n in range(100)]
    answers = await put_all(full, queue, puts)
    assert all(isinstance(answer, StoreFull) for answer in answers[::2])
    assert [answer[0] for answer in answers[1::2]] == [UNCHANGED] * 50
    await full.client.config_set("maxmemory", 0)
    answers = await put_all(full, queue, puts)
    assert [answer[0] for answer in answers] == [NEW, UNCHANGED] * 50


async def test_a_put_that_the_server_cannot_read_fails_no_other(store, queue, make_put):
    puts = [Jobs(store).put(queue, make_put(f"n{n}")) for n in range(80)]
    puts[40].close()
    puts[40] = store.putter.put(queue, "bad", b"\xc1" * 6)
    answers = await asyncio.gather(*puts, return_exceptions=True)
    assert [n for n, answer in enumerate(answers) if isinstance(answer, Exception)] == [40]
    assert await members(store, queue) == {f"n{n}" for n in range(80) if n != 40}


async def test_the_answer_of_each_is_its_own(store, queue, make_put):
    await put_all(store, queue, [make_put("b"), make_put("c")])
    puts = [make_put("first"), make_put("a"), make_put("b"), make_put("c", mode=REPLACE, args=(1,)), make_put("a")]
    codes = [answer[0] for answer in await put_all(store, queue, puts)]
    assert codes == [NEW, NEW, UNCHANGED, CHANGED, UNCHANGED]


async def test_all_sessions_of_a_burst_are_ended_when_the_store_is_closed(any_server, clock, make_put):
    store = Store(any_server.url, prefix=f"t{secrets.token_hex(4)}:", clock=clock)
    await store.open()
    jobs, queue = Jobs(store), await store.open_queue(Queue("line", partitions=2))
    await jobs.put_many(queue, [make_put(f"n{n}") for n in range(2500)])
    assert all(await asyncio.gather(*(jobs.pause(queue, f"n{n}") for n in range(2500))))
    with any_server.client() as plain:
        assert sum(plain.hlen(keys["sessions"]) for keys in queue.keys) > 2000
        await store.close()
        assert [plain.hlen(keys["sessions"]) for keys in queue.keys] == [0, 0]


async def test_on_a_cluster_a_burst_is_two_calls_for_each_partition(clock, make_put):
    with cluster() as nodes:
        store = Store(nodes.url, prefix="t:", clock=clock)
        await store.open()
        try:
            queue = await store.open_queue(Queue("line", partitions=4))
            answers = await put_all(store, queue, [make_put(f"n{n}") for n in range(2000)])
            assert [answer[0] for answer in answers] == [NEW] * 2000
            assert await members(store, queue) == {f"n{n}" for n in range(2000)}
            calls = [int(await store.client.hget(keys["meta"], "seq")) for keys in queue.keys]
            assert calls == [2] * 4
        finally:
            await store.close()
