"""A receiver on loopback that notes what it was sent and answers as it is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from msgspec import Struct

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Received(Struct):
    method: str
    # As it was sent, with its query.
    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """Answers 200 and "thanks", unless `answers` says otherwise: each is used once, the last one for ever."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.answers: list[Answer | web.Response | int] = []
        self._runner: web.AppRunner | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def keys(self) -> list[str]:
        return [each.headers["Idempotency-Key"] for each in self.received]

    async def start(self, ssl: Any = None) -> None:
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", r"/{path:[\s\S]*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=ssl)
        await site.start()
        assert site._server is not None
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.received.append(Received(request.method, request.raw_path, dict(request.headers), body))
        answer: Any = 200
        if self.answers:
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, int):
            return web.Response(status=answer, text="thanks" if answer == 200 else "no")
        if isinstance(answer, web.Response):
            return web.Response(status=answer.status, headers=answer.headers, body=answer.body)
        return await answer(request)
