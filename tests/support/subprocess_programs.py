"""Programs to be started by workers: scripts in a folder, and whether they are still there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.support.waiting import eventually

BEGIN = f"""#!{sys.executable} -IS
import os, signal, sys, time
HERE = os.path.dirname(os.path.abspath(__file__))
def note(name, text):
    with open(f"{{HERE}}/{{name}}.part", "w") as file:
        file.write(str(text))
    os.rename(f"{{HERE}}/{{name}}.part", f"{{HERE}}/{{name}}")
"""
# Says who it is, and stays.
STAYS = 'note("pid", os.getpid())\nwhile True: time.sleep(60)\n'


def make(folder: Path, body: str, name: str = "program") -> str:
    path = folder / name
    path.write_text(BEGIN + body)
    path.chmod(0o755)
    return str(path)


async def noted(folder: Path, name: str) -> str:
    """What the program noted, as soon as it has."""
    await eventually((folder / name).exists, f"the program notes its {name}", within=30)
    return (folder / name).read_text()


def is_alive(pid: int) -> bool:
    """Also what has ended and nobody has asked about is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def gone(*pids: int, within: float = 10.0) -> None:
    await eventually(lambda: not any(map(is_alive, pids)), "they are gone", within=within)
