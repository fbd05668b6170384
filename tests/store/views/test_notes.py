"""Notes: what is told of an attempt stands in the event of the call that ended it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.one_queue import Line
from tocsin.model import msgpack
from tocsin.model.outcome import FAILED, SUCCEEDED
from tocsin.model.run import Claim
from tocsin.model.skipped_ticks import SkippedTicks, SkipReason
from tocsin.store.transitions.settle import bury_or_park_item, finish_item, retry_item
from tocsin.store.views.events import past_runs, succeeded_last

NOTE = '{"status":503,"head":"später"}'.encode()
TOLD = {"status": 503, "head": "später"}


async def told(line: Line) -> list[tuple[str, dict[str, Any]]]:
    """Newest first."""
    return [(run.outcome, run.told) async for run in past_runs(line.store, line.queue, 0)]


async def taken(line: Line, *members: str) -> list[Claim]:
    for member in members:
        await line.put(member)
    return [await line.take(member) for member in members]


async def test_each_end_of_an_attempt_may_have_one(line: Line) -> None:
    done, tried, dead, plain = await taken(line, "done", "tried", "dead", "plain")
    await line.settle("finish", finish_item(done, 0, SUCCEEDED, note=NOTE))
    await line.settle("retry", retry_item(tried, 1000, b"\x91\xa3bad", NOTE))
    await line.settle("bury", bury_or_park_item(dead, b"\x91\xa3bad", NOTE))
    await line.finish(plain)
    assert await told(line) == [("succeeded", {}), ("dead", TOLD), ("retried", TOLD), ("succeeded", TOLD)]


async def test_it_goes_along_with_all_else_that_a_finish_may_say(line: Line) -> None:
    await line.put("a", every=5)
    claim = await line.take("a")
    skips = [SkippedTicks(claim.due + 5000, claim.due + 10_000, SkipReason.COALESCED)]
    item = finish_item(claim, claim.due + 10_000, FAILED, 0, b"", b"\x91\xa3bad", skips, NOTE)
    assert await line.settle("finish", item) == []
    assert await told(line) == [("failed", TOLD)]
    job = await line.job("a")
    assert (job.due_ms, job.failed, job.failure.error) == (claim.due + 10_000, 1, "bad")


async def test_of_many_each_has_its_own(line: Line) -> None:
    claims = await taken(line, "a", "b", "c")
    notes = [b'{"n":1}', b"", b'{"n":3}']
    await line.settle("finish", *(finish_item(c, 0, SUCCEEDED, note=n) for c, n in zip(claims, notes, strict=True)))
    assert [said for _, said in await told(line)] == [{"n": 3}, {}, {"n": 1}]


async def test_one_that_lost_its_claim_tells_nothing(line: Line) -> None:
    [claim] = await taken(line, "a")
    await line.recover()
    again = await line.take("a", line.other)
    assert await line.settle("finish", finish_item(claim, 0, SUCCEEDED, note=NOTE)) == ["a"]
    await line.finish(again, runs=line.other)
    assert await told(line) == [("succeeded", {})]


async def test_a_call_that_is_repeated_tells_it_once(line: Line) -> None:
    [claim] = await taken(line, "a")
    call = line.runs.settle("finish", line.queue, 0, [finish_item(claim, 0, SUCCEEDED, note=NOTE)])
    assert await line.store.call(call) == await line.store.call(call)
    assert await told(line) == [("succeeded", TOLD)]


async def test_garbage_where_notes_should_be_hides_no_run(line: Line) -> None:
    [claim] = await taken(line, "a")
    await line.settle("finish", finish_item(claim, 0, SUCCEEDED, note=b"\xff no json"))
    assert await told(line) == [("succeeded", {})]


@pytest.mark.parametrize(
    "garbled",
    [
        {},
        {"kind": "finish"},
        {"kind": "finish", "ids": b"\x91\xa1\xff"},
        {"kind": "finish", "ids": msgpack.encode(["a"]), "runs": b"short"},
    ],
)
async def test_garbage_among_the_events_does_not_hide_that_a_job_succeeded(line: Line, garbled: dict[str, Any]) -> None:
    [claim] = await taken(line, "a")
    await line.settle("finish", finish_item(claim, 0, SUCCEEDED))
    await line.store.client.xadd(line.keys["events"], {"x": "y", **garbled})
    assert await succeeded_last(line.store, line.queue, 0, [b"a"]) == {b"a"}
    assert len(await told(line)) == 1
