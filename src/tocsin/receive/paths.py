"""Which paths a receiver is for.

Routers differ in what they take for the same path: some join double slashes, resolve dots, decode twice or ignore
case. A path that is one of ours for such a router, but not as it is written, would reach the app unsigned. So both are
asked, and where they disagree the request is refused.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from urllib.parse import unquote

from tocsin.model.errors import InvalidArgument

# Nobody decodes more often than that.
_MOST_DECODINGS = 4


class AmbiguousPath(Exception):
    pass


class Paths:
    """Each is a path, or with a slash at its end all beneath it."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = () if isinstance(paths, str) else tuple(paths)
        plain = [path.startswith("/") and _lenient(path) == path.casefold() for path in self._paths]
        if not plain or not all(plain):
            raise InvalidArgument("paths are a list of texts like '/hook' or '/hooks/', without // and ..")
        self._folded = tuple(path.casefold() for path in self._paths)

    def hold(self, path: str) -> bool:
        """Raise AmbiguousPath if that depends on who reads it."""
        held = _is_among(path, self._paths)
        if held != _is_among(_lenient(path), self._folded):
            raise AmbiguousPath
        return held


def _is_among(path: str, paths: tuple[str, ...]) -> bool:
    """With a slash at its end or not: routers that tell one from the other send the client there."""
    return any(path in (each, f"{each}/") or (each.endswith("/") and path.startswith(each)) for each in paths)


def _lenient(path: str) -> str:
    for _ in range(_MOST_DECODINGS):
        path = unquote(path)
    path = path.replace("\\", "/").casefold()
    ends = "/" if path.endswith(("/", "/.", "/..")) else ""
    resolved = posixpath.normpath("/" + path.lstrip("/"))
    return resolved if resolved == "/" else resolved + ends
