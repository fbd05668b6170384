"""HTTP requests: sent once per attempt, judged by their status."""

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
from tocsin.targets.http.answer import HttpAnswer, briefly, judge, told_of
from tocsin.targets.http.request import Request, RequestTemplates, build
from tocsin.targets.secrets import Secrets

if TYPE_CHECKING:
    from aiohttp.abc import AbstractResolver

    from tocsin.targets.http.connections import HttpConnections


class HttpTarget:
    """Requests of all jobs of a worker, over one pool of connections."""

    stoppable = True

    def __init__(
        self,
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
        self._drafts = RequestTemplates()
        self._sessions: HttpConnections | None = None

    async def deliver(self, unit: WorkItem) -> Delivered:
        clock, draft = self._clock, self._drafts.of(unit)
        passage = self._gates.to(host_of(draft.target.url), unit.deadline)
        envelope = Envelope(unit, self._namespace)
        request = build(draft, envelope, self._secrets, clock.server_ms() / 1000)
        veil = request.veil
        with veil.over_errors():
            async with passage:
                started = clock.monotonic()
                answer = await self._send(draft.target, request)
                passage.ok = answer.status < 500 or answer.status in draft.target.expect
            told = told_of(answer, round((clock.monotonic() - started) * 1000), veil)
            return judge(draft.target, answer, told, clock.server_ms() / 1000, self._longest_wait_s, veil)

    async def _send(self, target: Http, request: Request) -> HttpAnswer:
        """The answer, of wherever the request led to."""
        timeout = min(target.timeout, self._max_timeout_s)
        try:
            async with asyncio.timeout(timeout):
                return await self._follow(target, request)
        except TimeoutError:
            raise DeliveryFailed(f"{briefly(target)}: no whole answer within {timeout:g} s", status=408) from None

    async def _follow(self, target: Http, request: Request) -> HttpAnswer:
        from tocsin.targets.http import redirects

        sessions = self._open()
        answer = await sessions.exchange(target, request)
        followed = 0
        while redirects.leads_on(target, answer):
            if followed == target.redirects:
                raise redirects.too_many(target, request, answer)
            followed += 1
            request = redirects.hop(target, request, answer)
            try:
                answer = await sessions.exchange(target, request)
            except DeliveryFailed as error:
                # If not this one, those before it were.
                error.sent = True
                raise
        return answer

    def _open(self) -> HttpConnections:
        if self._sessions is None:
            from tocsin.targets.http.connections import HttpConnections

            self._sessions = HttpConnections(self._guard, self._resolver)
        return self._sessions

    async def close(self) -> None:
        if self._sessions is not None:
            await self._sessions.close()
