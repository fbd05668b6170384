"""Results: what a handler returned, kept for those who ask, within bounds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from logged import capture_logs
from tocsin import UnknownJob
from tocsin.engine.told import LARGEST_RESULT
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


async def test_a_result_that_cannot_be_stored_is_told_and_the_run_has_succeeded(tocsin_app):
    @tocsin_app.job
    async def returns():
        return object()

    handle = await tocsin_app.enqueue(returns, id="r")
    with capture_logs() as logs:
        await run_until_idle(tocsin_app)
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == ["result cannot be stored"]
    assert await handle.result() is None


async def test_a_result_that_refers_to_itself_is_told_too(tocsin_app):
    @tocsin_app.job
    async def returns():
        loop: list = []
        loop.append(loop)
        return loop

    handle = await tocsin_app.enqueue(returns, id="r")
    await run_until_idle(tocsin_app)
    assert await handle.result() is None


@pytest.mark.parametrize(("size", "kept"), [(LARGEST_RESULT - 5, True), (LARGEST_RESULT + 1, False)])
async def test_a_result_is_kept_up_to_a_limit(tocsin_app, size, kept):
    @tocsin_app.job
    async def returns():
        return b"x" * size

    handle = await tocsin_app.enqueue(returns, id="r")
    await run_until_idle(tocsin_app)
    assert await handle.status() == "succeeded"
    assert await handle.result() == (b"x" * size if kept else None)


async def test_a_result_is_remembered_as_long_as_keep_says(tocsin_app, tocsin_clock):
    @tocsin_app.job
    async def returns():
        return 42

    short = await tocsin_app.enqueue(returns, keep="10m")
    usual = await tocsin_app.enqueue(returns, id="usual")
    unkept = await tocsin_app.enqueue(returns)
    await run_until_idle(tocsin_app)
    assert [await short.result(), await usual.result()] == [42, 42]
    with pytest.raises(UnknownJob):
        await unkept.result()

    tocsin_clock.advance("11m")
    await _another_run_ends(tocsin_app, returns, short)
    assert await short.status() == "unknown"
    assert await usual.result() == 42

    tocsin_clock.advance("1d")
    await _another_run_ends(tocsin_app, returns, usual)
    assert await usual.status() == "unknown"


async def _another_run_ends(app, handler, like) -> None:
    """What is over is forgotten when a run of its partition ends."""
    queue = await app.store.find_queue("default")
    n = 0
    while queue.partition_of(f"n{n}") != queue.partition_of(like.id):
        n += 1
    await app.enqueue(handler, id=f"n{n}", if_exists="replace", keep=0)
    await run_until_idle(app)
