"""What programs that hold claims themselves ask of the scripts: a cap of their own, changes only to what is in line."""

from __future__ import annotations

import pytest

from tests.support.one_queue import FOR_EVER, Line
from tests.support.records import record
from tocsin.model.outcome import CHANGED, CONFLICT, EDIT_IN_LINE, MISSING, SUCCEEDED
from tocsin.store.scripts.script import ORDERS
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.claims import ClaimRequest, Runs
from tocsin.store.transitions.jobs import PutItem
from tocsin.store.transitions.queue_settings import update
from tocsin.store.transitions.settle import finish_item, settle_for_owner

in_each_order = pytest.mark.parametrize("queue", ORDERS, indirect=True)


async def claim(line: Line, max_active: int | None, limit: int = 1000) -> list[str]:
    wish = ClaimRequest(line.queue, 0, limit, max_active=max_active)
    [answer] = await line.runs.claim([wish], FOR_EVER)
    return [each.member for each in answer.claims]


@in_each_order
class TestCap:
    async def test_no_more_than_the_cap_are_working(self, line: Line):
        for n in range(9):
            await line.put(f"{n}")
        assert await claim(line, 2) == ["0", "1"]
        assert await claim(line, 2) == []
        assert await claim(line, 5) == ["2", "3", "4"]
        assert await claim(line, 3) == []
        assert await claim(line, 0) == []
        assert len(await claim(line, None)) == 4

    async def test_the_lower_of_it_and_the_queues_own_holds(self, line: Line):
        for n in range(9):
            await line.put(f"{n}")
        await update(line.store, line.queue, {"max_active": "3"}, {}, operator=True)
        assert len(await claim(line, 1)) == 1
        assert len(await claim(line, 9)) == 2

    async def test_one_who_asks_at_the_cap_is_not_told_to_ask_again_at_once(self, line: Line):
        for name in "ab":
            await line.put(name)
        await claim(line, 1)
        [answer] = await line.runs.claim([ClaimRequest(line.queue, 0, 1, max_active=1)], FOR_EVER)
        assert (answer.claims, answer.next_due, answer.left) == ([], -1, 0)


@in_each_order
class TestInLine:
    async def edit(self, line: Line, member: str, expected: int = 0) -> int:
        put = PutItem(member, record(args=("new",)), 0, False, EDIT_IN_LINE, expected)
        return (await line.jobs.put(line.queue, put))[0]

    async def test_what_is_in_line_is_changed_and_keeps_its_place(self, line: Line):
        for name in "abc":
            await line.put(name)
        assert await self.edit(line, "a") == CHANGED
        assert [(await line.job("a")).args, (await line.job("b")).args] == [("new",), ()]
        assert await claim(line, None) == ["a", "b", "c"]

    async def test_another_version_is_a_conflict(self, line: Line):
        await line.put("a")
        assert await self.edit(line, "a", (await line.job("a")).version + 1) == CONFLICT

    @pytest.mark.parametrize("stage", ["working", "paused", "dead", "done", None])
    async def test_anything_else_is_left_alone(self, line: Line, stage):
        if stage is not None:
            await line.put("a")
        if stage == "paused":
            await line.pause("a")
        if stage in ("working", "dead", "done"):
            taken = await line.take("a")
        if stage == "dead":
            await line.bury(taken)
        if stage == "done":
            await line.finish(taken)
        before = await line.dump()
        assert await self.edit(line, "a") == MISSING
        after = await line.dump()
        assert {key: value for key, value in after.items() if not key.startswith("sessions")} == {
            key: value for key, value in before.items() if not key.startswith("sessions")
        }

    async def test_only_what_is_in_line_is_withdrawn(self, line: Line):
        for name in "ab":
            await line.put(name)
        await line.take("a")
        assert not await line.delete("a", only="waiting")
        assert await line.delete("b", only="waiting")
        assert await line.stage("b") is None
        assert await line.stage("a") == "working"


@in_each_order
class TestHeld:
    async def test_a_claim_is_ended_for_its_owner(self, line: Line):
        await line.put("a")
        assert await line.jobs.held(line.queue, "a") is None
        taken = await line.take("a")
        held = await line.jobs.held(line.queue, "a")
        assert held is not None
        assert (held.owner, held.token) == (line.runs.owner, taken.token)
        item = finish_item(taken, 0, SUCCEEDED)
        assert not await settle_for_owner(line.store, "another", "finish", line.queue, item)
        assert await settle_for_owner(line.store, held.owner, "finish", line.queue, item)
        assert await line.jobs.held(line.queue, "a") is None

    async def test_what_came_back_is_held_by_nobody(self, line: Line):
        await line.put("a")
        await line.take("a")
        await line.recover()
        assert await line.jobs.held(line.queue, "a") is None


@pytest.mark.parametrize("queue", ["priority"], indirect=True)
class TestPosition:
    async def test_how_many_go_before_it(self, store: Store, queue: OpenQueue, line: Line):
        for n, name in enumerate("edcba"):
            await line.jobs.put(queue, PutItem(name, record_in_band(4 - n), 0, relative=True))
        await line.put("later", 1000)
        assert [await line.jobs.position(queue, name) for name in ["a", "c", "e", "later", "none"]] == [
            0,
            2,
            4,
            5,
            None,
        ]
        await Runs(store, "w").claim([ClaimRequest(queue, 0, 2)], FOR_EVER)
        assert [await line.jobs.position(queue, name) for name in ["a", "c"]] == [None, 0]


def record_in_band(band: int) -> bytes:
    plain = record()
    return plain[:2] + bytes((band,)) + plain[3:]
