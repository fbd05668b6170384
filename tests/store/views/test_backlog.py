"""The backlog: what is ready, for how long, and how much waits, at a bounded cost."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable

import pytest

from tests.support.one_queue import Line
from tests.support.records import record
from tests.support.servers import Server, cluster
from tocsin.model.errors import StoreUnavailable
from tocsin.model.ids import EXTRA, job_of
from tocsin.model.queue import OUTGROWN, Queue, outgrown
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.jobs import PutItem
from tocsin.store.views.backlog import Backlog, BacklogReader
from tocsin.testing import ManualClock

NOTHING = Backlog(0, False, 0.0, 0)


async def wait_in(line: Line, members: Iterable[str], ago_ms: int = 0) -> None:
    """Let them wait since so long ago, or with less than 0 until then; without records, which nobody reads here."""
    await line.store.client.zadd(line.keys["waiting"], dict.fromkeys(members, line.now - ago_ms))


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{n}" for n in range(count)]


def own(line: Line, *members: str) -> BacklogReader:
    return BacklogReader(line.store, [line.queue], lambda _: set(members))


@pytest.fixture
def ready(line: Line) -> BacklogReader:
    return BacklogReader(line.store, [line.queue])


async def test_a_queue_that_has_outgrown_its_partition_is_named_with_what_to_do(line: Line, ready: BacklogReader):
    client, waiting, later = line.store.client, line.keys["waiting"], line.now + 1_000_000
    for first in range(0, OUTGROWN - 1, 10_000):
        await client.zadd(waiting, dict.fromkeys(names(f"{first}-", min(10_000, OUTGROWN - 1 - first)), later))
    assert (await ready.look()).outgrown == ()
    await client.zadd(waiting, {"one more": later})
    [advice] = (await ready.look()).outgrown
    assert advice.endswith(f"`tocsin queues repartition {line.queue.name} 4`")


def test_where_more_partitions_are_not_allowed_none_are_advised():
    for queue in (Queue("a", "priority"), Queue("agents"), Queue("a", settings={"max_active": "5"})):
        assert outgrown(queue, 10 * OUTGROWN) == ""


# A whole queue


async def test_an_empty_queue_has_no_backlog(ready: BacklogReader):
    assert await ready.look() == NOTHING


async def test_a_worker_without_queues_has_no_backlog(store: Store):
    assert await BacklogReader(store, []).look() == NOTHING


async def test_what_is_due_is_ready_and_the_rest_waits(line: Line, ready: BacklogReader):
    for member, due in [("a", 0), ("b", 1500), ("c", 4000), ("d", 4001)]:
        await line.put(member, due)
    assert await ready.look() == Backlog(1, False, 0.0, 4)
    line.clock.advance("4s")
    assert await ready.look() == Backlog(3, False, 4.0, 4)
    line.clock.advance("1ms")
    assert await ready.look() == Backlog(4, False, 4.001, 4)


async def test_what_is_claimed_is_ready_no_longer(line: Line, ready: BacklogReader):
    for member, due in [("a", 0), ("b", 2000)]:
        await line.put(member, due)
    line.clock.advance("5s")
    await line.take("a")
    assert await ready.look() == Backlog(1, False, 3.0, 1)
    await line.take("b")
    assert await ready.look() == NOTHING


async def test_a_paused_queue_has_nothing_ready(line: Line, ready: BacklogReader):
    await line.put("a")
    await line.jobs.pause_queue(line.queue, True)
    assert await ready.look() == Backlog(0, False, 0.0, 1)
    await line.jobs.pause_queue(line.queue, False)
    assert (await ready.look()).ready == 1


async def test_a_whole_queue_is_counted_exactly_at_any_size(line: Line, ready: BacklogReader):
    await wait_in(line, names("due", 5000), ago_ms=2500)
    await wait_in(line, names("later", 2000), ago_ms=-10)
    assert await ready.look() == Backlog(5000, False, 2.5, 7000)


@pytest.mark.parametrize(("score", "overdue"), [(-math.inf, None), (-5, None), (0, None), (math.inf, 0.0)])
async def test_scores_that_are_not_ours_do_no_harm(
    line: Line, ready: BacklogReader, score: float, overdue: float | None
):
    await line.store.client.zadd(line.keys["waiting"], {b"\xff": score})
    seen = await ready.look()
    assert seen.oldest_overdue_s == (line.now / 1000 if overdue is None else overdue)
    assert await own(line, "a").look() == Backlog(0, False, 0.0, 1)


# Own ids


async def test_only_own_ids_count_and_how_long_they_wait(line: Line):
    await wait_in(line, ["foreign"], ago_ms=9000)
    await wait_in(line, ["a"], ago_ms=2000)
    await wait_in(line, ["b"], ago_ms=1000)
    await wait_in(line, ["c"], ago_ms=-1000)
    assert await own(line, "a", "b", "c", "gone").look() == Backlog(2, False, 2.0, 4)
    assert await own(line).look() == Backlog(0, False, 0.0, 4)


async def test_own_ids_are_counted_exactly_behind_a_long_line_of_others(line: Line):
    await wait_in(line, names("foreign", 3000), ago_ms=9000)
    await wait_in(line, names("mine", 1000), ago_ms=3000)
    assert await own(line, *names("mine", 1000)).look() == Backlog(1000, False, 3.0, 4000)
    assert await own(line, *names("mine", 7), "gone").look() == Backlog(7, False, 3.0, 4000)
    assert await own(line, "gone").look() == Backlog(0, False, 0.0, 4000)
    assert await own(line).look() == Backlog(0, False, 0.0, 4000)


async def test_many_own_ids_are_counted_exactly_while_few_are_due(line: Line):
    mine = names("mine", 5000)
    await wait_in(line, mine[1000:], ago_ms=-1000)
    await wait_in(line, mine[:1000], ago_ms=1000)
    assert await own(line, *mine).look() == Backlog(1000, False, 1.0, 5000)


@pytest.mark.parametrize("due", [1001, 2500, 9999])
async def test_beyond_a_thousand_of_many_the_number_is_an_estimate(line: Line, due: int):
    mine = names("mine", 10_000)
    await wait_in(line, names("foreign", 2000), ago_ms=9000)
    await wait_in(line, mine[due:], ago_ms=-1000)
    await wait_in(line, mine[:due], ago_ms=4000)
    seen = await own(line, *mine).look()
    assert seen.ready_is_estimate
    # Of ten thousand a thousand are asked: five standard deviations.
    share = due / len(mine)
    assert abs(seen.ready - due) <= 5 * math.sqrt(share * (1 - share) / 1000) * len(mine)
    assert (seen.oldest_overdue_s, seen.depth) == (4.0, 12_000)


async def test_an_estimate_is_never_below_what_was_seen(line: Line):
    mine = names("mine", 100_000)
    # A sample has one of these in it at most, and mostly none.
    await wait_in(line, mine[:5], ago_ms=9000)
    await wait_in(line, names("foreign", 2000), ago_ms=4000)
    seen = await BacklogReader(line.store, [line.queue], lambda _: dict.fromkeys(mine)).look()
    assert seen.ready_is_estimate
    assert seen.ready >= 5
    assert seen.oldest_overdue_s == 9.0


async def test_extra_runs_of_own_jobs_count(line: Line):
    class Owned(set[str]):
        def __contains__(self, member: object) -> bool:
            return super().__contains__(job_of(str(member)))

    await wait_in(line, ["a", f"a{EXTRA}1", f"b{EXTRA}1"])
    assert (await BacklogReader(line.store, [line.queue], lambda _: Owned({"a"})).look()).ready == 2


# Many partitions, and what a look costs


@pytest.fixture
async def wide(store: Store) -> OpenQueue:
    return await store.open_queue(Queue("wide", partitions=16))


async def commands(store: Store) -> int:
    """How many the server has executed; asking is one."""
    return int((await store.client.info("stats"))["total_commands_processed"])


async def put(store: Store, queue: OpenQueue, partition: int, member: str, at: int) -> None:
    await store.client.zadd(queue.keys[partition]["waiting"], {member: at})


async def test_partitions_and_queues_are_added_up(store: Store, wide: OpenQueue, queue: OpenQueue, clock: ManualClock):
    for partition in range(16):
        await put(store, wide, partition, "a", clock.ms - 1000 * partition)
        await put(store, wide, partition, "b", clock.ms + 5000)
    await put(store, queue, 0, "c", clock.ms - 500)
    assert await BacklogReader(store, [wide, queue]).look() == Backlog(17, False, 15.0, 33)


async def test_ids_are_own_by_queue(store: Store, wide: OpenQueue, queue: OpenQueue, clock: ManualClock):
    for opened in (wide, queue):
        await put(store, opened, 0, "a", clock.ms)
        await put(store, opened, 0, "b", clock.ms)
    ready = BacklogReader(store, [wide, queue], lambda opened: {"a"} if opened is queue else None)
    assert (await ready.look()).ready == 3


async def test_an_idle_look_sends_two_commands(store: Store, wide: OpenQueue, clock: ManualClock):
    ready = BacklogReader(store, [wide])
    await put(store, wide, 3, "a", clock.ms + 5000)
    await ready.look()
    before = await commands(store)
    for _ in range(10):
        await ready.look()
    assert await commands(store) - before == 20 + 1


async def test_what_falls_due_in_a_quiet_partition_is_seen_at_once(store: Store, wide: OpenQueue, clock: ManualClock):
    ready = BacklogReader(store, [wide])
    await put(store, wide, 11, "a", clock.ms + 5000)
    assert (await ready.look()).ready == 0
    clock.advance("6s")
    assert await ready.look() == Backlog(1, False, 1.0, 1)
    await store.client.delete(wide.keys[11]["waiting"])
    assert await ready.look() == NOTHING


async def test_what_is_put_into_a_quiet_partition_is_seen_in_its_turn(
    store: Store, wide: OpenQueue, clock: ManualClock
):
    ready = BacklogReader(store, [wide])
    await ready.look()
    for partition in range(16):
        await put(store, wide, partition, "a", clock.ms)
    seen = [(await ready.look()).ready for _ in range(16)]
    assert seen == list(range(1, 17))


async def test_a_look_at_a_long_line_is_bounded(line: Line):
    mine = names("mine", 20_000)
    await wait_in(line, mine, ago_ms=1000)
    client = line.store.client
    before = (await client.info("stats"))["total_net_output_bytes"]
    await own(line, *mine).look()
    # Two thousand scores and a thousand members, of the 20 000.
    assert (await client.info("stats"))["total_net_output_bytes"] - before < 120_000


# Servers


async def test_a_server_that_is_away_is_told_at_once(clock: ManualClock):
    with Server.valkey() as server:
        store = Store(server.url, clock=clock)
        await store.open()
        ready = BacklogReader(store, [await store.open_queue(Queue("line", partitions=1))])
        assert await ready.look() == NOTHING
        server.kill()
        with pytest.raises(StoreUnavailable):
            await ready.look()
        server.start()
        assert await ready.look() == NOTHING
        await store.close()


async def test_a_cluster_is_looked_at_as_one(clock: ManualClock):
    with cluster(3) as nodes:
        store = Store(nodes.url, prefix=f"t{secrets.token_hex(4)}:", clock=clock)
        await store.open()
        wide = await store.open_queue(Queue("wide", partitions=16))
        for partition in range(16):
            await put(store, wide, partition, "a", clock.ms - 1000)
            await put(store, wide, partition, "b", clock.ms - 2000)
        assert await BacklogReader(store, [wide]).look() == Backlog(32, False, 2.0, 32)
        assert await BacklogReader(store, [wide], lambda _: {"a"}).look() == Backlog(16, False, 1.0, 32)
        await store.close()


# Suspects, which stand apart


@pytest.mark.parametrize("queue", ["due", "priority"], indirect=True)
async def test_suspects_are_ready_and_as_old_as_their_runs(line: Line, ready: BacklogReader):
    await line.put("a")
    for _ in range(2):
        await line.claim()
        await line.recover()
    line.clock.advance("5s")
    assert await ready.look() == Backlog(1, False, 5.0, 1)
    assert await own(line, "a").look() == Backlog(1, False, 5.0, 1)
    await line.jobs.put_many(
        line.queue, [PutItem("older", record(), line.now - 20_000), PutItem("later", record(), line.now + 1)]
    )
    assert await ready.look() == Backlog(2, False, 20.0, 3)
