"""Connects sockets to brokers, if the guard permits the address, and hands them to the broker's client.

The clients of brokers look names up themselves, and some connect to further hosts that a broker names. Instead they get
their sockets from here, so the address that was checked is the one connected, and all connections are counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakSet

from tocsin.targets.address_guard import Guard
from tocsin.targets.file_descriptors import most_connections

# An entry as socket.getaddrinfo returns it: family, kind, protocol, canonical name, address.
Info = tuple[Any, ...]
Resolve = Callable[[str, int], Awaitable[list[Info]]]


class Dialer:
    """Connects all sockets of a worker to brokers."""

    def __init__(self, guard: Guard, resolve: Resolve | None = None, most: int | None = None) -> None:
        """`most`: sockets at a time; None for as many as this process can spare."""
        self._guard = guard
        self._resolve = resolve or _look_up
        self._most = most or most_connections()
        self._sockets: WeakSet[socket.socket] = WeakSet()

    @property
    def is_full(self) -> bool:
        return len(self._sockets) >= self._most and sum(each.fileno() >= 0 for each in self._sockets) >= self._most

    def new_sockets(self) -> DialledSockets:
        return DialledSockets(self)

    async def connect(self, host: str, port: int) -> socket.socket:
        """Connect to the first permitted address that answers. Raises AddressRefused if there is none, or OSError."""
        found = await self._resolve(host, port)
        trusted = self._guard.trusts(host)
        usable = found if trusted else [info for info in found if self._guard.permits(info[4][0])]
        if not usable and found:
            self._guard.check(found[0][4][0])
        failures: list[OSError] = []
        for info in usable:
            try:
                return await self._connect(info, trusted)
            except OSError as error:
                failures.append(error)
        raise failures[0] if failures else OSError(f"{host} has no address")

    async def _connect(self, info: Info, trusted: bool) -> socket.socket:
        if self.is_full:
            raise OSError(errno.EMFILE, f"all {self._most} connections to brokers that this worker may have are in use")
        sock = socket.socket(*info[:3]) if trusted else self._guard.open_socket(info)
        self._sockets.add(sock)
        try:
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, info[4])
        except BaseException:
            sock.close()
            raise
        return sock


class DialledSockets:
    """The sockets of one client."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._sockets: WeakSet[socket.socket] = WeakSet()

    async def connect(self, host: str, port: int) -> socket.socket:
        sock = await self._dialer.connect(host, port)
        self._sockets.add(sock)
        return sock

    def shut_down(self) -> None:
        """Shut down all sockets, however the client ended: a client that says goodbye may wait for ever for the answer.
        asyncio closes sockets that were shut down."""
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


async def _look_up(host: str, port: int) -> list[Info]:
    try:
        return list(await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except UnicodeError as error:
        raise OSError(f"{host!r:.200} is not a host name") from error
