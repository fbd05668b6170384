"""Finds evidence about a failure in one exception, without its causes.

Libraries are recognised by the names of their packages and classes, so that no package of the user's choice must be
imported. Exceptions come from foreign code: their attributes may raise, be missing, or have any type.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import ssl
from collections.abc import Iterator
from typing import Any, TypeGuard

from tocsin.model.errors import StoreFull, StoreUnavailable
from tocsin.model.failure_class import FailureClass

FORBIDDEN = FailureClass.PERMANENT_FORBIDDEN
THROTTLED = FailureClass.THROTTLED
TRANSIENT = FailureClass.TRANSIENT
SERVER_ERROR = FailureClass.SERVER_ERROR
UNKNOWN = FailureClass.UNKNOWN

# What foreign code may raise when we read a text or an attribute: everything except Ctrl-C.
STRANGE = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError)
# Maximum exceptions examined for one failure: chains may be long, and groups wide.
MOST_LINKS = 64

# Names of classes are compared without submodules, which change between releases. These namespaces hold several
# packages, so here the package is the second part.
_SHARED_NAMESPACES = {"google", "azure"}

# Exceptions whose messages quote other text (SQL, URLs, output of programs), so their words are no evidence.
_QUOTING = frozenset(["sqlalchemy.StatementError", "tocsin.DeliveryFailed"])

_REDIS = {
    "ConnectionError": TRANSIENT,
    "TimeoutError": TRANSIENT,
    "ClusterError": TRANSIENT,
    "ClusterDownError": TRANSIENT,
    "SlotNotCoveredError": TRANSIENT,
    "TryAgainError": TRANSIENT,
    # A primary that has just become a replica.
    "ReadOnlyError": TRANSIENT,
    "AuthenticationError": FORBIDDEN,
    "AuthenticationWrongNumberOfArgsError": FORBIDDEN,
    "AuthorizationError": FORBIDDEN,
    "NoPermissionError": FORBIDDEN,
    "OutOfMemoryError": THROTTLED,
}

_TYPES = {
    "builtins.MemoryError": THROTTLED,
    "builtins.TimeoutError": TRANSIENT,
    "builtins.ConnectionError": TRANSIENT,
    "asyncio.IncompleteReadError": TRANSIENT,
    "socket.gaierror": TRANSIENT,
    "socket.herror": TRANSIENT,
    "ssl.SSLError": TRANSIENT,
    # A retry will not change the certificate, and nobody refused us: the error interval fits.
    "ssl.SSLCertVerificationError": UNKNOWN,
    "http.IncompleteRead": TRANSIENT,
    "http.BadStatusLine": TRANSIENT,
    "aiohttp.ClientConnectionError": TRANSIENT,
    "aiohttp.ClientPayloadError": TRANSIENT,
    "aiohttp.ServerFingerprintMismatch": UNKNOWN,
    "httpx.TransportError": TRANSIENT,
    "httpx.UnsupportedProtocol": UNKNOWN,
    "httpx.LocalProtocolError": UNKNOWN,
    "httpcore.NetworkError": TRANSIENT,
    "httpcore.TimeoutException": TRANSIENT,
    "httpcore.RemoteProtocolError": TRANSIENT,
    "requests.ConnectionError": TRANSIENT,
    "requests.Timeout": TRANSIENT,
    "requests.ChunkedEncodingError": TRANSIENT,
    "urllib3.TimeoutError": TRANSIENT,
    "urllib3.ProtocolError": TRANSIENT,
    "urllib3.ProxyError": TRANSIENT,
    "urllib3.PoolError": TRANSIENT,
    "botocore.ConnectionError": TRANSIENT,
    "botocore.HTTPClientError": TRANSIENT,
    "botocore.IncompleteReadError": TRANSIENT,
    "botocore.UnauthorizedSSOTokenError": FORBIDDEN,
    "google.api_core.ServerError": SERVER_ERROR,
    "google.api_core.Aborted": TRANSIENT,
    "google.api_core.RetryError": TRANSIENT,
    "google.auth.TransportError": TRANSIENT,
    "azure.core.ClientAuthenticationError": FORBIDDEN,
    "azure.core.ServiceRequestError": TRANSIENT,
    "azure.core.ServiceResponseError": TRANSIENT,
    "azure.core.IncompleteReadError": TRANSIENT,
    "sqlalchemy.TimeoutError": TRANSIENT,
    "sqlalchemy.DisconnectionError": TRANSIENT,
    **{f"{package}.{name}": verdict for package in ("redis", "valkey") for name, verdict in _REDIS.items()},
}

_GRPC = {
    "PERMISSION_DENIED": FORBIDDEN,
    "UNAUTHENTICATED": FORBIDDEN,
    "RESOURCE_EXHAUSTED": THROTTLED,
    # gRPC also reports a failed connection like this.
    "UNAVAILABLE": TRANSIENT,
    "DEADLINE_EXCEEDED": TRANSIENT,
    "ABORTED": TRANSIENT,
    "INTERNAL": SERVER_ERROR,
    "UNKNOWN": SERVER_ERROR,
    "DATA_LOSS": SERVER_ERROR,
    "UNIMPLEMENTED": SERVER_ERROR,
}

# AWS: use codes and not statuses, because throttling arrives as 400 or 503 and an expired token as 400.
_AWS = (
    (
        re.compile(r"Throttl|TooManyRequests|ThroughputExceeded|BandwidthLimitExceeded|PriorRequestNotComplete"),
        THROTTLED,
    ),
    (re.compile(r"RequestLimitExceeded|^LimitExceeded|^SlowDown|^TransactionInProgress"), THROTTLED),
    (re.compile(r"AccessDenied|Unauthori[sz]ed|NotAuthori[sz]ed|AuthFailure|^AuthorizationError"), FORBIDDEN),
    (re.compile(r"^ExpiredToken|^InvalidClientTokenId|^UnrecognizedClient|^InvalidAccessKeyId"), FORBIDDEN),
    (re.compile(r"^RequestTimeout"), TRANSIENT),
)

_SQLSTATES = (
    (re.compile(r"^28|^42501"), FORBIDDEN),
    (re.compile(r"^53"), THROTTLED),
    # Connection lost, deadlock or serialization failure, lock not available, server going down or starting.
    (re.compile(r"^08|^40|^55P03|^57P0"), TRANSIENT),
)

# SQLite raises OperationalError for a missing table too (1). The others: busy, locked, out of memory, I/O error,
# cannot open.
_SQLITE = {1: UNKNOWN, 5: TRANSIENT, 6: TRANSIENT, 7: THROTTLED, 10: TRANSIENT, 14: TRANSIENT}

_PASSING = """EAGAIN EINTR EIO EPIPE ENETDOWN ENETUNREACH ENETRESET ECONNABORTED ECONNRESET ENOTCONN ESHUTDOWN
    ETIMEDOUT ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY EINPROGRESS ESTALE EADDRNOTAVAIL EPROTO"""
_ERRNOS = {
    **{getattr(errno, name): TRANSIENT for name in _PASSING.split() if hasattr(errno, name)},
    # As with MemoryError, this machine lacks a resource, and fewer runs help.
    **{getattr(errno, name): THROTTLED for name in ("ENOMEM", "EMFILE", "ENFILE", "ENOBUFS")},
    # Permissions for a file or through a firewall: a person must change them, trying again does not help.
    errno.EACCES: FORBIDDEN,
    errno.EPERM: FORBIDDEN,
}
# Exceptions whose errno has another meaning: 1 in an SSLError is not EPERM.
_OTHER_NUMBERS = (ssl.SSLError, socket.gaierror, socket.herror)

_URLLIB3_GAVE_UP = re.compile(r"too many (\d{3}) error responses")
# Patterns for a refusal are long: a refusal has the longest wait, and "forbidden" has other meanings.
_MESSAGES = (
    (re.compile(r"\brate[ _-]?limit|too many requests|throttl|\brate exceeded|\bquota exceeded", re.I), THROTTLED),
    (re.compile(r"too many (connections|clients)|OOM command not allowed", re.I), THROTTLED),
    (re.compile(r"access (is |was )?denied|\bAccessDenied|permission denied|not authori[sz]ed to", re.I), FORBIDDEN),
    (re.compile(r"\b403 forbidden|\b401 unauthori[sz]ed|password authentication failed", re.I), FORBIDDEN),
    (re.compile(r"internal server error|bad gateway|service unavailable|gateway time-?out", re.I), SERVER_ERROR),
    (re.compile(r"connection (was |has been )?(reset|refused|aborted|lost|timed out)", re.I), TRANSIENT),
    (re.compile(r"\btimed out\b|temporarily unavailable|closed the connection", re.I), TRANSIENT),
)
_LONGEST_MESSAGE = 4_000


def facts(error: BaseException) -> Iterator[FailureClass]:
    """The classes that codes, statuses, errno and types give for certain, most specific first."""
    names = list(_names(error))
    for fact in (_by_code(error, names), _by_status(error, names), _by_errno(error, names), _by_type(error, names)):
        if fact is not None:
            yield fact


def message_says(error: BaseException) -> FailureClass | None:
    """A guess from the words of the message, for use if there are no facts."""
    if not _QUOTING.isdisjoint(_names(error)):
        return None
    return _matching(_MESSAGES, text_of(error))


def is_operational(error: BaseException) -> bool:
    """Whether it is an OperationalError (PEP 249): beyond the program's control, and usually temporary."""
    return any(name.endswith(".OperationalError") for name in _names(error))


def explanations(error: BaseException) -> Iterator[BaseException]:
    """The causes of an exception: `__cause__`, and exceptions that libraries store in other attributes."""
    args = get(error, "args")
    carried = [get(error, name) for name in ("orig", "reason", "inner_exception", "cause", "os_error")]
    for thing in (*carried, *(args[:2] if type(args) is tuple else ()), get(error, "__cause__")):
        if is_error(thing):
            yield thing


def surroundings(error: BaseException) -> Iterator[BaseException]:
    """The exception that was being handled when this one was raised."""
    context = get(error, "__context__")
    if is_error(context) and get(error, "__suppress_context__") is not True:
        yield context


def members(error: BaseException) -> Iterator[BaseException]:
    """The members of an exception group, up to `MOST_LINKS`."""
    inside = get(error, "exceptions") if _is_a(error, BaseExceptionGroup) else ()
    for thing in inside[:MOST_LINKS] if type(inside) is tuple else ():
        if is_error(thing):
            yield thing


def is_error(thing: object) -> TypeGuard[BaseException]:
    return _is_a(thing, BaseException)


def get(thing: object, name: str) -> Any:
    try:
        return getattr(thing, name, None)
    except STRANGE:
        return None


def text_of(error: BaseException) -> str:
    try:
        return str(error)[:_LONGEST_MESSAGE]
    except STRANGE:
        return ""


def _is_a(thing: object, *classes: type) -> bool:
    # Check the type itself: `isinstance` also reads `__class__`, which a mock can fake.
    return issubclass(type(thing), classes)


def _names(error: BaseException) -> Iterator[str]:
    """`package.Class` of the exception's class and its base classes, nearest first."""
    for cls in type(error).__mro__:
        module, name = get(cls, "__module__"), get(cls, "__name__")
        if type(module) is str and type(name) is str:
            parts = module.split(".")
            yield ".".join([*parts[: 2 if parts[0] in _SHARED_NAMESPACES else 1], name])


def _by_type(error: BaseException, names: list[str]) -> FailureClass | None:
    if "CERTIFICATE_VERIFY_FAILED" in text_of(error):
        return UNKNOWN
    if _is_a(error, StoreUnavailable):
        return THROTTLED if _is_a(error, StoreFull) else TRANSIENT
    if "sqlalchemy.DBAPIError" in names and get(error, "connection_invalidated") is True:
        return TRANSIENT
    return next((_TYPES[name] for name in names if name in _TYPES), None)


def _by_code(error: BaseException, names: list[str]) -> FailureClass | None:
    if "botocore.ClientError" in names:
        return _matching(_AWS, _item(_item(get(error, "response"), "Error"), "Code"))
    if "grpc.RpcError" in names:
        return _GRPC.get(_grpc_code(error))
    number = get(error, "sqlite_errorcode")
    if type(number) is int:
        # The higher bytes hold details.
        return _SQLITE.get(number & 0xFF)
    return _matching(_SQLSTATES, get(error, "sqlstate")) or _matching(_SQLSTATES, get(error, "pgcode"))


def _matching(table: tuple[tuple[re.Pattern[str], FailureClass], ...], code: object) -> FailureClass | None:
    if type(code) is not str:
        return None
    return next((verdict for pattern, verdict in table if pattern.search(code)), None)


def _grpc_code(error: BaseException) -> str:
    try:
        return str(error.code().name)  # type: ignore[attr-defined]
    except STRANGE:
        return ""


def _by_status(error: BaseException, names: list[str]) -> FailureClass | None:
    return next((verdict for status in _statuses(error, names) if (verdict := _of_status(status)) is not None), None)


def _statuses(error: BaseException, names: list[str]) -> Iterator[object]:
    """The HTTP status from all attributes where libraries store it."""
    yield get(error, "status_code")
    yield get(error, "status")
    yield get(error, "http_status")
    # In other libraries `code` may mean anything: a mail server's code looks like a status.
    if "urllib.HTTPError" in names or "google.api_core.GoogleAPICallError" in names:
        yield get(error, "code")
    response = get(error, "response")
    yield get(response, "status_code")
    yield get(response, "status")
    yield _item(_item(response, "ResponseMetadata"), "HTTPStatusCode")
    if gave_up := _URLLIB3_GAVE_UP.search(text_of(error)):
        yield int(gave_up[1])


def _of_status(status: object) -> FailureClass | None:
    # Accept HTTPStatus, which is an int, but not True or "403".
    if not _is_a(status, int) or type(status) is bool:
        return None
    number = int.__int__(status)  # type: ignore[arg-type]
    if number in (401, 403, 407):
        return FORBIDDEN
    if number == 429:
        return THROTTLED
    if number in (408, 425):
        return TRANSIENT
    return SERVER_ERROR if 500 <= number <= 599 else None


def _by_errno(error: BaseException, names: list[str]) -> FailureClass | None:
    if not _is_a(error, OSError) or _is_a(error, *_OTHER_NUMBERS) or "aiohttp.ClientConnectorDNSError" in names:
        return None
    number = get(error, "errno")
    if type(number) is int:
        return _ERRNOS.get(number)
    # Raised without an errno, by a program itself.
    return FORBIDDEN if _is_a(error, PermissionError) else None


def _item(mapping: object, key: str) -> object:
    return mapping.get(key) if type(mapping) is dict else None
