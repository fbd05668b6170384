"""Another number of partitions: every job arrives as it was, once, wherever the move is stopped."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

import pytest

from tests.support.crashes import DyingRepartition, Killed
from tests.support.many_partitions import EACH, wide
from tests.support.servers import cluster
from tocsin.model import msgpack
from tocsin.model.errors import (
    InvalidArgument,
    StoreChanged,
)
from tocsin.model.ids import partition_of
from tocsin.model.outcome import SUCCEEDED
from tocsin.model.run import Claim
from tocsin.store.repartition import repartition
from tocsin.store.repartition.repartition import RepartitionResult
from tocsin.store.scripts.script import script
from tocsin.store.store import Store
from tocsin.store.transitions import queue_settings
from tocsin.store.transitions.claims import ClaimRequest
from tocsin.store.transitions.settle import finish_item, key_of, release_item, retry_item

ORDERS = ("due", "priority", "fair")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("before", "after"), [(1, 16), (16, 1), (4, 6)])
async def test_every_kind_of_job_arrives_as_it_was(store, clock, order, before, after):
    line = await wide(store, clock, order, before)
    await line.fill()
    content = await line.content()
    counters = {name: await line.total(name) for name in repartition.COUNTERS}
    done = await repartition.repartition(store, "wide", after)
    assert (done.before, done.after, done.resumed) == (before, after, False)
    await store.reopen(line.queue)
    assert line.queue.partitions == after
    assert await line.content() == content
    assert await line.troubles() == []
    assert await line.left_behind() == set()
    assert {name: await line.total(name) for name in repartition.COUNTERS} == counters


@pytest.mark.parametrize("order", ORDERS)
async def test_claims_hold_through_it_and_end_as_people_wished(store, clock, order):
    line = await wide(store, clock, order)
    held = await line.fill()
    await repartition.repartition(store, "wide", 7)
    await store.reopen(line.queue)
    for claim in held.values():
        assert await line.settle("finish", claim, finish_item(claim, 0, SUCCEEDED)) == []
    content = await line.content()
    for kind in ("working", "to-remove", "to-cancel"):
        assert not content.keys() & set(line.named(kind))
    # An edit that leaves the run alone changes nothing of how it ends.
    assert not content.keys() & set(line.named("to-edit"))
    again = await line.claim()
    extras = {member for member in content if "\x1f" in member}
    assert again.keys() == {*line.named("due"), *extras}
    clock.advance("1s")
    later = await line.claim()
    # What a worker could not read is for others to try by then.
    assert later.keys() == {*line.named("retrying"), *line.named("parked")}
    assert {later[member].attempt for member in line.named("retrying")} == {2}
    assert await line.troubles() == []


async def test_on_a_cluster_jobs_go_from_node_to_node(clock):
    with cluster() as nodes:
        store = Store(nodes.url, prefix="t:", hash_tag="t", clock=clock)
        await store.open()
        try:
            line = await wide(store, clock, "fair", 3)
            held = await line.fill()
            content = await line.content()
            await repartition.repartition(store, "wide", 8)
            await store.reopen(line.queue)
            assert await line.content() == content
            for claim in held.values():
                assert await line.settle("finish", claim, finish_item(claim, 0, SUCCEEDED)) == []
            assert await line.troubles() == []
        finally:
            await store.close()


async def test_tokens_and_versions_grow_on(store, clock):
    line = await wide(store, clock)
    held = await line.fill()
    before = await line.metas()
    await repartition.repartition(store, "wide", 6)
    await store.reopen(line.queue)
    for meta in await line.metas():
        assert int(meta["fence"]) >= max(int(each["fence"]) for each in before)
        assert int(meta["seq"]) >= max(int(each["seq"]) for each in before)
        assert meta["partitions"] == "6"
        assert "sealed" not in meta
    assert len({meta["epoch"] for meta in (*before, *await line.metas())}) == 10
    assert min(claim.token for claim in (await line.claim()).values()) > max(claim.token for claim in held.values())


async def test_a_retry_is_not_sooner_than_its_backoff(store, clock):
    line = await wide(store, clock, partitions=1)
    await line.put("a")
    await line.settle("retry", claim := (await line.claim())["a"], retry_item(claim, 5000, b"\x91\xa3bad"))
    await repartition.repartition(store, "wide", 16)
    await store.reopen(line.queue)
    clock.advance("4999ms")
    assert await line.claim() == {}
    clock.advance("1ms")
    assert (await line.claim())["a"].attempt == 2


async def test_the_order_of_a_line_is_kept(store, clock):
    """Of one old partition; places of different ones could not be compared before."""
    line = await wide(store, clock, "priority", 3)
    members = [f"n{n}" for n in range(60)]
    for member in members:
        await line.put(member)
    for partitions in (5, 1):
        await repartition.repartition(store, "wide", partitions)
    await store.reopen(line.queue)
    order = []
    for _ in members:
        [answer] = await line.runs.claim([ClaimRequest(line.queue, 0, 1)], 1e15)
        order += [claim.member for claim in answer.claims]
    bands = {member: zlib.crc32(member.encode()) % 5 for member in members}
    assert [bands[member] for member in order] == sorted(bands.values())
    for partition in range(3):
        mine = [member for member in order if partition_of(member, 3) == partition]
        assert mine == sorted(mine, key=lambda member: (bands[member], members.index(member)))


async def test_tenants_have_their_turns_and_their_counts(store, clock):
    line = await wide(store, clock, "fair", 4)
    # A cap cannot be set where there is more than one partition: what was counted for one goes along all the same.
    for keys in line.queue.keys:
        await store.client.hset(keys["meta"], "tenant_max_active", 100)
    await line.fill()
    for keys in line.queue.keys:
        await store.client.hdel(keys["meta"], "tenant_max_active")
    await queue_settings.update(store, line.queue, {}, {"acme": "2.0"}, operator=True)
    await repartition.repartition(store, "wide", 1)
    await store.reopen(line.queue)
    assert await queue_settings.weights_of(store, line.queue) == {"acme": 2.0}
    working = await store.client.zcard(line.queue.keys[0]["working"])
    assert await line.working_by_tenants() == working == 5 * EACH
    assert len(await line.claim()) == 3 * EACH


@pytest.mark.parametrize("order", ["due", "fair"])
async def test_it_may_be_killed_at_any_call_and_run_again(store, clock, order, monkeypatch):
    mortal = DyingRepartition(monkeypatch)
    line = await wide(store, clock, order, 3)
    await line.fill()
    content = await line.content()
    counters = {name: await line.total(name) for name in repartition.COUNTERS}
    steps, at, target = 0, 0, 2
    while True:
        mortal.calls, mortal.dies_at, mortal.after = [], at, at % 2 == 1
        try:
            done = await repartition.repartition(store, "wide", target)
        except Killed:
            # The next run comes one call further before it dies.
            steps, at = steps + 1, at + 1
            with pytest.raises(InvalidArgument, match=f"is being given {target} partitions"):
                await repartition.repartition(store, "wide", 9)
            continue
        assert done == RepartitionResult("wide", done.before, target, done.moved, resumed=steps > 0)
        await store.reopen(line.queue)
        assert await line.content() == content
        assert {name: await line.total(name) for name in repartition.COUNTERS} == counters
        assert await line.troubles() == []
        assert await line.left_behind() == set()
        if target == 3:
            break
        steps, at, target = 0, 0, 3
    assert at > 10


async def test_a_move_that_comes_back_late_changes_nothing(store, clock, monkeypatch):
    """One was stopped half-way, another ended the move; the queue lives on, and then the first one wakes up."""
    line = await wide(store, clock)
    await line.fill()
    mortal = DyingRepartition(monkeypatch)
    late: list[tuple[repartition.Repartition, tuple[Any, ...]]] = []
    remembering = repartition.Repartition._call

    async def call(move: repartition.Repartition, *args: Any) -> Any:
        late.append((move, args))
        return await remembering(move, *args)

    monkeypatch.setattr(repartition.Repartition, "_call", call)
    await repartition.repartition(store, "wide", 6)
    await store.reopen(line.queue)
    await line.claim()
    content, metas = await line.content(), await line.metas()
    mortal.dies_at = -1
    for move, args in tuple(late):
        await remembering(move, *args)
    assert await line.content() == content
    assert await line.metas() == metas


@pytest.mark.parametrize("order", ["due", "fair"])
async def test_two_who_do_the_same_move_at_once_do_no_harm(store, clock, order):
    line = await wide(store, clock, order)
    await line.fill()
    content = await line.content()
    working = await line.working_by_tenants() if order == "fair" else None
    moves = [repartition.repartition(store, "wide", 6) for _ in range(3)]
    answers = await asyncio.gather(*moves, return_exceptions=True)
    # Whoever comes late to a step is told so; the command may always be run again.
    assert all(isinstance(answer, (RepartitionResult, StoreChanged)) for answer in answers)
    await repartition.repartition(store, "wide", 6)
    await store.reopen(line.queue)
    assert await line.content() == content
    assert await line.left_behind() == set()
    assert await line.troubles() == []
    assert working is None or await line.working_by_tenants() == working


async def test_a_sealed_partition_takes_nothing_from_another_move(store, clock):
    line = await wide(store, clock, partitions=2)
    await line.put("a")
    client = store.client
    before = await line.content()
    names = (
        "repartition_write",
        "repartition_remove",
        "repartition_waits",
        "repartition_drop",
        "repartition_join",
        "repartition_prepare",
    )
    for name in names:
        what = script(name, "due")
        given = {
            "now": 1,
            "move": "other",
            "items": msgpack.encode(["a"]),
            "arriving": msgpack.encode(["a\0wide\0b\x001"]),
        }
        args = [given.get(arg, msgpack.encode([])) for arg in what.args]
        for partition in range(2):
            assert await what(client, line.queue.keys_of(what, partition), args) == 0
    assert await line.content() == before


async def test_settings_and_a_pause_go_with_the_queue(store, clock):
    line = await wide(store, clock, "priority", 1)
    await queue_settings.update(store, line.queue, {"aging": "5000"}, {}, operator=True)
    await line.jobs.pause_queue(line.queue, True)
    await repartition.repartition(store, "wide", 3)
    await store.reopen(line.queue)
    for meta in await line.metas():
        assert (meta["aging"], meta["set:aging"], meta["paused"], meta["order"]) == ("5000", "1", "1", "priority")


async def test_a_limit_keeps_a_queue_in_one_partition(store, clock):
    line = await wide(store, clock, partitions=1)
    await queue_settings.update(store, line.queue, {"max_active": "5"}, {}, operator=True)
    with pytest.raises(InvalidArgument, match=r"has max_active, which needs one partition"):
        await repartition.repartition(store, "wide", 3)
    await queue_settings.update(store, line.queue, {"max_active": ""}, {}, operator=True)
    await repartition.repartition(store, "wide", 3)
    with pytest.raises(InvalidArgument, match=r"max_active needs a queue of one partition, 'wide' has 3"):
        await queue_settings.update(store, line.queue, {"max_active": "5"}, {}, operator=True)
    with pytest.raises(InvalidArgument, match=r"rate needs a queue of one partition, 'wide' has 3"):
        await queue_settings.update(store, line.queue, {"rate": "5/s"}, {}, operator=False)
    # What code declares is no limit where an operator has taken it off, so it is no reason to refuse the program.
    await queue_settings.update(store, line.queue, {"max_active": "5"}, {}, operator=False)
    assert "max_active" not in await queue_settings.settings_of(store, line.queue)


async def test_a_limit_that_is_set_at_the_last_moment_ends_the_move(store, clock, monkeypatch):
    line = await wide(store, clock, partitions=1)
    await line.fill()
    content, epochs = await line.content(), list(line.queue.epochs)
    sealing = repartition.Repartition._seal

    async def seal(move: repartition.Repartition) -> None:
        await queue_settings.update(store, line.queue, {"max_active": "500"}, {}, operator=True)
        await sealing(move)

    monkeypatch.setattr(repartition.Repartition, "_seal", seal)
    with pytest.raises(InvalidArgument, match="max_active"):
        await repartition.repartition(store, "wide", 3)
    assert await line.content() == content
    assert await line.left_behind() == set()
    await store.reopen(line.queue)
    assert line.queue.epochs == epochs
    assert await line.claim()


@pytest.mark.parametrize(
    ("name", "partitions", "says"),
    [
        ("agents", 4, "keeps it"),
        ("wide", 0, "from 1 to 4096"),
        ("wide", 5000, "from 1 to 4096"),
        ("wiide", 4, "did you mean 'wide'"),
    ],
)
async def test_what_cannot_be_is_refused(store, clock, name, partitions, says):
    await wide(store, clock)
    with pytest.raises(InvalidArgument, match=says):
        await repartition.repartition(store, name, partitions)


async def test_the_same_number_again_is_nothing_to_do(store, clock):
    line = await wide(store, clock)
    epochs = list(line.queue.epochs)
    assert await repartition.repartition(store, "wide", 4) == RepartitionResult("wide", 4, 4, 0, False)
    await store.reopen(line.queue)
    assert line.queue.epochs == epochs


def test_the_member_of_an_item_is_found_in_its_bytes():
    for key in (b"a", b"x" * 31, b"x" * 32, b"\xff\xfe", b"y" * 512 + b"\x1f1700000000000"):
        claim = Claim("q", 0, key, 7, 0, 1, 0, False, 0, b"")
        assert key_of(release_item(claim)) == key_of(finish_item(claim, 0, SUCCEEDED)) == key
