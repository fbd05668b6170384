"""Which programs jobs may start on this worker, and with which variables: its operator says so."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from tocsin.model.delivery import DeliveryFailed
from tocsin.model.grants import ANY, Grants

# Variables that jobs may set for any program: they say how it writes, and not what it runs. Any other may do that
# (TAR_OPTIONS, GIT_CONFIG_*, LD_PRELOAD, HOME, and nobody knows them all), so the operator names those that a program
# needs.
HARMLESS = ("LANG", "LC_*", "TZ")


class Allowed:
    """What `subprocess.allow` lists: whole paths and patterns of them, and for each the variables that jobs may set."""

    def __init__(self, entries: Grants) -> None:
        self._entries = entries

    def find(self, name: str) -> tuple[str, str]:
        """The path of the program, and the file that it really is. A final DeliveryFailed if that may not be started.

        An entry that is the path itself allows whatever the path leads to: the operator has chosen that link. What
        only fits a pattern must fit one with its real path too, or a link in an allowed folder could lead anywhere.
        """
        path = _looked_up(name)
        real = os.path.realpath(path)
        if path in self._entries or (self._fits(path) and self._fits(real)):
            return path, real
        what = repr(path) if path == real else f"{path!r}, which is {real!r},"
        raise DeliveryFailed(
            f"the program {what} may not be started here: add its path to `subprocess.allow`", final=True
        )

    def check_names(self, path: str, names: Iterable[str]) -> None:
        """Of variables that a job sets for a program that was found. Who may start any program may set any variable:
        `env` would do it for them."""
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


def _looked_up(name: str) -> str:
    """Names without a folder are looked up where the worker would find them, whatever PATH the job sets."""
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
