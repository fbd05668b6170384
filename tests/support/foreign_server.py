"""A server that is none of ours: it tells what it is, and hangs up on everything else."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self


class Foreign:
    """Speaks just enough RESP2 to be taken for an old Redis, or for a cluster of one node."""

    def __init__(self, **info: str | int) -> None:
        self.info: dict[str, str | int] = {"redis_version": "7.2.0", "role": "master", **info}
        self.dropped: list[bytes] = []
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while answer := self._answer(await _command(reader)):
                writer.write(answer)
        writer.close()

    def _answer(self, words: list[bytes]) -> bytes:
        if words[0] == b"INFO":
            text = "".join(f"{name}:{value}\r\n" for name, value in self.info.items())
            return f"${len(text)}\r\n{text}\r\n".encode()
        if words[0] == b"COMMAND":
            return b"*0\r\n"
        if words[:2] == [b"CLUSTER", b"SLOTS"]:
            node = f"*3\r\n$9\r\n127.0.0.1\r\n:{self.port}\r\n$1\r\nx\r\n"
            return f"*1\r\n*3\r\n:0\r\n:16383\r\n{node}".encode()
        if words[:2] == [b"CLUSTER", b"INFO"]:
            return b"$16\r\ncluster_state:ok\r\n"
        self.dropped.append(words[0])
        return b""


async def _command(reader: asyncio.StreamReader) -> list[bytes]:
    count = int((await reader.readuntil(b"\r\n"))[1:])
    words = []
    for _ in range(count):
        size = int((await reader.readuntil(b"\r\n"))[1:])
        words.append((await reader.readexactly(size + 2))[:-2])
    return words
