"""What is remembered of a key: nothing, that somebody is at it, or the answer.

A key is taken under a token for a lease. Taking it again with the same token makes the lease longer, so a call whose
reply was lost is simply made again, and renewing needs no call of its own. Only who has the turn
can answer; if nobody has it, who had it last.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from tocsin.model.durations import Millis


class TurnTaken(msgspec.Struct, frozen=True):
    """The turn is the caller's."""


class Busy(msgspec.Struct, frozen=True):
    """Another's, for so long if it is not renewed."""

    digest: bytes
    left_ms: Millis


class Answered(msgspec.Struct, frozen=True):
    digest: bytes
    answer: bytes


class Memory(Protocol):
    """In Redis or in SQL. Raises StoreError, and a call that raised may have been done."""

    async def setup(self) -> None:
        """Make, or check, what the memory needs. Repeating it changes nothing."""

    async def take(self, key: str, token: str, digest: bytes, lease_ms: Millis) -> TurnTaken | Busy | Answered: ...

    async def answer(self, key: str, token: str, digest: bytes, answer: bytes, keep_ms: Millis) -> bool:
        """False: another has the turn or has answered, and nothing was changed."""

    async def free(self, key: str, token: str) -> None: ...

    async def close(self) -> None: ...
