"""Kafka: one record per message, acknowledged by all in-sync replicas."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    ClusterAuthorizationFailedError,
    InvalidTopicError,
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    ProducerClosed,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    UnsupportedSaslMechanismError,
)

from tocsin.model.broker_address import BrokerDestination, Server
from tocsin.model.delivery import DeliveryFailed
from tocsin.targets.address_guard import AddressRefused
from tocsin.targets.file_descriptors import is_descriptor_shortage
from tocsin.targets.messages.authority import tls_of
from tocsin.targets.messages.broker import BrokerMessage, unavailable
from tocsin.targets.messages.dialer import DialledSockets

# The timeout of a request to a broker, and of the search for a topic. A message may need several requests.
REQUEST_MS = 5_000

_REFUSED = (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    ClusterAuthorizationFailedError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnsupportedSaslMechanismError,
)


class Kafka:
    """An idempotent producer: it numbers its records, so a record that it sends again by itself is written once."""

    def __init__(self, server: Server, sockets: DialledSockets, authority: str | None = None) -> None:
        self.lost = False
        self._server = server
        self._sockets = sockets
        # The first socket error that retrying does not cure: the library would try the same broker for ever.
        self._refused: asyncio.Future[OSError] = asyncio.get_running_loop().create_future()
        tls = tls_of(server, authority)
        self._security = {
            "security_protocol": ("SASL_" if server.user else "") + ("SSL" if tls else "PLAINTEXT"),
            "ssl_context": tls,
            "sasl_mechanism": server.sasl,
            "sasl_plain_username": server.user,
            "sasl_plain_password": server.password,
        }
        self._producer = AIOKafkaProducer(
            bootstrap_servers=server.hosts,
            client_id="tocsin",
            enable_idempotence=True,
            acks="all",
            request_timeout_ms=REQUEST_MS,
            **self._security,
        )
        _connect_by(self._producer.client, self._connection)

    async def _connection(self, host: str, port: int, **options: Any) -> AIOKafkaConnection:
        """Connect to a host of the address, or to a broker that one of them names."""
        connection = _GuardedKafkaConnection(self._sockets, host, port, **options)
        try:
            await connection.connect()
        except OSError as error:
            if (isinstance(error, AddressRefused) or is_descriptor_shortage(error)) and not self._refused.done():
                self._refused.set_result(error)
            raise
        return connection

    async def connect(self) -> None:
        starting = asyncio.ensure_future(self._producer.start())
        try:
            await self._unless_refused(starting)
        except KafkaConnectionError as error:
            raise await self._reason() or unavailable(self._server, error) from error
        except (KafkaError, OSError) as error:
            raise self._failure(error) from error

    async def _unless_refused(self, doing: asyncio.Future[Any]) -> Any:
        """The result of `doing`, or raise the error that keeps us from a broker."""
        doing.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            await asyncio.wait((doing, self._refused), return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                self.lost = True
                raise self._refused.result()
            return doing.result()
        finally:
            doing.cancel()

    async def _reason(self) -> DeliveryFailed | None:
        """The producer does not say why no host accepted it, so ask one host directly."""
        host, port = self._server.nodes[0]
        try:
            connection = await self._connection(
                host, port, client_id="tocsin", request_timeout_ms=REQUEST_MS, **self._security
            )
        except (KafkaError, OSError) as error:
            return self._failure(error)
        connection.close()
        return None

    async def publish(self, destination: BrokerDestination, message: BrokerMessage) -> dict[str, Any]:
        headers = [(name, text.encode()) for name, text in message.headers.items()]
        headers.append(("content-type", message.content_type.encode()))
        key = None if message.key is None else message.key.encode()
        sending = self._producer.send_and_wait(destination.name, message.value, key=key, headers=headers)
        try:
            record = await self._unless_refused(asyncio.ensure_future(sending))
        except (KafkaError, OSError) as error:
            # A numbered record that was given up leaves a gap, and the broker accepts none from this producer after it.
            self.lost = not isinstance(error, UnknownTopicOrPartitionError)
            raise self._failure(error, destination.name) from error
        return {"topic": record.topic, "partition": record.partition, "offset": record.offset}

    def _failure(self, error: BaseException, topic: str = "") -> DeliveryFailed:
        server = self._server
        if isinstance(error, _REFUSED):
            what = f"to write to {topic!r}" if topic else "to log in"
            return DeliveryFailed(f"{server} does not allow us {what} ({error})", status=403, final=True)
        if isinstance(error, MessageSizeTooLargeError):
            return DeliveryFailed(f"{server} does not take messages as large as this one ({error})", final=True)
        if isinstance(error, InvalidTopicError):
            return DeliveryFailed(f"{server} does not accept the topic name {topic!r} ({error})", final=True)
        if isinstance(error, UnknownTopicOrPartitionError):
            return DeliveryFailed(f"{server} has no topic {topic!r}, and does not create it: create it")
        return unavailable(server, error)

    async def close(self) -> None:
        # `stop` would wait for unsent records, for ever if the broker is away. Their runs have failed already, and will
        # send them again.
        self._producer._message_accumulator.fail_all(ProducerClosed())
        for connection in self._producer.client._conns.values():
            connection.close()
        with contextlib.suppress(KafkaError, OSError, KeyError):
            await self._producer.stop()
        await self._producer.client.close()


class _GuardedKafkaConnection(AIOKafkaConnection):  # type: ignore[misc]
    """Gets its socket from the dialer. The library's `connect` asks its event loop for a connection, so it gets a loop
    that connects through the dialer."""

    def __init__(self, sockets: DialledSockets, host: str, port: int, **options: Any) -> None:
        super().__init__(host, port, **options)
        self._sockets = sockets

    async def connect(self) -> Any:
        loop = asyncio.get_running_loop()
        self._loop: Any = _DiallingLoop(loop, self._sockets)
        try:
            return await super().connect()
        finally:
            self._loop = loop


class _DiallingLoop:
    def __init__(self, loop: asyncio.AbstractEventLoop, sockets: DialledSockets) -> None:
        self._loop = loop
        self._sockets = sockets

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def create_connection(
        self, protocol: Callable[[], asyncio.Protocol], host: str, port: int, ssl: ssl.SSLContext | None
    ) -> Any:
        sock = await self._sockets.connect(host, port)
        return await self._loop.create_connection(
            protocol, sock=sock, ssl=ssl, server_hostname=host if ssl is not None else None
        )


def _connect_by(client: AIOKafkaClient, connect: Callable[..., Any]) -> None:
    """Have this client, and no other, call `connect` for its connections. The library has no option for that, so copy
    the two methods that call its `create_conn`, with ours under that name."""
    for name in ("bootstrap", "_get_conn"):
        method = getattr(AIOKafkaClient, name)
        if "create_conn" not in method.__code__.co_names:
            raise RuntimeError(
                f"aiokafka's {name} connects in another way now, so messages to Kafka would be unguarded"
            )
        ours = FunctionType(
            method.__code__,
            {**method.__globals__, "create_conn": connect},
            name,
            method.__defaults__,
            method.__closure__,
        )
        ours.__kwdefaults__ = method.__kwdefaults__
        setattr(client, name, MethodType(ours, client))


open = Kafka
