"""The HTTP target: sends one request per attempt, and judges the run by the status of the answer."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from tocsin.engine.work_item import WorkItem
from tocsin.model.allowed_hosts import allowed_hosts
from tocsin.model.clock import Clock
from tocsin.model.delivery import Delivered, DeliveryFailed
from tocsin.model.host import host_of
from tocsin.model.http import Http
from tocsin.targets.address_guard import Guard
from tocsin.targets.envelope import Envelope
from tocsin.targets.host_gates import HostGates
from tocsin.targets.http.answer import HttpAnswer, briefly, event_note, judge
from tocsin.targets.http.request import Request, RequestTemplates, build
from tocsin.targets.secrets import Secrets

if TYPE_CHECKING:
    from aiohttp.abc import AbstractResolver

    from tocsin.targets.http.connections import HttpConnections


class HttpTarget:
    """Sends the requests of all jobs of a worker."""

    stoppable = True

    def __init__(
        self,
        *,
        namespace: str,
        clock: Clock,
        gates: HostGates,
        secrets: Secrets,
        longest_wait_s: float = 600.0,
        allow: tuple[str, ...] = (),
        max_timeout_s: float = math.inf,
        resolver: AbstractResolver | None = None,
    ) -> None:
        self._namespace = namespace
        self._clock = clock
        self._gates = gates
        self._secrets = secrets
        self._longest_wait_s = longest_wait_s
        self._guard = Guard(allowed_hosts(allow))
        self._max_timeout_s = max_timeout_s
        self._resolver = resolver
        self._templates = RequestTemplates()
        self._connections: HttpConnections | None = None

    async def deliver(self, unit: WorkItem) -> Delivered:
        clock, template = self._clock, self._templates.of(unit)
        delivery = self._gates.delivery_to(host_of(template.target.url), unit.deadline)
        envelope = Envelope(unit, self._namespace)
        request = build(template, envelope, self._secrets, clock.server_ms() / 1000)
        mask = request.mask
        with mask.mask_errors():
            async with delivery:
                started = clock.monotonic()
                answer = await self._send(template.target, request)
                delivery.ok = answer.status < 500 or answer.status in template.target.expect
            note = event_note(answer, round((clock.monotonic() - started) * 1000), mask)
            return judge(template.target, answer, note, clock.server_ms() / 1000, self._longest_wait_s, mask)

    async def _send(self, target: Http, request: Request) -> HttpAnswer:
        """The answer, after all redirects."""
        timeout = min(target.timeout, self._max_timeout_s)
        try:
            async with asyncio.timeout(timeout):
                return await self._follow(target, request)
        except TimeoutError:
            raise DeliveryFailed(f"{briefly(target)}: no complete answer within {timeout:g} s", status=408) from None

    async def _follow(self, target: Http, request: Request) -> HttpAnswer:
        from tocsin.targets.http import redirects

        connections = self._open()
        answer = await connections.exchange(target, request)
        followed = 0
        while redirects.is_redirect(target, answer):
            if followed == target.redirects:
                raise redirects.too_many(target, request, answer)
            followed += 1
            request = redirects.next_request(target, request, answer)
            try:
                answer = await connections.exchange(target, request)
            except DeliveryFailed as error:
                # The requests before this one were sent.
                error.sent = True
                raise
        return answer

    def _open(self) -> HttpConnections:
        if self._connections is None:
            from tocsin.targets.http.connections import HttpConnections

            self._connections = HttpConnections(self._guard, self._resolver)
        return self._connections

    async def close(self) -> None:
        if self._connections is not None:
            await self._connections.close()
