"""Once a key: the first caller does the work, all others get its answer.

    once = Once("redis://localhost")
    answer = await once(key, work)

One call, and not a context with a place for the answer: what `work` returns is the answer, what it raises is the
failure, so nobody can forget to say which, and nothing is remembered before the work is done.

A key whose work failed is free for the next one. While the work goes on its lease is renewed; who dies with it frees
the key when the lease is over. Whoever lost the turn in spite of that, because its event loop stood still, cannot
overwrite the answer of another.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Self

from tocsin.model.clock import monotonic
from tocsin.model.durations import Duration, millis, seconds
from tocsin.model.errors import InvalidArgument, InvalidConfig, KeyReused, StillRunning
from tocsin.receive.answer_bytes import packed, unpacked
from tocsin.receive.memory import Answered, Busy, Memory, TurnTaken
from tocsin.receive.turn import Turn

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

LONGEST_KEY = 255

# Who waits looks again after so long, then ever less often.
_FIRST_LOOK_S = 0.02
_LAST_LOOK_S = 0.5
_GROWTH = 1.5
_SHORTEST_LEASE_MS = 100


class Once:
    """The memory of keys, in Redis or SQL, for `keep` after each answer.

    `where` is redis://, rediss://, unix://, sqlite+aiosqlite:// or postgresql+asyncpg://, or an AsyncEngine that stays
    the caller's. `name` keeps apart the keys of programs that share one.
    """

    def __init__(
        self,
        where: str | AsyncEngine,
        *,
        name: str = "once",
        keep: Duration = "7d",
        lease: Duration = "30s",
    ) -> None:
        if not 0 < len(name) <= 64 or not name.isprintable():
            raise InvalidArgument(f"the name of a memory has 1 to 64 printable characters, not {name!r}")
        self.keep_ms = millis(keep, "keep")
        self._lease_ms = millis(lease, "lease")
        if self._lease_ms < _SHORTEST_LEASE_MS or self.keep_ms < self._lease_ms:
            raise InvalidArgument("a lease is at least 100ms, and keep at least a lease")
        self._memory = _open(where, name)
        self._ready = False
        self._preparing = asyncio.Lock()

    async def __call__(
        self, key: str, work: Callable[[], Awaitable[Any]], *, wait: Duration = 0, digest: bytes = b""
    ) -> Any:
        """The answer of `work`, or of who did it before: bytes, or a JSON value.

        While another is at it: wait so long for its answer, then raise StillRunning. `digest` is a digest of what the
        key stands for; another one under the same key raises KeyReused. Raises TurnLost if another did it meanwhile.
        """
        if not callable(work):
            raise InvalidArgument("pass the function that does the work, not what it returned")
        found = await self.begin(key, wait=wait, digest=digest)
        if isinstance(found, bytes):
            return unpacked(found)
        async with found as turn:
            answer = packed(await work())
            await turn.answer(answer)
        # As everybody gets it who asks again.
        return unpacked(answer)

    async def within(
        self,
        connection: AsyncConnection,
        key: str,
        work: Callable[[], Awaitable[Any]],
        *,
        digest: bytes = b"",
    ) -> Any:
        """The same in the caller's own transaction: what `work` writes there and the answer are committed together.

        So the effect is there exactly once, also if this process is killed at any line. A failure must end the
        transaction; others with this key are held up by the database until then. `setup()` comes before it.
        """
        from tocsin.receive.sql_memory import SqlMemory

        memory = self._memory
        if not isinstance(memory, SqlMemory):
            raise InvalidArgument("a transaction needs a memory in the same SQL database: give Once its engine")
        if not self._ready:
            raise InvalidArgument("call `await once.setup()` when the program starts: a transaction is no place for it")
        token = _checked(key)
        found = await memory.take_within(connection, key, token, digest)
        if not isinstance(found, TurnTaken):
            return unpacked(_answer_of(key, found, digest))
        answer = packed(await work())
        await memory.answer_within(connection, key, token, digest, answer, self.keep_ms)
        return unpacked(answer)

    async def begin(self, key: str, *, wait: Duration = 0, digest: bytes = b"", place: str = "") -> bytes | Turn:
        """For middlewares: the packed answer there is, or the turn, which must be entered at once.

        `place` is where it is remembered, if not under the key itself.
        """
        token = _checked(key)
        deadline = monotonic() + seconds(wait, "wait")
        await self.setup()
        pause, place = _FIRST_LOOK_S, place or key
        while True:
            found = await self._memory.take(place, token, digest, self._lease_ms)
            if isinstance(found, TurnTaken):
                return Turn(self._memory, key, place, token, digest, self._lease_ms, self.keep_ms)
            left = deadline - monotonic()
            if isinstance(found, Answered) or found.digest != digest or left <= 0:
                return _answer_of(key, found, digest)
            await asyncio.sleep(min(pause, left))
            pause = min(pause * _GROWTH, _LAST_LOOK_S)

    async def setup(self) -> None:
        """Create the table, or check the server; the first use does it too, but not within a transaction."""
        if self._ready:
            return
        async with self._preparing:
            if not self._ready:
                await self._memory.setup()
                self._ready = True

    async def close(self) -> None:
        await self._memory.close()

    async def __aenter__(self) -> Self:
        await self.setup()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _answer_of(key: str, found: Busy | Answered, digest: bytes) -> bytes:
    if found.digest != digest:
        raise KeyReused(key)
    if isinstance(found, Busy):
        raise StillRunning(key, found.left_ms / 1000)
    return found.answer


def _checked(key: str) -> str:
    """A token for a call with this key."""
    if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY or not key.isprintable():
        raise InvalidArgument(f"a key is 1 to {LONGEST_KEY} printable characters, not {str(key)[:80]!r}")
    return secrets.token_hex(16)


def _open(where: str | AsyncEngine, name: str) -> Memory:
    """What is not needed is not loaded: most receivers have one of the two."""
    if isinstance(where, str) and where.partition("://")[0] in ("redis", "rediss", "unix"):
        from tocsin.receive.redis_memory import RedisMemory

        return RedisMemory(where, name)
    try:
        from tocsin.receive.sql_memory import SqlMemory, open_engine
    except ModuleNotFoundError as error:
        raise InvalidConfig("a memory in SQL needs the extra `sql`: pip install 'tocsin[sql]'") from error
    if isinstance(where, str):
        return SqlMemory(open_engine(where), name, owned=True)
    return SqlMemory(where, name, owned=False)
