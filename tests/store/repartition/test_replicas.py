"""Between the two halves of a move the replicas confirm the first: a failover or a restart loses no job."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from tests.support.captured_logs import capture_logs
from tests.support.many_partitions import Wide
from tests.support.servers import Server, ask, available, cluster, follow, sentinel
from tests.support.waiting import eventually, until
from tocsin.model.errors import StoreError
from tocsin.model.queue import Queue
from tocsin.store.queue_entry import decode_entry
from tocsin.store.repartition import delete_queue, repartition, replicas
from tocsin.store.repartition.replicas import Replicas
from tocsin.store.store import Store
from tocsin.testing import ManualClock


@contextlib.contextmanager
def one_with_a_replica(flavour: str) -> Iterator[tuple[str, list[Server]]]:
    options: dict[str, Any] = {"tcp": True, "repl_diskless_sync_delay": 0}
    with Server(flavour, **options) as primary, Server(flavour, **options) as replica:
        follow(replica, primary)
        until(lambda: follows(primary), "the replica is in step")
        yield primary.url, [replica]


@contextlib.contextmanager
def behind_a_sentinel() -> Iterator[tuple[str, list[Server]]]:
    with sentinel() as watched:
        yield watched.url, [watched.replica]


@contextlib.contextmanager
def cluster_with_replicas() -> Iterator[tuple[str, list[Server]]]:
    with cluster(2, spare=2, repl_diskless_sync_delay=0) as nodes:
        primaries, spares = nodes.nodes[:2], nodes.nodes[2:]
        for primary, spare in zip(primaries, spares, strict=True):
            with primary.client() as first, spare.client() as second:
                ask(second, "CLUSTER REPLICATE", ask(first, "CLUSTER MYID"))
        for primary in primaries:
            until(lambda server=primary: follows(server), "the replica is in step")  # type: ignore[misc]
        yield nodes.url, spares


def follows(primary: Server) -> bool:
    with primary.client() as client:
        info = client.info("replication")
        return info["connected_slaves"] == 1 and info["slave0"]["state"] == "online"


TOPOLOGIES: dict[str, Callable[[], Any]] = {
    **{flavour: lambda flavour=flavour: one_with_a_replica(flavour) for flavour in available()},
    "sentinel": behind_a_sentinel,
    "cluster": cluster_with_replicas,
}


@pytest.fixture
def replicated(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[Server]]]:
    """How a store is told of it, and the replicas; `cluster` unless the test is parametrized."""
    with TOPOLOGIES[getattr(request, "param", "cluster")]() as found:
        yield found


@pytest.fixture
async def open_wide(clock: ManualClock) -> AsyncIterator[Callable[..., Any]]:
    stores: list[Store] = []

    async def make(url: str, partitions: int = 2) -> Wide:
        store = Store(url, prefix="t:", clock=clock)
        stores.append(store)
        await store.open()
        return Wide(store, await store.open_queue(Queue("wide", partitions=partitions)), clock)

    yield make
    for store in stores:
        await store.close()


def before_each(monkeypatch: pytest.MonkeyPatch, name: str, do: Callable[[], None]) -> None:
    """Before each call of that script of a move."""
    honest = repartition.Repartition._call

    async def call(move: repartition.Repartition, what: str, *args: Any) -> Any:
        if what == name:
            do()
        return await honest(move, what, *args)

    monkeypatch.setattr(repartition.Repartition, "_call", call)


@pytest.mark.parametrize("replicated", list(TOPOLOGIES), indirect=True)
async def test_a_job_leaves_its_old_partition_when_the_replicas_of_the_new_one_have_it(
    replicated, open_wide, monkeypatch
):
    url, spares = replicated
    line = await open_wide(url)
    await line.fill()
    content = await line.content()
    stopped: list[Server] = []
    removed: list[int] = []

    def stop_replicas() -> None:
        if not stopped:
            stopped.extend(spares)
            for spare in spares:
                spare.pause()

    before_each(monkeypatch, "repartition_write", stop_replicas)
    before_each(monkeypatch, "repartition_remove", lambda: removed.append(1))
    with capture_logs() as logs:
        moving = asyncio.create_task(repartition.repartition(line.store, "wide", 5))
        await eventually(lambda: any("waiting for replicas" in each["event"] for each in logs), "it waits for them")
    assert (removed, moving.done()) == ([], False)
    for spare in spares:
        spare.resume()
    await moving
    await line.store.reopen(line.queue)
    assert await line.content() == content
    assert removed


@pytest.mark.parametrize("replicated", ["valkey"], indirect=True)
async def test_a_move_does_not_begin_while_a_replica_lags_and_says_what_to_do(replicated, open_wide, monkeypatch):
    url, spares = replicated
    line = await open_wide(url)
    await line.fill()
    content = await line.content()
    monkeypatch.setattr(replicas, "PATIENCE_S", 0.5)
    for spare in spares:
        spare.pause()
    with pytest.raises(StoreError, match=r"1 of the 1 replicas .* INFO replication .* run the same command again"):
        await repartition.repartition(line.store, "wide", 5)
    raw = await line.store.client.hget(line.store.keys.fleet()["queues"], "wide")
    assert decode_entry(raw).moving is None
    assert await line.content() == content
    for spare in spares:
        spare.resume()
    await repartition.repartition(line.store, "wide", 5)


async def test_without_replicas_nobody_waits(store, clock):
    line = Wide(store, await store.open_queue(Queue("wide", partitions=2)), clock)
    await line.fill()
    await repartition.repartition(store, "wide", 5)
    assert "cmdstat_wait" not in await store.client.info("commandstats")


async def test_confirming_leaves_no_trace_and_passes_on_a_full_server(store):
    here, gone = store.keys.fleet()["queues"], f"{store.keys.prefix}gone"
    await store.open_queue(Queue("wide", partitions=2))
    before = await store.client.hgetall(here)
    await store.client.config_set("maxmemory", 1)
    try:
        await Replicas(store).confirm([here])
        await Replicas(store).confirm([gone])
    finally:
        await store.client.config_set("maxmemory", 0)
    assert await store.client.hgetall(here) == before
    assert not await store.client.exists(gone)


class Forgetful:
    """A server that is started again, once, without what it wrote since a call that it saved its data before."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.restarts = 0

    def save(self) -> None:
        if not self.restarts:
            with self._server.client() as client:
                client.save()

    def start_again(self) -> None:
        if not self.restarts:
            self.restarts += 1
            self._server.restart()


@pytest.fixture
def forgetful() -> Iterator[tuple[Server, Forgetful]]:
    with Server.valkey() as server:
        yield server, Forgetful(server)


@pytest.mark.parametrize(
    "step", ["partition_seal", "repartition_write", "repartition_remove", "repartition_waits", "session_keep"]
)
async def test_a_server_that_forgets_a_step_of_a_move_makes_it_begin_anew(forgetful, open_wide, monkeypatch, step):
    """As one does that fails over to a replica that lags, or is started again after a power loss."""
    server, lapse = forgetful
    line = await open_wide(server.url, 3)
    await line.fill()
    content = await line.content()
    before_each(monkeypatch, step, lapse.save)
    confirming, written = Replicas.confirm, []
    before_each(monkeypatch, step, lambda: written.append(1))

    async def confirm(self: Replicas, keys: Any) -> None:
        if written:
            lapse.start_again()
        await confirming(self, keys)

    monkeypatch.setattr(Replicas, "confirm", confirm)
    with capture_logs() as logs:
        await repartition.repartition(line.store, "wide", 2)
    assert lapse.restarts == 1
    assert [line["event"] for line in logs if line["logger"] == "tocsin.repartition"] == ["begins anew to repartition"]
    await line.store.reopen(line.queue)
    assert await line.content() == content
    assert await line.left_behind() == set()
    assert await line.troubles() == []


@pytest.mark.parametrize("step", ["partition_seal", "partition_delete"])
async def test_a_server_that_forgets_a_step_of_a_deletion_makes_it_begin_anew(forgetful, open_wide, monkeypatch, step):
    server, lapse = forgetful
    line = await open_wide(server.url, 3)
    calling, confirming, written = delete_queue._Deletion._call, Replicas.confirm, []

    async def call(deletion: delete_queue._Deletion, name: str, *args: Any) -> bool:
        if name == step:
            lapse.save()
            written.append(1)
        return await calling(deletion, name, *args)

    async def confirm(self: Replicas, keys: Any) -> None:
        if written:
            lapse.start_again()
        await confirming(self, keys)

    monkeypatch.setattr(delete_queue._Deletion, "_call", call)
    monkeypatch.setattr(Replicas, "confirm", confirm)
    await delete_queue.delete(line.store, "wide")
    assert lapse.restarts == 1
    again = await open_wide(server.url, 3)
    await again.put("a")
    assert list(await again.claim()) == ["a"]
