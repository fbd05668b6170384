"""Which handlers the parked jobs of a partition wait for."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from tocsin.model.errors import RecordUnreadable
from tocsin.model.record import decode_spec
from tocsin.store.connection.errors import FAILURES, translate
from tocsin.store.formats import LARGEST_DIGEST, SUSPECT_PARKED, parked_digest
from tocsin.store.store import OpenQueue, Store

# At most so many handlers are reported.
MOST_HANDLERS = 20


class ParkedHandlers(Struct, frozen=True):
    """How many jobs of a partition wait for the same handler, and the id of one of them."""

    handler: str
    jobs: int
    job: str


async def parked_in(store: Store, queue: OpenQueue, partition: int) -> list[ParkedHandlers]:
    """Changes nothing. Raises StoreUnavailable at once."""
    if partition >= queue.partitions:
        return []
    try:
        return await _look(store, queue.keys[partition])
    except FAILURES as error:
        raise translate(error, store.address) from error


async def _look(store: Store, keys: dict[str, str]) -> list[ParkedHandlers]:
    found: list[ParkedHandlers] = []
    # Go from digest to digest. Jobs that no worker could read have scores outside this range.
    digest = 0
    for _ in range(MOST_HANDLERS):
        after = f"({digest + SUSPECT_PARKED}"
        first: Any = await store.client.zrangebyscore(
            keys["parked"], after, LARGEST_DIGEST + SUSPECT_PARKED, 0, 1, withscores=True
        )
        if not first:
            break
        [(member, score)] = first
        digest = parked_digest(score)
        async with store.client.pipeline(transaction=False) as pipe:
            pipe.zcount(keys["parked"], digest, digest + SUSPECT_PARKED)
            pipe.hget(keys["jobs"], member)
            count, record = await pipe.execute()
        try:
            found.append(ParkedHandlers(decode_spec(record or b"").name, count, member.decode(errors="replace")))
        except RecordUnreadable:
            continue
    return found
