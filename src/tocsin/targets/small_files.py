"""Reads files that jobs name. Pipes and devices, which may block for ever, are refused."""

from __future__ import annotations

import os
import stat


def read_text(real: str, largest: int) -> str:
    """The first `largest` characters of a file; `real` is its path without links. Raises OSError, also for a pipe, a
    device or a folder, and UnicodeDecodeError."""
    descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, encoding="utf-8") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{real} is not a file")
        return file.read(largest)
