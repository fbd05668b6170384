"""Deleting a queue: nobody can put between the look and the deletion, and a killed command is run again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.crashes import Killed
from tests.support.records import record
from tocsin.model.errors import InvalidArgument, QueueRepartitioning
from tocsin.model.queue import Queue
from tocsin.store import queue_directory
from tocsin.store.queue_entry import decode_entry
from tocsin.store.repartition import delete_queue, repartition
from tocsin.store.store import Store
from tocsin.store.transitions.jobs import Jobs, PutItem


@pytest.fixture
async def made(store: Store) -> Store:
    """With an empty queue of three partitions."""
    await store.open_queue(Queue("line", partitions=3))
    return store


async def keys_of(store: Store) -> list[bytes]:
    return [key async for key in store.client.scan_iter(match=f"{store.keys.prefix}*line*")]


def die_before(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    honest, calls = delete_queue._Deletion._call, 0

    async def mortal(deletion: delete_queue._Deletion, name: str, *args: Any) -> bool:
        nonlocal calls
        calls += 1
        if calls == call:
            raise Killed
        return await honest(deletion, name, *args)

    monkeypatch.setattr(delete_queue._Deletion, "_call", mortal)


@pytest.mark.parametrize("call", range(1, 7))
async def test_a_deletion_that_was_killed_is_ended_by_the_next(made, monkeypatch, call):
    with monkeypatch.context() as patch:
        die_before(patch, call)
        with pytest.raises(Killed):
            await delete_queue.delete(made, "line")
    assert await made.queues.names() == ["line"]
    await delete_queue.delete(made, "line")
    assert await made.queues.names() == []
    assert await keys_of(made) == []


async def test_while_it_goes_on_nobody_can_put(made, monkeypatch):
    monkeypatch.setattr(queue_directory, "REPARTITION_PATIENCE_S", 0)
    queue = await made.open_queue(Queue("line", partitions=3))
    with monkeypatch.context() as patch:
        die_before(patch, 4)
        with pytest.raises(Killed):
            await delete_queue.delete(made, "line")
    with pytest.raises(QueueRepartitioning, match=r"is being deleted: .* `tocsin queues delete line`"):
        await Jobs(made).put(queue, PutItem("a", record(), 0, True))
    with pytest.raises(InvalidArgument, match="is being deleted"):
        await repartition.repartition(made, "line", 5)
    await delete_queue.delete(made, "line")
    assert await Jobs(made).put(queue, PutItem("a", record(), 0, True)) == (1, made.clock.override())


async def test_one_that_has_jobs_is_as_it_was(made):
    queue = await made.open_queue(Queue("line", partitions=3))
    await Jobs(made).put(queue, PutItem("a", record(), 0, True))
    with pytest.raises(InvalidArgument, match="has 1 job"):
        await delete_queue.delete(made, "line")
    raw = await made.client.hget(made.keys.fleet()["queues"], "line")
    assert decode_entry(raw).moving is None
    # Under the epochs that it had: calls in doubt can be repeated.
    before = list(queue.epochs)
    assert (await Jobs(made).put(queue, PutItem("b", record(), 0, True)))[0] == 1
    assert queue.epochs == before


async def test_one_that_is_being_repartitioned_is_left_alone(made, monkeypatch):
    async def stop(move: repartition.Repartition) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(repartition.Repartition, "_keep_sessions", stop)
        with pytest.raises(Killed):
            await repartition.repartition(made, "line", 2)
    with pytest.raises(InvalidArgument, match="is being repartitioned: end that first"):
        await delete_queue.delete(made, "line")


async def test_a_queue_that_is_not_there_is_deleted_already(store):
    await delete_queue.delete(store, "line")
