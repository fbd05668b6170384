"""Tenants of a fair queue, as an operator sees them: weight, runs, what is ready, and whether they rest. Reads only."""

from __future__ import annotations

import math
import struct
from typing import Any

from msgspec import Struct

from tocsin.model.durations import Millis
from tocsin.store.keys import BANDS, TURNS
from tocsin.store.store import LARGEST_BATCH, OpenQueue, Store

_RUNS = struct.Struct(">I")


class Tenant(Struct, frozen=True):
    name: str
    weight: float
    active: int
    ready: int
    resting: bool
    # When it has rested, if it is ahead of its rate; None at its cap.
    rested_ms: Millis | None


class Tenants(Struct, frozen=True):
    """The first of them: those whose turn is next, then those that rest, then others."""

    shown: list[Tenant]
    others: int
    # Beyond a thousand in one set nobody counts.
    others_at_least: bool


async def read_tenants(store: Store, queue: OpenQueue, most: int) -> Tenants:
    """Of the one partition that a fair queue has, or the first."""
    names, is_cut = await _names(store, queue)
    shown = await _details(store, queue, names[:most])
    return Tenants(shown, len(names) - len(shown), is_cut)


async def _names(store: Store, queue: OpenQueue) -> tuple[list[bytes], bool]:
    keys, ordered = queue.keys[0], (*TURNS, "resting")

    async def ask(client: Any) -> Any:
        async with client.pipeline(transaction=False) as pipe:
            for base in ordered:
                pipe.zrange(keys[base], 0, LARGEST_BATCH)
            for base in ("tenants", "weights"):
                pipe.hscan(keys[base], 0, count=LARGEST_BATCH)
            return await pipe.execute()

    *sets, tenants, weights = await store.read(ask)
    hashes = [list(page) for _, page in (tenants, weights)]
    is_cut = any(cursor for cursor, _ in (tenants, weights)) or any(len(found) > LARGEST_BATCH for found in sets)
    return list(dict.fromkeys(name for found in (*sets, *hashes) for name in found)), is_cut


async def _details(store: Store, queue: OpenQueue, names: list[bytes]) -> list[Tenant]:
    if not names:
        return []
    keys = queue.keys[0]

    async def ask(client: Any) -> Any:
        async with client.pipeline(transaction=False) as pipe:
            pipe.hmget(keys["weights"], names)
            pipe.hmget(keys["tenants"], names)
            pipe.zmscore(keys["resting"], names)
            for name in names:
                for band in BANDS:
                    pipe.zlexcount(keys[band], b"[" + name + b"\0", b"(" + name + b"\1")
            return await pipe.execute()

    weights, states, rests, *ready = await store.read(ask)
    return [
        Tenant(
            name=name.decode(errors="replace"),
            weight=float(weights[i] or 1),
            active=_RUNS.unpack_from(states[i])[0] if states[i] else 0,
            ready=sum(ready[i * len(BANDS) : (i + 1) * len(BANDS)]),
            resting=rests[i] is not None,
            rested_ms=None if rests[i] is None or math.isinf(rests[i]) else int(rests[i]),
        )
        for i, name in enumerate(names)
    ]
