"""Connections to brokers, made where the guard permits it and handed to the broker's client ready to use.

The clients look names up themselves, and some connect to further hosts that the broker names. Each of them is given
sockets from here instead, so what was checked is what is connected, and all of them together are counted.
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

# As socket.getaddrinfo returns it: family, kind, protocol, canonical name, address.
Info = tuple[Any, ...]
Resolve = Callable[[str, int], Awaitable[list[Info]]]


class Dialer:
    """Of a worker."""

    def __init__(self, guard: Guard, resolve: Resolve | None = None, most: int | None = None) -> None:
        """`most`: sockets at a time; None: as many as this process can spare."""
        self._guard = guard
        self._resolve = resolve or _look_up
        self._most = most or most_connections()
        self._made: WeakSet[socket.socket] = WeakSet()

    @property
    def is_full(self) -> bool:
        return len(self._made) >= self._most and sum(each.fileno() >= 0 for each in self._made) >= self._most

    def line(self) -> DialledSockets:
        return DialledSockets(self)

    async def connect(self, host: str, port: int) -> socket.socket:
        """To the first permitted address that answers. Raises Refused if there is none to try, and OSError."""
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
        made = socket.socket(*info[:3]) if trusted else self._guard.open_socket(info)
        self._made.add(made)
        try:
            made.setblocking(False)
            await asyncio.get_running_loop().sock_connect(made, info[4])
        except BaseException:
            made.close()
            raise
        return made


class DialledSockets:
    """The sockets of one client. Called with a host and a port, it connects another."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._made: WeakSet[socket.socket] = WeakSet()

    async def __call__(self, host: str, port: int) -> socket.socket:
        made = await self._dialer.connect(host, port)
        self._made.add(made)
        return made

    def hang_up(self) -> None:
        """However the client ended: one that says goodbye waits for an answer, and who is at the other end may not
        give it. asyncio closes what it finds shut down."""
        for made in self._made:
            with contextlib.suppress(OSError):
                made.shutdown(socket.SHUT_RDWR)


async def _look_up(host: str, port: int) -> list[Info]:
    try:
        return list(await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except UnicodeError as error:
        raise OSError(f"{host!r:.200} is no name of a host") from error
