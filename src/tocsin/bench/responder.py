"""The server that receives the requests of `tocsin bench`: `python -m tocsin.bench.responder GOOD SILENT`.

It runs in a process of its own and does as little as possible, so that the bench measures the sender. It prints its
ports in one line: first GOOD ports that answer, then SILENT ports that accept requests and never answer. It ends when
its stdin closes, which happens when its starter ends.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Answers(asyncio.Protocol):
    """Answers each request once all of it has arrived."""

    def __init__(self) -> None:
        self._rest = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        rest = self._rest + data if self._rest else data
        while (size := _size(rest)) is not None and size <= len(rest):
            self._transport.write(_ANSWER)
            rest = rest[size:]
        self._rest = rest


def _size(data: bytes) -> int | None:
    """Bytes of the first request in `data`; None until its headers are complete."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    length = _LENGTH.search(data, 0, end)
    return end + 4 + (int(length[1]) if length else 0)


async def serve(good: int, silent: int) -> None:
    loop = asyncio.get_running_loop()
    kinds: list[Callable[[], asyncio.Protocol]] = [*[Answers] * good, *[asyncio.Protocol] * silent]
    servers = [await loop.create_server(kind, "127.0.0.1", 0) for kind in kinds]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2])))
