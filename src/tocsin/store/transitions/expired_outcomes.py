"""Expired outcomes: removes them from partitions in which no run ends any more. Elsewhere, runs that end do it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tocsin.model.durations import Millis
from tocsin.store.connection.errors import answers_of
from tocsin.store.scripts.script import script
from tocsin.store.store import OpenQueue, Store

Place = tuple[OpenQueue, int]


class ExpiredOutcomes:
    """Finds and removes expired outcomes."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def past(self, places: Sequence[Place], now: Millis) -> list[Place]:
        """The partitions that have outcomes to forget. Two commands each, all in one round trip."""

        async def ask(client: Any) -> Any:
            async with client.pipeline(transaction=False) as pipe:
                for queue, partition in places:
                    keys = queue.keys[partition]
                    pipe.zrange(keys["done"], 0, 0, withscores=True)
                    pipe.zcard(keys["unnamed"])
                return await answers_of(pipe)

        found = iter(await self._store.run_repeatable(ask))
        return [
            (queue, partition)
            for (queue, partition), first, unnamed in zip(places, found, found, strict=True)
            if not isinstance(first, Exception) and not isinstance(unnamed, Exception)
            if (first and first[0][1] <= now) or unnamed > self._store.most_unnamed(queue)
        ]

    async def forget(self, queue: OpenQueue, partition: int) -> int:
        """Remove some outcomes that are expired or surplus. Returns how many; 0: none is left."""
        forget, clock = script("outcome_forget"), self._store.clock.override()
        args = ["" if clock is None else clock, self._store.most_unnamed(queue)]
        keys = queue.keys_of(forget, partition)
        return int(await self._store.run_repeatable(lambda c: forget(c, keys, args)))
