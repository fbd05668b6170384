"""The memory of keys in Redis: one hash per key, which expires with its lease or its keep.

Each change is one script on one key and can be repeated, so redis-py may send it again if its reply was lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff

from tocsin.model.durations import Millis
from tocsin.model.errors import InvalidConfig, StoreError, StoreFull, StoreRefused, StoreTimeout, StoreUnavailable
from tocsin.receive.memory import Answered, Busy, TurnTaken

SCHEMES = ("redis", "rediss", "unix")

# For each try. If all fail, the receiver cannot know whether a request is the first, and answers 503.
_TIMEOUT_S = 3.0
_TRIES = 3
_CONNECTIONS = 32
_REFUSALS = (exceptions.AuthenticationError, exceptions.NoPermissionError)


class RedisMemory:
    def __init__(self, url: str, name: str) -> None:
        retry = Retry(ExponentialWithJitterBackoff(base=0.05, cap=0.5), _TRIES - 1)
        options: dict[str, Any] = {"socket_timeout": _TIMEOUT_S, "socket_connect_timeout": _TIMEOUT_S, "retry": retry}
        try:
            pool = BlockingConnectionPool.from_url(url, max_connections=_CONNECTIONS, timeout=_TIMEOUT_S, **options)
        except ValueError as error:
            # The address is not quoted: it may hold a password.
            raise InvalidConfig("the address of the memory cannot be read: write redis://HOST:PORT/DB") from error
        self._client = Redis.from_pool(pool)
        self._name = name
        self._take, self._answer, self._free = (
            self._client.register_script(files(__package__).joinpath("lua", f"turn_{verb}.lua").read_text("utf-8"))
            for verb in ("take", "answer", "free")
        )

    async def setup(self) -> None:
        """Raise StoreRefused if the server may forget keys before their time."""
        with _our_errors():
            memory = await self._client.info("memory")
        policy = memory.get("maxmemory_policy", "noeviction")
        if memory.get("maxmemory") and policy != "noeviction":
            raise StoreRefused(
                f"the Redis of the memory has maxmemory-policy {policy}, which forgets keys when memory is short, so "
                "that requests are done twice: set maxmemory-policy to noeviction, or use another server"
            )

    async def take(self, key: str, token: str, digest: bytes, lease_ms: Millis) -> TurnTaken | Busy | Answered:
        with _our_errors():
            state, digest_held, more = await self._take(keys=[self._turn(key)], args=[token, digest, lease_ms])
        if state == 1:
            return TurnTaken()
        return Answered(digest_held, more) if state == 2 else Busy(digest_held, max(0, more))

    async def answer(self, key: str, token: str, digest: bytes, answer: bytes, keep_ms: Millis) -> bool:
        with _our_errors():
            return bool(await self._answer(keys=[self._turn(key)], args=[token, digest, answer, keep_ms]))

    async def free(self, key: str, token: str) -> None:
        with _our_errors():
            await self._free(keys=[self._turn(key)], args=[token])

    async def close(self) -> None:
        await self._client.aclose()

    def _turn(self, key: str) -> str:
        return f"tocsin:receive:{self._name}:{{{key}}}"


@contextmanager
def _our_errors() -> Iterator[None]:
    try:
        yield
    except (exceptions.RedisError, OSError) as error:
        raise _translated(error) from error


def _translated(error: Exception) -> StoreError:
    reason = str(error) or type(error).__name__
    # Compare the text: old servers wrap an error inside a script into a generic one.
    if "not allowed when used memory" in reason:
        return StoreFull(f"the Redis of the memory is full, nothing was written: raise maxmemory ({reason})")
    if isinstance(error, _REFUSALS):
        return StoreRefused(f"the Redis of the memory does not accept the login in its address ({reason})")
    if isinstance(error, exceptions.TimeoutError):
        return StoreTimeout(f"the Redis of the memory did not answer in time ({reason})")
    return StoreUnavailable(f"the Redis of the memory cannot be used for now ({reason})")
