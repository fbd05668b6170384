"""Responses: how one is packed and replayed, and the error responses that the receiver makes itself."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

import msgspec

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Header: TypeAlias = tuple[bytes, bytes]

REPLAYED: Header = (b"idempotency-replayed", b"true")
# On the replay of a response whose body was too large to be remembered.
OMITTED: Header = (b"idempotency-body", b"omitted")

# These headers belong to one connection, one moment or one client's session.
_NOT_KEPT = {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"trailer", b"date", b"set-cookie"}
_ABOUT_THE_BODY = {b"content-length", b"content-encoding", b"content-type", b"content-digest", b"etag"}


class Response(msgspec.Struct, array_like=True, frozen=True):
    status: int
    headers: list[Header]
    body: bytes = b""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    async def send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        await send({"type": "http.response.body", "body": self.body})


def pack(response: Response) -> bytes:
    kept = [(name, value) for name, value in response.headers if name.lower() not in _NOT_KEPT]
    return msgspec.msgpack.encode(Response(response.status, kept, response.body))


def pack_without_body(status: int, headers: list[Header]) -> bytes:
    kept = [(name, value) for name, value in headers if name.lower() not in _ABOUT_THE_BODY]
    return pack(Response(status, [*kept, OMITTED]))


def replayed(packed: bytes) -> Response:
    first = msgspec.msgpack.decode(packed, type=Response)
    return Response(first.status, [*first.headers, REPLAYED], first.body)


def problem(status: int, title: str, detail: str, *, retry_after_s: float | None = None) -> Response:
    """An error response as in RFC 9457."""
    fields = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    body = msgspec.json.encode(fields)
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", b"%d" % len(body))]
    if retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(retry_after_s))))
    if status == 401:
        headers.append((b"www-authenticate", b"Webhook-Signature"))
    return Response(status, headers, body)
