"""RabbitMQ: acknowledged by publisher confirms; what no queue takes comes back, and is a failure."""

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
from tocsin.targets.messages.broker import BrokerMessage, away
from tocsin.targets.messages.dialer import DialledSockets

# As many as a broker allows a connection by default, and some to spare.
MOST_CHANNELS = 2000
CLOSE_S = 2.0

_REFUSED = (AuthenticationError, ProbableAuthenticationError, ChannelAccessRefused)
# Of a connection that is closed, or a channel on it, one is told by a RuntimeError.
_FAILURES = (AMQPError, RuntimeError, OSError)


class RabbitMq:
    """One connection. A channel carries one message at a time: the broker closes it when it does not like what it is
    sent, and nobody else's message is to be lost by that."""

    def __init__(self, server: Server, dial: DialledSockets, authority: str | None = None) -> None:
        self.lost = False
        self._server = server
        self._idle: list[AbstractChannel] = []
        self._room = asyncio.Semaphore(MOST_CHANNELS)
        self._ending: set[asyncio.Task[None]] = set()
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
        self._connection.kwargs["transport_factory"] = _GuardedTransportFactory(dial, (host, port), tls)
        self._connection.close_callbacks.add(self._on_close)

    def _on_close(self, *_: object) -> None:
        self.lost = True

    async def connect(self) -> None:
        try:
            await self._connection.connect()
        except InvalidFrameError as error:
            # How its client understands that the broker says goodbye before it has said hello.
            vhost = self._server.vhost
            raise DeliveryFailed(f"{self._server} hung up: has it a vhost {vhost!r}, and room for us there?") from error
        except _FAILURES as error:
            raise self._failure(error) from error

    async def publish(self, place: BrokerDestination, letter: BrokerMessage) -> dict[str, Any]:
        message = Message(
            letter.value,
            headers={**letter.headers, **({} if letter.key is None else {"tocsin-key": in_header(letter.key)})},
            content_type=letter.content_type,
            message_id=letter.id,
            delivery_mode=DeliveryMode.PERSISTENT,
        )
        async with self._room:
            try:
                await self._publish(message, place)
            except _FAILURES as error:
                raise self._failure(error, place) from error
        return {"exchange": place.exchange, "routing_key": place.name}

    async def _publish(self, message: Message, place: BrokerDestination) -> None:
        channel = self._idle.pop() if self._idle else await self._open_channel()
        whole = False
        try:
            exchange = channel.default_exchange
            if place.exchange:
                exchange = await channel.get_exchange(place.exchange, ensure=False)
            await exchange.publish(message, place.name, mandatory=True)
            whole = True
        except DeliveryError:
            # Said about the message, on a channel that is well.
            whole = True
            raise
        finally:
            if whole:
                self._idle.append(channel)
            else:
                self._give_up(channel)

    async def _open_channel(self) -> AbstractChannel:
        channel = self._connection.channel(publisher_confirms=True, on_return_raises=True)
        try:
            await channel.initialize()
        except BaseException:
            self._give_up(channel)
            raise
        return channel

    def _give_up(self, channel: AbstractChannel) -> None:
        """An acknowledgement may still come on it: it is not for the next one."""
        task = asyncio.ensure_future(_end(channel))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _failure(self, error: Exception, place: BrokerDestination | None = None) -> DeliveryFailed:
        server, name, exchange = self._server, place and place.name, place and place.exchange
        if isinstance(error, _REFUSED):
            return DeliveryFailed(f"{server} does not allow it ({error})", status=403, final=True)
        if isinstance(error, PublishError):
            told = f"the exchange {exchange!r} has no queue for {name!r}" if exchange else f"there is no queue {name!r}"
            return DeliveryFailed(f"{server} gave it back: {told}")
        if isinstance(error, DeliveryError):
            return DeliveryFailed(f"{server} did not take it: {name!r} may be full ({error})")
        if isinstance(error, ChannelNotFoundEntity):
            return DeliveryFailed(f"{server} has no exchange {exchange!r}: create it ({error})")
        if isinstance(error, ChannelPreconditionFailed):
            return DeliveryFailed(f"{server} did not take it ({error})", final="larger than" in str(error))
        return away(server, error)

    async def close(self) -> None:
        for task in self._ending:
            task.cancel()
        with contextlib.suppress(*_FAILURES):
            await self._connection.close()


class _GuardedTransportFactory(TransportFactory):
    """Connects by the dialer."""

    def __init__(self, dial: DialledSockets, node: Node, tls: ssl.SSLContext | None) -> None:
        self._dial = dial
        self._node = node
        self._tls = tls

    async def create(self, url: URL, **_: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        sock = await self._dial(*self._node)
        host = self._node[0] if self._tls else None
        return await asyncio.open_connection(sock=sock, ssl=self._tls, server_hostname=host)


async def _end(channel: AbstractChannel) -> None:
    with contextlib.suppress(*_FAILURES, TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await channel.close()


open = RabbitMq
