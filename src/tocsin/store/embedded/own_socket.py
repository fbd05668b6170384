"""Connections to an embedded server: to one of this user, or to none.

Its socket is in a folder under /tmp. If that is cleaned away while we run, anybody may make it anew, with a server of
their own. So each connection looks at whose server it has reached, before it sends anything.
"""

from __future__ import annotations

import os
import socket as sockets

import redis
from redis import exceptions

from tocsin.store.connection.address import Address
from tocsin.store.connection.immediate import ImmediateUnixConnection
from tocsin.store.embedded import keeper


class ForeignServer(exceptions.ConnectionError):
    """An error of redis-py's, so that it drops the connection."""


def is_embedded(address: Address) -> bool:
    """Also if a program was given the address as text."""
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
