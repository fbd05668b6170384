"""The command line."""

from __future__ import annotations

import sys


def main() -> None:
    """The console script `tocsin`."""
    # Not at the top: modules of this package are imported by worker processes that parse nothing.
    from tocsin.cli.main import run

    sys.exit(run(sys.argv[1:]))
