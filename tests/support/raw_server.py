"""A server on loopback that says exactly what it is told to, HTTP or not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

Conversation = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class RawServer:
    """Reads the head of each request, then does as `answer` does."""

    def __init__(self, answer: Conversation, ssl: Any = None) -> None:
        self._answer = answer
        self._ssl = ssl
        self.requests = 0
        self.sent = 0
        # Set when the other side has closed a connection.
        self.closed = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def url(self) -> str:
        scheme = "http" if self._ssl is None else "https"
        return f"{scheme}://127.0.0.1:{self.port}/"

    async def __aenter__(self) -> RawServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._ssl)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.requests += 1
                await self._answer(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.closed.set()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def saying(*parts: bytes, close: bool = False) -> Conversation:
    """The parts, as they are."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
        if close:
            raise ConnectionResetError

    return answer


def without_end(begin: bytes, chunk: bytes, every: float = 0.0) -> Conversation:
    """A beginning, then the same again and again, until nobody listens."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(begin)
        while not writer.is_closing():
            writer.write(chunk)
            await writer.drain()
            await asyncio.sleep(every)
        raise ConnectionResetError

    return answer
