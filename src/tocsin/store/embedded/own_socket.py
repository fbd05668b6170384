"""Connections to the embedded server that refuse a server of another user.

The socket is in a folder under /tmp. If that is cleaned while we run, another user may make the folder again, with a
server of their own. So each connection checks the owner of the server before it sends anything.
"""

from __future__ import annotations

import os
import socket as sockets

import redis
from redis import exceptions

from tocsin.store.connection.address import Address
from tocsin.store.connection.pool import ImmediateUnixConnection
from tocsin.store.embedded import keeper


class ForeignServer(exceptions.ConnectionError):
    """Another user runs the server. Derived from redis-py's error, so that redis-py drops the connection."""


def is_embedded(address: Address) -> bool:
    """Whether an address is that of an embedded server, also if a program was given it as text."""
    return address.kind == "unix" and os.path.dirname(address.path) == keeper.runtime_folder()


class OwnUnixConnection(ImmediateUnixConnection):
    async def on_connect(self) -> None:
        _check(self._writer.get_extra_info("socket"), self.path)
        await super().on_connect()


class BlockingOwnUnixConnection(redis.UnixDomainSocketConnection):
    def _connect(self) -> sockets.socket:
        connection: sockets.socket = super()._connect()  # type: ignore[no-untyped-call]
        try:
            _check(connection, self.path)
        except ForeignServer:
            connection.close()
            raise
        return connection


def _check(connection: sockets.socket, path: str) -> None:
    try:
        keeper.check_peer(connection, path)
    except keeper.OwnedByAnotherUser as error:
        raise ForeignServer(str(error)) from error
