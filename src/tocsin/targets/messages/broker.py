"""What all brokers share. Each broker is one small class that connects, publishes a message, and closes.

A broker's library is imported when the first message goes there, so a worker that sends none does not load it.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import ssl
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from tocsin.model.broker_address import BrokerDestination, Server
from tocsin.model.delivery import DeliveryFailed
from tocsin.store.store import Store
from tocsin.targets.address_guard import AddressRefused
from tocsin.targets.messages.authority import read_authority
from tocsin.targets.messages.dialer import DialledSockets

# The package that each broker needs. The extra of the broker's name installs it; Tocsin itself needs the one for Redis.
PACKAGES = {"kafka": "aiokafka", "nats": "nats", "rabbitmq": "aio_pika"}
# Loggers of these libraries, which would log a lost connection ten times a second. The run that needs it reports it.
_LOGGERS = {"kafka": ("aiokafka",), "nats": ("nats",), "rabbitmq": ("aio_pika", "aiormq")}

Cause = TypeVar("Cause", bound=BaseException)


class BrokerMessage(Struct, frozen=True):
    """What is sent: the same for each attempt, except the number of the attempt."""

    value: bytes
    key: str | None
    # Include the idempotency key, but not the content type.
    headers: dict[str, str]
    content_type: str
    # The idempotency key, for brokers with a field for message ids.
    id: str


class Broker(Protocol):
    """Its calls raise DeliveryFailed only. They may be cancelled at any time."""

    # True if its connection is gone or in doubt: the next message needs another one.
    lost: bool

    async def connect(self) -> None: ...

    async def publish(self, destination: BrokerDestination, message: BrokerMessage) -> dict[str, Any]:
        """Return the broker's reply once the broker has the message."""

    async def close(self) -> None:
        """Close at once, without waiting for messages under way."""


def is_installed(broker: str) -> bool:
    """Whether the client of this broker is installed. Does not import it."""
    package = PACKAGES.get(broker)
    return package is None or importlib.util.find_spec(package) is not None


async def broker_for(server: Server, store: Store, sockets: DialledSockets) -> Broker:
    """A broker, not connected yet. A thread reads the file and imports the library, which takes up to a second."""
    authority = await asyncio.to_thread(read_authority, server) if server.ca is not None else None
    if server.broker == "redis":
        from tocsin.targets.messages.redis_streams import Streams

        return Streams(server, store, sockets, authority)
    module = await asyncio.to_thread(importlib.import_module, f"tocsin.targets.messages.{server.broker}")
    for name in _LOGGERS[server.broker]:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.CRITICAL)
    made: Broker = module.open(server, sockets, authority)
    return made


def unavailable(server: Server, error: BaseException) -> DeliveryFailed:
    """The failure for a broker that does not answer, or not as expected. It may answer next time."""
    refused = cause_of(error, AddressRefused)
    if refused is not None:
        return DeliveryFailed(f"{server}: {refused.strerror}", final=True, sent=False)
    reason = " ".join(str(error).split()) or type(error).__name__
    distrust = cause_of(error, ssl.SSLCertVerificationError)
    if distrust is not None:
        # No status 503: waiting does not change a certificate, and no broker said this.
        hint = "" if server.ca is None else "; ?ca= must name a file of certificates (PEM) that the worker can read"
        return DeliveryFailed(f"{server} has a certificate that cannot be trusted ({distrust.verify_message}){hint}")
    return DeliveryFailed(f"{server} is not available: {reason}", status=503)


def cause_of(
    error: BaseException | None, kind: type[Cause], fits: Callable[[Cause], bool] = lambda _: True
) -> Cause | None:
    """The first error of that kind in the chain of causes. Some libraries link errors in circles."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, kind) and fits(error):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None
