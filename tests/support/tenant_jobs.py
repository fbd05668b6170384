"""Jobs of many tenants, and what a fair queue counts for each."""

from __future__ import annotations

import struct

from tests.support.one_queue import Line
from tests.support.records import record
from tocsin.store.transitions.jobs import PutItem


async def put_many(line: Line, tenant: str, count: int, **about) -> None:
    for first in range(0, count, 1000):
        await line.put_all([f"{tenant}{n}" for n in range(first, min(first + 1000, count))], tenant=tenant, **about)


async def put_each(line: Line, tenants: list[str], mark: str = "") -> None:
    """A job of each of them, in one call."""
    puts = [PutItem(tenant + mark, record(tenant=tenant), 0, True) for tenant in tenants]
    await line.jobs.put_many(line.queue, puts)


def tenants_of(names: list[str]) -> str:
    return "".join(name[0] for name in names)


async def active(line: Line) -> dict[str, int]:
    """How many runs each tenant is counted for."""
    states = await line.store.client.hgetall(line.keys["tenants"])
    counted = {tenant.decode(): struct.unpack_from(">I", raw)[0] for tenant, raw in states.items()}
    return {tenant: n for tenant, n in counted.items() if n}
