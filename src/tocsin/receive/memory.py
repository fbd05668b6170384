"""The states of a key in the memory, and the calls that both memories have: Redis and SQL.

A key is free, taken, or answered. A caller takes it under a token, for a lease. Taking it again with the same token
extends the lease, so a call whose reply was lost is simply made again, and renewing needs no call of its own. Only the
caller that has the turn can answer. If the lease is over and no other caller has come, the last one still can.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from tocsin.model.durations import Millis


class TurnTaken(msgspec.Struct, frozen=True):
    """The caller has the turn."""


class Busy(msgspec.Struct, frozen=True):
    """Another caller has the turn, for `left_ms` unless it renews its lease."""

    digest: bytes
    left_ms: Millis


class Answered(msgspec.Struct, frozen=True):
    digest: bytes
    answer: bytes


class Memory(Protocol):
    """A Redis or an SQL database. Its calls raise StoreError; a call that raised may have been done."""

    async def setup(self) -> None:
        """Create the table, or check the server. Repeating it changes nothing."""

    async def take(self, key: str, token: str, digest: bytes, lease_ms: Millis) -> TurnTaken | Busy | Answered: ...

    async def answer(self, key: str, token: str, digest: bytes, answer: bytes, keep_ms: Millis) -> bool:
        """False if another caller has the turn or has answered; then nothing was changed."""

    async def free(self, key: str, token: str) -> None: ...

    async def close(self) -> None: ...
