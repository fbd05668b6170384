"""Brokers: one small class each, which connects, publishes and tells what the broker said, and closes.

Their libraries are imported when the first message goes there: a worker that sends none does not pay for them.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import os
import ssl
from collections.abc import Iterator
from typing import Any, Protocol

from msgspec import Struct

from tocsin.model.broker import Place, Server
from tocsin.model.delivery import DeliveryFailed
from tocsin.store.store import Store

# The package that each needs, which comes with the extra of the broker's name; Redis comes with Tocsin.
PACKAGES = {"kafka": "aiokafka", "nats": "nats", "rabbitmq": "aio_pika"}
# What they log: that a connection was lost is told by the run that needed it, and not ten times a second.
_LOGGERS = {"kafka": ("aiokafka",), "nats": ("nats",), "rabbitmq": ("aio_pika", "aiormq")}


class Letter(Struct, frozen=True):
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

    async def publish(self, place: Place, letter: Letter) -> dict[str, Any]:
        """Return once the broker has it, with what the broker said."""

    async def close(self) -> None:
        """At once: nobody waits for what is under way."""


def is_installed(broker: str) -> bool:
    """Without importing it."""
    package = PACKAGES.get(broker)
    return package is None or importlib.util.find_spec(package) is not None


async def broker_for(server: Server, store: Store) -> Broker:
    """Not connected yet. The import is left to a thread: it takes up to a second."""
    _check_ca(server)
    if server.broker == "redis":
        from tocsin.targets.brokers.streams import Streams

        return Streams(server, store)
    module = await asyncio.to_thread(importlib.import_module, f"tocsin.targets.brokers.{server.broker}")
    for name in _LOGGERS[server.broker]:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.CRITICAL)
    made: Broker = module.open(server)
    return made


def _check_ca(server: Server) -> None:
    if server.ca is not None and not os.path.isfile(server.ca):
        raise DeliveryFailed(f"{server}: where this worker runs is no file {server.ca}, which the address gives as ca")


def tls_of(server: Server) -> ssl.SSLContext | None:
    if not server.tls:
        return None
    try:
        return ssl.create_default_context(cafile=server.ca)
    except ssl.SSLError as error:
        raise DeliveryFailed(f"{server}: {server.ca} is no file of certificates ({error})") from error


def away(server: Server, error: BaseException) -> DeliveryFailed:
    """Nobody answers, or not in a way that we understand: another time it may be well again."""
    said = " ".join(str(error).split()) or type(error).__name__
    distrust = next((link for link in _causes(error) if isinstance(link, ssl.SSLCertVerificationError)), None)
    if distrust is not None:
        # Neither does waiting change a certificate, nor is that the word of the broker.
        return DeliveryFailed(f"{server} has a certificate that cannot be trusted ({distrust.verify_message})")
    return DeliveryFailed(f"{server} is not available: {said}", status=503)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
