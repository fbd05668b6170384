"""Subprocess: a target that starts a program."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import force_setattr

from tocsin.model.durations import Duration, seconds
from tocsin.model.errors import InvalidArgument
from tocsin.model.secret import Secret
from tocsin.model.template import MARK, check_template

DEFAULT_TIMEOUT_S = 60.0
LONGEST_TIMEOUT_S = 30 * 86_400.0
DEFAULT_OUTPUT = 16 * 1024
# More would not fit into the result of a run.
LARGEST_OUTPUT = 60 * 1024


class Subprocess(Struct, frozen=True, array_like=True):
    """A program that a worker starts if its operator allows it. No shell: the arguments are passed on unchanged."""

    argv: tuple[str, ...]
    timeout: float = DEFAULT_TIMEOUT_S
    # Bytes of output to keep, from its beginning and its end. A program may write more; the middle is dropped.
    output: int = DEFAULT_OUTPUT
    # Variables to add to those that every program gets. The rest of the worker's environment is not passed on.
    env: dict[str, str | Secret] = {}
    cwd: str | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            argv: Sequence[str],
            timeout: Duration = DEFAULT_TIMEOUT_S,
            output: int = DEFAULT_OUTPUT,
            env: Mapping[str, str | Secret] = {},
            cwd: str | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        given: object = self.argv
        if isinstance(given, str):
            raise InvalidArgument(f"argv is a list like ['rsync', '-a', …], not {given!r:.100}: there is no shell")
        force_setattr(self, "argv", tuple(_check_text(text, "an argument") for text in self.argv))
        _check_program(self.argv[0] if self.argv else "")
        for text in self.argv[1:]:
            check_template(text, "an argument")
        for name, value in self.env.items():
            if not isinstance(name, str) or not name or "=" in name or "\0" in name:
                raise InvalidArgument(f"{name!r:.100} is no name of a variable")
            if not isinstance(value, Secret):
                check_template(_check_text(value, f"the variable {name}"), f"the variable {name}")
        if self.cwd is not None:
            _check_text(self.cwd, "cwd")
        timeout = seconds(self.timeout, "a timeout")
        if not 0.001 <= timeout <= LONGEST_TIMEOUT_S:
            raise InvalidArgument(f"the timeout of a program must be between 1 ms and 30 days, not {self.timeout!r}")
        force_setattr(self, "timeout", timeout)
        if not isinstance(self.output, int) or not 0 <= self.output <= LARGEST_OUTPUT:
            raise InvalidArgument(f"output must be from 0 to {LARGEST_OUTPUT} bytes, not {self.output!r}")

    def __str__(self) -> str:
        """For output to people."""
        return " ".join(self.argv)


def _check_program(name: str) -> None:
    if not name:
        raise InvalidArgument("argv needs a program to start")
    if MARK in name:
        # Otherwise the name of a tenant or a job could choose the program.
        raise InvalidArgument(f"the program cannot have fields of the run: {name!r:.200}")
    if "/" in name and not name.startswith("/"):
        raise InvalidArgument(f"a program is named by its name or its whole path, not {name!r:.200}")


def _check_text(text: object, what: str) -> str:
    if not isinstance(text, str) or "\0" in text:
        raise InvalidArgument(f"{what} must be text without NUL, not {reprlib.repr(text)}")
    return text
