"""Whether the server has memory left."""

from __future__ import annotations

from typing import Any

from redis.asyncio import RedisCluster

from tocsin.store.store import Store


async def full_servers(store: Store) -> list[str]:
    """The servers that are at their maxmemory and refuse new jobs. Raises StoreUnavailable."""

    async def ask(client: Any) -> dict[str, dict[str, Any]]:
        if not isinstance(client, RedisCluster):
            return {store.address.shown: await client.info("memory")}
        return {
            f"{store.address.shown} (node {node.name})": await client.execute_command(
                "INFO", "memory", target_nodes=node
            )
            for node in client.get_primaries()
        }

    return [where for where, info in (await store.run_repeatable(ask)).items() if _is_full(info)]


def _is_full(info: dict[str, Any]) -> bool:
    most = int(info.get("maxmemory", 0))
    # Like the server, do not count buffers for replicas and for the file.
    return 0 < most < int(info["used_memory"]) - int(info.get("mem_not_counted_for_evict", 0))
