"""Several receivers with one memory, and receivers that are killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.once_work import KEY, Work, tried
from tests.support.python_path import PYTHON_PATH
from tests.support.waiting import until
from tocsin.receive import Once, StillRunning

Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def effects(tmp_path: Path) -> Path:
    return tmp_path / "effects"


@pytest.fixture
def start(where: str, name: str, effects: Path) -> Iterator[Start]:
    """Another process with the same memory."""
    running = []

    def begin(what: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.support.once_process", what, where, name, KEY, str(effects)]
        running.append(
            subprocess.Popen(command, env=os.environ | {"PYTHONPATH": PYTHON_PATH}, stdout=subprocess.PIPE, text=True)
        )
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def test_of_the_callers_in_several_processes_one_does_the_work(start: Start, effects: Path):
    answers = []
    for process in [start("crowd") for _ in range(3)]:
        told, _ = process.communicate(timeout=90)
        assert process.returncode == 0
        answers += json.loads(told)
    assert len(answers) == 60
    assert len(set(answers)) == 1
    assert effects.read_text() == "effect\n"


async def test_who_is_killed_frees_the_key_when_its_lease_is_over(start: Start, effects: Path, where: str, name: str):
    first = start("die")
    until(effects.exists, "the first is at work", within=30)
    async with Once(where, name=name) as once:
        with pytest.raises(StillRunning) as told:
            await once(KEY, Work().quickly)
        assert told.value.retry_after_s <= 2
        first.kill()
        assert await tried(once, KEY, Work("the next").quickly) == "the next"
