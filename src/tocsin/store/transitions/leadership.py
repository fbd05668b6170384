"""Leadership: one worker of the fleet holds the key that lets it lead the cleanup, as long as it renews it."""

from __future__ import annotations

import msgspec

from tocsin.model.durations import Millis
from tocsin.store.scripts.script import script
from tocsin.store.store import Store


class Term(msgspec.Struct, frozen=True):
    """The worker that leads, and for how many ms more unless it renews."""

    holder: str
    left: Millis


class LeaderKey:
    """The key that the leader holds."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._key = store.keys.leader()

    async def take(self, worker: str, ttl: Millis) -> Term:
        """Take the term if it is free, renew it if it is ours. Returns the term as it is then. Safe to repeat."""
        take = script("term_take")
        holder, left = await self._store.run_repeatable(lambda c: take(c, [self._key], [worker, ttl]))
        return Term(holder.decode(errors="replace"), int(left))

    async def leave(self, worker: str) -> None:
        """Give the term up, so that another worker need not wait for its end. Does nothing if it is not ours."""
        leave = script("term_leave")
        await self._store.run_repeatable(lambda c: leave(c, [self._key], [worker]))
