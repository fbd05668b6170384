"""The command line."""

from __future__ import annotations

import sys


def main() -> None:
    """The console script `tocsin`."""
    # Not at the top: worker processes import modules of this package without parsing a command line.
    from tocsin.cli.main import run

    sys.exit(run(sys.argv[1:]))
