"""The only loop: pass after pass until it is stopped, whatever a pass does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.support.captured_logs import capture_logs
from tests.support.waiting import eventually
from tocsin import StoreFull, StoreUnavailable
from tocsin.engine.loop import end, repeat, wait


class Steps:
    """A part whose passes do what a list says: a number is a rest, an exception is raised."""

    name = "steps"

    def __init__(self, *script: float | BaseException | Callable[[], float], then: float = 60.0) -> None:
        self.wake = asyncio.Event()
        self.passes = 0
        self.failing = False
        self.held = 0.0
        self._script = list(script)
        self._then = then

    async def step(self) -> float:
        self.passes += 1
        what = self._script.pop(0) if self._script else self._then
        if isinstance(what, BaseException):
            raise what
        return what() if callable(what) else what


@pytest.fixture
async def run():
    """Run a part in the background until the test ends."""
    stop, tasks = asyncio.Event(), []

    def start(part: Steps) -> Steps:
        work = repeat(part, stop, is_failing=lambda: part.failing, held=lambda: part.held)
        tasks.append((part, asyncio.create_task(work)))
        return part

    yield start
    stop.set()
    for part, task in tasks:
        part.wake.set()
        await asyncio.wait_for(task, 5)


async def test_a_pass_that_says_there_is_more_is_followed_at_once(run):
    part = run(Steps(*[0.0] * 99))
    await eventually(lambda: part.passes == 100, "100 passes")


async def test_other_tasks_get_a_turn_although_there_is_always_more(run):
    part = run(Steps(then=0.0))
    await eventually(lambda: part.passes > 50, "50 passes")


async def test_a_resting_part_is_woken(run):
    part = run(Steps())
    await eventually(lambda: part.passes == 1, "the first pass")
    part.wake.set()
    await eventually(lambda: part.passes == 2, "the pass after the wake")


async def test_a_wake_during_a_pass_is_not_lost(run):
    part = Steps()
    part._script.append(lambda: part.wake.set() or 60.0)
    run(part)
    await eventually(lambda: part.passes == 2, "another pass")


@pytest.mark.parametrize("error", [ValueError("a mistake"), StoreUnavailable("away"), RecursionError(), TimeoutError()])
async def test_a_failing_pass_is_tried_again_and_never_ends_the_loop(run, error):
    part = run(Steps(error, error))
    await eventually(lambda: part.passes == 3, "the pass after two failures")


async def test_a_series_of_failures_is_told_once_and_so_is_its_end(run):
    with capture_logs() as logs:
        part = run(Steps(StoreUnavailable("away"), StoreUnavailable("away"), ValueError("x")))
        await eventually(lambda: part.passes == 4, "the pass after three failures")
    told = [(entry["log_level"], entry["event"]) for entry in logs]
    assert told == [("warning", "server away, trying again"), ("info", "recovered")]
    assert logs[1]["failed_passes"] == 3


async def test_a_pass_that_did_nothing_since_a_failure_is_no_recovery(run):
    with capture_logs() as logs:
        part = Steps(StoreUnavailable("away"), 0.0, StoreUnavailable("away"), 0.0, 0.0)
        part.failing = True
        run(part)
        await eventually(lambda: part.passes == 6, "all passes")
        assert [entry["event"] for entry in logs] == ["server away, trying again"]
        part.failing = False
        part.wake.set()
        await eventually(lambda: len(logs) == 2, "a pass that did something")
    assert (logs[1]["event"], logs[1]["failed_passes"]) == ("recovered", 2)


async def test_a_full_server_is_not_said_to_be_away(run):
    with capture_logs() as logs:
        part = run(Steps(StoreFull("full")))
        await eventually(lambda: part.passes == 2, "the pass after the failure")
    assert logs[0]["event"] == "server is full, trying again"


async def test_a_mistake_is_told_with_its_traceback(run):
    error = ValueError("a mistake")
    with capture_logs() as logs:
        part = run(Steps(error))
        await eventually(lambda: part.passes == 2, "the pass after the failure")
    assert logs[0]["exc_info"] is error


async def test_a_stopped_loop_ends_after_the_pass_it_is_in():
    stop = asyncio.Event()
    part = Steps()
    part._script.append(lambda: stop.set() or 0.0)
    await asyncio.wait_for(repeat(part, stop), 5)
    assert part.passes == 1


async def test_cancelling_the_loop_ends_it():
    part = Steps()
    task = asyncio.create_task(repeat(part, asyncio.Event()))
    await eventually(lambda: part.passes == 1, "the first pass")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_task_that_swallows_a_cancellation_is_ended_all_the_same():
    swallowed = 0

    async def stubborn():
        nonlocal swallowed
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed == 3:
                    raise

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await asyncio.wait_for(end(task), 10)
    assert task.cancelled()
    assert swallowed == 3


async def test_waiting_ends_with_the_event_or_with_the_time():
    event = asyncio.Event()
    await asyncio.wait_for(wait(event, 0.001), 5)
    event.set()
    await asyncio.wait_for(wait(event, 1e6), 5)


async def test_a_part_that_is_held_rests_until_it_is_let_go_and_then_does_what_it_was_woken_for(run):
    part = Steps()
    part.held = 3600.0
    run(part)
    for _ in range(3):
        part.wake.set()
        for _ in range(20):
            await asyncio.sleep(0)
    assert part.passes == 0
    part.held = 0.0
    part.wake.set()
    await eventually(lambda: part.passes == 1, "its pass")


async def test_a_part_that_is_held_looks_again_when_its_time_is_over(run):
    part = Steps()
    part.held = 0.01
    run(part)
    await asyncio.sleep(0)
    part.held = 0.0
    await eventually(lambda: part.passes == 1, "its pass")
