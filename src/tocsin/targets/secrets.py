"""Where secrets are read, when they are needed. What a job may name, and where it may go, the operator decides."""

from __future__ import annotations

import os
from collections.abc import Iterable
from fnmatch import fnmatchcase

from msgspec import Struct

from tocsin.model.allowed_hosts import AllowedHosts, allowed_hosts
from tocsin.model.delivery import DeliveryFailed
from tocsin.model.grants import ANY, Grants
from tocsin.model.secret import Secret
from tocsin.targets.file_descriptors import handed_back, is_lack
from tocsin.targets.small_files import read_text

# A job may name these without being allowed to: they are there for jobs. Anything else may be the worker's own.
ALLOWED = ("TOCSIN_SECRET_*", "/run/secrets/*")
LARGEST = 64 * 1024
# Kubernetes replaces all files of a volume at once, by a link to a folder of such a name: the one that a path was found
# in may be gone when the path is opened.
_SWAPPED = ".."
_TRIES = 3


class SecretGrant(Struct, frozen=True):
    """A name or a pattern in `secrets.allow`, and the hosts that it is bound to; None: it may go anywhere."""

    pattern: str
    hosts: AllowedHosts | None = None


class Secrets:
    def __init__(self, allowed: Grants | None = None) -> None:
        self._entries = [
            SecretGrant(pattern, None if ANY in hosts else allowed_hosts(hosts))
            for pattern, hosts in (allowed or {}).items()
        ]

    def read(self, secret: Secret, hosts: Iterable[str]) -> str:
        """For those hosts, with what stands before it. Read anew each time, so that one that was changed is used at
        once. Raises DeliveryFailed, and NotYet without a free descriptor."""
        bound = self._bound_to(secret)
        if bound:
            for host in hosts:
                if not any(places.have_host(host) for places in bound):
                    raise DeliveryFailed(
                        f"the secret {secret.kind} {secret.name!r} is not for the host {host!r}: `secrets.allow` binds "
                        "it to others",
                        final=True,
                    )
        return self._value(secret)

    def read_for_program(self, secret: Secret) -> str:
        if self.is_bound(secret):
            raise DeliveryFailed(
                f"the secret {secret.kind} {secret.name!r} is not for programs: `secrets.allow` binds it to hosts",
                final=True,
            )
        return self._value(secret)

    def is_bound(self, secret: Secret) -> bool:
        return bool(self._bound_to(secret))

    def _bound_to(self, secret: Secret) -> list[AllowedHosts]:
        """Empty if it may go anywhere. What binds a secret holds, whatever else allows it and by whatever path a job
        names the file: /var/run is a link to /run. Raises DeliveryFailed."""
        fitting = [entry for entry in self._entries if _fits(secret, entry.pattern)]
        if not fitting and not any(_fits(secret, pattern) for pattern in ALLOWED):
            raise DeliveryFailed(
                f"the secret {secret.kind} {secret.name!r} is not for jobs: add it to `secrets.allow`, or name it like "
                f"{' or '.join(ALLOWED)}",
                final=True,
            )
        return [
            entry.hosts
            for entry in self._entries
            if entry.hosts is not None and (entry in fitting or _is_same_file(secret, entry.pattern))
        ]

    def _value(self, secret: Secret) -> str:
        value = os.environ.get(secret.name) if secret.kind == "env" else self._contents(secret.name)
        if not value:
            raise DeliveryFailed(f"there is no secret {secret.kind} {secret.name!r} where this worker runs")
        return secret.before + value

    def _contents(self, path: str) -> str | None:
        named = any(entry.pattern == path for entry in self._entries)
        for _ in range(_TRIES):
            real = os.path.realpath(path)
            if not named and not _stays(real, os.path.realpath(os.path.dirname(path))):
                raise DeliveryFailed(
                    f"the secret file {path!r} is a link out of its folder: add its path to `secrets.allow`, without *",
                    final=True,
                )
            try:
                return read_text(real, LARGEST).strip()
            except FileNotFoundError:
                continue
            except OSError as error:
                if is_lack(error):
                    raise handed_back(str(error)) from error
                return None
            except UnicodeDecodeError:
                return None
        return None


def _fits(secret: Secret, pattern: str) -> bool:
    if secret.kind == "env":
        return "/" not in pattern and fnmatchcase(secret.name, pattern)
    return _path_fits(secret.name, pattern)


def _path_fits(path: str, pattern: str) -> bool:
    """Each part of the path by itself: * in a folder stands for the files in it, and not for those in folders below."""
    if path == pattern:
        return True
    parts, patterns = path.split("/"), pattern.split("/")
    if len(parts) != len(patterns) or not _is_plain(path):
        return False
    # As in a shell, * is for no name with a dot before it.
    return all(
        fnmatchcase(part, each) and (each.startswith(".") or not part.startswith("."))
        for part, each in zip(parts, patterns, strict=True)
    )


def _is_same_file(secret: Secret, pattern: str) -> bool:
    """As far as links can tell. A pattern stands for the folders that it leads to."""
    if secret.kind != "file" or not pattern.startswith("/"):
        return False
    real = os.path.realpath(secret.name)
    if os.path.realpath(pattern) == real:
        return True
    return any(_path_fits(path, _in_real_folder(pattern)) for path in (_in_real_folder(secret.name), real))


def _in_real_folder(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


def _is_plain(path: str) -> bool:
    return path.startswith("/") and not path.startswith("//") and os.path.normpath(path) == path


def _stays(real: str, folder: str) -> bool:
    """Directly in the folder, or where Kubernetes keeps what a link there stands for: not in a folder below it, which
    may hold the worker's own token."""
    *folders, _ = os.path.relpath(real, folder).split("/")
    return all(name.startswith(_SWAPPED) and name != ".." for name in folders)
