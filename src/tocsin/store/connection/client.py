"""Clients of the server: for calls, for blocking reads, and for the heartbeat's thread.

redis-py resends a command whose reply was lost, up to ten times. A script that changes state must not run twice unseen,
so no client here resends: the caller repeats, with its seq. A command that a cluster redirects (MOVED, ASK, TRYAGAIN)
was not executed, and is still sent on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import redis
from redis import exceptions
from redis.asyncio import Connection
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from tocsin.model.errors import (
    InvalidConfig,
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
from tocsin.store.embedded.own_socket import BlockingOwnUnixConnection, OwnUnixConnection, is_embedded

Client: TypeAlias = SingleServerClient | ClusterClient
BlockingClient: TypeAlias = redis.Redis

DEFAULTS = ConnectionSettings()
# A blocking read may ask the server to wait this long; the connection is given up a little later, because
# a server that vanished without a word would hold it for ever.
LONGEST_BLOCK = 5.0

# READONLY and NOREPLICAS make the pool drop the connection, so that the next call finds the new primary behind a
# host name that moved; with no retries left nothing is resent.
_DROP_ON = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.ReadOnlyError)


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
