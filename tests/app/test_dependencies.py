"""Jobs that wait for others: in order, whatever becomes of those, across queues and partitions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tocsin import Every, Tocsin
from tocsin.engine.handlers import Handler
from tocsin.inspection.inspector import Inspector
from tocsin.model.errors import (
    ConflictingJobs,
    InvalidArgument,
    ResultTimeout,
    RunCancelled,
    UnknownJob,
)
from tocsin.testing import ManualClock, run_until_idle


@pytest.fixture(autouse=True)
def queues(tocsin_app: Tocsin) -> None:
    tocsin_app.queue("line", partitions=1)


async def run_all(app: Tocsin) -> None:
    await run_until_idle(app)
    for name in await app.store.queues.names():
        queue = await app.store.find_queue(name)
        assert queue is not None
        for keys in queue.keys:
            left = [await app.store.client.exists(keys[key]) for key in ("blocked", "needs", "watchers", "outbox")]
            assert left == [0, 0, 0, 0], "nobody waits, and nothing is left to be carried"


async def test_a_chain_runs_in_order(tocsin_app: Tocsin, note: Handler, ran: list[Any]) -> None:
    before: list[Any] = []
    for n in range(10):
        before = [await tocsin_app.enqueue(note, n, after=before)]
    assert [await handle.status() for handle in before] == ["blocked"]
    await run_all(tocsin_app)
    assert ran == list(range(10))


async def test_a_diamond_runs_its_end_last_and_once(tocsin_app: Tocsin, note: Handler, ran: list[Any]) -> None:
    top = await tocsin_app.enqueue(note, "top")
    sides = [await tocsin_app.enqueue(note, side, after=[top]) for side in ("left", "right")]
    await tocsin_app.enqueue(note, "end", after=sides)
    await run_all(tocsin_app)
    assert (ran[0], sorted(ran[1:3]), ran[3:]) == ("top", ["left", "right"], ["end"])


async def test_a_hundred_come_together(tocsin_app: Tocsin, note: Handler, ran: list[Any]) -> None:
    many = [await tocsin_app.enqueue(note, n, queue=("line", "default")[n % 2]) for n in range(100)]
    await tocsin_app.enqueue(note, "last", queue="line", after=many)
    await run_all(tocsin_app)
    assert sorted(ran[:100]) == list(range(100))
    assert ran[100:] == ["last"]


async def test_more_wait_for_one_than_one_pass_tells(tocsin_app: Tocsin, note: Handler, ran: list[Any]) -> None:
    first = await tocsin_app.enqueue(note, "first")
    await asyncio.gather(*(tocsin_app.enqueue(note, n, after=[first]) for n in range(250)))
    await run_all(tocsin_app)
    assert ran[0] == "first"
    assert sorted(ran[1:]) == list(range(250))


async def test_it_waits_across_queues_by_id(tocsin_app: Tocsin, note: Handler, ran: list[Any]) -> None:
    await tocsin_app.enqueue(note, "a", id="a", queue="line")
    b = await tocsin_app.enqueue(note, "b", id="b", after=["a", "a"])
    await tocsin_app.enqueue(note, "c", id="c", queue="line", after=[b, "a"])
    assert [job.id async for job in tocsin_app.jobs(stage="blocked")] == ["b", "c"]
    await run_all(tocsin_app)
    assert ran == ["a", "b", "c"]


async def test_blocking_handles_are_waited_for_too(tocsin_app: Tocsin, note: Handler) -> None:
    handle = await asyncio.to_thread(tocsin_app.sync.enqueue, note, "a", delay="1h")
    waiting = await asyncio.to_thread(tocsin_app.sync.enqueue, note, "b", after=[handle])
    assert await asyncio.to_thread(waiting.status) == "blocked"
    await asyncio.to_thread(tocsin_app.sync.close)


# What has ended already


async def test_what_has_succeeded_is_no_reason_to_wait(tocsin_app: Tocsin, note: Handler, ran: list[Any]) -> None:
    await tocsin_app.enqueue(note, "a", id="a")
    kept = await tocsin_app.enqueue(note, "k", keep="1h")
    await run_all(tocsin_app)
    later = await tocsin_app.enqueue(note, "b", after=["a", kept])
    assert await later.status() == "waiting"
    await run_all(tocsin_app)
    assert ran[-1] == "b"


@pytest.mark.parametrize(("policy", "ends"), [("cancel", "cancelled"), ("run", "succeeded")])
@pytest.mark.parametrize("how", ["dead", "cancelled"])
async def test_what_has_not_succeeded_decides_at_once(
    tocsin_app: Tocsin, note: Handler, policy: str, ends: str, how: str
) -> None:
    first = await tocsin_app.enqueue(note, "a", id="a", fail="no" if how == "dead" else None)
    if how == "cancelled":
        await first.cancel()
    await run_all(tocsin_app)
    later = await tocsin_app.enqueue(note, "b", id="b", after=["a"], on_upstream_failure=policy)
    assert await later.status() == ("cancelled" if policy == "cancel" else "waiting")
    await run_all(tocsin_app)
    assert await later.status() == ends


async def test_what_nobody_remembers_is_refused_before_anything_is_put(tocsin_app: Tocsin, note: Handler) -> None:
    forgotten = await tocsin_app.enqueue(note, "a", keep=0)
    await run_all(tocsin_app)
    known = await tocsin_app.enqueue(note, "k", delay="1h")
    for ref in (forgotten, "nobody"):
        with pytest.raises(UnknownJob, match="keep="):
            await tocsin_app.enqueue(note, "b", id="b", after=[known, ref])
    assert await tocsin_app.get("b") is None


# What becomes of them


@pytest.mark.parametrize(("policy", "ends"), [("cancel", "cancelled"), ("run", "succeeded")])
@pytest.mark.parametrize("how", ["dies", "is cancelled", "is removed", "is dropped"])
async def test_an_upstream_that_does_not_succeed(
    tocsin_app: Tocsin, note: Handler, policy: str, ends: str, how: str
) -> None:
    """And what waits for the dependent is told in turn."""
    fail = "no" if how in ("dies", "is dropped") else None
    first = await tocsin_app.enqueue(note, "a", id="a", fail=fail)
    second = await tocsin_app.enqueue(note, "b", id="b", queue="line", after=[first], on_upstream_failure=policy)
    third = await tocsin_app.enqueue(note, "c", id="c", after=[second])
    if how == "is cancelled":
        assert await first.cancel()
    elif how == "is removed":
        assert await tocsin_app.remove("a")
    if how in ("is cancelled", "is removed"):
        # A program tells them itself, without any worker.
        assert await second.status() == ("cancelled" if policy == "cancel" else "waiting")
    await run_all(tocsin_app)
    if how == "is dropped":
        assert await tocsin_app.drop_dead("a")
        await run_all(tocsin_app)
    assert [await second.status(), await third.status()] == [ends, ends]


async def test_it_is_told_why_it_was_cancelled(tocsin_app: Tocsin, note: Handler) -> None:
    first = await tocsin_app.enqueue(note, id="a", fail="no")
    second = await tocsin_app.enqueue(note, id="b", after=[first])
    with pytest.raises(ResultTimeout):
        await second.result(timeout=0)
    await run_all(tocsin_app)
    with pytest.raises(RunCancelled, match="job a of queue default, which it waited for, failed"):
        await second.result()


async def test_a_revived_upstream_changes_nothing_for_those_that_were_cancelled(
    tocsin_app: Tocsin, note: Handler, ran: list[Any]
) -> None:
    first = await tocsin_app.enqueue(note, "a", id="a", fail="no")
    second = await tocsin_app.enqueue(note, "b", id="b", after=[first])
    await run_all(tocsin_app)
    assert await tocsin_app.retry_dead("a")
    await run_all(tocsin_app)
    assert await second.status() == "cancelled"
    assert ran == ["a", "a"]


async def test_one_failure_among_many_cancels_and_the_others_change_nothing(tocsin_app: Tocsin, note: Handler) -> None:
    many = [await tocsin_app.enqueue(note, n, fail="no" if n == 3 else None) for n in range(6)]
    last = await tocsin_app.enqueue(note, "last", id="last", after=many)
    await run_all(tocsin_app)
    assert await last.status() == "cancelled"


async def test_an_id_that_is_used_again_is_another_job(tocsin_app: Tocsin, note: Handler, ran: list[Any]) -> None:
    await tocsin_app.enqueue(note, "old", id="a")
    await tocsin_app.enqueue(note, "b", id="b", after=["a"])
    await tocsin_app.remove("b")
    await tocsin_app.enqueue(note, "c", id="c", delay="1h")
    again = await tocsin_app.enqueue(note, "b2", id="b", after=["c"])
    await run_until_idle(tocsin_app)
    assert (ran, await again.status()) == (["old"], "blocked")


async def test_being_waited_for_keeps_no_result_and_no_id(tocsin_app: Tocsin, note: Handler) -> None:
    """That it succeeded is remembered for those who are about to wait for it, and for nothing else."""
    first = await tocsin_app.enqueue(note, "a", id="a", keep=0)
    await tocsin_app.enqueue(note, "b", after=[first])
    await run_all(tocsin_app)
    assert await first.status() == "succeeded"
    with pytest.raises(UnknownJob, match="not kept"):
        await first.result()
    assert await (await tocsin_app.enqueue(note, "c", after=[first])).status() == "waiting"
    assert (await tocsin_app.enqueue(note, "a", id="a", keep=0)).new


# Its own time, and what a person may do


async def test_it_is_not_before_its_own_time(
    tocsin_app: Tocsin, note: Handler, ran: list[Any], tocsin_clock: ManualClock
) -> None:
    first = await tocsin_app.enqueue(note, "a")
    later = await tocsin_app.enqueue(note, "b", after=[first], delay="10m")
    await run_all(tocsin_app)
    assert (ran, await later.status()) == (["a"], "waiting")
    tocsin_clock.advance("10m")
    await run_all(tocsin_app)
    assert ran == ["a", "b"]


async def test_a_blocked_job_can_be_cancelled_and_removed(tocsin_app: Tocsin, note: Handler, ran: list[Any]) -> None:
    first = await tocsin_app.enqueue(note, "a")
    gone = await tocsin_app.enqueue(note, "b", id="b", after=[first])
    off = await tocsin_app.enqueue(note, "c", id="c", after=[first])
    after_off = await tocsin_app.enqueue(note, "d", id="d", after=[off])
    assert await tocsin_app.remove("b")
    assert await off.cancel()
    assert [await each.status() for each in (gone, off, after_off)] == ["unknown", "cancelled", "cancelled"]
    await run_all(tocsin_app)
    assert ran == ["a"]


async def test_a_pause_is_obeyed_when_it_is_free(tocsin_app: Tocsin, note: Handler, ran: list[Any]) -> None:
    first = await tocsin_app.enqueue(note, "a")
    second = await tocsin_app.enqueue(note, "b", id="b", after=[first])
    third = await tocsin_app.enqueue(note, "c", id="c", after=[first])
    assert await tocsin_app.pause("b")
    assert await tocsin_app.pause("c")
    assert await tocsin_app.resume("c")
    assert await second.status() == await third.status() == "blocked"
    await run_all(tocsin_app)
    assert (ran, await second.status()) == (["a", "c"], "paused")
    assert await tocsin_app.resume("b")
    await run_all(tocsin_app)
    assert ran == ["a", "c", "b"]


async def test_an_update_leaves_it_blocked(tocsin_app: Tocsin, note: Handler, ran: list[Any]) -> None:
    first = await tocsin_app.enqueue(note, "a")
    second = await tocsin_app.enqueue(note, "b", id="b", after=[first])
    assert await tocsin_app.update("b", args=("changed",))
    assert await second.status() == "blocked"
    await run_all(tocsin_app)
    assert ran == ["a", "changed"]


@pytest.mark.parametrize(
    ("if_exists", "waits", "stage"),
    [
        ("ignore", False, "blocked"),
        ("replace", False, "waiting"),
        ("postpone", False, "blocked"),
        ("replace", True, "blocked"),
        ("postpone", True, "blocked"),
    ],
)
async def test_it_is_put_again(tocsin_app: Tocsin, note: Handler, if_exists: str, waits: bool, stage: str) -> None:
    first = await tocsin_app.enqueue(note, "a")
    other = await tocsin_app.enqueue(note, "o", delay="1h")
    await tocsin_app.enqueue(note, "b", id="b", after=[first])
    again = await tocsin_app.enqueue(note, "b2", id="b", after=[other] if waits else [], if_exists=if_exists)
    assert (again.new, await again.status()) == (False, stage)
    await run_until_idle(tocsin_app)
    assert await again.status() == ("blocked" if waits else "succeeded")


async def test_a_waiting_job_is_made_to_wait_and_a_running_one_is_not(
    tocsin_app: Tocsin, note: Handler, ran: list[Any]
) -> None:
    refused: list[str] = []

    @tocsin_app.job(name="again")
    async def again() -> None:
        try:
            await tocsin_app.enqueue(again, id="again", after=["other"], if_exists="replace")
        except InvalidArgument as error:
            refused.append(str(error))

    await tocsin_app.enqueue(note, "other", id="other", delay="1h")
    await tocsin_app.enqueue(again, id="again")
    await run_until_idle(tocsin_app)
    assert len(refused) == 1
    assert "is running" in refused[0]
    await tocsin_app.enqueue(note, "b", id="b", delay="1h")
    made = await tocsin_app.enqueue(note, "b", id="b", after=["other"], if_exists="replace")
    assert await made.status() == "blocked"


async def test_what_it_waits_for_is_shown(tocsin_app: Tocsin, note: Handler) -> None:
    for name in ("a", "b"):
        await tocsin_app.enqueue(note, id=name, queue="line", delay="1h")
    await tocsin_app.enqueue(note, id="c", after=["a", "b"])
    inspector = Inspector(tocsin_app.store)
    view = await inspector.find("c")
    assert [(each.queue, each.id) for each in view.after] == [("line", "a"), ("line", "b")]
    assert {view.name: view.stages["blocked"] for view in await inspector.queues()} == {"default": 1, "line": 0}


# In bulk


async def test_rows_wait_for_the_same(tocsin_app: Tocsin, note: Handler, ran: list[Any]) -> None:
    first = [await tocsin_app.enqueue(note, n, queue="line") for n in (-2, -1)]
    assert await tocsin_app.enqueue_many(note, [(n,) for n in range(1200)], after=first) == 1200
    await run_all(tocsin_app)
    assert ran[:2] == [-2, -1]
    assert sorted(ran[2:]) == list(range(1200))
    kept = await tocsin_app.enqueue(note, "k", keep="1h")
    await run_all(tocsin_app)
    assert await tocsin_app.enqueue_many(note, [("x",)], after=[kept]) == 1
    await run_all(tocsin_app)
    assert ran[-1] == "x"


# Wrong


async def test_what_cannot_be_is_refused(tocsin_app: Tocsin, note: Handler) -> None:
    await tocsin_app.schedule(note, Every("1h"), id="hourly")
    await tocsin_app.enqueue(note, id="a", delay="1h")
    for options, match in [
        ({"after": ["hourly"]}, "recurs and never ends"),
        ({"after": ["a"], "id": "a", "if_exists": "replace"}, "wait for itself"),
        ({"after": "a"}, r"after=\[\.\.\.\]"),
        ({"after": [7]}, "must be text"),
        ({"after": [f"{n}" for n in range(1001)]}, "at most 1000"),
        ({"after": ["a"], "on_upstream_failure": "runs"}, "did you mean 'run'"),
    ]:
        with pytest.raises(InvalidArgument, match=match):
            await tocsin_app.enqueue(note, **options)
        rest = {name: value for name, value in options.items() if name != "id"}
        with pytest.raises(InvalidArgument, match=match):
            await tocsin_app.enqueue_many(note, [("x",)], ids=["a"], **rest)
    await tocsin_app.enqueue(note, id="a", queue="line")
    with pytest.raises(ConflictingJobs, match="pass the handle"):
        await tocsin_app.enqueue(note, after=["a"])


async def test_an_upstream_that_was_made_to_recur_counts_by_its_next_run(
    tocsin_app: Tocsin, note: Handler, ran: list[Any], tocsin_clock: ManualClock
) -> None:
    await tocsin_app.enqueue(note, "a", id="a", delay="1m")
    await tocsin_app.enqueue(note, "b", after=["a"])
    await tocsin_app.schedule(note, Every("1h"), "a", id="a", if_exists="replace")
    tocsin_clock.advance("1h")
    await run_all(tocsin_app)
    assert ran == ["a", "b"]
