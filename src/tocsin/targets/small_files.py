"""Files that jobs name: read if they are files, and never waited for."""

from __future__ import annotations

import os
import stat


def read_text(real: str, largest: int) -> str:
    """The beginning of a file, by its real path. Raises OSError, also for a pipe, a device or a folder, and
    UnicodeDecodeError."""
    descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, encoding="utf-8") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{real} is no file")
        return file.read(largest)
