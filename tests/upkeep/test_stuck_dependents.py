"""A node that lost its last writes: blocked jobs of which the other node knows nothing are told all the same."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.captured_logs import capture_logs
from tests.support.lost_writes import Snapshot
from tests.support.two_queues import MakeTwoQueues, TwoQueues, dump
from tocsin.model.outcome import FAILED
from tocsin.model.queue import Queue
from tocsin.store.repartition import repartition
from tocsin.store.store import Store
from tocsin.store.transitions.dependencies import Outbox
from tocsin.testing import ManualClock
from tocsin.upkeep.stuck_dependents import (
    COMMANDS_PER_S,
    EVERY_S,
    HURRIED_PER_S,
    PARTITIONS,
    UPSTREAMS,
    StuckDependents,
)


def part_of(yard: TwoQueues, *, leads: bool = True) -> StuckDependents:
    return StuckDependents(yard.store, yard.store.clock, yard.carrier.note_filled, leading=lambda: leads)


async def look_everywhere(part: StuckDependents) -> None:
    """All of its passes until it rests."""
    for _ in range(1000):
        if await part.step() == EVERY_S:
            return
    raise AssertionError("it never rests")


async def heal(yard: TwoQueues) -> int:
    """What the leader does, and then the carrier. For how many jobs it asked anew."""
    part = part_of(yard)
    await look_everywhere(part)
    while await yard.carrier.carry_some():
        pass
    return part.renewed


async def why_cancelled(yard: TwoQueues, queue: str, member: str) -> str:
    outcome = await yard.jobs.outcome(yard.queues[queue], member)
    assert outcome is not None
    return str(outcome.result)


class TestTheNodeOfTheDependent:
    """It was told, and is blocked again."""

    @staticmethod
    async def told_and_lost(yard: TwoQueues, *, anyway: bool = False, **end: Any) -> None:
        await yard.put("one", "up")
        await yard.put("four", "down", after=(("one", "up"),), anyway=anyway)
        snapshot = Snapshot(yard.store, "four")
        await snapshot.take()
        await yard.end("one", "up", **end)
        await yard.carry_everything()
        assert await yard.stage("four", "down") != "blocked"
        await snapshot.put_back()
        await yard.carry_everything()
        assert await yard.stage("four", "down") == "blocked"

    async def test_a_success_is_told_again(self, make_yard: MakeTwoQueues) -> None:
        yard = await make_yard()
        await self.told_and_lost(yard)
        with capture_logs() as logs:
            assert await heal(yard) == 1
        assert await yard.stage("four", "down") == "waiting"
        [line] = [line for line in logs if "lost its last writes" in line["event"]]
        assert (line["queue"], line["jobs"], line["example"], line["after"]) == ("four", 1, "down", "up")
        assert yard.rung[-1] == ("four", yard.queues["four"].partition_of("down"))

    async def test_a_success_is_told_for_an_hour_after_it(self, make_yard: MakeTwoQueues, clock: ManualClock) -> None:
        yard = await make_yard()
        await self.told_and_lost(yard)
        clock.advance("59m")
        await yard.put("one", "another")
        await yard.end("one", "another")
        await heal(yard)
        assert await yard.stage("four", "down") == "waiting"

    @pytest.mark.parametrize(("anyway", "then"), [(False, "cancelled"), (True, "waiting")])
    async def test_a_death_is_told_again(self, make_yard: MakeTwoQueues, anyway: bool, then: str) -> None:
        yard = await make_yard()
        await self.told_and_lost(yard, anyway=anyway, bury=True)
        await heal(yard)
        assert await yard.stage("four", "down") == then
        if not anyway:
            assert (await why_cancelled(yard, "four", "down")).endswith("which it waited for, failed")

    @pytest.mark.parametrize(("anyway", "then"), [(False, "cancelled"), (True, "waiting")])
    async def test_one_that_ended_otherwise_and_is_forgotten_counts_as_cancelled(
        self, make_yard: MakeTwoQueues, anyway: bool, then: str
    ) -> None:
        yard = await make_yard()
        await self.told_and_lost(yard, anyway=anyway, outcome=FAILED)
        await heal(yard)
        assert await yard.stage("four", "down") == then
        if not anyway:
            assert "which it waited for, is not known any more" in await why_cancelled(yard, "four", "down")

    async def test_one_that_waits_for_more_waits_for_the_rest(self, make_yard: MakeTwoQueues) -> None:
        yard = await make_yard()
        await yard.put("one", "later")
        await yard.put("one", "up")
        await yard.put("four", "down", after=(("one", "up"), ("one", "later")))
        snapshot = Snapshot(yard.store, "four")
        await snapshot.take()
        await yard.end("one", "up")
        await yard.carry_everything()
        await snapshot.put_back()
        assert await heal(yard) == 1
        assert await yard.stage("four", "down") == "blocked"
        await yard.end("one", "later")
        await yard.carry_everything()
        assert await yard.stage("four", "down") == "waiting"


class TestTheNodeOfTheUpstream:
    """It forgot who watches, or more."""

    async def test_a_job_that_is_there_is_watched_again(self, make_yard: MakeTwoQueues) -> None:
        yard = await make_yard()
        await yard.put("four", "up")
        snapshot = Snapshot(yard.store, "four")
        await snapshot.take()
        await yard.put("one", "down", after=(("four", "up"),))
        await snapshot.put_back()
        assert await heal(yard) == 1
        assert await yard.stage("one", "down") == "blocked"
        await yard.end("four", "up")
        await yard.carry_everything()
        assert await yard.stage("one", "down") == "waiting"

    async def test_a_success_that_nobody_watched_any_more_is_found_among_the_events(
        self, make_yard: MakeTwoQueues
    ) -> None:
        yard = await make_yard()
        await yard.put("four", "up")
        await yard.put("four", "removed")
        snapshot = Snapshot(yard.store, "four")
        await snapshot.take()
        await yard.put("one", "down", after=(("four", "up"),))
        await yard.put("one", "cut", after=(("four", "removed"),))
        await snapshot.put_back()
        await yard.end("four", "up")
        await yard.jobs.delete(yard.queues["four"], "removed")
        assert await heal(yard) == 2
        assert [await yard.stage("one", member) for member in ("down", "cut")] == ["waiting", "cancelled"]

    @pytest.mark.parametrize(("anyway", "then"), [(False, "cancelled"), (True, "waiting")])
    async def test_a_job_that_was_lost_with_it_counts_as_cancelled(
        self, make_yard: MakeTwoQueues, anyway: bool, then: str
    ) -> None:
        yard = await make_yard()
        snapshot = Snapshot(yard.store, "four")
        await snapshot.take()
        await yard.put("four", "up")
        await yard.put("one", "down", after=(("four", "up"),), anyway=anyway)
        await snapshot.put_back()
        assert await heal(yard) == 1
        assert await yard.stage("one", "down") == then

    async def test_an_end_of_which_no_entry_is_left_is_told(self, make_yard: MakeTwoQueues) -> None:
        yard = await make_yard()
        await yard.put("four", "up")
        await yard.put("one", "down", after=(("four", "up"),))
        await yard.end("four", "up")
        queue = yard.queues["four"]
        await yard.store.client.delete(queue.keys[queue.partition_of("up")]["outbox"])
        assert await heal(yard) == 1
        assert await yard.stage("one", "down") == "waiting"


async def test_what_is_in_order_is_left_alone(make_yard: MakeTwoQueues) -> None:
    """Waits that are watched, one that is still to be carried, and one whose end is on its way."""
    yard = await make_yard()
    for n in range(3):
        await yard.put("four", f"up{n}")
    for n in range(40):
        await yard.put("one", f"down{n}", after=tuple(("four", f"up{m}") for m in range(3)))
    await Outbox(yard.store).renew(yard.queues["one"], [b"down7"])
    await yard.end("four", "up0")
    before = await dump(yard.store)
    part = part_of(yard)
    await look_everywhere(part)
    assert part.renewed == 0
    assert await dump(yard.store) == before


async def test_a_queue_that_was_repartitioned_meanwhile_is_looked_at_in_the_next_round(
    make_yard: MakeTwoQueues,
) -> None:
    """The watchers are elsewhere by then, and nothing is wrong with them."""
    yard, operator = await make_yard(), await make_yard()
    await yard.put("four", "up")
    await yard.put("one", "down", after=(("four", "up"),))
    part = part_of(yard)
    await part.step()
    part._with_blocked, part._cursor = [(yard.queues["one"], 0)], 0
    await repartition.repartition(operator.store, "four", 7)
    await part.step()
    await look_everywhere(part)
    assert part.renewed == 0


async def test_nobody_but_the_leader_looks(make_yard: MakeTwoQueues) -> None:
    yard = await make_yard()
    await yard.put("one", "up")
    await yard.put("four", "down", after=(("one", "up"),))
    before = await commands(yard.store)
    assert await part_of(yard, leads=False).step() == EVERY_S
    assert await commands(yard.store) == before


async def commands(store: Store) -> int:
    """How many of those that a pass sends the server has executed. One EXISTS of each script is among them."""
    stats = await store.client.info("commandstats")
    names = [f"cmdstat_{name}" for name in ("exists", "hgetall", "hscan", "zmscore", "evalsha")]
    return sum(stats[name]["calls"] for name in names if name in stats)


@pytest.mark.one_server
async def test_where_nothing_is_blocked_each_partition_is_asked_once_in_ten_seconds(make_yard: MakeTwoQueues) -> None:
    yard = await make_yard()
    part = part_of(yard)
    await part.step()
    before = await commands(yard.store)
    assert await part.step() == EVERY_S
    # The register, and one EXISTS for each of the five.
    assert await commands(yard.store) - before == 6
    assert PARTITIONS / EVERY_S < COMMANDS_PER_S


@pytest.mark.one_server
async def test_many_blocked_jobs_cost_a_few_commands_a_second(make_yard: MakeTwoQueues) -> None:
    yard, blocked = await make_yard(), 3000
    await yard.put("one", "up")
    await yard.put_many("four", [f"down{n}" for n in range(blocked)], after=("one", "up"))
    part = part_of(yard)
    before, rests = await commands(yard.store), [await part.step()]
    while rests[-1] != EVERY_S:
        rests.append(await part.step())
    # Four partitions, of which each has a page or two; before that the register and five partitions.
    assert len(rests) <= 8
    sent = await commands(yard.store) - before - 6
    assert 3 * len(rests) <= sent <= 4 * len(rests)
    assert sum(rests[:-1]) >= 3 * (len(rests) - 1) / COMMANDS_PER_S
    assert part.renewed == 0


async def test_after_an_outage_all_is_looked_at_at_once_but_not_more_than_once_a_minute(
    make_yard: MakeTwoQueues, clock: ManualClock
) -> None:
    yard = await make_yard()
    for n in range(2 * PARTITIONS):
        await yard.store.open_queue(Queue(f"queue-{n}", partitions=1))
    part = part_of(yard)

    async def until_it_rests() -> list[float]:
        rests = [await part.step()]
        while rests[-1] < EVERY_S:
            rests.append(await part.step())
        return rests

    assert await until_it_rests() == [EVERY_S]
    part.hurry()
    assert part.wake.is_set()
    # 37 partitions.
    assert await until_it_rests() == [PARTITIONS / HURRIED_PER_S] * 2 + [EVERY_S]
    part.hurry()
    assert await until_it_rests() == [EVERY_S]
    clock.advance("1m")
    part.hurry()
    assert len(await until_it_rests()) == 3


def test_a_round_over_a_million_blocked_jobs_ends_while_their_ends_are_remembered() -> None:
    per_page, pages = 3, 1_000_000 / UPSTREAMS
    assert per_page * pages / COMMANDS_PER_S < 3600 / 3
