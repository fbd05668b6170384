"""Decides which programs jobs may start on this worker, and which variables they may set: as the operator says."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from tocsin.model.delivery import DeliveryFailed
from tocsin.model.grants import ANY, Grants

# Variables that jobs may set for any program: they change how a program writes, and not what it runs. Other variables
# may change what it runs (TAR_OPTIONS, GIT_CONFIG_*, LD_PRELOAD, HOME; nobody knows them all), so the operator names
# those that a program needs.
HARMLESS = ("LANG", "LC_*", "TZ")


class Allowed:
    """The entries of `subprocess.allow`: paths and patterns of paths, and for each the variables that jobs may set."""

    def __init__(self, entries: Grants) -> None:
        self._entries = entries

    def find(self, name: str) -> tuple[str, str]:
        """The path of the program, and its real path without links. Raises a final DeliveryFailed if jobs may not
        start it.

        An entry equal to the path allows whatever the path links to: the operator has chosen that link. A path that
        only fits a pattern must fit one with its real path too, or a link in an allowed folder could lead anywhere.
        """
        path = _find_path(name)
        real = os.path.realpath(path)
        if path in self._entries or (self._fits(path) and self._fits(real)):
            return path, real
        what = repr(path) if path == real else f"{path!r}, which is {real!r},"
        raise DeliveryFailed(
            f"the program {what} may not be started here: add its path to `subprocess.allow`", final=True
        )

    def check_names(self, path: str, names: Iterable[str]) -> None:
        """Raises a final DeliveryFailed if a job may not set one of these variables for the program. An operator who
        allows any program allows any variable too: a job could start `env`, which sets them."""
        if ANY in self._entries:
            return
        settable = [*HARMLESS, *(name for entry in self._fitting(path) for name in self._entries[entry])]
        for name in names:
            if not any(fnmatchcase(name, pattern) for pattern in settable):
                raise DeliveryFailed(
                    f"a job may not set the variable {name} for {path}, because it may make the program run something "
                    f"else: list it there in `subprocess.allow`, as {path}: [{name}], if it does not",
                    final=True,
                )

    def _fits(self, path: str) -> bool:
        return bool(self._fitting(path))

    def _fitting(self, path: str) -> list[str]:
        return [entry for entry in self._entries if path == entry or fnmatchcase(path, entry)]


def _find_path(name: str) -> str:
    """A name without a folder is looked up in the worker's PATH, not in one that the job sets."""
    if "/" not in name:
        return _in_path(name, os.environ)
    if not name.startswith("/") or name.startswith("//") or os.path.normpath(name) != name:
        raise DeliveryFailed(
            f"the program {name!r} may not be started: give its name, or its whole path without . and .. in it",
            final=True,
        )
    return name


def _in_path(name: str, environ: Mapping[str, str]) -> str:
    folders = [folder for folder in environ.get("PATH", os.defpath).split(os.pathsep) if folder.startswith("/")]
    for folder in folders:
        path = os.path.normpath(os.path.join(folder, name))
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise DeliveryFailed(f"there is no program {name!r} where this worker runs: not in {os.pathsep.join(folders)}")
