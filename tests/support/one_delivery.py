"""One delivery at a time, without a worker around it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from tocsin import DeliveryFailed, Http
from tocsin.engine.work_item import WorkItem
from tocsin.model.allowed_hosts import allowed_hosts
from tocsin.model.delivery import Delivered
from tocsin.model.job import Header, Spec
from tocsin.model.record import encode_record, handler_digest
from tocsin.model.run import Claim
from tocsin.model.target import HTTP, fields_of
from tocsin.targets.address_guard import Guard
from tocsin.targets.host_gates import HostGates
from tocsin.targets.http.target import HttpTarget
from tocsin.targets.messages.dialer import Dialer
from tocsin.targets.secrets import Secrets
from tocsin.testing import ManualClock

DUE = 1_893_456_000_000


class Names(AbstractResolver):
    """Answers with one list of addresses after the other, the last one for ever."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = [list(answer) for answer in answers]
        self.asked: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked.append(host)
        addresses = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [
            ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=0)
            for address in addresses
        ]

    async def close(self) -> None: ...


def unit_of(target: Http, attempt: int = 1, job: str = "job") -> WorkItem:
    spec = Spec(HTTP, fields_of(target))
    record = encode_record(Header(recurring=False, timeout=60_000, handler=handler_digest(HTTP)), spec)
    claim = Claim("default", 0, job.encode(), 1, DUE, attempt, 0, False, DUE + 60_000, record)
    handler: Any = None
    return WorkItem(claim, spec, handler, handler, 0.0, 60.0)


def dialer(*allow: str, resolve: Any = None, most: int | None = None) -> Dialer:
    """Of an operator who allows `allow` for messages."""
    return Dialer(Guard(allowed_hosts(allow), "message.allow"), resolve, most)


class OpenGates(HostGates):
    """Everybody is let in: what hosts do to each other's deliveries is not asked here."""

    def __init__(self) -> None: ...

    def delivery_to(self, host: str, deadline: float = 0.0) -> Any:
        return contextlib.nullcontext()


class Sender:
    """An HttpTarget of an operator who allows `allow`."""

    def __init__(self, *allow: str, resolver: AbstractResolver | None = None, longest_wait_s: float = 600.0) -> None:
        self.clock = ManualClock()
        self.target = HttpTarget(
            namespace="test:",
            clock=self.clock,
            gates=OpenGates(),
            secrets=Secrets(),
            longest_wait_s=longest_wait_s,
            allow=allow,
            resolver=resolver,
        )

    async def __aenter__(self) -> Sender:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.target.close()

    async def send(self, request: Http, attempt: int = 1) -> dict[str, Any]:
        """What is told of its success."""
        async with asyncio.timeout(20):
            delivered = await self.target.deliver(unit_of(request, attempt))
        assert isinstance(delivered, Delivered)
        return delivered.told

    async def fail(self, request: Http) -> DeliveryFailed:
        try:
            told = await self.send(request)
        except DeliveryFailed as error:
            return error
        raise AssertionError(f"delivered: {told}")
