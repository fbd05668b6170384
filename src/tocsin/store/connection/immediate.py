"""Connections that send at once.

redis-py gives each write a task of its own, for its timeout; that task begins a turn of the event loop later. Under
load a turn is milliseconds, in which the server would wait for what is ready to be sent.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import hiredis
from redis.asyncio import Connection, SSLConnection, UnixDomainSocketConnection

# A connected socket to a host and port.
Dial = Callable[[str, int], Awaitable[socket.socket]]


class _Immediate:
    """What the socket takes at once is sent at once; for the rest redis-py waits as ever."""

    is_connected: bool
    _writer: Any

    async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
        if self.is_connected and not isinstance(command, str) and not self._unsent():
            self._writer.writelines([command] if isinstance(command, bytes) else command)
            if not self._unsent():
                return
            command = []
        await super().send_packed_command(command, check_health)  # type: ignore[misc]

    def pack_command(self, *args: Any) -> list[bytes]:
        """In C what redis-py packs in Python, argument by argument. A name of two words is left to redis-py."""
        plain = isinstance(args[0], str) and " " not in args[0]
        try:
            return [hiredis.pack_command(args)] if plain else super().pack_command(*args)  # type: ignore[misc]
        except TypeError:
            # A subclass of what can be sent, or something that cannot be.
            return super().pack_command(*args)  # type: ignore[misc, no-any-return]

    def _unsent(self) -> int:
        return int(self._writer.transport.get_write_buffer_size())


class ImmediateConnection(_Immediate, Connection):
    pass


class ImmediateTlsConnection(_Immediate, SSLConnection):
    pass


class ImmediateUnixConnection(_Immediate, UnixDomainSocketConnection):
    pass


class _Dialled:
    """Over a socket that somebody else connects: redis-py would look the name up and connect to whatever it means."""

    host: str
    port: int
    socket_connect_timeout: float | None

    def __init__(self, *, dial: Dial, **options: Any) -> None:
        super().__init__(**options)
        self._dial = dial
        self._dialled: socket.socket | None = None

    async def _connect(self) -> None:
        async with asyncio.timeout(self.socket_connect_timeout):
            self._dialled = await self._dial(self.host, self.port)
        await super()._connect()  # type: ignore[misc]

    def _connection_arguments(self) -> dict[str, Any]:
        arguments = {**super()._connection_arguments(), "sock": self._dialled}  # type: ignore[misc]
        host = arguments.pop("host")
        del arguments["port"]
        return {**arguments, "server_hostname": host} if "ssl" in arguments else arguments


class DialledConnection(_Dialled, ImmediateConnection):
    pass


class DialledTlsConnection(_Dialled, ImmediateTlsConnection):
    pass
