"""Ask before something is removed for good, and report what was removed."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from tocsin.app.bulk_control import Removed
from tocsin.cli.options import Options, WrongUsage
from tocsin.cli.printing import print_json, say

Yes = Annotated[bool, Parameter(name=["--yes", "-y"], negative="", show_default=False, help="Do not ask.")]


def confirm(options: Options, yes: bool, question: str) -> bool:
    """Whether to go on. Raises WrongUsage if there is no terminal to ask on."""
    if yes:
        return True
    if options.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise WrongUsage("nothing was changed: say --yes to do it")
    say(f"{question} [y/N]")
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    say("nothing was changed")
    return False


def print_removed(removed: Removed, options: Options, **more: str) -> None:
    if options.json:
        print_json({**more, "removed": removed.removed, "running": removed.running})
        return
    running = f"; {removed.running} still running, to be removed when their runs end" if removed.running else ""
    print(f"removed {count_of_jobs(removed.removed)}{running}")


def count_of_jobs(count: int) -> str:
    return f"{count} job{'' if count == 1 else 's'}"
