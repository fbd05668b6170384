"""Held runs: finds the runs that certain workers have claimed, page by page, and releases them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tocsin.model import msgpack
from tocsin.model.run import Claim
from tocsin.store.scripts.script import script
from tocsin.store.store import LARGEST_BATCH, OpenQueue, Store
from tocsin.store.transitions.settle import columns

# A look at so many takes the server less than a millisecond.
PAGE = 200


class HeldRun(msgspec.Struct, frozen=True):
    """A claimed run, as the server has it."""

    key: bytes
    token: int
    owner: str


class HeldRuns:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def look(
        self, queue: OpenQueue, partition: int, cursor: bytes, names: Sequence[str]
    ) -> tuple[bytes, list[HeldRun]]:
        """The cursor of the next page, and the runs that these workers hold in the page at `cursor`; the first is
        `b"0"`."""
        look, args = script("claim_look"), [cursor, PAGE, msgpack.encode(list(names))]
        following, found = await self._store.run_repeatable(lambda c: look(c, queue.keys_of(look, partition), args))
        return following, [
            HeldRun(key, token, owner.decode(errors="replace"))
            for key, token, owner in zip(*[iter(found)] * 3, strict=True)
        ]

    async def release_all(self, queue: OpenQueue, owner: str, claims: Sequence[Claim]) -> list[int]:
        """Release runs that this owner has claimed, in the partitions where their jobs are now. Returns the partitions
        in which it still held some. Raises QueueRepartitioned."""
        by_partition: dict[int, list[HeldRun]] = {}
        for claim in claims:
            holding = HeldRun(claim.key, claim.token, owner)
            by_partition.setdefault(queue.partition_of_key(claim.key), []).append(holding)
        return [partition for partition, some in by_partition.items() if await self.release(queue, partition, some)]

    async def release(self, queue: OpenQueue, partition: int, holdings: Sequence[HeldRun]) -> int:
        """Release the runs that their owners still hold under the same token. Returns how many. Raises
        QueueRepartitioned."""
        released = 0
        for owner in {holding.owner for holding in holdings}:
            own = [holding for holding in holdings if holding.owner == owner]
            for first in range(0, len(own), LARGEST_BATCH):
                some = own[first : first + LARGEST_BATCH]
                items = [(msgpack.text(each.key), msgpack.integer(each.token), msgpack.integer(0)) for each in some]
                answer = await self._store.change("run_release", queue, partition, owner, columns(items))
                released += len(some) - len(answer[1])
        return released
