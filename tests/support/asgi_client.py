"""Requests to an ASGI app without a server between, and apps to ask."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from tests.support.once_work import KEY
from tocsin.model.clock import wall_ms
from tocsin.model.webhook_signature import sign

SECRET = "whsec_YSBzZWNyZXQgb2YgMjQgYnl0ZXMsIG9r"
OTHER = "whsec_YW5vdGhlciBvbmUgb2YgMjQgYnl0ZXMu"


class Told:
    """A response as the client gets it."""

    def __init__(self, messages: list[Any]) -> None:
        start, *parts = messages
        assert start["type"] == "http.response.start"
        self.status: int = start["status"]
        self.headers = {name.decode().lower(): value.decode() for name, value in start["headers"]}
        self.body: bytes = b"".join(part["body"] for part in parts)
        self.parts = len(parts)
        self.whole = not parts[-1].get("more_body", False)

    @property
    def problem(self) -> Any:
        assert self.headers["content-type"] == "application/problem+json"
        told = json.loads(self.body)
        assert told["status"] == self.status
        return told


async def ask(
    app: Any,
    body: bytes | list[bytes] = b"{}",
    *,
    key: str | None = KEY,
    method: str = "POST",
    path: str = "/hook",
    query: bytes = b"",
    headers: dict[str, str] | None = None,
    then: Callable[[], Any] | None = None,
) -> Told:
    """`then` is awaited after the body: by default the client stays, and waits."""
    given = {} if key is None else {"Idempotency-Key": key}
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query,
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in (given | (headers or {})).items()],
        "extensions": {"http.response.push": {}},
    }
    parts = [body] if isinstance(body, bytes) else list(body)
    messages = [{"type": "http.request", "body": part, "more_body": n < len(parts)} for n, part in enumerate(parts, 1)]
    sent: list[Any] = []

    async def receive() -> Any:
        if messages:
            return messages.pop(0)
        await (then or asyncio.Event().wait)()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return Told(sent)


def signed(body: bytes, *secrets: str, key: str = KEY, ago_s: int = 0) -> dict[str, str]:
    at = wall_ms() // 1000 - ago_s
    return {
        "webhook-id": key,
        "webhook-timestamp": str(at),
        "webhook-signature": sign(secrets or (SECRET,), key, at, body),
    }


class Shop:
    """An app that notes each order, and answers as it is told to."""

    def __init__(self, status: int = 201, parts: tuple[bytes, ...] = (b"order ", b"1")) -> None:
        self.orders: list[bytes] = []
        self.status = status
        self.parts = parts
        self.headers = [(b"content-type", b"text/plain"), (b"X-Order", b"1"), (b"date", b"then")]
        self.fails: Exception | None = None
        self.started = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.seen: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append(scope)
        if scope["type"] != "http":
            return
        message = await receive()
        assert not message.get("more_body")
        self.orders.append(message["body"])
        self.started.set()
        await self.go_on.wait()
        if self.fails:
            raise self.fails
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        for n, part in enumerate(self.parts, 1):
            await send({"type": "http.response.body", "body": part, "more_body": n < len(self.parts)})
