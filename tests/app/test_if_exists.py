"""`if_exists`: the same id again, in each stage."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.waiting import Gate, eventually
from tocsin import InvalidArgument
from tocsin.testing import run_until_idle


async def test_the_same_id_again_changes_nothing(tocsin_app, tocsin_clock, note, ran):
    first = await tocsin_app.enqueue(note, 1, id="j", delay="1m")
    again = await tocsin_app.enqueue(note, 2, id="j", delay="1h")
    assert (first.new, again.new) == (True, False)
    tocsin_clock.advance("1m")
    assert await run_until_idle(tocsin_app) == 1
    assert ran == [1]


async def test_replace_changes_arguments_and_time(tocsin_app, tocsin_clock, note, ran):
    await tocsin_app.enqueue(note, 1, id="j", delay="1h")
    again = await tocsin_app.enqueue(note, 2, id="j", delay="1m", if_exists="replace")
    assert not again.new
    tocsin_clock.advance("1m")
    assert await run_until_idle(tocsin_app) == 1
    tocsin_clock.advance("1h")
    assert await run_until_idle(tocsin_app) == 0
    assert ran == [2]


async def test_postpone_runs_the_last_one_once_things_are_quiet(tocsin_app, tocsin_clock, note, ran):
    for n in range(5):
        handle = await tocsin_app.enqueue(note, n, id="j", delay="10s", if_exists="postpone")
        assert handle.new is (n == 0)
        tocsin_clock.advance("9s")
        assert await run_until_idle(tocsin_app) == 0
    tocsin_clock.advance("1s")
    assert await run_until_idle(tocsin_app) == 1
    assert ran == [4]


async def test_a_job_that_has_ended_is_remembered_for_a_day(tocsin_app, tocsin_clock, note, ran):
    await tocsin_app.enqueue(note, 1, id="j")
    await run_until_idle(tocsin_app)
    tocsin_clock.advance("23h")
    again = await tocsin_app.enqueue(note, 2, id="j")
    assert not again.new
    assert await run_until_idle(tocsin_app) == 0
    assert await again.result() == 1
    tocsin_clock.advance("1h")
    assert (await tocsin_app.enqueue(note, 3, id="j")).new
    await run_until_idle(tocsin_app)
    assert ran == [1, 3]


@pytest.mark.parametrize(("keep", "remembered"), [(0, False), ("10m", True), ("1m", False)])
async def test_keep_says_how_long_a_job_is_remembered(tocsin_app, tocsin_clock, note, keep, remembered):
    await tocsin_app.enqueue(note, 1, id="j", keep=keep)
    await run_until_idle(tocsin_app)
    tocsin_clock.advance("5m")
    assert (await tocsin_app.enqueue(note, 2, id="j")).new is not remembered


@pytest.mark.parametrize("if_exists", ["replace", "postpone"])
async def test_what_has_ended_runs_again_if_it_is_to_be_replaced(tocsin_app, note, ran, if_exists):
    await tocsin_app.enqueue(note, 1, id="j")
    await run_until_idle(tocsin_app)
    again = await tocsin_app.enqueue(note, 2, id="j", if_exists=if_exists)
    assert again.new
    await run_until_idle(tocsin_app)
    assert ran == [1, 2]
    assert await again.result() == 2


async def test_a_dead_job_is_left_alone_or_replaced(tocsin_app, note, ran):
    await tocsin_app.enqueue(note, 1, id="j", fail="x")
    await run_until_idle(tocsin_app)
    assert not (await tocsin_app.enqueue(note, 2, id="j")).new
    assert (await tocsin_app.get("j")).stage == "dead"
    await tocsin_app.enqueue(note, 3, id="j", if_exists="replace")
    await run_until_idle(tocsin_app)
    assert ran == [1, 3]
    assert await tocsin_app.get("j") is None


async def test_a_paused_job_stays_paused_also_when_it_is_replaced(tocsin_app, tocsin_clock, note, ran):
    await tocsin_app.enqueue(note, 1, id="j")
    await tocsin_app.pause("j")
    await tocsin_app.enqueue(note, 2, id="j", if_exists="replace", delay="1m")
    tocsin_clock.advance("1m")
    assert await run_until_idle(tocsin_app) == 0
    await tocsin_app.resume("j")
    await run_until_idle(tocsin_app)
    assert ran == [2]


@pytest.fixture
async def running(tocsin_app):
    """A job `j` that is inside its handler, in a worker that runs until the test ends."""
    gate, seen = Gate(), []

    @tocsin_app.job(name="held")
    async def held(n):
        seen.append(n)
        await gate.enter(n)
        return n

    await tocsin_app.enqueue(held, 1, id="j")
    working = asyncio.create_task(run_until_idle(tocsin_app))
    await eventually(lambda: gate.inside, "it runs")
    yield held, gate, seen, working
    gate.open()
    await working


async def test_a_working_job_is_left_alone(tocsin_app, running):
    held, gate, seen, working = running
    assert not (await tocsin_app.enqueue(held, 2, id="j")).new
    gate.open()
    await working
    assert seen == [1]


@pytest.mark.parametrize("if_exists", ["replace", "postpone"])
async def test_a_working_job_ends_first_and_its_replacement_runs_after_it(tocsin_app, running, if_exists):
    held, gate, seen, working = running
    handle = await tocsin_app.enqueue(held, 2, id="j", if_exists=if_exists)
    assert not handle.new
    assert gate.most == 1
    gate.open()
    await working
    assert seen == [1, 2]
    assert gate.most == 1
    assert await handle.result() == 2


async def test_a_replacement_that_is_put_while_it_works_keeps_its_time(tocsin_app, tocsin_clock, running):
    held, gate, seen, working = running
    await tocsin_app.enqueue(held, 2, id="j", if_exists="replace", delay="1m")
    gate.open()
    await working
    assert seen == [1]
    assert (await tocsin_app.get("j")).due_ms == tocsin_clock.ms + 60_000


@pytest.mark.parametrize(("if_exists", "near"), [("replcae", "replace"), ("postpne", "postpone"), ("update", "ignore")])
async def test_an_unknown_word_names_the_nearest(tocsin_app, note, if_exists, near):
    with pytest.raises(InvalidArgument, match=near):
        await tocsin_app.enqueue(note, if_exists=if_exists)
