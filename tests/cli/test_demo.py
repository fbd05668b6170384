"""`tocsin demo`: everything is shown, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import until


def traces(folder: Path) -> list[str]:
    """Processes that were told of the folder, by their words or their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            about = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in about and int(process.name) != os.getpid():
            found.append(about.replace(b"\0", b" ").decode(errors="replace")[:200])
    return found


def env(folder: Path) -> dict[str, str]:
    """Its data folder is made in ours, and an address that others have set is not its server."""
    ours = {"TMPDIR": str(folder), "TOCSIN_URL": "redis://127.0.0.1:1", "TERM": "xterm", "COLUMNS": "150"}
    return os.environ | ours


@pytest.fixture(scope="module", autouse=True)
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """One without a terminal, which runs while the other test does."""
    folder = tmp_path_factory.mktemp("demo")
    process = subprocess.Popen(
        [sys.executable, "-m", "tocsin.cli", "demo"],
        env=env(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process, folder
        process.kill()


def test_on_a_terminal_it_is_a_live_table_that_ctrl_c_ends(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    words = [sys.executable, "-m", "tocsin.cli", "demo"]
    process = subprocess.Popen(
        words, env=env(tmp_path), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    said, deadline = b"", time.monotonic() + 40
    while b"order 1 went through" not in said:
        assert time.monotonic() < deadline, said.decode(errors="replace")[-2000:]
        said += os.read(ours, 65536)
    assert traces(tmp_path)
    process.send_signal(signal.SIGINT)
    os.set_blocking(ours, False)

    def ended() -> bool:
        nonlocal said
        with contextlib.suppress(OSError):
            said += os.read(ours, 65536)
        return process.poll() is not None

    until(ended, "the demo ends", within=20)
    os.close(ours)
    assert process.returncode == 0, said.decode(errors="replace")[-2000:]
    assert b"Traceback" not in said
    assert b"count stock" in said
    assert list(tmp_path.iterdir()) == []
    assert traces(tmp_path) == []


def test_without_a_terminal_it_shows_everything_and_ends_by_itself(plain: tuple[subprocess.Popen[str], Path]) -> None:
    process, folder = plain
    out, error = process.communicate(timeout=100)
    assert process.returncode == 0, out + error
    assert error == ""
    lines = out.splitlines()
    assert [line.partition(":")[0] for line in lines[-5:]] == ["shown"] * 5
    for told in ("kill -9 ", "back in line", "at attempt 3", "records are indexed", "agent 'count stock' ran"):
        assert any(told in line for line in lines), told
    assert list(folder.iterdir()) == []
    assert traces(folder) == []
