"""Once per key: the first caller does the work, all others get its answer.

    once = Once("redis://localhost")
    answer = await once(key, work)

This is a call and not a context manager: the value that `work` returns is the answer, and an error that it raises is
the failure. So no caller can forget to pass the answer, and nothing is remembered before the work is done.

If the work failed, the key is free for the next caller. The lease is renewed while the work goes on; if the process
dies, the key is free when the lease is over. A caller that lost its turn because its event loop was blocked cannot
overwrite the answer of another caller.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Self

import msgspec

from tocsin.model.clock import monotonic
from tocsin.model.durations import Duration, millis, seconds
from tocsin.model.errors import InvalidArgument, InvalidConfig, KeyReused, StillRunning
from tocsin.receive.memory import Answered, Busy, Memory, TurnTaken
from tocsin.receive.turn import Turn

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

LONGEST_KEY = 255

# A waiting caller polls after this pause, then less and less often.
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
_GROWTH = 1.5
_SHORTEST_LEASE_MS = 100
# The first byte of a packed answer: bytes, or JSON.
_BYTES, _JSON = b"b", b"j"


class Once:
    """Remembers keys and their answers in Redis or SQL, each answer for `keep`.

    `where` is redis://, rediss://, unix://, sqlite+aiosqlite:// or postgresql+asyncpg://, or an AsyncEngine, which the
    caller closes. `name` keeps apart the keys of programs that share a database.
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
        """The answer of `work`, or of an earlier call: bytes, or a JSON value.

        While another caller does the work, wait up to `wait` for its answer, then raise StillRunning. `digest` is a
        digest of the request that the key stands for; the same key with another digest raises KeyReused. Raises
        TurnLost if another caller did the work meanwhile.
        """
        if not callable(work):
            raise InvalidArgument("pass the function that does the work, not what it returned")
        found = await self.begin(key, wait=wait, digest=digest)
        if isinstance(found, bytes):
            return unpack_answer(found)
        async with found as turn:
            answer = pack_answer(await work())
            await turn.answer(answer)
        # Decoded, so that the first caller gets the same value as later ones.
        return unpack_answer(answer)

    async def within(
        self,
        connection: AsyncConnection,
        key: str,
        work: Callable[[], Awaitable[Any]],
        *,
        digest: bytes = b"",
    ) -> Any:
        """The same in the caller's own transaction: the writes of `work` and the answer are committed together.

        So the effect happens exactly once, even if this process is killed at any line. A failure must end the
        transaction; until then the database makes other callers with this key wait. Call `setup()` before.
        """
        from tocsin.receive.sql_memory import SqlMemory

        memory = self._memory
        if not isinstance(memory, SqlMemory):
            raise InvalidArgument("a transaction needs a memory in the same SQL database: give Once its engine")
        if not self._ready:
            raise InvalidArgument("call `await once.setup()` when the program starts: a transaction is no place for it")
        token = _token_for(key)
        found = await memory.take_within(connection, key, token, digest)
        if not isinstance(found, TurnTaken):
            return unpack_answer(_answer_of(key, found, digest))
        answer = pack_answer(await work())
        await memory.answer_within(connection, key, token, digest, answer, self.keep_ms)
        return unpack_answer(answer)

    async def begin(self, key: str, *, wait: Duration = 0, digest: bytes = b"", place: str = "") -> bytes | Turn:
        """For middlewares: the packed answer, or a turn, which the caller must enter at once.

        `place` is the name under which the answer is remembered, if not the key itself.
        """
        token = _token_for(key)
        deadline = monotonic() + seconds(wait, "wait")
        await self.setup()
        pause, memory_key = _FIRST_PAUSE_S, place or key
        while True:
            found = await self._memory.take(memory_key, token, digest, self._lease_ms)
            if isinstance(found, TurnTaken):
                return Turn(
                    memory=self._memory,
                    key=key,
                    memory_key=memory_key,
                    token=token,
                    digest=digest,
                    lease_ms=self._lease_ms,
                    keep_ms=self.keep_ms,
                )
            left = deadline - monotonic()
            if isinstance(found, Answered) or found.digest != digest or left <= 0:
                return _answer_of(key, found, digest)
            await asyncio.sleep(min(pause, left))
            pause = min(pause * _GROWTH, _LONGEST_PAUSE_S)

    async def setup(self) -> None:
        """Create the table, or check the server. The first use does this too, except in a transaction."""
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


def _token_for(key: str) -> str:
    """A token for a call with this key. Raises InvalidArgument if the key is not valid."""
    if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY or not key.isprintable():
        raise InvalidArgument(f"a key is 1 to {LONGEST_KEY} printable characters, not {str(key)[:80]!r}")
    return secrets.token_hex(16)


def pack_answer(answer: Any) -> bytes:
    if isinstance(answer, (bytes, bytearray, memoryview)):
        return _BYTES + bytes(answer)
    try:
        return _JSON + msgspec.json.encode(answer)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise InvalidArgument(
            f"an answer that is remembered is bytes or a JSON value ({error}): the key is free again, and what was "
            "done for it will be done again"
        ) from error


def unpack_answer(packed: bytes) -> Any:
    kind, rest = packed[:1], packed[1:]
    return rest if kind == _BYTES else msgspec.json.decode(rest)


def _open(where: str | AsyncEngine, name: str) -> Memory:
    """Imports only the memory that is needed: most receivers have one of the two."""
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
