"""Redis Streams: an entry per message, acknowledged with its id."""

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
from tocsin.targets.messages.broker import BrokerMessage, away, cause_of
from tocsin.targets.messages.dialer import DialledSockets

# Each message has its own timeout, which is what counts; connections are opened when they are needed.
_CONNECTIONS = ConnectionSettings(timeout_s=86_400.0, connect_timeout_s=86_400.0, max_wait_s=86_400.0, min_idle=0)


class Streams:
    """Of another server, or of Tocsin's own, over the connections that are there already. They mend themselves."""

    lost = False

    def __init__(self, server: Server, store: Store, dial: DialledSockets, authority: str | None = None) -> None:
        self._server = server
        self._dial = dial
        self._own = not server.nodes
        self._address = store.address if self._own else _address(server, authority)
        self._store = store
        self._opened: Client | None = None

    async def connect(self) -> None:
        if not self._own:
            self._opened = open_dialled_client(self._address, _CONNECTIONS, self._dial)

    async def publish(self, place: BrokerDestination, letter: BrokerMessage) -> dict[str, Any]:
        client = self._opened or self._store.client
        fields: dict[Any, Any] = {**letter.headers, "content-type": letter.content_type, "value": letter.value}
        if letter.key is not None:
            fields["key"] = letter.key
        try:
            if await self._is_tocsins(client, place.name):
                raise DeliveryFailed(
                    f"{place.name!r} is a key of Tocsin's own, or would be: give the stream another name", final=True
                )
            entry: Any = await client.xadd(place.name, fields, maxlen=place.maxlen or None, approximate=True)
        except FAILURES as error:
            raise self._failure(error, place) from error
        return {"stream": place.name, "entry": entry.decode()}

    async def _is_tocsins(self, client: Client, name: str) -> bool:
        """Of this namespace or another, on whatever server: an address may lead to Tocsin's own by another way. A
        stream where a script expects something else would stop the fleet that it belongs to."""
        if self._store.keys.owns(name) or is_shaped_like_ours(name):
            return True
        for register in registers_beside(name):
            # A login that may not look there is kept from Tocsin's keys by the server.
            with contextlib.suppress(NoPermissionError):
                if await client.exists(register):
                    return True
        return False

    def _failure(self, error: Exception, place: BrokerDestination) -> DeliveryFailed:
        if isinstance(error, ResponseError) and str(error).startswith("WRONGTYPE"):
            return DeliveryFailed(f"{self._address.shown}: {place.name!r} is there, and is no stream", final=True)
        if cause_of(error, ssl.SSLCertVerificationError) or cause_of(error, AddressRefused):
            return away(self._server, error)
        meant = translate(error, self._address)
        return DeliveryFailed(str(meant), status=_status(meant), final=isinstance(meant, StoreRefused))

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.aclose()


def _address(server: Server, authority: str | None) -> Address:
    return Address(
        kind="tcp",
        nodes=server.nodes,
        db=server.db,
        username=server.user,
        password=server.password,
        tls=Tls(ca_data=authority) if server.tls else None,
    )


def _status(meant: StoreError) -> int | None:
    """The HTTP status that says the same, by which failures are classified."""
    if isinstance(meant, StoreFull):
        return 429
    if isinstance(meant, StoreUnavailable):
        return 503
    return 403 if isinstance(meant, StoreRefused) else None
