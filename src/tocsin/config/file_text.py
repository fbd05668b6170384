"""The text of the file."""

from __future__ import annotations

from tocsin.config.origins import Origin, Problem
from tocsin.model.errors import InvalidConfig

# All settings with a page of comments each are far below it; beyond it the parser would take minutes.
LARGEST_BYTES = 256 * 1024


def read_text(path: str) -> str:
    """Raises FileNotFoundError, so that a file that nobody asked for may be missing."""
    where = Origin(file=path)
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_BYTES + 1)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidConfig(str(Problem(where, f"cannot be read: {reason}"))) from None
    if len(data) > LARGEST_BYTES:
        raise InvalidConfig(str(Problem(where, f"is larger than {LARGEST_BYTES // 1024} KiB: not a configuration")))
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        where = Origin(file=path, line=data.count(b"\n", 0, error.start) + 1)
        raise InvalidConfig(str(Problem(where, "is not UTF-8"))) from None
