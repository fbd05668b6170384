"""The command line in the hands of a test: as a process of its own, or called, on a real server."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from tests.support.apps import shop
from tests.support.waiting import until
from tocsin import Tocsin
from tocsin.cli.main import run

# Commands run here, so that `shop:app` is the module of that name.
APPS = Path(__file__).parent / "apps"


class Running:
    """A command that runs on; what it says goes to a file, so that nothing ever blocks."""

    def __init__(self, words: list[str], log: Path, **options: Any) -> None:
        self.log = log
        with log.open("wb") as out:
            options = {"cwd": APPS, "stdin": subprocess.DEVNULL, "stdout": out, "stderr": out} | options
            self.process = subprocess.Popen([sys.executable, "-m", "tocsin.cli", *words], **options)

    @property
    def said(self) -> str:
        return self.log.read_text()

    def until_it_says(self, text: str, within: float = 20) -> None:
        until(lambda: text in self.said or self._ended(text), f"it says {text!r}", within=within)

    def _ended(self, text: str) -> bool:
        if self.process.poll() is not None and text not in self.said:
            raise AssertionError(f"ended with {self.process.returncode} before it said {text!r}:\n{self.said}")
        return False

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, within: float = 20) -> int:
        return self.process.wait(within)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Tool:
    """`tocsin`, told of the test's server and namespace, and an app to put jobs with."""

    def __init__(self, url: str, prefix: str, folder: Path) -> None:
        self.url, self.prefix = url, prefix
        # The shop has agents, which need one on a cluster.
        self.hash_tag = "ps" if url.startswith("redis+cluster:") else ""
        self._folder = folder
        self._running: list[Running] = []

    @property
    def where(self) -> list[str]:
        return ["--url", self.url, "--prefix", self.prefix, "--hash-tag", self.hash_tag]

    def __call__(self, *words: str, code: int = 0) -> str:
        """What it prints; with another exit code than 0, what it says to stderr. A process of its own."""
        ran = self.process(*words)
        assert ran.returncode == code, f"{ran.returncode}\n{ran.stdout}\n{ran.stderr}"
        assert "Traceback" not in ran.stderr
        return ran.stderr if code else ran.stdout

    def process(self, *words: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "tocsin.cli", *words, *self.where]
        return subprocess.run(line, cwd=APPS, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)

    def quick(self, *words: str, code: int = 0) -> str:
        """The same, without the second that a process takes to start."""
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as error:
            got = run([*words, *self.where])
        assert got == code, error.getvalue()
        return error.getvalue() if code else out.getvalue()

    def json(self, *words: str, code: int = 0) -> Any:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert run(["--json", *self.where, *words]) == code
        return json.loads(out.getvalue())

    def start(self, *words: str, **options: Any) -> Running:
        running = Running([*words, *self.where], self._folder / f"log{len(self._running)}", **options)
        self._running.append(running)
        return running

    def worker(self, *words: str) -> Running:
        """A worker that is at work already."""
        running = self.start("worker", "shop:app", *words)
        running.until_it_says("worker started")
        return running

    def app(self) -> Tocsin:
        return Tocsin(self.url, prefix=self.prefix, hash_tag=self.hash_tag, registry=shop.app.declarations)

    def do(self, work: Callable[[Tocsin], Coroutine[Any, Any, Any]]) -> Any:
        async def opened() -> Any:
            async with self.app() as app:
                return await work(app)

        return asyncio.run(opened())

    def close(self) -> None:
        for running in self._running:
            running.kill()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
