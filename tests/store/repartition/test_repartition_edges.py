"""Another number of partitions, and those that wait for others: they arrive, and are told where they are."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.crashes import DyingRepartition, Killed
from tests.support.many_partitions import EACH, Wide
from tests.support.records import record
from tests.support.servers import Server
from tocsin.inspection.doctor import Doctor
from tocsin.model.outcome import NEW, SUCCEEDED
from tocsin.model.queue import Queue
from tocsin.store import queue_directory
from tocsin.store.repartition import repartition
from tocsin.store.scripts.script import script
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.dependencies import WATCHING, DependencyWait, Upstream, UpstreamEnd
from tocsin.store.transitions.fleet import Fleet
from tocsin.store.transitions.jobs import PutItem
from tocsin.store.views.audit import AuditReader, PartitionMeta
from tocsin.testing import ManualClock
from tocsin.upkeep.outbox_carrier import OutboxCarrier

MANY = 30


async def wide(store: Store, clock: ManualClock, partitions: int = 4) -> Wide:
    return Wide(store, await store.open_queue(Queue("wide", "due", partitions)), clock)


async def test_those_that_wait_are_told_in_their_new_partitions(store, clock):
    line = await wide(store, clock, partitions=3)
    await line.fill()
    await repartition.repartition(store, "wide", 8)
    await store.reopen(line.queue)
    carrier = OutboxCarrier(store, clock, lambda queue, partition: None)
    for member in (*line.named("waiting"), *line.named("paused")):
        await line.jobs.delete(line.queue, member)
    while await carrier.step() == 0:
        pass
    content = await line.content()
    for n in range(EACH):
        assert content[f"blocked-{n}"].keys() & {"waiting", "blocked", "needs"} == {"waiting"}
        assert content[f"to-pause-then-{n}"].keys() & {"paused", "blocked", "needs"} == {"paused"}
    assert not [about for about in content.values() for base in about if base[0] in ("watchers", "outbox")]
    assert await line.troubles() == []


@pytest.mark.parametrize("after", [1, 6])
async def test_entries_that_cannot_be_read_are_kept(store, clock, after):
    line = await wide(store, clock)
    strange = {"outbox": {b"A\xff": 0, b"W\0x": 0, b"E\0b\0c\0d": 0}, "watchers": {b"\xff": 0, b"a\0b": 0}}
    for base, entries in strange.items():
        await store.client.zadd(line.queue.keys[3][base], entries)
    await repartition.repartition(store, "wide", after)
    await store.reopen(line.queue)
    assert await line.left_behind() == set()
    for base, entries in strange.items():
        found = [await store.client.zrange(keys[base], 0, -1) for keys in line.queue.keys]
        assert sorted(entry for some in found for entry in some) == sorted(entries)


async def test_more_entries_than_a_page_go_where_they_belong(store, clock):
    line = await wide(store, clock)
    entries = [f"n{n}\0wide\0d\x001".encode() for n in range(3000)]
    for entry in entries:
        partition = line.queue.partition_of_key(entry.partition(b"\0")[0])
        await store.client.zadd(line.queue.keys[partition]["watchers"], {entry: 0})
    for partitions in (6, 1):
        await repartition.repartition(store, "wide", partitions)
        await store.reopen(line.queue)
        assert len(await line.content()) == 3000


async def test_a_partition_with_entries_is_not_deleted(store, clock):
    line = await wide(store, clock)
    meta, drop = line.queue.keys[3]["meta"], script("repartition_drop", "due")
    await store.client.hset(meta, "sealed", "move")
    for base in ("watchers", "outbox"):
        await store.client.zadd(line.queue.keys[3][base], {"a\0b": 0})
        assert await drop(store.client, line.queue.keys_of(drop, 3), ["move"]) == 0
        await store.client.delete(line.queue.keys[3][base])
    assert await drop(store.client, line.queue.keys_of(drop, 3), ["move"]) == 1


@pytest.mark.parametrize(("before", "after"), [(1, 16), (16, 1), (4, 6)])
async def test_it_may_be_killed_after_any_of_them(store, clock, before, after, monkeypatch):
    """The next run comes one call further before it dies."""
    mortal = DyingRepartition(monkeypatch)
    mortal.only, mortal.after = "repartition_waits", True
    line = await wide(store, clock, before)
    await line.fill()
    content, kills = await line.content(), 0
    while True:
        mortal.calls, mortal.dies_at = [], kills
        try:
            await repartition.repartition(store, "wide", after)
            break
        except Killed:
            kills += 1
    assert kills > 3
    await store.reopen(line.queue)
    assert await line.content() == content
    assert await line.troubles() == []
    assert await line.left_behind() == set()


class TestWhoCarries:
    """`store` repartitions, `its` belongs to another process, which has opened the queue before."""

    @pytest.fixture
    async def its(self, any_server: Server, store: Store, clock: ManualClock):
        await wide(store, clock)
        opened = Store(any_server.url, prefix=store.keys.prefix, clock=clock)
        await opened.open()
        yield await wide(opened, clock)
        await opened.close()

    @pytest.fixture(params=["before", "between"])
    def moves(self, request: pytest.FixtureRequest, store: Store, its: Wide, monkeypatch: pytest.MonkeyPatch) -> Any:
        """Lets the queue be repartitioned before a call of many is made, or while its first part is answered: by then
        somebody else in the process has noticed."""

        async def move(partitions: int) -> None:
            if request.param == "before":
                await repartition.repartition(store, "wide", partitions)
                return
            honest = its.store.change

            async def change(*args: Any) -> Any:
                answer = await honest(*args)
                monkeypatch.setattr(its.store, "change", honest)
                await repartition.repartition(store, "wide", partitions)
                await its.store.reopen(its.queue)
                return answer

            monkeypatch.setattr(its.store, "change", change)

        return move

    async def test_all_arrive_where_they_belong(self, its: Wide, moves: Any) -> None:
        upstreams = [f"u{n}" for n in range(MANY)]
        puts = [PutItem(upstream, record(), 0, relative=True) for upstream in upstreams]
        await moves(7)
        assert await its.jobs.put_many(its.queue, puts) == (bytes([NEW]) * MANY, its.clock.ms)
        waits = [DependencyWait("1", False, [Upstream("wide", upstream)]) for upstream in upstreams]
        dependents = [PutItem(f"d{n}", record(), 0, relative=True) for n in range(MANY)]
        await moves(3)
        assert await its.outbox.block(its.queue, list(zip(dependents, waits, strict=True))) == bytes([NEW]) * MANY
        pairs = [(f"u{n}".encode(), f"wide\0d{n}\x001".encode()) for n in range(MANY)]
        await moves(16)
        assert await its.outbox.watch(its.queue, pairs) == WATCHING * MANY
        members = [f"d{n}".encode() for n in range(MANY)]
        await moves(2)
        assert await its.outbox.renew(its.queue, members) == MANY
        content = await its.content()
        for n, upstream in enumerate(upstreams):
            assert {base for base in content[upstream] if isinstance(base, tuple)} == {
                ("watchers", b"\0".join((upstream.encode(), pairs[n][1])))
            }
            assert content[f"d{n}"].keys() >= {"jobs", "blocked", "needs", ("outbox", waits[n].entries(f"d{n}")[0])}
        tellings = [UpstreamEnd(f"d{n}".encode(), b"1", f"wide\0u{n}".encode(), SUCCEEDED) for n in range(MANY)]
        carried = [entry for n, wait in enumerate(waits) for entry in wait.entries(f"d{n}")]
        await moves(9)
        told = [told async for told in its.outbox.unblock(its.queue, tellings, carried)]
        assert b"".join(each.codes for each in told) == b"2" * MANY
        ends = [(b"E\0%b\x001" % upstream, upstream, [b"\0".join((upstream, watcher))]) for upstream, watcher in pairs]
        await moves(4)
        assert set((await its.outbox.end_watch(its.queue, ends)).values()) == {0}
        content = await its.content()
        assert {base for about in content.values() for base in about} == {"jobs", "waiting"}
        assert len(content) == 2 * MANY

    async def test_what_it_read_before_is_told_to_those_that_are_there(self, store, its, clock):
        """Between each two steps of a carrier the queue is given other partitions."""
        await its.put("u")
        for n in range(MANY):
            put, wait = (
                PutItem(f"d{n}", record(), 0, relative=True),
                DependencyWait("1", False, [Upstream("wide", "u")]),
            )
            await its.outbox.block(its.queue, [(put, wait)])
        carrier = OutboxCarrier(its.store, clock, lambda queue, partition: None)
        asked = [f"W\0d{n}\x001\0wide\0u".encode() for n in range(MANY)]
        await repartition.repartition(store, "wide", 7)
        assert await carrier.ask(its.queue, asked) == MANY
        claim = (await its.claim())["u"]
        await its.settle("finish", claim, its.finished(claim))
        before = its.queue.partition_of("u")
        [end] = await its.outbox.page(its.queue, before)
        await repartition.repartition(store, "wide", 3)
        # Its watchers are not where they were: nobody is told, and nothing is lost.
        await carrier.carry(its.queue, before, [end])
        assert (await its.content())["u"].keys() >= {("outbox", end)}
        while await carrier.step() == 0:
            pass
        content = await its.content()
        assert {base for n in range(MANY) for base in content[f"d{n}"]} == {"jobs", "waiting"}
        assert not [base for base in content.get("u", ()) if isinstance(base, tuple)]

    async def test_a_look_around_knows_new_partitions_and_leaves_out_what_is_moving(
        self, store, its, clock, monkeypatch
    ):
        await repartition.repartition(store, "wide", 9)
        carrier = OutboxCarrier(its.store, clock, lambda queue, partition: None)
        assert {partition for _, partition in await carrier._all_partitions()} == set(range(9))
        other = await its.store.open_queue(Queue("other", partitions=1))
        mortal = DyingRepartition(monkeypatch)
        mortal.dies_at = 3
        with pytest.raises(Killed):
            await repartition.repartition(store, "wide", 2)
        assert await its.store.queues.open_all() == [other]
        assert await carrier.step() > 0

    async def test_a_queue_that_is_moving_holds_up_only_those_who_wait_in_it(self, store, its, clock, monkeypatch):
        monkeypatch.setattr(queue_directory, "REPARTITION_PATIENCE_S", 0)
        other = Wide(its.store, await its.store.open_queue(Queue("other", partitions=1)), clock)
        await other.put("u")
        wait = DependencyWait("1", False, [Upstream("other", "u")])
        for line, member in ((its, "here"), (other, "there")):
            await line.outbox.block(line.queue, [(PutItem(member, record(), 0, relative=True), wait)])
        carrier = OutboxCarrier(its.store, clock, lambda queue, partition: None)
        while await carrier.step() == 0:
            pass
        claim = (await other.claim())["u"]
        await other.settle("finish", claim, other.finished(claim))
        mortal = DyingRepartition(monkeypatch)
        mortal.only, mortal.dies_at = "partition_unseal", 0
        with pytest.raises(Killed):
            await repartition.repartition(store, "wide", 2)
        carrier.note_filled(other.queue, 0)
        assert not await carrier.carry_some()
        assert await its.store.client.zscore(other.queue.keys[0]["waiting"], "there") is not None
        mortal.dies_at = -1
        await repartition.repartition(store, "wide", 2)
        await its.store.reopen(its.queue)
        assert (await its.content())["here"].keys() == {"jobs", "blocked", "needs"}
        carrier.note_filled(other.queue, 0)
        assert not await carrier.carry_some()
        assert (await its.content())["here"].keys() == {"jobs", "waiting"}
        assert not await its.store.client.exists(other.queue.keys[0]["outbox"], other.queue.keys[0]["watchers"])


@pytest.mark.parametrize("repair", [False, True])
async def test_an_audit_does_not_take_a_move_for_a_disorder(store, clock, repair, monkeypatch):
    line = await wide(store, clock)
    await line.fill()
    honest = AuditReader.settings

    async def settings(survey: AuditReader, queue: OpenQueue, partition: int) -> PartitionMeta:
        found = await honest(survey, queue, partition)
        if partition == 1 and queue.partitions == 4:
            await repartition.repartition(store, "wide", 6)
        return found

    monkeypatch.setattr(AuditReader, "settings", settings)
    await store.client.hset(line.queue.keys[2]["claims"], "nobody", b"x")
    report = await Doctor(AuditReader(store), Fleet(store), repair=repair, patience_s=0).run()
    assert not report.wrong
    assert [finding.examples for finding in report.findings if finding.kind == "moved"] == [["wide"]]
    await store.reopen(line.queue)
    assert await line.troubles() == ([] if repair else ["unreadable-claim: ['nobody']"])
