"""Http: a target that sends an HTTP request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from tocsin.model.durations import Duration, seconds
from tocsin.model.errors import InvalidArgument
from tocsin.model.nesting import MOST_LEVELS, is_deep_json
from tocsin.model.secret import Secret
from tocsin.model.template import MARK, check_template

DEFAULT_TIMEOUT_S = 30.0
LONGEST_TIMEOUT_S = 86_400.0
LONGEST_URL = 8_000
MOST_REDIRECTS = 10

_METHOD = re.compile(r"[A-Z]{1,20}")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")
# Printable characters of Latin-1: servers read headers as such bytes.
_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")
# Headers that Tocsin sets itself, and headers that belong to the connection.
_OURS = ("idempotency-key", "tocsin-", "webhook-", "traceparent", "tracestate")
_FRAMING = ("content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect", "keep-alive")
# Headers about the host or a proxy. The URL decides the host, and the worker decides about proxies.
_HOST = ("host", "proxy-connection", "proxy-authorization", "proxy-authenticate", "http2-settings")
_URL = re.compile(r"[^\x00-\x20\x7f]+")


class Http(Struct, frozen=True, array_like=True):
    """A request that a worker sends. The URL, headers and JSON may contain fields of the run, like {run.due}. Secrets
    are given by name, never by value."""

    method: str
    url: str
    headers: dict[str, str | Secret] = {}
    # Encoded into `body` when the request is made.
    json: Any = None
    body: bytes = b""
    timeout: float = DEFAULT_TIMEOUT_S
    # Statuses that count as success; empty: 200 to 299.
    expect: tuple[int, ...] = ()
    # The secret (like whsec_…) to sign the request with, as Standard Webhooks specify.
    sign: Secret | None = None
    redirects: int = 0
    # Whether the body has fields to fill in. A body given as bytes or text is sent unchanged.
    fills: bool = False

    if TYPE_CHECKING:

        def __init__(
            self,
            method: str,
            url: str,
            headers: Mapping[str, str | Secret] = {},
            json: Any = None,
            body: bytes | str = b"",
            timeout: Duration = DEFAULT_TIMEOUT_S,
            expect: tuple[int, ...] = (),
            sign: Secret | None = None,
            redirects: int = 0,
            fills: bool = False,
        ) -> None: ...

    def __post_init__(self) -> None:
        if not isinstance(self.method, str) or not _METHOD.fullmatch(self.method):
            raise InvalidArgument(f"{self.method!r} is no HTTP method: GET, POST, PUT, PATCH, DELETE or HEAD")
        check_url(self.url)
        given = check_headers(self.headers)
        force_setattr(self, "headers", {name: self._check_header(name, value) for name, value in given.items()})
        if without_login(self.url) != self.url and any(name.lower() == "authorization" for name in self.headers):
            raise InvalidArgument("give the login in the URL or in the header Authorization, not in both")
        self._take_body()
        timeout = seconds(self.timeout, "a timeout")
        if not 0.001 <= timeout <= LONGEST_TIMEOUT_S:
            raise InvalidArgument(f"the timeout of a request must be between 1 ms and a day, not {self.timeout!r}")
        force_setattr(self, "timeout", timeout)
        force_setattr(self, "expect", _check_statuses(self.expect))
        if self.sign is not None and not isinstance(self.sign, Secret):
            raise InvalidArgument("sign= takes Secret.env(…) or Secret.file(…): secrets are not stored with jobs")
        if not isinstance(self.redirects, int) or not 0 <= self.redirects <= MOST_REDIRECTS:
            raise InvalidArgument(f"redirects must be from 0 to {MOST_REDIRECTS}, not {self.redirects!r}")

    def _check_header(self, name: object, value: object) -> str | Secret:
        checked = check_header(name, value)
        if str(name).lower() in _HOST:
            raise InvalidArgument(
                f"the header {name} is set when the request is sent, as its URL says: leave it out, or change the URL"
            )
        return checked

    def _take_body(self) -> None:
        body: bytes | str = self.body
        if self.json is not None:
            if body:
                raise InvalidArgument("give json= or body=, not both")
            body = encode_json(self.json)
            check_template(body.decode(), "the JSON")
            force_setattr(self, "fills", MARK.encode() in body)
            force_setattr(self, "json", None)
            if not any(name.lower() == "content-type" for name in self.headers):
                force_setattr(self, "headers", {**self.headers, "Content-Type": "application/json"})
        if not isinstance(body, (bytes, str)):
            raise InvalidArgument(f"a body is bytes or text, not {type(body).__name__}; for anything else use json=")
        force_setattr(self, "body", body.encode() if isinstance(body, str) else body)

    @classmethod
    def get(cls, url: str, **options: Any) -> Http:
        return cls("GET", url, **options)

    @classmethod
    def head(cls, url: str, **options: Any) -> Http:
        return cls("HEAD", url, **options)

    @classmethod
    def post(cls, url: str, **options: Any) -> Http:
        return cls("POST", url, **options)

    @classmethod
    def put(cls, url: str, **options: Any) -> Http:
        return cls("PUT", url, **options)

    @classmethod
    def patch(cls, url: str, **options: Any) -> Http:
        return cls("PATCH", url, **options)

    @classmethod
    def delete(cls, url: str, **options: Any) -> Http:
        return cls("DELETE", url, **options)

    def __str__(self) -> str:
        """For output to people, without the login."""
        return f"{self.method} {without_login(self.url)}"

    def __repr__(self) -> str:
        return f"<Http {self}>"


def check_url(url: object) -> str:
    if not isinstance(url, str) or not 1 <= len(url) <= LONGEST_URL or not _URL.fullmatch(url):
        raise InvalidArgument(f"a URL is text of up to {LONGEST_URL} characters without white space")
    parts = _split(url)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidArgument(f"a URL begins with http:// or https:// and a host, not {without_login(url)!r:.200}")
    if "{" in parts.netloc:
        # Otherwise the name of a tenant or a job could choose the host that receives the worker's secrets.
        raise InvalidArgument(f"the host of a URL cannot have fields of the run: {without_login(url)!r:.200}")
    return check_template(url, "the URL")


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        return parts if parts.port is None or parts.port > 0 else None
    except ValueError:
        return None


def without_login(url: str) -> str:
    """The URL with *** in place of its user and password."""
    scheme, mark, rest = url.partition("://")
    end = min((at for c in "/?#" if (at := rest.find(c)) >= 0), default=len(rest))
    login, _, host = rest[:end].rpartition("@")
    return f"{scheme}{mark}***@{host}{rest[end:]}" if login else url


def check_header(name: object, value: object) -> str | Secret:
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise InvalidArgument(f"{name!r:.100} is no name of a header")
    if name.lower().startswith(_OURS) or name.lower() in _FRAMING:
        raise InvalidArgument(f"the header {name} is set when the request is sent: leave it out")
    if isinstance(value, Secret):
        return value
    if not isinstance(value, str) or not _VALUE.fullmatch(value):
        raise InvalidArgument(f"the value of the header {name} must be printable text on one line, or a Secret")
    return check_template(value, f"the header {name}")


def encode_json(value: Any) -> bytes:
    try:
        data = msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidArgument(f"this is no JSON ({error}): use None, bool, int, float, str, lists and dicts") from None
    if is_deep_json(data):
        raise InvalidArgument(f"this JSON is nested more than {MOST_LEVELS} levels deep: make it flatter")
    return data


def check_headers(headers: object) -> Mapping[Any, Any]:
    if not isinstance(headers, Mapping):
        raise InvalidArgument(
            f"headers are given by name, like {{'X-Name': 'text'}}, not as a {type(headers).__name__}"
        )
    return headers


def _check_statuses(statuses: Any) -> tuple[int, ...]:
    found = (statuses,) if isinstance(statuses, int) else tuple(statuses)
    for status in found:
        if not isinstance(status, int) or not 100 <= status <= 599:
            raise InvalidArgument(f"{status!r} is no HTTP status: give numbers from 100 to 599")
    return found
