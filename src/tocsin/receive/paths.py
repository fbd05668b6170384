"""Decides which paths a receiver is for.

Routers differ in which paths they take for the same: some join double slashes, resolve dots, decode twice or ignore
case. A path that only such a router takes for one of ours would reach the app unsigned. So each path is compared both
as it is written and as the most lenient router reads it, and the request is refused if the two disagree.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from urllib.parse import unquote

from tocsin.model.errors import InvalidArgument

# No router decodes more often than this.
_MOST_DECODINGS = 4


class AmbiguousPath(Exception):
    pass


class Paths:
    """Each entry is a path; one with a slash at its end holds all paths beneath it."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = () if isinstance(paths, str) else tuple(paths)
        plain = [path.startswith("/") and _lenient(path) == path.casefold() for path in self._paths]
        if not plain or not all(plain):
            raise InvalidArgument("paths are a list of texts like '/hook' or '/hooks/', without // and ..")
        self._folded = tuple(path.casefold() for path in self._paths)

    def hold(self, path: str) -> bool:
        """Raises AmbiguousPath if routers disagree."""
        held = _is_among(path, self._paths)
        if held != _is_among(_lenient(path), self._folded):
            raise AmbiguousPath
        return held


def _is_among(path: str, paths: tuple[str, ...]) -> bool:
    """With or without a slash at its end: routers redirect from one to the other."""
    return any(path in (each, f"{each}/") or (each.endswith("/") and path.startswith(each)) for each in paths)


def _lenient(path: str) -> str:
    for _ in range(_MOST_DECODINGS):
        path = unquote(path)
    path = path.replace("\\", "/").casefold()
    ends = "/" if path.endswith(("/", "/.", "/..")) else ""
    resolved = posixpath.normpath("/" + path.lstrip("/"))
    return resolved if resolved == "/" else resolved + ends
