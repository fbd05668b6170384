"""A handler that blocks the event loop: who notices, what is said, and what becomes of the other runs."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from tests.support.captured_logs import capture_logs
from tests.support.waiting import eventually
from tocsin.engine.loop import repeat
from tocsin.engine.loop_watch import BLOCKED_S, LOOK_S, RECENT_S, WAKING_S, LoopWatch
from tocsin.model.errors import StoreTimeout, StoreUnavailable
from tocsin.telemetry.metrics import Counters


class UntilWarned(logging.Handler):
    """Blocks the thread that calls it until the blockage is in the log."""

    def __init__(self) -> None:
        super().__init__()
        self._warned = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "the event loop is blocked" in record.getMessage():
            self._warned.set()

    def block(self) -> None:
        assert self._warned.wait(30)


@pytest.fixture
def until_warned():
    handler, logger = UntilWarned(), logging.getLogger("tocsin")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def test_a_handler_that_blocks_is_named_with_its_stack_while_it_does_and_the_worker_is_degraded(
    tocsin_app, make_worker, until_warned
):
    secret, meanwhile = "open-sesame", []

    @tocsin_app.job(name="blocks")
    async def blocks(data):
        until_warned.block()
        meanwhile.append(worker.about())

    worker = await make_worker(start=True)
    with capture_logs() as logs:
        await tocsin_app.enqueue(blocks, secret)
        await eventually(lambda: worker.tally.loop_blocked or worker.telemetry.check.health.degraded, "it was noticed")
        await eventually(worker.finisher.idle, "the run is written down")
        await worker.telemetry.check.step()
    [during, after] = [line for line in logs if line["logger"] == "tocsin.loop"]
    assert (during["log_level"], during["handler"], after["handler"]) == ("warning", "blocks", "blocks")
    assert "until_warned.block()" in during["stack"]
    assert after["seconds"] >= BLOCKED_S
    assert secret not in repr(logs)
    [about] = meanwhile
    assert about.health == "DEGRADED"
    assert about.reasons[0].endswith("by blocks")
    assert "the event loop was blocked for" in worker.stats().health.reasons[0]
    assert not [line for line in logs if "server" in line["event"]]


async def test_runs_that_are_past_their_deadline_when_the_loop_wakes_may_end_first(
    tocsin_app, tocsin_clock, make_worker, until_warned
):
    go_on = asyncio.Event()

    @tocsin_app.job(timeout="5s")
    async def waits():
        await go_on.wait()
        # It has some turns of the loop to go: less than the sweep gives it, more than one.
        for _ in range(50):
            await asyncio.sleep(0.005)
        return "done"

    @tocsin_app.job
    async def blocks():
        tocsin_clock.advance("20s")
        go_on.set()
        until_warned.block()

    worker = await make_worker(start=True)
    waiting = await tocsin_app.enqueue(waits, id="waits")
    await eventually(lambda: worker.running, "it waits")
    await tocsin_app.enqueue(blocks)
    await eventually(lambda: worker.pool.ran == 2 and worker.finisher.idle(), "both have ended")
    assert await waiting.status() == "succeeded"


async def test_runs_that_do_not_end_after_the_loop_woke_are_stopped_all_the_same(
    tocsin_app, tocsin_clock, make_worker, until_warned
):
    @tocsin_app.job(timeout="5s")
    async def hangs():
        await asyncio.Event().wait()

    @tocsin_app.job
    async def blocks():
        tocsin_clock.advance("20s")
        until_warned.block()

    worker = await make_worker(start=True)
    hanging = await tocsin_app.enqueue(hangs, id="hangs")
    await eventually(lambda: worker.running, "it hangs")
    await tocsin_app.enqueue(blocks)
    await eventually(lambda: worker.pool.ran == 2 and worker.finisher.idle(), "both have ended")
    assert await hanging.status() == "failed"


# The watch by itself, on a time of its own


class Time:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Watched:
    """The two passes, on the loop and on the thread."""

    def __init__(self) -> None:
        self.time, self.tally = Time(), Counters()
        self.watch = LoopWatch(self.tally, lambda task: "some.handler", self.time)

    async def turn(self, seconds: float) -> None:
        """Both go on as they should."""
        for _ in range(int(seconds / LOOK_S)):
            self.time.now += LOOK_S
            await self.watch.step()
            self.watch.look()

    def look(self, seconds: float) -> None:
        """The loop does not turn, the thread looks."""
        for _ in range(int(seconds / LOOK_S)):
            self.time.now += LOOK_S
            self.watch.look()


@pytest.fixture
async def watched() -> Watched:
    made = Watched()
    await made.turn(LOOK_S)
    return made


async def test_a_blockage_is_warned_of_once_and_counted_when_it_is_over(watched):
    with capture_logs() as logs:
        await watched.turn(5)
        assert (watched.watch.blocked_for(), watched.watch.is_waking(), watched.watch.longest()) == (0, False, 0)
        watched.look(20)
        assert watched.watch.blocked_for() == 20
        assert watched.watch.is_waking()
        [line] = logs
        assert (line["handler"], line["seconds"]) == ("some.handler", BLOCKED_S)
        await watched.turn(LOOK_S)
    assert [line["event"] for line in logs[1:]] == ["the event loop goes on after it was blocked"]
    assert (watched.tally.loop_blocked, watched.tally.loop_blocked_s) == (1, 20 + LOOK_S)
    assert (watched.watch.blocked_for(), watched.watch.longest()) == (0, 20 + LOOK_S)
    assert watched.watch.is_waking()
    await watched.turn(WAKING_S)
    assert not watched.watch.is_waking()
    await watched.turn(RECENT_S)
    assert watched.watch.longest() == 0


async def test_each_blockage_is_warned_of(watched):
    with capture_logs() as logs:
        for _ in range(3):
            watched.look(2)
            await watched.turn(1)
    assert len([line for line in logs if "is blocked" in line["event"]]) == watched.tally.loop_blocked == 3


@pytest.mark.parametrize("first", ["the loop", "the thread"])
async def test_no_handler_is_blamed_when_the_whole_process_stood_still(watched, first):
    with capture_logs() as logs:
        watched.time.now += 600
        if first == "the thread":
            watched.watch.look()
        assert watched.watch.is_waking()
        await watched.watch.step()
        watched.watch.look()
        await watched.turn(5)
    [line] = logs
    assert line["event"].startswith("the process stood still")
    assert (watched.tally.loop_blocked, watched.watch.longest()) == (0, 0)


async def test_a_watch_that_was_not_started_or_was_stopped_sees_no_blockage(watched):
    fresh = Watched()
    for watch in (fresh.watch, watched.watch):
        watch.stop()
    fresh.time.now += 600
    watched.time.now += 600
    for watch in (fresh.watch, watched.watch):
        assert (watch.blocked_for(), watch.longest(), watch.is_waking()) == (0, 0, False)


@pytest.mark.parametrize("error", [StoreTimeout("no answer"), StoreUnavailable("away"), TimeoutError()])
@pytest.mark.parametrize("is_waking", [True, False])
async def test_a_pass_that_the_blockage_cut_off_does_not_blame_the_server(error, is_waking):
    stop = asyncio.Event()

    class Part:
        name = "fetch"
        wake = asyncio.Event()

        async def step(self) -> float:
            stop.set()
            raise error

    with capture_logs() as logs:
        await repeat(Part(), stop, is_waking=lambda: is_waking)
    [line] = logs
    assert ("the event loop stood still" in line["event"]) == is_waking
