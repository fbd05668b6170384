"""Queues of order priority: five bands, exact first come first served within, strict or aged."""

from __future__ import annotations

import itertools

import pytest

from tests.support.one_queue import Line
from tests.support.records import STRANGE, record
from tocsin.app.bulk import Bulk
from tocsin.model.outcome import EDIT, IGNORE, POSTPONE, REPLACE, UPDATE
from tocsin.store.transitions.claims import ClaimRequest
from tocsin.store.transitions.jobs import PutItem
from tocsin.store.views import line as ready

pytestmark = pytest.mark.parametrize("queue", ["priority"], indirect=True)

CRITICAL, HIGH, NORMAL, LOW, BACKGROUND = range(5)


async def put_in_bands(line: Line) -> None:
    """Two in each band, the least urgent first."""
    for n, band in enumerate([*reversed(range(5)), *reversed(range(5))]):
        await line.put(f"{band}-{n}", band=band)
        line.clock.advance("3ms")


class TestBands:
    async def test_the_more_urgent_goes_first(self, line: Line):
        await put_in_bands(line)
        names = await line.names()
        assert [name[0] for name in names] == list("0011223344")
        assert names == sorted(names, key=lambda name: (name[0], int(name[2:])))

    async def test_one_at_a_time_is_the_same_order(self, line: Line):
        await put_in_bands(line)
        names = [name for _ in range(10) for name in await line.names(limit=1)]
        assert [name[0] for name in names] == list("0011223344")

    async def test_counts_by_band_are_what_stands_there(self, line: Line):
        for band in range(5):
            for n in range(band + 1):
                await line.put(f"{band}-{n}", band=band)
        await line.put("later", 1000, band=HIGH)
        assert await ready.counts(line.store, line.queue) == [1, 2, 3, 4, 5]
        await line.set(aging="1h")
        assert await ready.counts(line.store, line.queue) == [1, 2, 3, 4, 5]
        await line.claim(limit=3)
        assert sum(await ready.counts(line.store, line.queue)) == 12

    async def test_a_band_beyond_the_last_is_the_last(self, line: Line):
        await line.put("odd", band=200)
        assert await ready.counts(line.store, line.queue) == [0, 0, 0, 0, 1]
        assert await line.names() == ["odd"]


class TestFirstComeFirstServed:
    async def test_in_one_call(self, line: Line):
        members = [f"{n * 7919 % 1000}" for n in range(1000)]
        await line.put_all(members)
        assert await line.names() == members

    async def test_in_several_calls_of_the_same_millisecond(self, line: Line):
        members = [f"{n * 7919 % 4000}" for n in range(4000)]
        for page in range(4):
            await line.put_all(members[page * 1000 : page * 1000 + 1000])
        assert [name for _ in range(4) for name in await line.names()] == members

    async def test_in_bulk(self, line: Line):
        members = [f"{n * 7919 % 3500}" for n in range(3500)]
        await Bulk(line.jobs, line.queue, lambda *_: None).put_all(
            members, lambda name: PutItem(name, record(), 0, True)
        )
        assert [name for _ in range(4) for name in await line.names()] == members

    async def test_a_batch_from_both_bands_keeps_both_orders(self, line: Line):
        for n in range(20):
            await line.put(f"{9 - n % 10}{n}", band=n % 2)
        names = await line.names()
        assert names == [f"{9 - n % 10}{n}" for band in (0, 1) for n in range(20) if n % 2 == band]

    async def test_what_falls_due_stands_by_its_due_time(self, line: Line):
        await line.put("c", 30)
        await line.put("b", 20)
        await line.put("a", 25)
        line.clock.advance("1s")
        await line.put("d")
        assert await line.names() == ["b", "a", "c", "d"]

    async def test_what_falls_due_together_stands_by_id(self, line: Line):
        """Also when it comes a page at a time, and more comes while some of the last page are left."""
        members = [f"{n:04}" for n in range(2500)]
        for first in range(0, 2500, 500):
            puts = [PutItem(member, record(), line.now + 1000) for member in members[first : first + 500]]
            await line.jobs.put_many(line.queue, puts)
        names = []
        for _ in range(10):
            line.clock.advance("1s")
            names += await line.names(limit=250)
        assert names == members

    async def test_more_falls_due_than_fits_one_page(self, line: Line):
        for page in range(3):
            puts = [PutItem(f"{page}-{n:03}", record(), 100 + page * 1000 + n, True) for n in range(1000)]
            await line.jobs.put_many(line.queue, puts)
        line.clock.advance("5s")
        first = await line.ask(limit=400)
        assert (first.next_due, first.left) == (line.now, 600)
        names = [claim.member for claim in first.claims]
        while page := await line.ask(limit=400):
            names += [claim.member for claim in page.claims]
            if page.next_due < 0:
                break
        assert names == sorted(names)
        assert len(names) == 3000


class TestAging:
    async def test_order_is_by_due_time_and_band_times_aging(self, line: Line):
        await line.set(aging="1s")
        await line.put("low", band=LOW)
        line.clock.advance("2500ms")
        await line.put("high", band=HIGH)
        await line.put("critical", band=CRITICAL)
        await line.put("background", band=BACKGROUND)
        assert await line.names() == ["critical", "low", "high", "background"]

    async def test_a_batch_is_in_that_order_too(self, line: Line):
        await line.set(aging="10ms")
        due = {}
        for n, band in enumerate(itertools.islice(itertools.cycle([4, 2, 0, 3, 1]), 60)):
            due[f"j{n}"] = line.now + band * 10
            await line.put(f"j{n}", band=band)
            line.clock.advance("3ms")
        names = await line.names(limit=41) + await line.names()
        assert [due[name] for name in names] == sorted(due.values())

    async def test_changing_it_rewrites_nothing(self, line: Line):
        await put_in_bands(line)
        before = {key: value for key, value in (await line.dump()).items() if "ready" in key}
        await line.set(aging="1ms")
        assert {key: value for key, value in (await line.dump()).items() if "ready" in key} == before
        first = await line.names(limit=2)
        await line.set(aging=None)
        assert first == ["4-0", "3-1"]
        assert [name[0] for name in await line.names()] == list("00112234")

    async def test_nothing_starves(self, line: Line):
        """Strict, the one in the background never comes while more urgent ones do; aged, it comes in its time."""
        await line.put("patient", band=BACKGROUND)
        for aging, served in ((None, False), ("1s", True)):
            await line.set(aging=aging)
            came = []
            for n in range(100):
                await line.put(f"{aging}{n}", band=CRITICAL)
                line.clock.advance("50ms")
                came += await line.names(limit=1)
            assert ("patient" in came) is served


class TestReprioritise:
    async def test_it_keeps_its_age_and_its_place(self, line: Line):
        for name in "abcdef":
            await line.put(name, band=NORMAL)
        await line.put("e", mode=EDIT, band=HIGH)
        await line.put("b", mode=EDIT, band=HIGH)
        await line.put("d", mode=EDIT, band=HIGH)
        line.clock.advance("1s")
        await line.put("d", mode=EDIT, band=NORMAL)
        assert await line.names() == ["b", "e", "a", "c", "d", "f"]

    @pytest.mark.parametrize("stage", ["waiting", "working", "paused", "parked", "dead"])
    async def test_in_any_other_stage_it_counts_from_the_next_time_in_line(self, line: Line, stage):
        await line.put("early", 500)
        await line.put("a", 1000 if stage == "waiting" else 0, band=LOW)
        if stage == "paused":
            await line.pause("a")
        claim = await line.take("a") if stage in ("working", "parked", "dead") else None
        if stage == "parked":
            await line.park(claim)
        if stage == "dead":
            await line.bury(claim)
        assert await line.stage("a") == stage
        await line.put("a", mode=EDIT, band=CRITICAL)
        line.clock.advance("2s")
        if stage == "paused":
            await line.resume("a")
        if stage == "working":
            await line.release(claim)
        if stage == "dead":
            await line.revive("a")
        assert (await line.names())[0] == "a"


class TestKeepsItsPlace:
    @pytest.fixture
    async def held(self, line: Line):
        """The middle one of three that came in the same millisecond."""
        for name in "xyz":
            await line.put(name)
        claims = {claim.member: claim for claim in await line.claim()}
        await line.release(claims["x"])
        await line.release(claims["z"])
        return claims["y"]

    async def test_released(self, line: Line, held):
        await line.release(held)
        assert await line.names() == ["x", "y", "z"]

    async def test_recovered(self, line: Line, held):
        assert await line.recover() == 1
        assert await line.names() == ["x", "y", "z"]

    async def test_tried_again(self, line: Line, held):
        await line.retry(held, 1000)
        assert await line.stage("y") == "waiting"
        line.clock.advance("2s")
        assert await line.names() == ["x", "y", "z"]

    async def test_paused_and_resumed(self, line: Line, held):
        await line.release(held)
        await line.pause("y")
        assert await line.names(limit=1) == ["x"]
        await line.resume("y")
        assert await line.names() == ["y", "z"]

    async def test_paused_while_working(self, line: Line, held):
        await line.pause("y")
        await line.release(held)
        assert await line.stage("y") == "paused"
        await line.resume("y")
        assert await line.names() == ["x", "y", "z"]

    async def test_parked_and_unparked(self, line: Line, held):
        await line.park(held)
        assert await line.names(limit=1) == ["x"]
        await line.unpark("y")
        assert await line.names() == ["y", "z"]

    async def test_set_aside_for_a_worker_that_knows_it(self, line: Line):
        await line.put("a")
        await line.put("strange", handler=STRANGE)
        await line.put("b")
        assert await line.names() == ["a", "b"]
        assert await line.stage("strange") == "parked"
        await line.put("c")
        versed = line.worker("worker-3.1", "tests.handler", STRANGE)
        assert await line.names(versed) == ["strange", "c"]

    async def test_revived(self, line: Line, held):
        await line.bury(held)
        line.clock.advance("1s")
        await line.put("later")
        await line.revive("y")
        assert (await line.names())[-1] == "later"


class TestPut:
    @pytest.mark.parametrize("mode", [REPLACE, POSTPONE])
    async def test_a_new_due_time_is_a_new_place(self, line: Line, mode):
        await line.put("a")
        await line.put("b")
        await line.put("a", mode=mode)
        assert await line.names() == ["b", "a"]

    @pytest.mark.parametrize("mode", [REPLACE, POSTPONE])
    async def test_a_later_time_takes_it_out_of_the_line(self, line: Line, mode):
        await line.put("a")
        await line.put("a", 1000, mode=mode)
        assert await line.stage("a") == "waiting"
        assert await line.names() == []

    async def test_the_same_again_changes_nothing(self, line: Line):
        for mode in (IGNORE, UPDATE):
            await line.put("a", band=HIGH)
            before = await line.dump()
            await line.put("a", mode=mode, band=HIGH)
            after = await line.dump()
            assert {k: v for k, v in before.items() if "sessions" not in k} == {
                k: v for k, v in after.items() if "sessions" not in k
            }

    async def test_an_update_moves_it_to_its_new_band(self, line: Line):
        await line.put("a", every=60, band=LOW)
        await line.put("b", band=NORMAL)
        await line.put("a", mode=UPDATE, every=60, band=HIGH)
        assert await line.names() == ["a", "b"]

    async def test_extra_runs_stand_in_the_band_of_their_job(self, line: Line):
        await line.put("a", 1000, every=60, band=HIGH)
        await line.put("b", band=NORMAL)
        [due] = await line.fire("a")
        assert await line.names() == [f"a\x1f{due}", "b"]

    async def test_who_is_gone_does_not_come_back(self, line: Line):
        for name in "abc":
            await line.put(name)
        await line.delete("a")
        assert await line.cancel("b") == 1
        assert await line.names() == ["c"]
        assert await ready.counts(line.store, line.queue) == [0] * 5


class TestClaim:
    async def test_unknown_ones_do_not_let_the_less_urgent_pass(self, line: Line):
        for n in range(10):
            await line.put(f"strange{n}", band=CRITICAL, handler=STRANGE)
        await line.put("known", band=CRITICAL)
        await line.put("other", band=HIGH)
        assert await line.names(limit=1) == ["known"]

    async def test_what_nobody_can_read_is_not_tried_for_ever(self, line: Line):
        await line.store.client.zadd(line.keys["ready2"], {"nobody": line.now})
        await line.put("broken")
        await line.spoil("broken", b"\x07" * 50)
        await line.put("a")
        answer = await line.ask()
        assert ([claim.member for claim in answer.claims], answer.parked) == (["a"], 2)
        before = await line.meta()
        again = await line.ask()
        assert (again.claims, again.parked, again.next_due) == ([], 0, -1)
        assert await line.meta() == before

    @pytest.mark.parametrize("score", [-1.0, 1e300, float("inf")])
    async def test_a_score_that_is_none_of_ours_stops_nobody(self, line: Line, score):
        await line.put("a")
        await line.put("b")
        await line.store.client.zadd(line.keys["ready2"], {"b": score})
        assert sorted(await line.names()) == ["a", "b"]

    async def test_claims_that_nobody_can_read_stop_nobody(self, line: Line):
        for n, raw in enumerate([b"", b"short", b"\xff" * 24, b"\xff" * 40]):
            await line.put(f"{n}", 100)
            await line.store.client.hset(line.keys["claims"], f"{n}", raw)
        line.clock.advance("1s")
        assert len(await line.names()) == 4

    @pytest.mark.parametrize("aging", [None, "1h"])
    async def test_suspects_are_given_one_at_a_time_and_stop_nobody(self, line: Line, aging):
        await line.set(aging=aging)
        for n in range(5):
            await line.put(f"suspect{n}", band=CRITICAL)
        for _ in range(2):
            await line.claim()
            await line.recover()
        for n in range(3):
            await line.put(f"good{n}", band=CRITICAL)

        async def ask(suspects: int, limit: int):
            [answer] = await line.runs.claim([ClaimRequest(line.queue, 0, limit, suspects=suspects)], 1e15)
            return [claim.member for claim in answer.claims], answer.next_due

        assert await ask(0, 1) == (["good0"], line.now)
        assert (await ask(1, 2))[0] == ["suspect0", "good1"]
        assert (await ask(0, 10))[0] == ["good2"]
        # Nothing that it may have: it is to ask again when what it tries may have ended.
        assert await ask(0, 10) == ([], line.now + 100)

    async def test_big_records_come_a_few_at_a_time_in_order(self, line: Line):
        for n in range(20):
            await line.put(f"{n:02}", band=n % 2, args=("x" * 500_000,))
        answers = []
        while names := await line.names():
            answers.append(names)
        assert len(answers) > 1
        assert [name for names in answers for name in names] == [
            f"{n:02}" for band in (0, 1) for n in range(band, 20, 2)
        ]

    async def test_a_paused_queue_gives_nothing_and_loses_nothing(self, line: Line):
        await line.put("a", band=HIGH)
        await line.put("later", 10)
        await line.jobs.pause_queue(line.queue, True)
        line.clock.advance("1s")
        answer = await line.ask()
        assert (answer.claims, answer.next_due) == ([], -1)
        await line.jobs.pause_queue(line.queue, False)
        assert await line.names() == ["a", "later"]

    async def test_nothing_is_given_after_the_lease(self, line: Line):
        await line.put("a")
        assert (await line.ask(lease=line.now - 1)).lease_over
        assert await line.stage("a") == "ready"

    async def test_a_call_whose_reply_was_lost_gets_the_same_answer(self, line: Line):
        for name in "abc":
            await line.put(name)
        args = [line.runs.owner, line.now, b"", 0, 1000, "1", 2]
        first = await line.raw("run_claim_ordered", args, seq=5)
        line.clock.advance("10ms")
        assert await line.raw("run_claim_ordered", args, seq=5) == [*first[:6], line.now, *first[7:]]
        assert await line.names() == ["c"]
