"""Asking before something is removed for good."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from tocsin.cli.options import Options, WrongUsage
from tocsin.cli.printing import say

Yes = Annotated[bool, Parameter(name=["--yes", "-y"], negative="", show_default=False, help="Do not ask.")]


def confirm(options: Options, yes: bool, question: str) -> bool:
    """Whether to do it. Raises WrongUsage where nobody can be asked."""
    if yes:
        return True
    if options.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise WrongUsage("nothing was changed: say --yes to do it")
    say(f"{question} [y/N]")
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    say("nothing was changed")
    return False
