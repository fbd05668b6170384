"""Whether Tocsin can use a server. Raises StoreRefused, which says what to do about it, for one that it cannot use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from redis.asyncio import Redis, RedisCluster

from tocsin.model.errors import StoreRefused, StoreUnavailable, did_you_mean
from tocsin.store.connection.address import Address
from tocsin.store.connection.client import Client
from tocsin.store.connection.errors import FAILURES, translate
from tocsin.store.connection.pool import SentinelPool

OLDEST = (6, 2)


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    product: str
    version: str
    primaries: int
    aof: bool


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
