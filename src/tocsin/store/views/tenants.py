"""Tenants of a fair queue, as an operator sees them: weight, runs, ready jobs, and whether they rest."""

from __future__ import annotations

import math
from typing import Any

from msgspec import Struct

from tocsin.model.durations import Millis
from tocsin.store.formats import decode_tenant, members_under
from tocsin.store.keys import BANDS, TURNS
from tocsin.store.numbers import number, time_of
from tocsin.store.store import LARGEST_BATCH, OpenQueue, Store


class Tenant(Struct, frozen=True):
    name: str
    weight: float
    # Runs at work; counted only in queues whose tenants have a cap.
    active: int
    ready: int
    resting: bool
    # When its rest ends, if it rests because of its rate; None if because of its cap.
    rested_ms: Millis | None


class TenantReader(Struct, frozen=True):
    """The first tenants: those whose turn is next, then resting ones, then others."""

    shown: list[Tenant]
    others: int
    # A set has more than a thousand: the rest was not counted.
    others_at_least: bool


async def read_tenants(store: Store, queue: OpenQueue, most: int) -> TenantReader:
    names, is_cut = await _names(store, queue)
    shown = await _details(store, queue, names[:most])
    return TenantReader(shown, len(names) - len(shown), is_cut)


async def _names(store: Store, queue: OpenQueue) -> tuple[list[bytes], bool]:
    ordered, hashed = (*TURNS, "resting"), ("tenants", "weights")

    async def ask(client: Any) -> Any:
        async with client.pipeline(transaction=False) as pipe:
            for base in ordered:
                for keys in queue.keys:
                    pipe.zrange(keys[base], 0, LARGEST_BATCH)
            for base in hashed:
                for keys in queue.keys:
                    pipe.hscan(keys[base], 0, count=LARGEST_BATCH)
            return await pipe.execute()

    found = await store.run_repeatable(ask)
    scans = found[len(ordered) * len(queue.keys) :]
    sets = [*found[: -len(scans)], *(list(page) for _, page in scans)]
    is_cut = any(cursor for cursor, _ in scans) or any(len(names) > LARGEST_BATCH for names in sets)
    return list(dict.fromkeys(name for names in sets for name in names)), is_cut


async def _details(store: Store, queue: OpenQueue, names: list[bytes]) -> list[Tenant]:
    if not names:
        return []

    async def ask(client: Any) -> Any:
        async with client.pipeline(transaction=False) as pipe:
            # Weights are the same in all partitions.
            pipe.hmget(queue.keys[0]["weights"], names)
            for keys in queue.keys:
                pipe.hmget(keys["tenants"], names)
                pipe.zmscore(keys["resting"], names)
                for name in names:
                    for band in BANDS:
                        pipe.zlexcount(keys[band], *members_under(name))
            return await pipe.execute()

    weights, *found = await store.run_repeatable(ask)
    width = 2 + len(names) * len(BANDS)
    partitions = [found[first : first + width] for first in range(0, len(found), width)]
    return [_tenant(i, name, weights[i], partitions) for i, name in enumerate(names)]


def _tenant(i: int, name: bytes, weight: bytes | None, partitions: list[list[Any]]) -> Tenant:
    """`partitions`: the answers of each partition: states of all tenants, their rests, and ready jobs of each by
    band."""
    states = [states[i] for states, *_ in partitions if states[i]]
    rests = [rests[i] for _, rests, *_ in partitions if rests[i] is not None]
    ready = [counts[i * len(BANDS) : (i + 1) * len(BANDS)] for _, _, *counts in partitions]
    return Tenant(
        name=name.decode(errors="replace"),
        weight=number(weight) or 1.0,
        active=sum(decode_tenant(state)[0] for state in states),
        ready=sum(map(sum, ready)),
        resting=bool(rests),
        rested_ms=None if not rests or min(rests) == math.inf else time_of(min(rests)),
    )
