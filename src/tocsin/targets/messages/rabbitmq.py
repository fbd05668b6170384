"""RabbitMQ: publisher confirms acknowledge a message. A message that no queue takes comes back, and has failed."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Any

from aio_pika import Connection, DeliveryMode, Message
from aio_pika.abc import AbstractChannel
from aio_pika.connection import make_url
from aio_pika.exceptions import (
    AMQPError,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    DeliveryError,
    PublishError,
)
from aiormq.connection import TransportFactory
from aiormq.exceptions import AuthenticationError, ChannelAccessRefused, InvalidFrameError, ProbableAuthenticationError
from yarl import URL

from tocsin.model.broker_address import BrokerDestination, Node, Server
from tocsin.model.delivery import DeliveryFailed
from tocsin.targets.envelope import in_header
from tocsin.targets.messages.authority import tls_of
from tocsin.targets.messages.broker import BrokerMessage, unavailable
from tocsin.targets.messages.dialer import DialledSockets

# Slightly fewer than a broker allows per connection by default (2047).
MOST_CHANNELS = 2000
CLOSE_S = 2.0

_REFUSED = (AuthenticationError, ProbableAuthenticationError, ChannelAccessRefused)
# The library raises RuntimeError for a connection or channel that is closed.
_FAILURES = (AMQPError, RuntimeError, OSError)


class RabbitMq:
    """One connection. A channel carries one message at a time, because the broker closes a channel when it refuses a
    message, and no other message may be lost with it."""

    def __init__(self, server: Server, sockets: DialledSockets, authority: str | None = None) -> None:
        self.lost = False
        self._server = server
        self._idle_channels: list[AbstractChannel] = []
        self._free_channels = asyncio.Semaphore(MOST_CHANNELS)
        self._closing: set[asyncio.Task[None]] = set()
        ((host, port),) = server.nodes
        url = make_url(
            host=host,
            port=port,
            login=server.user or "guest",
            password=server.password or "guest",
            virtualhost=server.vhost,
            ssl=server.tls,
        )
        tls = tls_of(server, authority)
        self._connection = Connection(url, ssl_context=tls)
        self._connection.kwargs["transport_factory"] = _GuardedTransportFactory(sockets, (host, port), tls)
        self._connection.close_callbacks.add(self._on_close)

    def _on_close(self, *_: object) -> None:
        self.lost = True

    async def connect(self) -> None:
        try:
            await self._connection.connect()
        except InvalidFrameError as error:
            # The library raises this if the broker closes the connection before the handshake.
            vhost = self._server.vhost
            raise DeliveryFailed(
                f"{self._server} closed the connection: does it have a vhost {vhost!r}, with room for another one?"
            ) from error
        except _FAILURES as error:
            raise self._failure(error) from error

    async def publish(self, destination: BrokerDestination, message: BrokerMessage) -> dict[str, Any]:
        outgoing = Message(
            message.value,
            headers={**message.headers, **({} if message.key is None else {"tocsin-key": in_header(message.key)})},
            content_type=message.content_type,
            message_id=message.id,
            delivery_mode=DeliveryMode.PERSISTENT,
        )
        async with self._free_channels:
            try:
                await self._publish(outgoing, destination)
            except _FAILURES as error:
                raise self._failure(error, destination) from error
        return {"exchange": destination.exchange, "routing_key": destination.name}

    async def _publish(self, message: Message, destination: BrokerDestination) -> None:
        channel = self._idle_channels.pop() if self._idle_channels else await self._open_channel()
        reusable = False
        try:
            exchange = channel.default_exchange
            if destination.exchange:
                exchange = await channel.get_exchange(destination.exchange, ensure=False)
            await exchange.publish(message, destination.name, mandatory=True)
            reusable = True
        except DeliveryError:
            # The broker refused the message; the channel still works.
            reusable = True
            raise
        finally:
            if reusable:
                self._idle_channels.append(channel)
            else:
                self._discard(channel)

    async def _open_channel(self) -> AbstractChannel:
        channel = self._connection.channel(publisher_confirms=True, on_return_raises=True)
        try:
            await channel.initialize()
        except BaseException:
            self._discard(channel)
            raise
        return channel

    def _discard(self, channel: AbstractChannel) -> None:
        """Do not use it again: a late acknowledgement would be taken for that of the next message."""
        task = asyncio.ensure_future(_close_channel(channel))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _failure(self, error: Exception, destination: BrokerDestination | None = None) -> DeliveryFailed:
        server, name, exchange = self._server, destination and destination.name, destination and destination.exchange
        if isinstance(error, _REFUSED):
            return DeliveryFailed(f"{server} does not allow it ({error})", status=403, final=True)
        if isinstance(error, PublishError):
            reason = (
                f"the exchange {exchange!r} has no queue for {name!r}" if exchange else f"there is no queue {name!r}"
            )
            return DeliveryFailed(f"{server} returned the message: {reason}")
        if isinstance(error, DeliveryError):
            return DeliveryFailed(f"{server} did not accept the message: {name!r} may be full ({error})")
        if isinstance(error, ChannelNotFoundEntity):
            return DeliveryFailed(f"{server} has no exchange {exchange!r}: create it ({error})")
        if isinstance(error, ChannelPreconditionFailed):
            return DeliveryFailed(f"{server} did not accept the message ({error})", final="larger than" in str(error))
        return unavailable(server, error)

    async def close(self) -> None:
        for task in self._closing:
            task.cancel()
        with contextlib.suppress(*_FAILURES):
            await self._connection.close()


class _GuardedTransportFactory(TransportFactory):
    """Gets its socket from the dialer."""

    def __init__(self, sockets: DialledSockets, node: Node, tls: ssl.SSLContext | None) -> None:
        self._sockets = sockets
        self._node = node
        self._tls = tls

    async def create(self, url: URL, **_: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        sock = await self._sockets.connect(*self._node)
        host = self._node[0] if self._tls else None
        return await asyncio.open_connection(sock=sock, ssl=self._tls, server_hostname=host)


async def _close_channel(channel: AbstractChannel) -> None:
    with contextlib.suppress(*_FAILURES, TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await channel.close()


open = RabbitMq
