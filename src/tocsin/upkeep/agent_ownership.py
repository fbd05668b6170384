"""Which agents this worker may run, by their names and by its shard."""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec import Struct

from tocsin.model.errors import InvalidArgument, InvalidConfig
from tocsin.model.ids import digest

_SHARD = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")


class Shard(Struct, frozen=True):
    """The agents whose names hash to number `index` of `count`, counted from 1."""

    index: int
    count: int

    def __call__(self, member: str) -> bool:
        return digest(member.encode()) % self.count == self.index - 1


def parse_shard(text: str) -> Shard:
    """Read a shard like '2/3', the second of three."""
    match = _SHARD.fullmatch(text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise InvalidArgument(f"a shard is I/N, the I-th of N from 1 to N, like 2/3, not {text!r}")
    return Shard(int(match[1]), int(match[2]))


class Ownership:
    """An agent is ours if the enabled pattern matches its whole name, the disabled one does not, and our shard has
    it."""

    def __init__(self, enabled: str = ".*", disabled: str = "", shard: Callable[[str], bool] | None = None) -> None:
        self._enabled = _compiled(enabled, "redis.agent.enabled-pattern")
        self._disabled = _compiled(disabled, "redis.agent.disabled-pattern") if disabled else None
        self._shard = shard

    def enabled(self, member: str) -> bool:
        if self._disabled is not None and self._disabled.fullmatch(member):
            return False
        return self._enabled.fullmatch(member) is not None

    def __call__(self, member: str) -> bool:
        return self.enabled(member) and (self._shard is None or bool(self._shard(member)))


def _compiled(pattern: str, key: str) -> re.Pattern[str]:
    try:
        # An agent's name may contain any character, even a newline.
        return re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise InvalidConfig(f"{key} is not a regular expression: {error}") from None
