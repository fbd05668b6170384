"""Finds zones by their IANA names."""

from __future__ import annotations

import difflib
import zoneinfo
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from tocsin.model.errors import InvalidTrigger

# Other files in the folder of zones: this machine's own zone, and copies that count leap seconds.
_NOT_ZONES = ("posix/", "right/", "localtime", "posixrules", "Factory")


def zone_name(zone: Any) -> str:
    """The name of an existing zone. Raises InvalidTrigger with the most similar one."""
    name = zone.key if isinstance(zone, ZoneInfo) else zone
    if not isinstance(name, str):
        raise InvalidTrigger(f"a zone is a name like 'Europe/Paris', not {zone!r:.100}")
    find_zone(name)
    return name


@lru_cache(maxsize=1024)
def find_zone(name: str) -> ZoneInfo:
    try:
        if not name.startswith(_NOT_ZONES):
            return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        # Names of folders, and names that no file can have, also end here.
        pass
    raise InvalidTrigger(f"there is no zone {name[:100]!r}; {_meant(name[:100])}")


def _meant(name: str) -> str:
    known = {zone.lower(): zone for zone in zoneinfo.available_timezones()}
    cities = {zone.rpartition("/")[2]: zone for zone in sorted(known)}
    word = name.lower().replace(" ", "_")
    close = difflib.get_close_matches(word, known, n=1) or [
        cities[city] for city in difflib.get_close_matches(word.rpartition("/")[2], cities, n=1)
    ]
    return f"did you mean {known[close[0]]!r}?" if close else "zones have IANA names like 'Europe/Paris' or 'UTC'"
