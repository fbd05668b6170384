"""Secrets by reference: a job names where a secret is kept, and only the worker that needs it reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from tocsin.model.errors import InvalidArgument

LONGEST_NAME = 1000


class Secret(Struct, frozen=True, array_like=True):
    """Names a variable of the worker's environment, or a file on its machine. The value itself is never stored."""

    kind: Literal["env", "file"]
    name: str
    # Text to send before the value, like "Bearer ".
    before: str = ""

    if TYPE_CHECKING:

        def __init__(self, kind: Literal["env", "file"], name: str, before: str = "") -> None: ...

    def __post_init__(self) -> None:
        if self.kind not in ("env", "file"):
            raise InvalidArgument(
                f"a secret is in the environment or a file: Secret.env(…) or .file(…), not {self.kind!r}"
            )
        if not isinstance(self.name, str) or not 1 <= len(self.name) <= LONGEST_NAME or "\0" in self.name:
            raise InvalidArgument(f"a secret is named by a variable or a path of up to {LONGEST_NAME} characters")
        if not isinstance(self.before, str) or not self.before.isprintable():
            raise InvalidArgument("the text before a secret must be printable")

    @classmethod
    def env(cls, name: str, before: str = "") -> Secret:
        """The variable `name` of the worker's environment."""
        return cls("env", name, before)

    @classmethod
    def file(cls, path: str, before: str = "") -> Secret:
        """The file at `path` on the worker's machine, without white space around it."""
        return cls("file", path, before)

    def __str__(self) -> str:
        """Where the secret is, for output to people."""
        return f"{self.before}<{self.kind} {self.name}>"
