"""Signals belong to the program: a worker in it takes them only if it is asked to, and gives them back."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys

import pytest

from tests.support.python_path import PYTHON_PATH
from tests.support.waiting import Gate, eventually
from tocsin import Tocsin
from tocsin.app.run_worker import stop_signals

BOTH = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture
async def app(tocsin_server):
    async with Tocsin(tocsin_server.url, prefix=f"work-{secrets.token_hex(4)}:") as app:
        yield app


@pytest.fixture
def own():
    """The program's own handlers: what they were called with."""
    heard: list[int] = []

    def hear(number, _):
        heard.append(number)

    before = {number: signal.signal(number, hear) for number in BOTH}
    yield heard
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", BOTH)
async def test_one_signal_ends_a_web_server_with_a_worker_in_it(tocsin_server, number):
    prefix = f"host-{secrets.token_hex(4)}:"
    env = os.environ | {"PYTHONPATH": PYTHON_PATH}
    host = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.web_server_process",
        tocsin_server.url,
        prefix,
        stdout=asyncio.subprocess.PIPE,
        env=env,
    )
    assert host.stdout is not None
    try:
        said = b""
        while b"hello\n" not in said:
            some = await asyncio.wait_for(host.stdout.readline(), 30)
            assert some, "it has ended"
            said += some
        host.send_signal(number)
        assert b"bye\n" in await asyncio.wait_for(host.stdout.read(), 30)
        await asyncio.wait_for(host.wait(), 10)
    finally:
        if host.returncode is None:
            host.kill()
            await host.wait()


async def test_a_worker_leaves_signals_alone(app, own):
    gate = Gate()

    @app.job
    async def held():
        await gate.enter()

    await app.enqueue(held)
    before = [signal.getsignal(number) for number in BOTH]
    working = asyncio.create_task(app.work())
    await eventually(lambda: gate.inside, "it runs")
    assert [signal.getsignal(number) for number in BOTH] == before
    for number in BOTH:
        os.kill(os.getpid(), number)
    await eventually(lambda: own == list(BOTH), "the program heard both")
    assert not working.done()
    gate.open()
    working.cancel()
    await asyncio.wait([working])


@pytest.mark.parametrize("ends", ["idle", "cancelled", "signal"])
async def test_signals_that_a_worker_was_given_do_what_they_did_when_it_has_ended(app, own, ends):
    @app.job
    async def job():
        pass

    handle = await app.enqueue(job)
    before = [signal.getsignal(number) for number in BOTH]
    working = asyncio.create_task(app.work(signals=True, until="idle" if ends == "idle" else "stopped"))
    if ends != "idle":
        await handle.result("10s")
        assert signal.getsignal(signal.SIGTERM) not in before
    if ends == "cancelled":
        working.cancel()
    if ends == "signal":
        os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait([working], timeout=20)
    assert working.done()
    assert [signal.getsignal(number) for number in BOTH] == before
    assert own == []
    os.kill(os.getpid(), signal.SIGINT)
    await eventually(lambda: own == [signal.SIGINT], "the program hears it again")


async def test_handlers_of_the_event_loop_work_again_afterwards(app):
    """Others have set them with `loop.add_signal_handler`."""
    heard: list[str] = []
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, heard.append, "heard")
    await app.work(signals=True, until="idle")
    os.kill(os.getpid(), signal.SIGTERM)
    await eventually(lambda: heard == ["heard"], "the program's handler was called")
    loop.remove_signal_handler(signal.SIGTERM)


@pytest.mark.parametrize(("before", "stops"), [(signal.SIG_DFL, True), (signal.SIG_IGN, False)])
def test_a_closed_terminal_stops_a_worker_unless_it_was_started_with_nohup(before, stops):
    kept = signal.signal(signal.SIGHUP, before)
    try:
        assert (signal.SIGHUP in stop_signals()) is stops
    finally:
        signal.signal(signal.SIGHUP, kept)
