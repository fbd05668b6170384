"""Clients of the server, whether it will do, and what its errors mean to us.

redis-py resends a command whose reply was lost, up to ten times. A script that changes state must not
run twice unseen, so every client here is told not to: the caller repeats, with its sequence number. What a
cluster redirects (MOVED, ASK, TRYAGAIN) was not executed and is still sent on.
"""

from __future__ import annotations

import contextlib
import re
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import redis
from redis import exceptions
from redis.asyncio import Connection, Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.backoff import NoBackoff

from tocsin.model.errors import (
    InvalidConfig,
    NodeUnavailable,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreTimeout,
    StoreUnavailable,
    did_you_mean,
)
from tocsin.store.connection.address import Address
from tocsin.store.connection.blocking_cluster import BlockingCluster
from tocsin.store.connection.cluster import ClusterClient
from tocsin.store.connection.demoted import BlockingParser, Parser
from tocsin.store.connection.pool import (
    BoundedPool,
    ConnectionSettings,
    Dial,
    DialledConnection,
    DialledTlsConnection,
    ImmediateConnection,
    ImmediateTlsConnection,
    ImmediateUnixConnection,
    SentinelPool,
    SingleServerClient,
)
from tocsin.store.embedded.own_socket import BlockingOwnUnixConnection, ForeignServer, OwnUnixConnection, is_embedded

Client: TypeAlias = SingleServerClient | ClusterClient
BlockingClient: TypeAlias = redis.Redis

# What a client of ours may raise.
FAILURES = (exceptions.RedisError, OSError)

DEFAULTS = ConnectionSettings()
# A blocking read may ask the server to wait this long; the connection is given up a little later, because
# a server that vanished without a word would hold it for ever.
LONGEST_BLOCK = 5.0

OLDEST = (6, 2)

# READONLY and NOREPLICAS make the pool drop the connection, so that the next call finds the new primary behind a
# host name that moved; with no retries left nothing is resent.
_DROP_ON = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.ReadOnlyError)


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    product: str
    version: str
    primaries: int
    aof: bool


def open_client(address: Address, settings: ConnectionSettings = DEFAULTS) -> Client:
    """For everything that does not block. Nothing is sent before the first command."""
    return _open(address, settings, settings.timeout_s, logs=True)


def open_dialled_client(address: Address, settings: ConnectionSettings, dial: Dial) -> SingleServerClient:
    """Of one server, over sockets that `dial` connects."""
    options = _options(address, settings, settings.timeout_s) | {"dial": dial}
    return SingleServerClient.from_pool(_pool(address, settings, options))  # type: ignore[return-value]


def open_waiting_client(address: Address, settings: ConnectionSettings = DEFAULTS) -> Client:
    """For one blocking read at a time, of at most LONGEST_BLOCK seconds."""
    one = msgspec.structs.replace(settings, max_total=1)
    return _open(address, one, LONGEST_BLOCK + settings.timeout_s, logs=False)


def open_blocking_client(address: Address, settings: ConnectionSettings = DEFAULTS) -> BlockingClient:
    """For the heartbeat's thread. Nothing is sent before the first command."""
    options = _common(address, settings) | {"retry": _no_retry(redis.retry.Retry)} | _tls(address)
    if address.tls is not None:
        # redis-py takes the tickets that end a TLS handshake for stray data and gives the connection up,
        # unless there was a round trip before: let it introduce itself.
        del options["driver_info"]
    if address.kind == "cluster":
        return BlockingCluster(address.nodes, **options)
    client = _blocking_single(address, options)
    # Redis() takes no parser, only its connections do.
    client.connection_pool.connection_kwargs["parser_class"] = BlockingParser
    return client


def _blocking_single(address: Address, options: dict[str, Any]) -> redis.Redis:
    if address.kind == "unix":
        client = redis.Redis(unix_socket_path=address.path, db=address.db, **options)
        if is_embedded(address):
            client.connection_pool.connection_class = BlockingOwnUnixConnection
        return client
    if address.kind == "sentinel":
        asking = options | _sentinel_login(address)
        watchers = redis.sentinel.Sentinel(address.nodes, sentinel_kwargs=asking)  # type: ignore[no-untyped-call]
        options["db"] = address.db
        behind: redis.Redis = watchers.master_for(address.service, **options)  # type: ignore[no-untyped-call]
        return behind
    ((host, port),) = address.nodes
    return redis.Redis(host=host, port=port, db=address.db, **options)


def leave_former_primary(client: BlockingClient) -> None:
    """Where sentinels have named another since the last look, be connected to that. The former may still answer."""
    pool = client.connection_pool
    if isinstance(pool, redis.sentinel.SentinelConnectionPool):
        # Nobody to ask: the primary may be well.
        with contextlib.suppress(redis.sentinel.MasterNotFoundError):
            pool.get_master_address()  # type: ignore[no-untyped-call]


def _open(address: Address, settings: ConnectionSettings, read_timeout: float, *, logs: bool) -> Client:
    options = _options(address, settings, read_timeout)
    if address.kind == "cluster":
        nodes = [ClusterNode(host, port) for host, port in address.nodes]
        return ClusterClient(settings, logs=logs, startup_nodes=nodes, **options, **_tls(address))
    return SingleServerClient.from_pool(_pool(address, settings, options))  # type: ignore[return-value]


def _options(address: Address, settings: ConnectionSettings, read_timeout: float) -> dict[str, Any]:
    return _common(address, settings) | {"socket_timeout": read_timeout, "retry": _no_retry(Retry)}


def _pool(address: Address, settings: ConnectionSettings, options: dict[str, Any]) -> BoundedPool:
    options = options | {"settings": settings, "db": address.db, "parser_class": Parser}
    if address.kind == "sentinel":
        return _sentinel_pool(address, settings, options)
    if address.kind == "unix":
        unix = OwnUnixConnection if is_embedded(address) else ImmediateUnixConnection
        return BoundedPool(connection_class=unix, path=address.path, **options)
    ((host, port),) = address.nodes
    tls = _tls(address)
    secure, dialled = tls.pop("ssl", False), "dial" in options
    kind: type[Connection] = ImmediateTlsConnection if secure else ImmediateConnection
    if dialled:
        kind = DialledTlsConnection if secure else DialledConnection
    return BoundedPool(connection_class=kind, host=host, port=port, **options, **tls)


def _sentinel_pool(address: Address, settings: ConnectionSettings, options: Mapping[str, Any]) -> SentinelPool:
    tls = _tls(address)
    asking = _common(address, settings) | {"retry": options["retry"]} | tls | _sentinel_login(address)
    watchers = Sentinel(address.nodes, sentinel_kwargs=asking)  # type: ignore[no-untyped-call]
    return SentinelPool(address.service, watchers, **options, **tls)  # type: ignore[no-untyped-call]


def _common(address: Address, settings: ConnectionSettings) -> dict[str, Any]:
    return {
        "username": address.username,
        "password": address.password,
        "socket_connect_timeout": settings.connect_timeout_s,
        "socket_timeout": settings.timeout_s,
        # With RESP2 and without driver info a new connection sends AUTH and SELECT, if anything at all;
        # scripts answer alike in both protocols.
        "protocol": 2,
        "driver_info": None,
    }


def _no_retry(kind: type[Any]) -> Any:
    return kind(NoBackoff(), 0, supported_errors=_DROP_ON)


def _sentinel_login(address: Address) -> dict[str, Any]:
    return {"username": address.sentinel_username, "password": address.sentinel_password}


def _tls(address: Address) -> dict[str, Any]:
    if address.tls is None:
        return {}
    for name in ("ca_certs", "certfile", "keyfile"):
        path = getattr(address.tls, name)
        # redis-py takes a missing file for a server that is down.
        if path is not None and not Path(path).is_file():
            raise InvalidConfig(f"ssl_{name} in the store address: there is no file {path}")
    fields = msgspec.structs.asdict(address.tls)
    return {"ssl": True} | {f"ssl_{name}": value for name, value in fields.items()}


async def check_server(client: Client, address: Address) -> ServerInfo:
    """Raise StoreRefused, with what to do, for a server that will never do; StoreUnavailable for now."""
    try:
        infos = await _infos(client, address)
    except FAILURES as error:
        await _check_service(client, address)
        raise translate(error, address) from error
    for where, info in infos.items():
        _check(info, where, address)
    info = next(iter(infos.values()))
    product, version = _version(info)
    aof = all(info.get("aof_enabled") for info in infos.values())
    return ServerInfo(product=product, version=version, primaries=len(infos), aof=aof)


async def _infos(client: Client, address: Address) -> dict[str, dict[str, Any]]:
    if not isinstance(client, RedisCluster):
        return {address.shown: await client.info()}
    await client.initialize()
    return {
        f"{address.shown} (node {node.name})": await client.execute_command("INFO", target_nodes=node)
        for node in client.get_primaries()
    }


async def _check_service(client: Client, address: Address) -> None:
    """A name that no sentinel knows looks like a primary that is down."""
    pool = client.connection_pool if isinstance(client, Redis) else None
    if not isinstance(pool, SentinelPool):
        return
    for sentinel in pool.sentinel_manager.sentinels:
        try:
            services = await sentinel.sentinel_masters()
        except FAILURES:
            continue
        if services and address.service not in services:
            known = did_you_mean(address.service, services)
            raise StoreRefused(f"{address.shown}: the sentinels know no {address.service!r}; {known}")


def _check(info: Mapping[str, Any], where: str, address: Address) -> None:
    if "sentinel" in (info.get("redis_mode"), info.get("server_mode")):
        raise StoreRefused(f"{where} is a sentinel: write redis+sentinel://HOST:PORT/SERVICE")
    product, version = _version(info)
    if product == "redis" and _numbers(version) < OLDEST:
        raise StoreRefused(f"{where} runs Redis {version}: Tocsin needs Redis 6.2 or later, or Valkey")
    if info.get("loading"):
        raise StoreUnavailable(f"{where} is still loading its data")
    if info.get("cluster_enabled") and address.kind != "cluster":
        raise StoreRefused(f"{where} is a node of a cluster: write redis+cluster://HOST:PORT")
    if info.get("role") == "slave":
        _refuse_replica(info, where, address)
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise StoreRefused(
            f"{where} has maxmemory-policy {policy}, which throws jobs away when memory is short: "
            "set maxmemory-policy to noeviction"
        )


def _refuse_replica(info: Mapping[str, Any], where: str, address: Address) -> None:
    if address.kind == "sentinel":
        raise StoreUnavailable(f"{where}: a failover is under way")
    primary = f"{info.get('master_host')}:{info.get('master_port')}"
    raise StoreRefused(f"{where} is a read-only replica: use its primary, {primary}, or redis+sentinel://")


def _version(info: Mapping[str, Any]) -> tuple[str, str]:
    if "valkey_version" in info:
        return "valkey", str(info["valkey_version"])
    return "redis", str(info.get("redis_version", "of an unknown version"))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


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
