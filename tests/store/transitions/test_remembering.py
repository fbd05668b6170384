"""Outcomes and results are remembered for as long as asked, within bounds."""

from __future__ import annotations

import pytest

from tests.support.one_queue import Line
from tocsin.model.msgpack import encode
from tocsin.model.outcome import NEW, REMEMBERED, REPLACE, SUCCEEDED
from tocsin.store.transitions.settle import finish_item


class TestRemembering:
    async def test_outcome_and_result_are_remembered_for_as_long_as_asked(self, line: Line):
        await line.put("a", keep=60)
        await line.finish(await line.take("a"), keep=60, result=b"\x93\x01\x02\x03")
        kept = await line.jobs.outcome(line.queue, "a")
        assert (kept.name, kept.at, kept.result) == ("succeeded", line.now, [1, 2, 3])
        assert await line.store.client.zscore(line.keys["done"], "a") == line.now + 60_000

    async def test_what_is_past_its_time_is_forgotten_by_a_later_end(self, line: Line):
        for n in range(3):
            await line.put(f"{n}", keep=60)
            await line.finish(await line.take(f"{n}"), keep=60)
            line.clock.advance("20s")
        await line.put("a")
        await line.finish(await line.take("a"))
        assert [await line.outcome(f"{n}") for n in range(3)] == [None, "succeeded", "succeeded"]
        assert await line.store.client.zcard(line.keys["done"]) == 2

    async def test_forgetting_is_bounded(self, line: Line):
        client, keys = line.store.client, line.keys
        old = {f"{n}": line.now - 1 for n in range(1500)}
        await client.zadd(keys["done"], old)
        await client.hset(keys["results"], mapping=dict.fromkeys(old, b"\x01" + bytes(8)))
        await line.put("a")
        await line.finish(await line.take("a"))
        assert await client.zcard(keys["done"]) == await client.hlen(keys["results"]) == 500

    async def test_an_id_that_somebody_chose_is_remembered_for_all_of_its_time_however_many_there_are(self, line: Line):
        """They do not push each other out, nor outcomes of jobs that nobody named."""
        await _remember(line, [(f"{n}", line.now + 86_400_000) for n in range(100_003)])
        await line.put("a", keep=7200)
        await line.finish(await line.take("a"), keep=7200)
        await line.put("b", keep=7200)
        await line.finish(await line.take("b"), keep=7200)
        await line.put("unnamed", keep=600, unnamed=True)
        await line.finish(await line.take("unnamed"), keep=600, unnamed=True)
        assert await line.store.client.zcard(line.keys["done"]) == 100_006
        assert await line.put("a") == REMEMBERED
        assert await line.outcome("unnamed") == "succeeded"

    async def test_of_jobs_that_nobody_named_no_more_than_a_hundred_thousand_are_remembered(self, line: Line):
        """The oldest go first, also if they were to be kept for longest."""
        client, keys = line.store.client, line.keys
        await _remember(line, [(f"{n}", line.now + 86_400_000 - n) for n in range(100_003)], unnamed=True)
        await line.put("chosen", keep=60)
        await line.finish(await line.take("chosen"), keep=60)
        assert (await client.zcard(keys["done"]), await client.zcard(keys["unnamed"])) == (100_001, 100_000)
        await line.put("a", keep=60, unnamed=True)
        await line.finish(await line.take("a"), keep=60, unnamed=True)
        gone = [await client.zscore(keys["done"], f"{n}") is None for n in range(5)]
        assert gone == [True, True, True, True, False]
        assert [await line.outcome(member) for member in ("3", "4", "a", "chosen")] == [None, *["succeeded"] * 3]
        assert await client.zcard(keys["done"]) == await client.hlen(keys["results"]) == 100_001

    @pytest.mark.parametrize("unnamed", [True, False])
    async def test_a_batch_in_which_more_is_said_of_one_is_remembered_like_any_other(self, line: Line, unnamed: bool):
        """Where nothing but results is told, a shorter way is taken."""
        found = []
        for note in (b"", b"said"):
            await line.put_all(["a", "b"], keep=60, unnamed=unnamed)
            claims = {claim.member: claim for claim in await line.claim()}
            kept = finish_item(claims["a"], 0, SUCCEEDED, 60, b"\x07", unnamed=unnamed)
            other = finish_item(claims["b"], 0, SUCCEEDED, 60, note=note, unnamed=unnamed)
            assert await line.settle("finish", kept, other) == []
            client, keys = line.store.client, line.keys
            found.append([
                await client.zrange(keys["done"], 0, -1, withscores=True),
                await client.zrange(keys["unnamed"], 0, -1, withscores=True),
                await client.hgetall(keys["results"]),
                [await client.exists(keys[base]) for base in ("jobs", "claims", "working")],
            ])  # fmt: skip
            await client.delete(keys["done"], keys["unnamed"], keys["results"])
        assert found[0] == found[1]
        assert (len(found[0][0]), len(found[0][1])) == (2, 2 if unnamed else 0)

    async def test_cancelling_adds_no_more_than_finishing(self, line: Line):
        client, keys = line.store.client, line.keys
        await _remember(line, [(f"{n}", line.now + 86_400_000) for n in range(100_003)], unnamed=True)
        await client.zadd(keys["done"], {f"{n}": line.now - 1 for n in range(10)})
        await line.put("a", keep=60, unnamed=True)
        assert await line.cancel("a") == 1
        assert await client.zcard(keys["unnamed"]) == await client.zcard(keys["done"]) == 99_994
        assert (await line.outcome("0"), await line.outcome("a")) == (None, "cancelled")

    async def test_a_job_that_others_wait_for_is_not_crowded_out(self, line: Line):
        """They may still be on their way to ask how it ended."""
        await line.put("a", keep=60, unnamed=True)
        await line.raw("dependency_watch", [encode(["a", "line\0b\0life"])])
        await line.finish(await line.take("a"), keep=60, unnamed=True)
        assert await line.store.client.zcard(line.keys["unnamed"]) == 0
        assert await line.store.client.zscore(line.keys["done"], "a") == line.now + 3_600_000

    async def test_a_job_that_nobody_named_may_be_put_again_under_its_id_by_somebody_who_does(self, line: Line):
        await line.put("a", keep=60, unnamed=True)
        await line.finish(await line.take("a"), keep=60, unnamed=True)
        assert await line.put("a", keep=60) == REMEMBERED
        assert await line.put("a", keep=60, mode=REPLACE) == NEW
        assert await line.store.client.zcard(line.keys["unnamed"]) == 0
        await line.finish(await line.take("a"), keep=60)
        assert await line.store.client.zcard(line.keys["unnamed"]) == 0

    async def test_a_cancelled_one_shot_is_remembered_as_cancelled(self, line: Line):
        for member, stage in [("a", "waiting"), ("b", "paused"), ("c", "parked")]:
            await line.put(member, keep=60)
            if stage == "paused":
                await line.pause(member)
            if stage == "parked":
                await line.park(await line.take(member))
            assert await line.cancel(member) == 1
            assert (await line.stage(member), await line.outcome(member)) == (None, "cancelled")

    async def test_a_cancel_of_what_is_recurring_dead_or_gone_changes_nothing(self, line: Line):
        await line.put("a", every=5)
        await line.put("b")
        await line.bury(await line.take("b"))
        assert [await line.cancel(member) for member in "abc"] == [0, 0, 0]
        assert [await line.stage(member) for member in "abc"] == ["waiting", "dead", None]

    async def test_a_cancel_of_one_run_needs_its_due_time(self, line: Line):
        await line.put("a", 100)
        assert await line.cancel("a", line.now) == 0
        assert await line.cancel("a", line.now + 100) == 1


async def _remember(line: Line, until: list[tuple[str, int]], *, unnamed: bool = False) -> None:
    """As jobs leave it that have ended, one a millisecond, the last of them now."""
    client, keys = line.store.client, line.keys
    for first in range(0, len(until), 20_000):
        some = until[first : first + 20_000]
        await client.zadd(keys["done"], dict(some))
        await client.hset(keys["results"], mapping={member: b"\x01" + bytes(8) for member, _ in some})
        if unnamed:
            begin = line.now - len(until) + first
            await client.zadd(keys["unnamed"], {member: begin + n for n, (member, _) in enumerate(some)})
