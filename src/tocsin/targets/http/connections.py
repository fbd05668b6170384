"""Connections to receivers. Imported with the first request, so a worker that sends none does not load aiohttp."""

from __future__ import annotations

import re
import socket
from base64 import b64encode
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from tocsin.model.delivery import DeliveryFailed
from tocsin.model.http import Http
from tocsin.targets.address_guard import AddressRefused, Guard
from tocsin.targets.file_descriptors import (
    are_descriptors_used_up,
    descriptors_used_up,
    is_descriptor_shortage,
    most_connections,
)
from tocsin.targets.http.answer import LARGEST_HEAD, HttpAnswer, briefly
from tocsin.targets.http.request import Request
from tocsin.targets.secret_masking import NO_SECRETS, SecretMask

# A body is read up to this size, so that its connection can be used again; after a longer one it is closed.
LARGEST_BODY = 64 * 1024
# Shorter than servers keep idle connections (often five seconds), so that no request meets one that is just closing.
IDLE_S = 4.0
MOST_ADDRESSES = 1024
# The part of an unreadable answer that aiohttp quotes in its error.
_QUOTED = re.compile(r"""\s*\bb['"].*""", re.DOTALL)


class _Connector(aiohttp.TCPConnector):
    """Keeps at most `most_idle` idle connections. aiohttp bounds only connections in use, so jobs for a thousand hosts
    would leave a thousand idle ones behind."""

    def __init__(self, most_idle: int, **options: Any) -> None:
        super().__init__(**options)
        self._most_idle = most_idle

    def _release(self, key: Any, protocol: Any, *, should_close: bool = False) -> None:
        full = sum(map(len, self._conns.values())) >= self._most_idle
        super()._release(key, protocol, should_close=should_close or full)


class HttpConnections:
    """Two pools of connections: one to hosts that the operator listed by name, and a guarded one to all others."""

    def __init__(self, guard: Guard, resolver: AbstractResolver | None = None) -> None:
        self._guard = guard
        self._resolver = resolver or aiohttp.DefaultResolver()
        self._trusted = _session(resolver=self._resolver)
        self._guarded = _session(resolver=_GuardedResolver(self._resolver, guard), socket_factory=guard.open_socket)

    async def exchange(self, target: Http, request: Request) -> HttpAnswer:
        """Send the request once, and read the answer."""
        try:
            url, login = _address(request.url)
            headers = request.headers if login is None else {**request.headers, "Authorization": login}
            session = self._trusted if self._guard.trusts(url.raw_host or "") else self._guarded
            async with session.request(
                request.method, url, headers=headers, data=request.body or None, allow_redirects=False
            ) as answer:
                fields = answer.headers
                head = await _read(answer)
                return HttpAnswer(answer.status, head, fields.get("Retry-After"), fields.get("Location"))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if is_descriptor_shortage(getattr(error, "os_error", error)) or are_descriptors_used_up():
                raise descriptors_used_up(request.mask.text(_text(error))) from error
            raise _failed(target, error, request.mask) from (
                None if _may_quote_half_a_secret(error, request) else error
            )

    async def close(self) -> None:
        await self._trusted.close()
        await self._guarded.close()
        await self._resolver.close()


def _session(**connector: Any) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=_Connector(most_connections() // 2, limit=0, keepalive_timeout=IDLE_S, **connector),
        cookie_jar=aiohttp.DummyCookieJar(),
        # HttpTarget bounds the whole exchange.
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        # An unpacked body may be a thousand times larger than the one read.
        auto_decompress=False,
        trust_env=False,
        headers={"User-Agent": f"tocsin/{version('tocsin')}", "Accept-Encoding": "identity"},
    )


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    """The beginning of the body. The rest is read and dropped, unless closing the connection costs less."""
    content = answer.content
    head = await content.read(LARGEST_BODY)
    size = len(head)
    while head and size < LARGEST_BODY and not content.at_eof():
        more = await content.read(LARGEST_BODY - size)
        size += len(more)
        if len(head) < LARGEST_HEAD:
            head += more
    return head


@lru_cache(MOST_ADDRESSES)
def _address(url: str) -> tuple[URL, str | None]:
    """The URL without its login, and the login as the value of an Authorization header."""
    whole = URL(url)
    if whole.raw_user is None and whole.raw_password is None:
        return whole, None
    login = b64encode(f"{whole.user or ''}:{whole.password or ''}".encode()).decode()
    return whole.with_user(None), f"Basic {login}"


def _failed(target: Http, error: Exception, mask: SecretMask) -> DeliveryFailed:
    """The failure of an exchange. Another attempt may succeed, unless the request itself is wrong."""
    what = briefly(target)
    refused = getattr(error, "os_error", None)
    if isinstance(refused, AddressRefused):
        return DeliveryFailed(f"{what}: {refused.strerror}", final=True)
    if isinstance(error, aiohttp.InvalidURL) or not isinstance(error, (aiohttp.ClientError, OSError)):
        # The error is not quoted: it may contain a secret.
        return DeliveryFailed(f"{what}: the URL or a header cannot be sent", final=True)
    if isinstance(error, aiohttp.ClientResponseError):
        # `error.status` does not come from the receiver.
        reason = error.message if mask is NO_SECRETS else mask.text(_QUOTED.sub("", error.message))
        reason = reason.strip().rstrip(":")
        return DeliveryFailed(f"{what}: the answer is not HTTP ({reason:.200})", status=502)
    sent = not isinstance(error, aiohttp.ClientConnectorError)
    return DeliveryFailed(f"{what}: {mask.text(_text(error)):.500}", sent=sent)


def _may_quote_half_a_secret(error: Exception, request: Request) -> bool:
    """aiohttp quotes the piece of the answer that it read last, which may end within a secret: no mask finds that."""
    return isinstance(error, aiohttp.ClientResponseError) and request.mask is not NO_SECRETS


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__


class _GuardedResolver(AbstractResolver):
    """Leaves out refused addresses, so that the host is reached at its others. This is not the check: the guard checks
    again when it makes the socket."""

    def __init__(self, resolver: AbstractResolver, guard: Guard) -> None:
        self._resolver = resolver
        self._guard = guard

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        permitted = [each for each in found if self._guard.permits(each["host"])]
        if found and not permitted:
            self._guard.check(found[0]["host"])
        return permitted

    async def close(self) -> None:
        """HttpConnections closes the wrapped resolver."""
