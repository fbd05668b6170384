"""The version of the zone database that this process reads."""

from __future__ import annotations

import re
import zlib
import zoneinfo
from functools import cache
from pathlib import Path

_IANA = re.compile(r"\d{4}[a-z]{1,2}")


@cache
def version() -> str:
    """The IANA version (like 2026a) of the system's database, else of the package tzdata: zoneinfo's own order."""
    for root in map(Path, zoneinfo.TZPATH):
        if (root / "Etc" / "UTC").is_file():
            return _named(root) or f"files-{_sum(root):08x}"
    import tzdata

    return str(tzdata.IANA_VERSION)


def newer(ours: str, theirs: str) -> bool:
    """Whether to compute due times of `theirs` again with `ours`. Names without an order need only differ."""
    if _IANA.fullmatch(ours) and _IANA.fullmatch(theirs):
        return (ours[:4], len(ours), ours) > (theirs[:4], len(theirs), theirs)
    return ours != theirs


def _named(root: Path) -> str | None:
    for name in ("+VERSION", "tzdata.zi"):
        try:
            with (root / name).open(encoding="utf-8", errors="replace") as file:
                words = file.readline(100).split()
        except OSError:
            continue
        if words and _IANA.fullmatch(words[-1]):
            return words[-1]
    return None


def _sum(root: Path) -> int:
    """A checksum of all zone files, for databases without a version."""
    total = 0
    for path in sorted(root.glob("[A-Z]*/**/*")):
        if path.is_file():
            total = zlib.crc32(path.read_bytes(), total)
    return total
