"""Where secrets are read, when they are needed: what a job may name is the operator's decision."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase

from tocsin.model.delivery import DeliveryFailed
from tocsin.model.secret import Secret

# A job may name these without being allowed to: they are there for jobs. Anything else may be the worker's own.
ALLOWED = ("TOCSIN_SECRET_*", "/run/secrets/*")
LARGEST = 64 * 1024


class Secrets:
    def __init__(self, allowed: tuple[str, ...] = ()) -> None:
        self._allowed = (*ALLOWED, *allowed)

    def read(self, secret: Secret) -> str:
        """With what stands before it. Read anew each time, so that one that was changed is used at once."""
        name = os.path.normpath(secret.name) if secret.kind == "file" else secret.name
        if not any(fnmatchcase(name, pattern) for pattern in self._allowed):
            raise DeliveryFailed(
                f"the secret {secret.kind} {secret.name!r} is not for jobs: add it to `secrets.allow`, or name it like "
                f"{' or '.join(ALLOWED)}",
                final=True,
            )
        value = os.environ.get(name) if secret.kind == "env" else _contents(name)
        if not value:
            raise DeliveryFailed(f"there is no secret {secret.kind} {secret.name!r} where this worker runs")
        return secret.before + value


def _contents(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(LARGEST).strip()
    except (OSError, UnicodeDecodeError):
        return None
