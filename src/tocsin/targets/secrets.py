"""Reads the secrets that jobs name. The operator decides which ones jobs may name, and to which hosts they may go."""

from __future__ import annotations

import os
from collections.abc import Iterable
from fnmatch import fnmatchcase

from msgspec import Struct

from tocsin.model.allowed_hosts import AllowedHosts, allowed_hosts
from tocsin.model.delivery import DeliveryFailed
from tocsin.model.grants import ANY, Grants
from tocsin.model.secret import Secret
from tocsin.targets.file_descriptors import descriptors_used_up, is_descriptor_shortage
from tocsin.targets.small_files import read_text

# Any job may name these: they exist for jobs. Other variables and files may be secrets of the worker's own.
ALLOWED = ("TOCSIN_SECRET_*", "/run/secrets/*")
LARGEST = 64 * 1024
# Kubernetes replaces all files of a volume at once, by changing a link to a folder whose name begins like this. The
# folder that a path led to may be gone when the path is opened.
_SWAPPED_FOLDER = ".."
_TRIES = 3


class SecretGrant(Struct, frozen=True):
    """A name or a pattern in `secrets.allow`, and the hosts that it is bound to; None if it may go anywhere."""

    pattern: str
    hosts: AllowedHosts | None = None


class Secrets:
    def __init__(self, allowed: Grants | None = None) -> None:
        self._grants = [
            SecretGrant(pattern, None if ANY in hosts else allowed_hosts(hosts))
            for pattern, hosts in (allowed or {}).items()
        ]

    def read(self, secret: Secret, hosts: Iterable[str]) -> str:
        """The secret for these hosts, with its prefix (`secret.before`). Read anew each time, so a changed secret is
        used at once. Raises DeliveryFailed, or TryLater if no descriptor is free."""
        bound = self._bound_to(secret)
        if bound:
            for host in hosts:
                if not any(allowed.have_host(host) for allowed in bound):
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
        """The hosts it is bound to; empty if it may go anywhere. A grant that binds a secret holds even if another
        grant allows it, and by whatever path a job names the file: /var/run is a link to /run. Raises
        DeliveryFailed."""
        fitting = [grant for grant in self._grants if _fits(secret, grant.pattern)]
        if not fitting and not any(_fits(secret, pattern) for pattern in ALLOWED):
            raise DeliveryFailed(
                f"the secret {secret.kind} {secret.name!r} is not for jobs: add it to `secrets.allow`, or name it like "
                f"{' or '.join(ALLOWED)}",
                final=True,
            )
        return [
            grant.hosts
            for grant in self._grants
            if grant.hosts is not None and (grant in fitting or _is_same_file(secret, grant.pattern))
        ]

    def _value(self, secret: Secret) -> str:
        value = os.environ.get(secret.name) if secret.kind == "env" else self._contents(secret.name)
        if not value:
            raise DeliveryFailed(f"there is no secret {secret.kind} {secret.name!r} where this worker runs")
        return secret.before + value

    def _contents(self, path: str) -> str | None:
        named = any(grant.pattern == path for grant in self._grants)
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
                if is_descriptor_shortage(error):
                    raise descriptors_used_up(str(error)) from error
                return None
            except UnicodeDecodeError:
                return None
        return None


def _fits(secret: Secret, pattern: str) -> bool:
    if secret.kind == "env":
        return "/" not in pattern and fnmatchcase(secret.name, pattern)
    return _path_fits(secret.name, pattern)


def _path_fits(path: str, pattern: str) -> bool:
    """Compares part by part: * stands for the files in a folder, and not for files in folders below it."""
    if path == pattern:
        return True
    parts, patterns = path.split("/"), pattern.split("/")
    if len(parts) != len(patterns) or not _is_plain(path):
        return False
    # As in a shell, * does not match names that begin with a dot.
    return all(
        fnmatchcase(part, each) and (each.startswith(".") or not part.startswith("."))
        for part, each in zip(parts, patterns, strict=True)
    )


def _is_same_file(secret: Secret, pattern: str) -> bool:
    """Whether both lead to the same file through links. A pattern may lead through linked folders too."""
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
    """Whether the file is directly in the folder, or in the folder that Kubernetes links to from there. A file in any
    other folder below is refused: it may be the worker's own token."""
    *folders, _ = os.path.relpath(real, folder).split("/")
    return all(name.startswith(_SWAPPED_FOLDER) and name != ".." for name in folders)
