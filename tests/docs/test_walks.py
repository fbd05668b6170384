"""The walks of ARCHITECTURE.md: what each describes is done here, and calls what it names, in that order."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.support.waiting import eventually
from tests.support.worker_fixtures import make_worker
from tocsin import Retry

__all__ = ["make_worker"]

ROOT = Path(__file__).parents[2]
SOURCE = str(ROOT / "src" / "tocsin") + "/"


def walk(title: str) -> list[tuple[str, str]]:
    """The file and the function of each step."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    section = text.split(f"### {title}\n", 1)[1].split("\n#", 1)[0]
    return re.findall(r"^\d+\. `([\w/]+\.py)` `(\w+)`", section, flags=re.MULTILINE)


@contextmanager
def entered() -> Iterator[list[tuple[str, str]]]:
    """The functions that are called, with their files, in the order of their first calls."""
    files: dict[tuple[str, str], None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            files.setdefault((frame.f_code.co_filename.removeprefix(SOURCE), frame.f_code.co_name))

    order: list[tuple[str, str]] = []
    sys.setprofile(note)
    try:
        yield order
    finally:
        sys.setprofile(None)
        order += files


def assert_walked(title: str, order: list[tuple[str, str]]) -> None:
    steps = walk(title)
    assert len(steps) >= 5
    assert [step for step in steps if step not in order] == []
    assert [step for step in order if step in steps] == steps


@pytest.fixture
async def shop(tocsin_app, make_worker):
    """A worker that has run each kind of job once: what is made once has been made."""

    @tocsin_app.job(name="sell")
    async def sell() -> None: ...

    @tocsin_app.job(name="fail", retry=Retry(3, "10m"))
    async def fail() -> None:
        raise ValueError("no luck")

    @tocsin_app.job(name="hold", timeout="1h")
    async def hold() -> None:
        await asyncio.Event().wait()

    worker = await make_worker()
    for job in (sell, fail):
        await tocsin_app.enqueue(job)
    await run(worker)
    return tocsin_app, worker, sell, fail, hold


async def claim(worker) -> None:
    for served in worker.served.values():
        served.forget_dues()
    ran = worker.pool.ran
    await worker.fetcher.step()
    await eventually(lambda: worker.pool.ran > ran, "the run has ended")


async def run(worker) -> None:
    await claim(worker)
    while not worker.finisher.idle():
        await worker.finisher.step()


async def test_a_put(shop):
    app, _, sell, _, _ = shop
    with entered() as order:
        await app.enqueue(sell)
    assert_walked("A put", order)


async def test_from_due_to_started(shop):
    app, worker, sell, _, _ = shop
    await app.enqueue(sell)
    with entered() as order:
        await claim(worker)
    assert_walked("From due to started", order)


async def test_from_ended_to_written_or_to_the_next_attempt(shop):
    app, worker, _, fail, _ = shop
    await app.enqueue(fail)
    for served in worker.served.values():
        served.forget_dues()
    await worker.fetcher.step()
    with entered() as order:
        await eventually(lambda: not worker.finisher.idle(), "the run has ended")
        while not worker.finisher.idle():
            await worker.finisher.step()
    assert_walked("From ended to written, or to the next attempt", order)


async def test_from_a_dead_worker_to_its_runs(shop, make_worker, tocsin_clock):
    app, dead, _, _, hold = shop
    observer = await make_worker()
    observer._loop = asyncio.get_running_loop()
    await app.enqueue(hold)
    for served in dead.served.values():
        served.forget_dues()
    await dead.fetcher.step()
    assert dead.pool.busy
    reaper = observer.parts.upkeep.reaper
    with entered() as order:
        for _ in range(20):
            tocsin_clock.advance("2s")
            # On this thread, which is the one that is traced.
            observer.heart.beat()
            await asyncio.sleep(0)
            await reaper.step()
    assert reaper.recovered == 1
    assert_walked("From a dead worker to its runs", order)
