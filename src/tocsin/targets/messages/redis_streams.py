"""Redis Streams: one entry per message, acknowledged by the entry's id."""

from __future__ import annotations

import contextlib
import ssl
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from tocsin.model.broker_address import BrokerDestination, Server
from tocsin.model.delivery import DeliveryFailed
from tocsin.model.errors import StoreError, StoreFull, StoreRefused, StoreUnavailable
from tocsin.store.connection.address import Address, Tls
from tocsin.store.connection.client import Client, open_dialled_client
from tocsin.store.connection.errors import FAILURES, translate
from tocsin.store.connection.pool import ConnectionSettings
from tocsin.store.keys import is_shaped_like_ours, registers_beside
from tocsin.store.store import Store
from tocsin.targets.address_guard import AddressRefused
from tocsin.targets.messages.broker import BrokerMessage, cause_of, unavailable
from tocsin.targets.messages.dialer import DialledSockets

# No timeouts of its own: each message's timeout ends the wait. Connections are opened when needed.
_CONNECTIONS = ConnectionSettings(timeout_s=86_400.0, connect_timeout_s=86_400.0, max_wait_s=86_400.0, min_idle=0)


class Streams:
    """Streams of another server, or of Tocsin's own server over the store's connections. Redis clients reconnect
    themselves, so it is never lost."""

    lost = False

    def __init__(self, server: Server, store: Store, sockets: DialledSockets, authority: str | None = None) -> None:
        self._server = server
        self._sockets = sockets
        self._is_own_server = not server.nodes
        self._address = store.address if self._is_own_server else _address(server, authority)
        self._store = store
        self._client: Client | None = None

    async def connect(self) -> None:
        if not self._is_own_server:
            self._client = open_dialled_client(self._address, _CONNECTIONS, self._sockets.connect)

    async def publish(self, destination: BrokerDestination, message: BrokerMessage) -> dict[str, Any]:
        client = self._client or self._store.client
        fields: dict[Any, Any] = {**message.headers, "content-type": message.content_type, "value": message.value}
        if message.key is not None:
            fields["key"] = message.key
        try:
            if await self._is_key_of_tocsin(client, destination.name):
                raise DeliveryFailed(
                    f"{destination.name!r} is a key of Tocsin's own, or would be: give the stream another name",
                    final=True,
                )
            entry: Any = await client.xadd(
                destination.name, fields, maxlen=destination.maxlen or None, approximate=True
            )
        except FAILURES as error:
            raise self._failure(error, destination) from error
        return {"stream": destination.name, "entry": entry.decode()}

    async def _is_key_of_tocsin(self, client: Client, name: str) -> bool:
        """Whether a key belongs to this namespace of Tocsin or another one. Checked on every server, because an address
        may lead to Tocsin's own server in another way. A stream where a script expects another type would stop the
        fleet of that namespace."""
        if self._store.keys.owns(name) or is_shaped_like_ours(name):
            return True
        for register in registers_beside(name):
            # A login that may not read this key may not write Tocsin's keys either.
            with contextlib.suppress(NoPermissionError):
                if await client.exists(register):
                    return True
        return False

    def _failure(self, error: Exception, destination: BrokerDestination) -> DeliveryFailed:
        if isinstance(error, ResponseError) and str(error).startswith("WRONGTYPE"):
            return DeliveryFailed(
                f"{self._address.shown}: {destination.name!r} exists, and is not a stream", final=True
            )
        if cause_of(error, ssl.SSLCertVerificationError) or cause_of(error, AddressRefused):
            return unavailable(self._server, error)
        failure = translate(error, self._address)
        return DeliveryFailed(str(failure), status=_status(failure), final=isinstance(failure, StoreRefused))

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


def _address(server: Server, authority: str | None) -> Address:
    return Address(
        kind="tcp",
        nodes=server.nodes,
        db=server.db,
        username=server.user,
        password=server.password,
        tls=Tls(ca_data=authority) if server.tls else None,
    )


def _status(failure: StoreError) -> int | None:
    """The HTTP status of the same meaning: failures are classified by it."""
    if isinstance(failure, StoreFull):
        return 429
    if isinstance(failure, StoreUnavailable):
        return 503
    return 403 if isinstance(failure, StoreRefused) else None
