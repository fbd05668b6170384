"""Checks how deeply values are nested. Decoders fail beyond some depth, so values far below it are refused already."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import msgspec

# Maximum depth of arguments and results, far below the limit of the decoders.
MOST_LEVELS = 64


def is_deeper(value: Any, levels: int) -> bool:
    """Whether lists and dicts are nested more than `levels` deep."""
    level = [value]
    for _ in range(levels):
        level = [inner for outer in level for inner in _within(outer) if isinstance(inner, (list, dict, tuple))]
        if not level:
            return False
    return True


def is_deep_json(data: bytes) -> bool:
    """Whether JSON is nested more than MOST_LEVELS deep. Most JSON has too few brackets, which is quick to check."""
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
