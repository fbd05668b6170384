"""What the errors of redis-py and of the server mean, as errors of ours."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from typing import Any

import redis
from redis import exceptions
from redis.asyncio.sentinel import MasterNotFoundError

from tocsin.model.errors import NodeUnavailable, StoreError, StoreFull, StoreRefused, StoreTimeout, StoreUnavailable
from tocsin.store.connection.address import Address
from tocsin.store.embedded.own_socket import ForeignServer

# What a client of ours may raise.
FAILURES = (exceptions.RedisError, OSError)

_REFUSALS = {
    "NOAUTH": "wants a password: write it into the address as :PASSWORD@ before the host",
    "WRONGPASS": "refused the user or the password in the address",
    "NOPERM": "does not let this user do it: widen its ACL",
    "DENIED": "is in protected mode: give it a password, or bind it to loopback",
}
# The server will serve again without anybody changing the address or the configuration.
_PASSING = {"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK"}
_PASSING |= {"MISCONF", "NOREPLICAS", "BUSY", "UNBLOCKED"}
# Redis 6.2 wraps what a script ran into: "ERR Error running script (...): -OOM command not allowed".
_CODE = re.compile(rf"(?:^|-)({'|'.join(['OOM', *_REFUSALS, *_PASSING])})\b")


def translate(error: Exception, address: Address) -> StoreError:
    """What redis-py raised (one of FAILURES), as ours; to be raised from it."""
    cause = _innermost(error)
    code = _code(cause)
    where, said = address.shown, _said(cause, address)
    if code == "OOM":
        return StoreFull(
            f"{where} is at its maxmemory and nothing was written: raise maxmemory, or make room; workers still run "
            "what is there, and `tocsin purge`, `tocsin jobs remove` and `tocsin dead drop` still work"
        )
    if code in _REFUSALS:
        return StoreRefused(f"{where} {_REFUSALS[code]} ({said})")
    if is_wrong_type(cause):
        return StoreError(
            f"a key on {where} holds another kind of data than Tocsin keeps there: `tocsin doctor` names it, and "
            f"`tocsin doctor --repair` sets it aside ({said})"
        )
    return _refusal(cause, where, said) or _other(cause, code, where, said)


def is_wrong_type(error: BaseException) -> bool:
    return "WRONGTYPE" in str(error)


async def answers_of(pipe: Any) -> list[Any]:
    """Of a pipeline that reads many keys. Of a key that holds another kind of data the answer is the error: it must not
    keep the others from being read. Raises any other error."""
    answers: list[Any] = await pipe.execute(raise_on_error=False)
    for answer in answers:
        if isinstance(answer, Exception) and not is_wrong_type(answer):
            raise answer
    return answers


def _refusal(cause: BaseException, where: str, said: str) -> StoreRefused | None:
    if isinstance(cause, ForeignServer):
        return StoreRefused(said)
    if isinstance(cause, exceptions.AuthenticationError):
        return StoreRefused(f"{where} does not accept the login in the address ({said})")
    if isinstance(cause, _NO_MASTER) and "AuthenticationError" in said:
        return StoreRefused(f"the sentinels of {where} want another sentinel_password= ({said})")
    if "unauthenticated" in said:
        # What it says to calls that are longer than those it would answer with NOAUTH.
        return StoreRefused(f"{where} {_REFUSALS['NOAUTH']} ({said})")
    if "DB index is out of range" in said:
        return StoreRefused(f"{where} has no such database ({said})")
    if "cluster support disabled" in said:
        return StoreRefused(f"{where} is not a cluster: write redis://HOST:PORT")
    for link in _chain(cause):
        if isinstance(link, ssl.SSLCertVerificationError):
            return StoreRefused(f"{where} has a certificate that cannot be trusted ({link.verify_message})")
    return None


def _other(cause: BaseException, code: str | None, where: str, said: str) -> StoreError:
    passing = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.ClusterError, OSError)
    if code or isinstance(cause, passing) or "not covered" in said:
        return _unavailable_kind(cause)(f"{where} is not available: {_meaning(code, said)}")
    return StoreError(f"{where} answered: {said}")


def _unavailable_kind(cause: BaseException) -> type[StoreUnavailable]:
    if getattr(cause, "of_one_node", False):
        return NodeUnavailable
    return StoreTimeout if isinstance(cause, exceptions.TimeoutError) else StoreUnavailable


# What redis-py says when one of our limits was reached.
_LIMITS = {
    "No connection available": "the connection pool is exhausted: all were in use for as long as "
    "redis.connection.pool.max-wait-millis; raise it, or redis.connection.pool.max-total",
    "Timeout connecting": "could not connect within redis.connection.connect-timeout",
    "Timeout reading": "no answer within redis.connection.timeout",
    "Timeout writing": "nothing could be sent within redis.connection.timeout",
    "network:TimeoutError": "no sentinel answered within redis.connection.connect-timeout and timeout",
}


# What a server says that is not, or may not be, the primary.
_DEMOTED = {
    "NOREPLICAS": "it has fewer replicas than min-replicas-to-write and so writes nothing; if a split has cut it off, "
    "another server may be the primary by now",
    "READONLY": "it is a replica and so writes nothing; if it was the primary, another server is by now, and what was "
    "written here and not passed on is lost",
}


def _meaning(code: str | None, said: str) -> str:
    limit = next((meaning for sign, meaning in _LIMITS.items() if sign in said), None)
    meaning = _DEMOTED.get(code or "", limit)
    return f"{meaning} ({said})" if meaning else said


_NO_MASTER = (MasterNotFoundError, redis.sentinel.MasterNotFoundError)


def _innermost(error: BaseException) -> BaseException:
    """On a unix socket, behind sentinels and in a cluster redis-py hides the server's answer in an error of its own."""
    cause = error.__cause__
    if cause is None and isinstance(error.__context__, exceptions.ReadOnlyError):
        cause = error.__context__
    if isinstance(cause, exceptions.RedisError | exceptions.RedisClusterException):
        return _innermost(cause)
    return error


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__


def _code(error: BaseException) -> str | None:
    status: str | None = getattr(error, "status_code", None)
    found = _CODE.search(str(error))
    return status if status in (*_REFUSALS, *_PASSING, "OOM") else found and found[1]


def _said(error: BaseException, address: Address) -> str:
    text = str(error) or type(error).__name__
    for secret in (address.password, address.sentinel_password):
        text = text.replace(secret, "***") if secret else text
    return text
