"""Suspects, runs that were recovered twice, stand apart: any number of them costs others nothing, and none is lost."""

from __future__ import annotations

import pytest

from tests.support.one_queue import Line
from tests.support.records import HANDLER, STRANGE, record
from tocsin.model.outcome import EDIT
from tocsin.model.record import handler_digest
from tocsin.store.formats import is_apart
from tocsin.store.repartition import repartition
from tocsin.store.transitions.claims import ClaimRequest, Runs
from tocsin.store.transitions.jobs import PutItem
from tocsin.store.views.parked_handlers import parked_in

MANY = 2300
each_order = pytest.mark.parametrize("queue", ["due", "priority", "fair"], indirect=True)


async def put(line: Line, names: list[str], **about: object) -> None:
    for first in range(0, len(names), 1000):
        await line.put_all(names[first : first + 1000], **about)


async def lose_twice(line: Line, names: list[str], **about: object) -> None:
    """Workers died twice with these, and all else that is due, in their hands."""
    await put(line, names, **about)
    ghost = line.worker(f"ghost-{names[0]}", HANDLER, STRANGE)
    for _ in range(2):
        while await line.claim(ghost):
            pass
        await line.recover(ghost.owner)


async def ask(line: Line, limit: int, suspects: int, runs: Runs | None = None) -> list[str]:
    [answer] = await (runs or line.runs).claim([ClaimRequest(line.queue, 0, limit, suspects=suspects)], 1e15)
    return [claim.member for claim in answer.claims]  # type: ignore[union-attr]


async def is_set_apart(line: Line, member: str) -> bool:
    score = await line.store.client.zscore(line.keys["waiting"], member)
    return score is not None and is_apart(score)


@each_order
class TestInLine:
    async def test_any_number_of_them_hides_nothing_behind_them(self, line: Line):
        lost, good = [f"lost{n:04}" for n in range(MANY)], [f"good{n:02}" for n in range(60)]
        await lose_twice(line, lost)
        line.clock.advance("1s")
        await put(line, good)
        assert await ask(line, 20, 0) == good[:20]
        assert await ask(line, 20, 1) == [lost[0], *good[20:39]]
        assert await ask(line, 50, 0) == good[39:]
        answer = await line.ask()
        assert [claim.member for claim in answer.claims] == lost[1:1001]

    async def test_a_claim_costs_the_same_with_ten_of_them_and_with_thousands(self, line: Line):
        costs = []
        for count in (10, MANY):
            await lose_twice(line, [f"lost{count}-{n:04}" for n in range(count)])
            await put(line, [f"good{count}-{n}" for n in range(3)])
            before = await line.commands()
            assert len(await ask(line, 3, 0)) == 3
            between = await line.commands()
            assert len(await ask(line, 3, 1)) == 1
            costs.append((between - before, await line.commands() - between))
        assert costs[0] == pytest.approx(costs[1], abs=3)

    async def test_those_whose_backoff_is_over_are_sent_apart_when_a_claim_meets_them(self, line: Line):
        names = [f"lost{n:04}" for n in range(1200)]
        await lose_twice(line, names)
        claims = [*await line.claim(), *await line.claim()]
        for claim in claims:
            await line.retry(claim, delay=500)
        line.clock.advance("1s")
        await line.put("good")
        answers = [await ask(line, 20, 0) for _ in range(2)]
        assert ["good"] in answers
        assert await ask(line, 20, 0) == []
        assert await is_set_apart(line, "lost1199")

    async def test_one_at_a_time_all_are_tried_the_oldest_first(self, line: Line):
        names = [f"lost{n}" for n in range(5)]
        await lose_twice(line, names)
        assert [await ask(line, 10, 1) for _ in range(6)] == [*([name] for name in names), []]

    async def test_a_worker_is_told_to_ask_again_when_it_may_try_another(self, line: Line):
        await lose_twice(line, ["lost"])
        await line.put("later", 60_000)
        for _ in range(2):
            [answer] = await line.runs.claim([ClaimRequest(line.queue, 0, 10, suspects=0)], 1e15)
            assert (answer.claims, answer.next_due, answer.left) == ([], line.now + 100, 0)
        answer = await line.ask()
        assert (len(answer.claims), answer.next_due) == (1, line.now + 60_000)

    async def test_recovery_says_that_something_is_due(self, line: Line):
        await lose_twice(line, ["lost"])
        await line.put("later", 60_000)
        await line.claim()
        answer = await line.raw("run_recover", [line.runs.owner, "0", 0, 1000])
        assert answer[2:] == [[b"lost"], line.now]

    async def test_those_that_a_worker_does_not_know_keep_it_from_none_of_its_own(self, line: Line):
        await lose_twice(line, [f"foreign{n:02}" for n in range(80)], handler=STRANGE)
        await lose_twice(line, ["own"])
        assert [await ask(line, 10, 1) for _ in range(2)] == [[], ["own"]]
        versed = line.worker("worker-3.1", STRANGE)
        assert [await ask(line, 10, 1, versed) for _ in range(2)] == [["foreign00"], ["foreign01"]]

    async def test_parked_ones_hide_no_others_of_their_handler(self, line: Line):
        await lose_twice(line, [f"lost{n:04}" for n in range(1200)], handler=STRANGE)
        while await line.jobs.count(line.queue, ["parked"]) != {"parked": 1200}:
            await ask(line, 10, 1)
        await line.put("z", handler=STRANGE)
        assert (await line.ask()).parked == 1
        versed = line.worker("worker-3.1", STRANGE)
        assert await ask(line, 10, 0, versed) == ["z"]
        assert await ask(line, 10, 0, versed) == []
        assert await ask(line, 10, 1, versed) == ["lost0000"]


@each_order
class TestToPeople:
    @pytest.fixture
    async def due(self, line: Line) -> int:
        due = line.now
        await lose_twice(line, ["a"])
        line.clock.advance("1s")
        assert await is_set_apart(line, "a")
        return due

    async def test_it_is_shown_with_its_due_time(self, line: Line, due: int):
        job = await line.job("a")
        assert (job.stage, job.due_ms, job.not_before_ms, job.recoveries) == ("waiting", due, due, 2)
        assert await line.jobs.any_due_or_working([line.queue])

    async def test_paused_and_resumed_it_is_the_same_run(self, line: Line, due: int):
        assert await line.pause("a") == 1
        assert await line.store.client.zscore(line.keys["paused"], "a") == due
        assert await line.resume("a") == 1
        assert await ask(line, 10, 0) == []
        claim = await line.take("a")
        assert (claim.due, claim.recoveries) == (due, 2)

    async def test_it_is_removed_and_cancelled_like_any_other(self, line: Line, due: int):
        await lose_twice(line, ["b"])
        assert await line.delete("a", only="waiting")
        assert await line.cancel("b") == 1
        assert await line.jobs.count(line.queue) == dict.fromkeys(await line.jobs.count(line.queue), 0)
        assert await line.claim() == []

    async def test_an_edit_leaves_it_where_it_is_and_a_new_time_makes_it_another_run(self, line: Line, due: int):
        await line.put("a", mode=EDIT, args=("other",))
        assert (await line.job("a")).due_ms == due
        assert await ask(line, 10, 0) == []
        await line.put("a", 5000, mode=EDIT)
        job = await line.job("a")
        assert (job.due_ms, job.recoveries) == (line.now + 5000, 0)
        line.clock.advance("5s")
        assert await ask(line, 10, 0) == ["a"]

    async def test_released_it_stands_apart_again(self, line: Line, due: int):
        await line.release(await line.take("a"))
        assert await is_set_apart(line, "a")
        assert (await line.job("a")).due_ms == due


async def test_one_whose_turn_does_not_come_waits_in_line_and_is_sent_back(line: Line):
    await lose_twice(line, ["lost"])
    older = [f"old{n}" for n in range(4)]
    await line.jobs.put_many(line.queue, [PutItem(name, record(), line.now - 1000) for name in older])
    assert await ask(line, 2, 1) == older[:2]
    assert not await is_set_apart(line, "lost")
    assert await ask(line, 10, 0) == older[2:]
    assert await is_set_apart(line, "lost")
    assert await ask(line, 10, 1) == ["lost"]


async def test_a_claim_by_id_gets_it_if_it_may(line: Line):
    await lose_twice(line, ["a"])
    for suspects, claimed in [(0, []), (1, ["a"])]:
        [answer] = await line.runs.claim([ClaimRequest(line.queue, 0, 1, ["a"], suspects=suspects)], 1e15)
        assert [claim.member for claim in answer.claims] == claimed
        assert answer.dues == ([-1] if claimed else [line.now])


@pytest.mark.parametrize("queue", ["fair"], indirect=True)
async def test_of_a_tenant_at_its_cap_none_is_tried_and_those_of_others_are(line: Line):
    await line.set(tenant_max_active=1)
    await lose_twice(line, ["a1"], tenant="a")
    await lose_twice(line, ["b1"], tenant="b")
    await line.put("running", tenant="a")
    assert await ask(line, 10, 0) == ["running"]
    assert await ask(line, 10, 1) == []
    assert await ask(line, 10, 1) == ["b1"]
    assert await ask(line, 10, 1) == []


async def test_it_is_repartitioned_with_the_others(line: Line):
    await lose_twice(line, [f"lost{n}" for n in range(20)])
    due = line.now
    line.clock.advance("1s")
    await repartition.repartition(line.store, line.queue.name, 3)
    await line.store.reopen(line.queue)
    for partition in range(3):
        [answer] = await line.runs.claim([ClaimRequest(line.queue, partition, 100, suspects=0)], 1e15)
        assert (answer.claims, answer.next_due) == ([], line.now + 100)
        [answer] = await line.runs.claim([ClaimRequest(line.queue, partition, 100)], 1e15)
        assert {(claim.due, claim.recoveries) for claim in answer.claims} == {(due, 2)}


async def test_what_is_parked_as_a_suspect_is_told_with_the_others_of_its_handler(line: Line):
    await lose_twice(line, ["lost"], handler=STRANGE)
    await line.put("good", handler=STRANGE)
    answer = await line.ask()
    assert answer.parked == 2
    scores = dict(await line.store.client.zrange(line.keys["parked"], 0, -1, withscores=True))
    assert scores == {b"good": handler_digest(STRANGE), b"lost": handler_digest(STRANGE) + 0.5}
    [found] = await parked_in(line.store, line.queue, 0)
    assert (found.handler, found.jobs) == (STRANGE, 2)


@pytest.mark.parametrize("queue", ["priority", "fair"], indirect=True)
async def test_those_of_a_higher_priority_are_tried_first_also_if_it_was_changed_meanwhile(line: Line):
    for n, band in enumerate((3, 1, 1)):
        await lose_twice(line, [f"lost{n}"], band=band)
        line.clock.advance("1s")
    assert await line.jobs.ready_counts(line.queue) == [0, 2, 0, 1, 0]
    await line.put("lost2", mode=EDIT, band=0)
    assert await line.jobs.ready_counts(line.queue) == [1, 1, 0, 1, 0]
    assert (await line.job("lost2")).due_ms == line.now - 1000
    assert [await ask(line, 10, 1) for _ in range(4)] == [["lost2"], ["lost1"], ["lost0"], []]
