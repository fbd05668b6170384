"""The auditor's eyes and hands for the lines of ordered queues: places in `ready`, tenants, caps.

What a page says may be old when it arrives. Whether something is wrong is decided by one script at one instant.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from enum import IntFlag

from msgspec import Struct

from tocsin.model import codec
from tocsin.store.keys import BANDS, TURNS
from tocsin.store.numbers import is_whole, whole
from tocsin.store.store import OpenQueue
from tocsin.store.views.audit import AuditReader
from tocsin.store.views.read_together import CombinedRead

# A band, and a member of its `ready`.
Place = tuple[int, bytes]
# Of a look at some tenants the server counts all that is worked on: few looks at many.
TENANTS_AT_ONCE = 500
# tenant, due, place and id of a member of a fair queue's `ready`.
_PARTS = 4


class TenantFault(IntFlag):
    """What lua/audit_look_line.lua says of a tenant."""

    PASSED_OVER = 1
    MISCOUNTED = 2
    RESTS_IN_VAIN = 4


class Cap(Struct, frozen=True):
    """How much of a partition runs, and may run, at one instant."""

    working: int
    max_active: int | None
    # Something was claimed since the cap was set: it held then.
    claimed_since: bool

    @property
    def exceeded(self) -> bool:
        return self.max_active is not None and self.working > self.max_active


class FairLineReader:
    """Looks at lines, and mends what belongs to a tenant or a place and not to a job."""

    def __init__(self, survey: AuditReader) -> None:
        self._store = survey.store
        self._survey = survey

    async def places(self, queue: OpenQueue, partition: int) -> AsyncIterator[list[Place]]:
        """What stands in the `ready` of a fair queue, in no order; some may come twice."""
        for band, base in enumerate(BANDS):
            async for members in self._survey.members(queue, partition, base):
                yield [(band, member) for member in members]

    async def tenants(self, queue: OpenQueue, partition: int) -> AsyncIterator[list[bytes]]:
        """All that have work, a turn, a rest or a count; some come often."""
        async for counts in self._survey.fields(queue, partition, "tenants", 64):
            yield list(counts)
        for base in (*TURNS, "resting"):
            async for members in self._survey.members(queue, partition, base):
                yield members
        async for places in self.places(queue, partition):
            yield [tenant_of(member) for _, member in places]

    async def look(
        self, queue: OpenQueue, partition: int, places: Sequence[Place], tenants: Sequence[bytes]
    ) -> tuple[list[bool], list[TenantFault]]:
        """Of each place whether it is one too many, of each tenant its trouble."""
        look = queue.script("audit_look_line")
        keys, args = queue.keys_of(look, partition), [_places(places), _names(tenants)]
        strays, troubles = await self._store.read(lambda c: look(c, keys, args))
        return [code == ord("1") for code in strays], [TenantFault(code - ord("0")) for code in troubles]

    async def mend(
        self, queue: OpenQueue, partition: int, places: Sequence[Place], tenants: Sequence[bytes]
    ) -> list[bool]:
        """Each is looked at again where it is changed."""
        answer = await self._store.change("audit_mend_line", queue, partition, _places(places), _names(tenants))
        return [code == ord("1") for code in (*answer[1], *answer[2])]

    async def cap(self, queue: OpenQueue, partition: int) -> Cap:
        keys = queue.keys[partition]
        together = CombinedRead()
        together.ask("ZCARD", keys["working"])
        together.ask("HMGET", keys["meta"], "max_active", "claimed", "claimed_before_cap")
        working, (most, claimed, before) = await together.answers(self._store)
        return Cap(working, whole(most) if is_whole(most) else None, whole(claimed) != whole(before))


def tenant_of(member: bytes) -> bytes:
    """Of a member of `ready`; one that is none of ours has some as well."""
    return member.partition(b"\0")[0]


def id_of(member: bytes) -> bytes:
    """Likewise the id."""
    return member.split(b"\0", _PARTS - 1)[-1]


def _places(places: Sequence[Place]) -> bytes:
    return codec.array(2 * len(places), [part for band, m in places for part in (codec.integer(band), codec.text(m))])


def _names(names: Sequence[bytes]) -> bytes:
    return codec.array(len(names), map(codec.text, names))
