"""The path of a run, from end to end, on each server."""

from __future__ import annotations

from tocsin.model.outcome import SUCCEEDED
from tocsin.store.transitions.claims import ClaimReply, ClaimRequest
from tocsin.store.transitions.settle import finish_item


async def test_a_put_job_is_claimed_when_due_and_finished_once(store, queue, jobs, runs, clock, make_put):
    await jobs.put(queue, make_put("a", due=1000))

    [early] = await runs.claim([ClaimRequest(queue, 0, 10)], lease=1e15)
    assert isinstance(early, ClaimReply)
    assert early.claims == []
    assert early.next_due == clock.ms + 1000

    clock.advance("1s")
    [claimed] = await runs.claim([ClaimRequest(queue, 0, 10)], lease=1e15)
    assert [claim.member for claim in claimed.claims] == ["a"]

    call = runs.settle("finish", queue, 0, [finish_item(claimed.claims[0], 0, SUCCEEDED)])
    assert (await store.call(call))[1] == []
    assert await jobs.get(queue, "a") is None
    assert sum((await jobs.count(queue)).values()) == 0
