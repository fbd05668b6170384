"""Connections to receivers. Imported with the first request: a worker without any does not need aiohttp."""

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
from tocsin.targets.file_descriptors import are_used_up, handed_back, is_lack, most_connections
from tocsin.targets.http.answer import LARGEST_HEAD, HttpAnswer, briefly
from tocsin.targets.http.request import Request
from tocsin.targets.secret_masking import NOTHING, SecretMask

# Of a body so much is read, so that the connection can be used again; of a longer one it is closed.
LARGEST_BODY = 64 * 1024
# Shorter than servers keep idle connections (five seconds is common): a request must not meet one that is just closing.
IDLE_S = 4.0
MOST_ADDRESSES = 1024
# What aiohttp quotes of an answer that it cannot read.
_QUOTED = re.compile(r"""\s*\bb['"].*""", re.DOTALL)


class _Connector(aiohttp.TCPConnector):
    """Keeps so many idle connections and no more. aiohttp bounds only those in use: a job for each of a thousand hosts
    would leave a thousand behind."""

    def __init__(self, most_idle: int, **options: Any) -> None:
        super().__init__(**options)
        self._most_idle = most_idle

    def _release(self, key: Any, protocol: Any, *, should_close: bool = False) -> None:
        crowded = sum(map(len, self._conns.values())) >= self._most_idle
        super()._release(key, protocol, should_close=should_close or crowded)


class HttpConnections:
    """Two pools of connections: to hosts that the operator named, and, guarded, to all others."""

    def __init__(self, guard: Guard, resolver: AbstractResolver | None = None) -> None:
        self._guard = guard
        self._resolver = resolver or aiohttp.DefaultResolver()
        self._trusted = _session(resolver=self._resolver)
        self._guarded = _session(resolver=_Sieve(self._resolver, guard), socket_factory=guard.open_socket)

    async def exchange(self, target: Http, request: Request) -> HttpAnswer:
        """Send it, once, and read the answer."""
        try:
            url, login = _address(request.url)
            headers = request.headers if login is None else {**request.headers, "Authorization": login}
            session = self._trusted if self._guard.trusts(url.raw_host or "") else self._guarded
            async with session.request(
                request.method, url, headers=headers, data=request.body or None, allow_redirects=False
            ) as answer:
                said = answer.headers
                head = await _read(answer)
                return HttpAnswer(answer.status, head, said.get("Retry-After"), said.get("Location"))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if is_lack(getattr(error, "os_error", error)) or are_used_up():
                raise handed_back(request.veil.text(_text(error))) from error
            raise _failed(target, error, request.veil) from (None if _may_quote_a_part(error, request) else error)

    async def close(self) -> None:
        await self._trusted.close()
        await self._guarded.close()
        await self._resolver.close()


def _session(**connector: Any) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=_Connector(most_connections() // 2, limit=0, keepalive_timeout=IDLE_S, **connector),
        cookie_jar=aiohttp.DummyCookieJar(),
        # Of the run: see HttpTarget.
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        # What is unpacked may be a thousand times larger than what was read.
        auto_decompress=False,
        trust_env=False,
        headers={"User-Agent": f"tocsin/{version('tocsin')}", "Accept-Encoding": "identity"},
    )


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    """The beginning of the body. All of it is read, unless it is so long that closing the connection costs less."""
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
    """Without its login, and that as the value of a header."""
    whole = URL(url)
    if whole.raw_user is None and whole.raw_password is None:
        return whole, None
    login = b64encode(f"{whole.user or ''}:{whole.password or ''}".encode()).decode()
    return whole.with_user(None), f"Basic {login}"


def _failed(target: Http, error: Exception, veil: SecretMask) -> DeliveryFailed:
    """What went wrong between us and the receiver. It may be over next time, unless it is the request itself."""
    what = briefly(target)
    refused = getattr(error, "os_error", None)
    if isinstance(refused, AddressRefused):
        return DeliveryFailed(f"{what}: {refused.strerror}", final=True)
    if isinstance(error, aiohttp.InvalidURL) or not isinstance(error, (aiohttp.ClientError, OSError)):
        # What it says may quote what is secret.
        return DeliveryFailed(f"{what}: the URL or a header cannot be sent", final=True)
    if isinstance(error, aiohttp.ClientResponseError):
        # Its status is not one that the receiver sent.
        said = error.message if veil is NOTHING else veil.text(_QUOTED.sub("", error.message))
        said = said.strip().rstrip(":")
        return DeliveryFailed(f"{what}: the answer is not HTTP ({said:.200})", status=502)
    sent = not isinstance(error, aiohttp.ClientConnectorError)
    return DeliveryFailed(f"{what}: {veil.text(_text(error)):.500}", sent=sent)


def _may_quote_a_part(error: Exception, request: Request) -> bool:
    """An answer comes in pieces, and what is quoted is one of them: half a secret, which the veil does not know."""
    return isinstance(error, aiohttp.ClientResponseError) and request.veil is not NOTHING


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__


class _Sieve(AbstractResolver):
    """Leaves out addresses that are refused, so that a host is reached at the others. Whether a connection is made is
    not decided here, but by the guard's sockets."""

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
        """Whoever made the resolver closes it."""
