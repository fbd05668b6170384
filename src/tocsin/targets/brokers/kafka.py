"""Kafka: a record per message, acknowledged by all replicas that are in sync."""

from __future__ import annotations

import contextlib
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.conn import create_conn
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

from tocsin.model.broker import Place, Server
from tocsin.model.delivery import DeliveryFailed
from tocsin.targets.brokers import Letter, away, tls_of

# Of one request to one broker, and how long a topic is looked for. A message may take several.
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
    """A producer that numbers its records, so that what it sends again by itself is written once."""

    def __init__(self, server: Server) -> None:
        self.lost = False
        self._server = server
        tls = tls_of(server)
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

    async def connect(self) -> None:
        try:
            await self._producer.start()
        except KafkaConnectionError as error:
            raise await self._reason() or away(self._server, error) from error
        except (KafkaError, OSError) as error:
            raise self._failure(error) from error

    async def _reason(self) -> DeliveryFailed | None:
        """The producer does not say why none of the hosts would have it: ask one."""
        host, port = self._server.nodes[0]
        options = {"client_id": "tocsin", "request_timeout_ms": REQUEST_MS, **self._security}
        try:
            connection = await create_conn(host, port, **options)
        except (KafkaError, OSError) as error:
            return self._failure(error)
        connection.close()
        return None

    async def publish(self, place: Place, letter: Letter) -> dict[str, Any]:
        headers = [(name, text.encode()) for name, text in letter.headers.items()]
        headers.append(("content-type", letter.content_type.encode()))
        key = None if letter.key is None else letter.key.encode()
        try:
            said = await self._producer.send_and_wait(place.name, letter.value, key=key, headers=headers)
        except KafkaError as error:
            # A record that was numbered and given up leaves a gap, after which the broker takes no more from us.
            self.lost = not isinstance(error, UnknownTopicOrPartitionError)
            raise self._failure(error, place.name) from error
        return {"topic": said.topic, "partition": said.partition, "offset": said.offset}

    def _failure(self, error: BaseException, topic: str = "") -> DeliveryFailed:
        server = self._server
        if isinstance(error, _REFUSED):
            what = f"to write to {topic!r}" if topic else "to log in"
            return DeliveryFailed(f"{server} does not allow us {what} ({error})", status=403, final=True)
        if isinstance(error, MessageSizeTooLargeError):
            return DeliveryFailed(f"{server} does not take messages as large as this one ({error})", final=True)
        if isinstance(error, InvalidTopicError):
            return DeliveryFailed(f"{server} takes no topic of the name {topic!r} ({error})", final=True)
        if isinstance(error, UnknownTopicOrPartitionError):
            return DeliveryFailed(f"{server} has no topic {topic!r}, and does not create it: create it")
        return away(server, error)

    async def close(self) -> None:
        # Its own end would wait for all that was not sent, for ever if nobody is there to take it. Whoever sent that
        # has given it up, and will send it again.
        self._producer._message_accumulator.fail_all(ProducerClosed())
        for connection in self._producer.client._conns.values():
            connection.close()
        with contextlib.suppress(KafkaError, OSError, KeyError):
            await self._producer.stop()
        await self._producer.client.close()


open = Kafka
