"""All that an app has in Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from tocsin import Tocsin


async def everything(app: Tocsin) -> AsyncIterator[bytes]:
    """Every key of the app's namespace, and all that is in it."""
    client = app.store.client
    reads: dict[bytes, Any] = {
        b"string": client.get,
        b"hash": client.hgetall,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"set": client.smembers,
        b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        b"stream": client.xrange,
    }
    async for key in client.scan_iter(match=f"{app.store.keys.prefix}*", count=1000):
        yield key
        yield repr(await reads[await client.type(key)](key)).encode()
