"""Redis Streams: an entry per message, acknowledged with its id."""

from __future__ import annotations

import ssl
from typing import Any

from redis.exceptions import ResponseError

from tocsin.model.broker import Place, Server
from tocsin.model.delivery import DeliveryFailed
from tocsin.model.errors import StoreError, StoreFull, StoreRefused, StoreUnavailable
from tocsin.store.address import Address, Tls
from tocsin.store.connect import FAILURES, Client, open_client, translate
from tocsin.store.pooling import ConnectionSettings
from tocsin.store.store import Store
from tocsin.targets.brokers import Letter, away

# Each message has its own timeout, which is what counts; connections are opened when they are needed.
_CONNECTIONS = ConnectionSettings(timeout_s=86_400.0, connect_timeout_s=86_400.0, max_wait_s=86_400.0, min_idle=0)


class Streams:
    """Of another server, or of Tocsin's own, over the connections that are there already. They mend themselves."""

    lost = False

    def __init__(self, server: Server, store: Store) -> None:
        self._server = server
        self._own = not server.nodes
        self._address = store.address if self._own else _address(server)
        self._store = store
        self._opened: Client | None = None

    async def connect(self) -> None:
        if not self._own:
            self._opened = open_client(self._address, _CONNECTIONS)

    async def publish(self, place: Place, letter: Letter) -> dict[str, Any]:
        if self._own and self._store.keys.owns(place.name):
            raise DeliveryFailed(f"{place.name!r} is a key of Tocsin's own: give the stream another name", final=True)
        client = self._opened or self._store.client
        fields: dict[Any, Any] = {**letter.headers, "content-type": letter.content_type, "value": letter.value}
        if letter.key is not None:
            fields["key"] = letter.key
        try:
            entry: Any = await client.xadd(place.name, fields, maxlen=place.maxlen or None, approximate=True)
        except FAILURES as error:
            raise self._failure(error, place) from error
        return {"stream": place.name, "entry": entry.decode()}

    def _failure(self, error: Exception, place: Place) -> DeliveryFailed:
        if isinstance(error, ResponseError) and str(error).startswith("WRONGTYPE"):
            return DeliveryFailed(f"{self._address.shown}: {place.name!r} is there, and is no stream", final=True)
        if any(isinstance(link, ssl.SSLCertVerificationError) for link in (error, error.__cause__, error.__context__)):
            return away(self._server, error)
        meant = translate(error, self._address)
        return DeliveryFailed(str(meant), status=_status(meant), final=isinstance(meant, StoreRefused))

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.aclose()


def _address(server: Server) -> Address:
    return Address(
        kind="tcp",
        nodes=server.nodes,
        db=server.db,
        username=server.user,
        password=server.password,
        tls=Tls(ca_certs=server.ca) if server.tls else None,
    )


def _status(meant: StoreError) -> int | None:
    """The HTTP status that says the same, by which failures are classified."""
    if isinstance(meant, StoreFull):
        return 429
    if isinstance(meant, StoreUnavailable):
        return 503
    return 403 if isinstance(meant, StoreRefused) else None
