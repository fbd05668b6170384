"""HTTP requests: sent once per attempt, judged by their status."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from tocsin.engine.unit import Unit
from tocsin.model.clock import Clock
from tocsin.model.delivery import Delivered, DeliveryFailed, head_of
from tocsin.model.http import Http
from tocsin.model.target import target_of
from tocsin.model.template import fill
from tocsin.targets.envelope import Envelope, in_header, in_json, in_url
from tocsin.targets.secrets import Secrets

if TYPE_CHECKING:
    import aiohttp

# Of a body so much is read, so that the connection can be used again; of a longer one, or a slower one, it is closed.
LARGEST_BODY = 64 * 1024
RETRY_AFTER = (429, 503)
PASSING = (408, 425, 429)


class HttpTarget:
    """Requests of all jobs of a worker, over one pool of connections."""

    stoppable = True

    def __init__(self, namespace: str, clock: Clock, secrets: Secrets, longest_wait_s: float = 600.0) -> None:
        self._namespace = namespace
        self._clock = clock
        self._secrets = secrets
        self._longest_wait_s = longest_wait_s
        self._session: aiohttp.ClientSession | None = None

    async def deliver(self, unit: Unit) -> Delivered:
        target = target_of(unit.spec)
        assert isinstance(target, Http)
        envelope = Envelope(unit, self._namespace)
        url, headers, body = self._request(target, envelope)
        started = self._clock.monotonic()
        status, said, head = await self._send(target, url, headers, body)
        told = {"status": status, "ms": round((self._clock.monotonic() - started) * 1000), "head": head_of(head)}
        wait = retry_after(said, self._clock.server_ms() / 1000, self._longest_wait_s)
        return judge(target, status, told, wait)

    def _request(self, target: Http, envelope: Envelope) -> tuple[str, dict[str, str], bytes]:
        values: Callable[[], dict[str, str]] = lambda: envelope.values  # noqa: E731
        url = fill(target.url, values(), in_url) if "{" in target.url else target.url
        body = target.body
        if target.fills:
            body = fill(body.decode(), values(), in_json).encode()
        headers = {
            "Idempotency-Key": envelope.key,
            "Tocsin-Run": in_header(envelope.run_id),
            "Tocsin-Due": envelope.due,
            "Tocsin-Attempt": str(envelope.attempt),
            "traceparent": envelope.traceparent,
        }
        for name, value in target.headers.items():
            if isinstance(value, str):
                headers[name] = fill(value, values(), in_header) if "{" in value else value
            else:
                headers[name] = self._secrets.read(value)
        return url, headers, body

    async def _send(
        self, target: Http, url: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, str | None, bytes]:
        """The status, what it says about coming back, and the head of the body."""
        import aiohttp

        session = self._session = self._session or self._open()
        sending = session.request(target.method, url, headers=headers, data=body or None, allow_redirects=False)
        try:
            async with asyncio.timeout(target.timeout), sending as answer:
                head = await answer.content.read(LARGEST_BODY)
                return answer.status, answer.headers.get("Retry-After"), head
        except TimeoutError:
            raise DeliveryFailed(f"{target}: no whole answer within {target.timeout:g} s", status=408) from None
        except aiohttp.ClientError as error:
            raise DeliveryFailed(f"{target}: {error}") from error

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            headers={"User-Agent": "tocsin"},
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def judge(target: Http, status: int, told: dict[str, Any], wait: float | None = None) -> Delivered:
    """What a status means: done, or how it failed."""
    if status in target.expect if target.expect else 200 <= status <= 299:
        return Delivered(told)
    passing = status in PASSING or status >= 500
    asked = wait if status in RETRY_AFTER else None
    raise DeliveryFailed(f"{target} answered {status}", told, status=status, final=not passing, retry_after=asked)


def retry_after(said: str | None, now_s: float, longest_s: float) -> float | None:
    """Seconds from now, whether the header gives seconds or a date; None if it says nothing that can be understood."""
    if said is None:
        return None
    try:
        wait = float(int(said)) if said.strip().isdigit() else _at(said) - now_s
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(wait, 0.0), longest_s)


def _at(date: str) -> float:
    found: datetime = parsedate_to_datetime(date)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
