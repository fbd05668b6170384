"""Results: what a handler returned, kept for those who ask, within bounds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from tests.support.captured_logs import capture_logs
from tocsin import ResultLost
from tocsin.model.outcome import LARGEST_RESULT
from tocsin.store.store import Store
from tocsin.testing import run_until_idle


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -5, 2**63, 1.5, "", "text 🔔", b"\x00\xff", [], [1, [2, {"a": None}]], {"a": {"b": [1.5]}}],
    ids=repr,
)
async def test_a_result_comes_back_as_it_was(tocsin_app, value):
    @tocsin_app.job
    async def returns():
        return value

    handle = await tocsin_app.enqueue(returns, id="r")
    await run_until_idle(tocsin_app)
    assert await handle.status() == "succeeded"
    assert await handle.result() == value


async def test_richer_results_come_back_as_plain_data(tocsin_app):
    @dataclass
    class Point:
        x: int
        y: int

    @tocsin_app.job
    async def returns():
        return {"point": Point(1, 2), "pair": (1, 2), "at": datetime(2030, 1, 1, tzinfo=UTC), "set": {7}}

    handle = await tocsin_app.enqueue(returns, id="r")
    await run_until_idle(tocsin_app)
    result = await handle.result()
    assert (result["point"], result["pair"], result["set"]) == ({"x": 1, "y": 2}, [1, 2], [7])


async def test_a_result_that_cannot_be_packed_is_lost_with_a_warning_and_an_error_for_who_asks(tocsin_app):
    @tocsin_app.job
    async def returns():
        return object()

    handle = await tocsin_app.enqueue(returns)
    with capture_logs() as logs:
        await run_until_idle(tocsin_app)
    [warning] = [entry for entry in logs if entry["log_level"] == "warning"]
    assert (warning["event"].partition(":")[0], warning["handler"]) == ("result lost", returns.name)
    assert await handle.status() == "succeeded"
    with pytest.raises(ResultLost, match="cannot be packed") as raised:
        await handle.result()
    assert raised.value.job_id == handle.id


async def test_a_result_that_refers_to_itself_is_lost_too(tocsin_app):
    @tocsin_app.job
    async def returns():
        loop: list = []
        loop.append(loop)
        return loop

    handle = await tocsin_app.enqueue(returns)
    await run_until_idle(tocsin_app)
    with pytest.raises(ResultLost):
        await handle.result()


@pytest.mark.parametrize("size", [66_000, LARGEST_RESULT - 5])
async def test_a_result_is_kept_up_to_half_a_mebibyte(tocsin_app, size):
    @tocsin_app.job
    async def returns():
        return b"x" * size

    handle = await tocsin_app.enqueue(returns)
    await run_until_idle(tocsin_app)
    assert await handle.result() == b"x" * size


async def test_a_larger_result_is_lost_with_a_warning_and_an_error_for_who_asks(tocsin_app):
    @tocsin_app.job
    async def returns():
        return b"x" * LARGEST_RESULT

    handle = await tocsin_app.enqueue(returns)
    with capture_logs() as logs:
        await run_until_idle(tocsin_app)
    [warning] = [entry for entry in logs if entry["log_level"] == "warning"]
    assert (warning["handler"], "524293 bytes, the limit is 524288" in warning["why"]) == (returns.name, True)
    assert await handle.status() == "succeeded"
    with pytest.raises(ResultLost, match=r"limits\.result-bytes"):
        await handle.result()


async def test_a_job_whose_result_was_lost_is_remembered_by_its_id_like_any_other(tocsin_app):
    @tocsin_app.job
    async def returns():
        return object()

    await tocsin_app.enqueue(returns, id="chosen")
    await run_until_idle(tocsin_app)
    assert not (await tocsin_app.enqueue(returns, id="chosen")).new
    assert await run_until_idle(tocsin_app) == 0


async def test_a_handler_that_loses_every_result_does_not_fill_the_log(tocsin_app):
    @tocsin_app.job
    async def returns():
        return object()

    for _ in range(50):
        await tocsin_app.enqueue(returns)
    with capture_logs() as logs:
        await run_until_idle(tocsin_app)
    assert len([entry for entry in logs if entry["log_level"] == "warning"]) == 1


async def test_nobody_is_warned_of_a_result_that_is_not_kept_anyway(tocsin_app):
    @tocsin_app.job
    async def returns():
        return object()

    await tocsin_app.enqueue_many(returns, [()])
    with capture_logs() as logs:
        await run_until_idle(tocsin_app)
    assert [entry for entry in logs if entry["log_level"] == "warning"] == []


async def test_large_results_of_one_batch_go_in_several_calls(tocsin_app):
    """A script never takes more than about 4 MiB, and the server no more than 512 MiB at once."""

    tocsin_app.queue("mail", partitions=1)

    @tocsin_app.job(queue="mail")
    async def returns(n):
        return bytes([n]) * 500_000

    handles = [await tocsin_app.enqueue(returns, n) for n in range(20)]
    sent: list[int] = []
    worker_calls = Store.call_all

    async def watched(store, calls):
        sent.extend(len(call.args[1]) for call in calls if call.script.name == "run_finish")
        return await worker_calls(store, calls)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "call_all", watched)
        await run_until_idle(tocsin_app)
    assert [await handle.result() for handle in handles] == [bytes([n]) * 500_000 for n in range(20)]
    assert max(sent) < 3 * 1024 * 1024


async def test_a_result_is_kept_for_ten_minutes(tocsin_app, tocsin_clock):
    @tocsin_app.job
    async def returns():
        return 42

    handle = await tocsin_app.enqueue(returns)
    await run_until_idle(tocsin_app)
    assert (await handle.result(), await handle.status()) == (42, "succeeded")
    assert await _kept_for(tocsin_app, tocsin_clock, handle) == 600


@pytest.mark.parametrize(
    ("of_handler", "of_call", "kept"),
    [(None, "1h", 3600), ("1h", None, 3600), ("1h", "2h", 7200), ("1h", 0, None), (0, None, None), (0, "1m", 60)],
)
async def test_a_handler_says_how_long_and_the_call_knows_better(tocsin_app, tocsin_clock, of_handler, of_call, kept):
    @tocsin_app.job(keep=of_handler)
    async def returns():
        return 42

    handle = await tocsin_app.enqueue(returns, keep=of_call)
    await run_until_idle(tocsin_app)
    assert await _kept_for(tocsin_app, tocsin_clock, handle) == kept


@pytest.mark.parametrize(("of_handler", "kept"), [(None, 86_400), ("1h", 86_400), (0, 86_400), ("7d", 7 * 86_400)])
async def test_an_id_is_remembered_for_a_day_and_no_handler_shortens_that(tocsin_app, tocsin_clock, of_handler, kept):
    @tocsin_app.job(keep=of_handler)
    async def returns():
        return 42

    handle = await tocsin_app.enqueue(returns, id="chosen")
    await run_until_idle(tocsin_app)
    assert await _kept_for(tocsin_app, tocsin_clock, handle) == kept


async def test_bulk_keeps_nothing_unless_it_is_asked_to(tocsin_app, tocsin_clock):
    @tocsin_app.job
    async def returns(n):
        return n

    @tocsin_app.job(keep="1h")
    async def keeps(n):
        return n

    await tocsin_app.enqueue_many(returns, [(1,)])
    await run_until_idle(tocsin_app)
    assert await _remembered(tocsin_app) == {}
    await tocsin_app.enqueue_many(keeps, [(1,)])
    await tocsin_app.enqueue_many(returns, [(1,)], keep="2h")
    await tocsin_app.enqueue_many(returns, [(1,)], ids=["chosen"])
    await run_until_idle(tocsin_app)
    kept = set((await _remembered(tocsin_app)).values())
    assert kept == {tocsin_clock.ms + seconds * 1000 for seconds in (3600, 7200, 86_400)}


async def test_a_batch_handler_keeps_the_outcome_of_each_run(tocsin_app):
    @tocsin_app.job(batch=10)
    async def doubles(runs):
        return [run.args[0] * 2 for run in runs]

    handles = [await tocsin_app.enqueue(doubles, n) for n in range(5)]
    await run_until_idle(tocsin_app)
    assert [await handle.result() for handle in handles] == [0, 2, 4, 6, 8]


async def _remembered(app) -> dict[bytes, float]:
    queue = await app.store.find_queue("default")
    pages = [await app.store.client.zrange(keys["done"], 0, -1, withscores=True) for keys in queue.keys]
    return {member: until for page in pages for member, until in page}


async def _kept_for(app, clock, handle) -> float | None:
    """Seconds from now."""
    until = (await _remembered(app)).get(handle.id.encode())
    return None if until is None else (until - clock.ms) / 1000


async def test_a_result_that_readers_could_not_decode_is_lost(tocsin_app):
    @tocsin_app.job
    async def returns(levels):
        value = []
        for _ in range(levels - 1):
            value = [value]
        return value

    deepest, deeper = [await tocsin_app.enqueue(returns, levels) for levels in (64, 65)]
    await run_until_idle(tocsin_app)
    assert await deepest.result()
    with pytest.raises(ResultLost, match="nested more than 64 levels deep"):
        await deeper.result()
