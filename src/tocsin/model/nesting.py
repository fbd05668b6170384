"""How deep lists and dicts stand in each other: decoders give up somewhere, and nothing is let in that is near that."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import msgspec

# How deep arguments and results may be nested: far below where a decoder gives up.
MOST_LEVELS = 64


def is_deeper(value: Any, levels: int) -> bool:
    """Whether lists and dicts stand in each other more than so many levels deep."""
    level = [value]
    for _ in range(levels):
        level = [inner for outer in level for inner in _within(outer) if isinstance(inner, (list, dict, tuple))]
        if not level:
            return False
    return True


def is_deep_json(data: bytes) -> bool:
    """Whether JSON has more than MOST_LEVELS. Mostly it has not even that many brackets."""
    if data.count(b"[") + data.count(b"{") <= MOST_LEVELS:
        return False
    try:
        return is_deeper(msgspec.json.decode(data), MOST_LEVELS)
    except RecursionError:
        return True


def _within(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return itertools.chain(value, value.values())
    return value if isinstance(value, (list, tuple)) else ()
