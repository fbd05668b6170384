"""Reopens idle connections that were lost, before a call needs them."""

from __future__ import annotations

import asyncio

from tocsin.store.store import Store

EVERY_S = 10.0


class IdleConnections:
    name = "tend"

    def __init__(self, store: Store) -> None:
        self.wake = asyncio.Event()
        self._store = store

    async def step(self) -> float:
        await self._store.refill_idle_connections()
        return EVERY_S
