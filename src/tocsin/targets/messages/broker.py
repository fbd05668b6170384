"""Brokers: one small class each, which connects, publishes and tells what the broker said, and closes.

Their libraries are imported when the first message goes there: a worker that sends none does not pay for them.
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

# The package that each needs, which comes with the extra of the broker's name; Redis comes with Tocsin.
PACKAGES = {"kafka": "aiokafka", "nats": "nats", "rabbitmq": "aio_pika"}
# What they log: that a connection was lost is told by the run that needed it, and not ten times a second.
_LOGGERS = {"kafka": ("aiokafka",), "nats": ("nats",), "rabbitmq": ("aio_pika", "aiormq")}

Cause = TypeVar("Cause", bound=BaseException)


class BrokerMessage(Struct, frozen=True):
    """What is sent: the same for each attempt but for its number."""

    value: bytes
    key: str | None
    # With the idempotency key, without the content type.
    headers: dict[str, str]
    content_type: str
    # The idempotency key, for brokers that have a place for it.
    id: str


class Broker(Protocol):
    """Raises DeliveryFailed, and only that. What it is asked may be cancelled at any time."""

    # Its connection is gone, or not to be trusted: the next message needs another.
    lost: bool

    async def connect(self) -> None: ...

    async def publish(self, place: BrokerDestination, letter: BrokerMessage) -> dict[str, Any]:
        """Return once the broker has it, with what the broker said."""

    async def close(self) -> None:
        """At once: nobody waits for what is under way."""


def is_installed(broker: str) -> bool:
    """Without importing it."""
    package = PACKAGES.get(broker)
    return package is None or importlib.util.find_spec(package) is not None


async def broker_for(server: Server, store: Store, dial: DialledSockets) -> Broker:
    """Not connected yet. Files are left to a thread; the import takes up to a second."""
    authority = await asyncio.to_thread(read_authority, server) if server.ca is not None else None
    if server.broker == "redis":
        from tocsin.targets.messages.redis_streams import Streams

        return Streams(server, store, dial, authority)
    module = await asyncio.to_thread(importlib.import_module, f"tocsin.targets.messages.{server.broker}")
    for name in _LOGGERS[server.broker]:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.CRITICAL)
    made: Broker = module.open(server, dial, authority)
    return made


def away(server: Server, error: BaseException) -> DeliveryFailed:
    """Nobody answers, or not in a way that we understand: another time it may be well again."""
    refused = cause_of(error, AddressRefused)
    if refused is not None:
        return DeliveryFailed(f"{server}: {refused.strerror}", final=True, sent=False)
    said = " ".join(str(error).split()) or type(error).__name__
    distrust = cause_of(error, ssl.SSLCertVerificationError)
    if distrust is not None:
        # Neither does waiting change a certificate, nor is that the word of the broker.
        return DeliveryFailed(f"{server} has a certificate that cannot be trusted ({distrust.verify_message})")
    return DeliveryFailed(f"{server} is not available: {said}", status=503)


def cause_of(
    error: BaseException | None, kind: type[Cause], fits: Callable[[Cause], bool] = lambda _: True
) -> Cause | None:
    """The first error of that kind among those that led to this one. Libraries link errors in circles, too."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, kind) and fits(error):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None
