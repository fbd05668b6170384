"""Which handlers the parked jobs of a partition wait for."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from tocsin.model.errors import RecordUnreadable
from tocsin.model.record import decode_spec
from tocsin.store.connection.errors import FAILURES, translate
from tocsin.store.store import OpenQueue, Store

# So many handlers are looked for: what is parked may be for any number of them.
MOST_HANDLERS = 20
MOST_DIGEST = 0xFFFF_FFFF


class ParkedHandlers(Struct, frozen=True):
    """Jobs of one partition that wait for the same handler, and the id of one of them."""

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
    # The score is the digest of the handler, and a half for suspects; what could not be read has 0, or a time that is
    # beyond all digests.
    digest = 0
    for _ in range(MOST_HANDLERS):
        after = f"({digest}.5"
        first: Any = await store.client.zrangebyscore(keys["parked"], after, MOST_DIGEST + 0.5, 0, 1, withscores=True)
        if not first:
            break
        [(member, score)] = first
        digest = int(score)
        async with store.client.pipeline(transaction=False) as pipe:
            pipe.zcount(keys["parked"], digest, digest + 0.5)
            pipe.hget(keys["jobs"], member)
            count, record = await pipe.execute()
        try:
            found.append(ParkedHandlers(decode_spec(record or b"").name, count, member.decode(errors="replace")))
        except RecordUnreadable:
            continue
    return found
