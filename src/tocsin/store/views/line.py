"""The line of an ordered queue: its due jobs in `ready`, by band. Reads only; scripts write it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tocsin.model.durations import Millis
from tocsin.store.formats import apart_of_band, band_of_spot, due_of_spot, member_of_spot, members_under, tenant_of_spot
from tocsin.store.keys import BANDS
from tocsin.store.numbers import time_of
from tocsin.store.store import OpenQueue, Store
from tocsin.store.views.read_together import CombinedRead


def dues(columns: Mapping[str, Sequence[Any]], count: int) -> list[Millis | None]:
    """When each job in `ready` was due; None for jobs that are not there. `columns`: values of some keys, by key."""
    if "spots" in columns:
        return [None if spot is None else due_of_spot(spot) for spot in columns["spots"]]
    found: list[Millis | None] = [None] * count
    for band in BANDS:
        for i, score in enumerate(columns.get(band, ())):
            if score is not None:
                found[i] = time_of(score)
    return found


async def counts(store: Store, queue: OpenQueue) -> list[int]:
    """How many jobs are due and in line, by band, suspects included."""

    async def ask(client: Any) -> Any:
        async with client.pipeline(transaction=False) as pipe:
            for keys in queue.keys:
                for band in BANDS:
                    pipe.zcard(keys[band])
                for number in range(len(BANDS)):
                    pipe.zcount(keys["waiting"], *apart_of_band(number))
            return await pipe.execute()

    found = await store.run_repeatable(ask)
    return [sum(found[band :: len(BANDS)]) for band in range(len(BANDS))]


async def position(store: Store, queue: OpenQueue, member: str) -> int | None:
    """How many jobs are before this one in a partition of order `priority`: band by band, then `waiting`."""
    sets = [queue.keys[queue.partition_of(member)][name] for name in (*BANDS, "waiting")]
    together = CombinedRead()
    for key in sets:
        together.ask("ZRANK", key, member)
        together.ask("ZCARD", key)
    before = 0
    for rank, size in zip(*[iter(await together.answers(store))] * 2, strict=True):
        if rank is not None:
            return before + int(rank)
        before += int(size)
    return None


async def ahead(store: Store, queue: OpenQueue, member: str) -> int | None:
    """How many jobs are before this one in its band, in a fair queue only its tenant's; None if it is not ready."""
    keys, name = queue.keys[queue.partition_of(member)], member.encode()
    if queue.queue.order == "fair":
        spot = await store.run_repeatable(lambda c: c.hget(keys["spots"], name))
        if spot is None:
            return None
        band = band_of_spot(spot)
        if band is None:
            return None
        first, _ = members_under(tenant_of_spot(spot))
        last = b"(" + member_of_spot(spot, name)
        return int(await store.run_repeatable(lambda c: c.zlexcount(keys[BANDS[band]], first, last)))
    if queue.queue.order == "priority":
        for base in BANDS:
            rank = await store.run_repeatable(lambda c, k=keys[base]: c.zrank(k, name))  # type: ignore[misc]
            if rank is not None:
                return int(rank)
    return None
