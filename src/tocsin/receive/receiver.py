"""An ASGI middleware: requests of a run reach the app once, and only from senders that know the secret.

    app = Receiver(app, Once("redis://localhost"), secrets=Path("/run/secrets/webhooks"))

The first response with a status of 2xx is remembered, for callers with the same secret or login (caller_scope.py). Any
other response, or an exception, frees the key. Requests without an effect (GET, HEAD, OPTIONS, TRACE), lifespan and
websockets pass through unchanged. With `secrets` every other request must be signed, even without an `Idempotency-Key`:
otherwise a sender that leaves the key out would not need the secret.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

from tocsin.model.clock import wall_ms
from tocsin.model.durations import Duration, seconds
from tocsin.model.errors import InvalidArgument, InvalidSignature, KeyReused, StillRunning, StoreError
from tocsin.model.webhook_signature import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, TOLERANCE_S, sign, signed_by
from tocsin.receive import joint_turn
from tocsin.receive.caller_scope import LOGINS, login_of, memory_keys
from tocsin.receive.exchange import BodyTooLarge, ClientGone, Exchange, read_body
from tocsin.receive.joint_turn import JointTurn
from tocsin.receive.once import LONGEST_KEY, Once
from tocsin.receive.paths import AmbiguousPath, Paths
from tocsin.receive.responses import App, Receive, Response, Scope, Send, problem, replayed

log = logging.getLogger("tocsin.receive")

# A text, a file that is read for each request, or a function that returns the text. Spaces or lines separate secrets.
Secrets: TypeAlias = str | Path | Callable[[], str]

KEY_HEADER = "idempotency-key"

_SAFE = {"GET", "HEAD", "OPTIONS", "TRACE"}
_MIB = 1 << 20
# Retry-After while the memory is away.
_AWAY_S = 5.0


class RequestRefused(Exception):
    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


class Receiver:
    """`paths`: the paths it is for, all if None. A path with a slash at its end holds all beneath it.

    `logins`: further headers by which the app knows its callers, besides Authorization, Cookie and the like.
    """

    def __init__(
        self,
        app: App,
        once: Once,
        *,
        secrets: Secrets | None = None,
        wait: Duration = "5s",
        paths: Iterable[str] | None = None,
        logins: Iterable[str] = (),
        tolerance: Duration = TOLERANCE_S,
        largest_body: int = _MIB,
        largest_answer: int = _MIB,
        body_timeout: Duration = "30s",
    ) -> None:
        self._app = app
        self._once = once
        self._secrets = secrets
        self._wait_s = seconds(wait, "wait")
        self._paths = None if paths is None else Paths(paths)
        self._logins = (*LOGINS, *_names(logins))
        self._tolerance_s = seconds(tolerance, "tolerance")
        self._largest_body = largest_body
        self._largest_answer = largest_answer
        self._body_timeout_s = seconds(body_timeout, "body_timeout")
        self._warned = False
        if secrets is not None:
            # Fail now rather than at the first request.
            sign(_read(secrets), "start", 0, b"")
            self._check_keep()

    def _check_keep(self) -> None:
        # A request may be signed one tolerance ahead of our clock, and is accepted until one tolerance after its time.
        least_s = 2 * self._tolerance_s
        if self._once.keep_ms < least_s * 1000:
            raise InvalidArgument(
                f"keep is {self._once.keep_ms / 1000:g} s, and a signed request is accepted for up to {least_s:g} s, "
                "twice the tolerance: whoever recorded one could have it done again. Make keep at least that long"
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["type"] == "http" and self._is_for(scope):
                await self._receive(scope, receive, send)
            else:
                await self._app(scope, receive, send)
        except RequestRefused as refused:
            await refused.response.send(send)
        except ClientGone:
            pass

    def _is_for(self, scope: Scope) -> bool:
        asked = self._secrets is not None or _values(scope, KEY_HEADER)
        if scope["method"] in _SAFE or not asked:
            return False
        try:
            return self._paths is None or self._paths.hold(scope["path"])
        except AmbiguousPath:
            detail = "write the path without double slashes, dots, encoded slashes and in its own case"
            raise RequestRefused(problem(400, "Ambiguous path", detail)) from None

    async def _receive(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = _header(scope, KEY_HEADER)
        if given is not None and not (0 < len(given) <= LONGEST_KEY and given.isprintable()):
            raise RequestRefused(
                problem(400, "Bad key", f"Idempotency-Key must be 1 to {LONGEST_KEY} printable characters")
            )
        body = await self._body(scope, receive)
        key, signers = (given or "", []) if self._secrets is None else self._signed(scope, given, body)
        begun = await self._begin(key, signers, scope, body)
        if isinstance(begun, Response):
            await begun.send(send)
            return
        async with begun as turn:
            exchange = Exchange(turn, body, receive, send, self._largest_answer)
            # Without extensions: each is another way to respond, and its response would not be remembered.
            await self._app({**scope, "extensions": {}}, exchange.receive, exchange.send)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        length = _header(scope, "content-length") or ""
        try:
            if length.isascii() and length.isdigit() and len(length) < 20 and int(length) > self._largest_body:
                raise BodyTooLarge
            async with asyncio.timeout(self._body_timeout_s):
                return await read_body(receive, self._largest_body)
        except BodyTooLarge:
            raise RequestRefused(
                problem(413, "Too large", f"a body has at most {self._largest_body} bytes here")
            ) from None
        except TimeoutError:
            raise RequestRefused(problem(408, "Too slow", f"no whole body within {self._body_timeout_s:g} s")) from None

    def _signed(self, scope: Scope, given: str | None, body: bytes) -> tuple[str, list[bytes]]:
        """The key, and the secrets that signed the request."""
        assert self._secrets is not None
        names = (ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER)
        headers = {name: _header(scope, name) or "" for name in names}
        try:
            key, signers = signed_by(_read(self._secrets), headers, body, wall_ms() / 1000, self._tolerance_s)
        except InvalidSignature as error:
            raise RequestRefused(problem(401, "Not signed", str(error))) from None
        if len(key) > LONGEST_KEY or given not in (None, key):
            raise RequestRefused(problem(401, "Not signed", "Idempotency-Key is not the id that was signed")) from None
        return key, signers

    async def _begin(self, key: str, signers: list[bytes], scope: Scope, body: bytes) -> Response | JointTurn:
        login = login_of(scope, self._logins)
        if not signers and not login:
            self._warn_unauthenticated()
        wanted = memory_keys(signers, login, key, scope, body)
        try:
            found = await joint_turn.begin(self._once, key, wanted, self._wait_s)
        except StillRunning as error:
            raise RequestRefused(problem(409, "Still running", str(error), retry_after_s=error.retry_after_s)) from None
        except KeyReused as error:
            raise RequestRefused(problem(422, "Key used before", str(error))) from None
        except StoreError as error:
            log.warning("no request can be received: %s", error)
            raise RequestRefused(problem(503, "Not now", "keys cannot be looked up", retry_after_s=_AWAY_S)) from None
        return replayed(found) if isinstance(found, bytes) else found

    def _warn_unauthenticated(self) -> None:
        """Warn once: any stranger could have sent the request, because keys can be computed."""
        if not self._warned:
            self._warned = True
            log.warning(
                "requests come with neither a signature nor a login, so a stranger can ask for the answer to a key, or "
                "take the key first: pass secrets=, or name the header of the login with logins="
            )


def _read(secrets: Secrets) -> list[str]:
    if isinstance(secrets, Path):
        return secrets.read_text().split()
    return (secrets() if callable(secrets) else secrets).split()


def _names(logins: Iterable[str]) -> tuple[str, ...]:
    if isinstance(logins, str):
        raise InvalidArgument(f"logins are a list of headers: write [{logins!r}]")
    return tuple(logins)


def _values(scope: Scope, name: str) -> list[str]:
    return [value.decode("latin-1") for each, value in scope["headers"] if each.lower() == name.encode()]


def _header(scope: Scope, name: str) -> str | None:
    values = _values(scope, name)
    if len(values) > 1:
        raise RequestRefused(problem(400, "Twice the same header", f"{name} is in the request more than once"))
    return values[0] if values else None
