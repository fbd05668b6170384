"""job_park: what nobody runs is set aside, and nothing of it is lost."""

from __future__ import annotations

import pytest

from tests.support.one_queue import Line
from tests.support.records import HANDLER
from tocsin.model.record import handler_digest
from tocsin.store.transitions.claims import ClaimRequest
from tocsin.store.views.strays import StrayReader

MINUTE = 60_000


@pytest.fixture
def strays(store) -> StrayReader:
    return StrayReader(store)


async def test_what_was_due_for_long_enough_is_parked_under_its_handler_and_the_rest_is_left(line: Line, strays):
    await line.put("old", every=60)
    line.clock.advance("1s")
    await line.put("young", every=60)
    await line.put("later", 5000, every=60)
    await line.put("held", every=60)
    await line.take("held")
    line.clock.advance("1m")
    before = await line.store.client.zscore(line.keys["waiting"], "young")
    names = [b"old", b"young", b"later", b"held", b"nobody"]
    assert await strays.park(line.queue, 0, names, MINUTE + 1) == 1
    parked = await line.store.client.zrange(line.keys["parked"], 0, -1, withscores=True)
    assert parked == [(b"old", handler_digest(HANDLER))]
    assert await line.store.client.zscore(line.keys["waiting"], "young") == before
    assert await strays.park(line.queue, 0, names, MINUTE + 1) == 0


async def test_who_names_it_claims_it_at_the_time_that_it_was_due(line: Line, strays):
    due = line.now
    await line.put("a", every=60)
    line.clock.advance("1h")
    await strays.park(line.queue, 0, [b"a"], MINUTE)
    [answer] = await line.runs.claim([ClaimRequest(line.queue, 0, 1, ["a"])], 1e15)
    [claim] = answer.claims
    assert (claim.member, claim.due, claim.attempt, claim.recoveries) == ("a", due, 1, 0)


async def test_one_that_was_retried_keeps_its_attempt(line: Line, strays):
    await line.put("a", every=60)
    await line.retry(await line.take("a"), 1000)
    line.clock.advance("1h")
    assert await strays.park(line.queue, 0, [b"a"], MINUTE) == 1
    [answer] = await line.runs.claim([ClaimRequest(line.queue, 0, 1, ["a"])], 1e15)
    assert answer.claims[0].attempt == 2


async def test_successes_that_its_record_lacks_go_with_it(line: Line, strays):
    await line.put("a", every=60)
    for n in range(1, 4):
        await line.finish(await line.take("a"), line.now + 1000 * n)
        line.clock.advance(f"{n}s")
    line.clock.advance("1h")
    assert (await line.job("a")).succeeded == 3
    await strays.park(line.queue, 0, [b"a"], MINUTE)
    assert (await line.job("a")).succeeded == 3
    await line.unpark("a")
    assert (await line.job("a")).succeeded == 3
