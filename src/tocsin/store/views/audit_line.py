"""What the doctor reads and mends of ordered queues: places in `ready`, tenants, caps.

What a page says may be old when it arrives. Whether something is wrong is decided by one script at one instant.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from enum import IntFlag

from msgspec import Struct

from tocsin.model import msgpack
from tocsin.store.formats import codes_of, tenant_of_member
from tocsin.store.keys import BANDS, TURNS
from tocsin.store.numbers import is_whole, whole
from tocsin.store.store import OpenQueue
from tocsin.store.views.audit import AuditReader
from tocsin.store.views.read_together import CombinedRead

# A band, and a member of its `ready`.
Place = tuple[int, bytes]
# Each look at tenants counts all runs at work on the server, so look at many tenants at once.
TENANTS_AT_ONCE = 500


class TenantFault(IntFlag):
    """What lua/audit_look_line.lua found wrong with a tenant."""

    PASSED_OVER = 1
    MISCOUNTED = 2
    RESTS_IN_VAIN = 4


class Cap(Struct, frozen=True):
    """How many runs of a partition are at work, and how many may be, at one instant."""

    working: int
    max_active: int | None
    # A run was claimed since the cap was set, so the cap was kept then.
    claimed_since: bool

    @property
    def exceeded(self) -> bool:
        return self.max_active is not None and self.working > self.max_active


class FairLineReader:
    """Reads lines, and mends faults of tenants and places. Faults of jobs are audit.py's."""

    def __init__(self, survey: AuditReader) -> None:
        self._store = survey.store
        self._survey = survey

    async def places(self, queue: OpenQueue, partition: int) -> AsyncIterator[list[Place]]:
        """The members of `ready` in a fair queue, in no order; some may come twice."""
        for band, base in enumerate(BANDS):
            async for members in self._survey.members(queue, partition, base):
                yield [(band, member) for member in members]

    async def tenants(self, queue: OpenQueue, partition: int) -> AsyncIterator[list[bytes]]:
        """All tenants that have work, a turn, a rest or a count; some come often."""
        async for counts in self._survey.fields(queue, partition, "tenants", 64):
            yield list(counts)
        for base in (*TURNS, "resting"):
            async for members in self._survey.members(queue, partition, base):
                yield members
        async for places in self.places(queue, partition):
            yield [tenant_of_member(member) for _, member in places]

    async def look(
        self, queue: OpenQueue, partition: int, places: Sequence[Place], tenants: Sequence[bytes]
    ) -> tuple[list[bool], list[TenantFault]]:
        """For each place, whether no job belongs to it; for each tenant, its fault."""
        look = queue.script("audit_look_line")
        keys, args = queue.keys_of(look, partition), [_places(places), msgpack.texts(tenants)]
        strays, troubles = await self._store.run_repeatable(lambda c: look(c, keys, args))
        return [*map(bool, codes_of(strays))], [*map(TenantFault, codes_of(troubles))]

    async def mend(
        self, queue: OpenQueue, partition: int, places: Sequence[Place], tenants: Sequence[bytes]
    ) -> list[bool]:
        """The script checks each again before it changes it. Returns which it changed."""
        answer = await self._store.change("audit_mend_line", queue, partition, _places(places), msgpack.texts(tenants))
        return [*map(bool, codes_of(answer[1] + answer[2]))]

    async def cap(self, queue: OpenQueue, partition: int) -> Cap:
        keys = queue.keys[partition]
        together = CombinedRead()
        together.ask("ZCARD", keys["working"])
        together.ask("HMGET", keys["meta"], "max_active", "claimed", "claimed_before_cap")
        working, (most, claimed, before) = await together.answers(self._store)
        return Cap(working, whole(most) if is_whole(most) else None, whole(claimed) != whole(before))


def _places(places: Sequence[Place]) -> bytes:
    parts = [part for band, member in places for part in (msgpack.integer(band), msgpack.text(member))]
    return msgpack.array(len(parts), parts)
