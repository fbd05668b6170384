"""Secrets by reference: jobs name where one is kept, and only the worker that needs it looks there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from tocsin.model.errors import InvalidArgument

LONGEST_NAME = 1000


class Secret(Struct, frozen=True, array_like=True):
    """The value of a variable of the worker's environment, or of a file on its machine; never stored itself."""

    kind: Literal["env", "file"]
    name: str
    # What is sent before it, like "Bearer ".
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
            raise InvalidArgument("what stands before a secret must be printable text")

    @classmethod
    def env(cls, name: str, before: str = "") -> Secret:
        """The variable `name` of the worker's environment."""
        return cls("env", name, before)

    @classmethod
    def file(cls, path: str, before: str = "") -> Secret:
        """The file at `path` on the worker's machine, without white space around it."""
        return cls("file", path, before)

    def __str__(self) -> str:
        """Where it is, for people."""
        return f"{self.before}<{self.kind} {self.name}>"
