"""A delay queue with three calls: enqueue an object for a time, get one that has expired, remove it when done.

What is got is locked for a while; if it is not removed by then, it is given to another, its due time unchanged.
"""

from __future__ import annotations

import hashlib
import reprlib
from datetime import datetime
from typing import Any

from msgspec import Struct

from tocsin.app import Tocsin
from tocsin.model import msgpack
from tocsin.model.durations import Duration, epoch_ms, moment
from tocsin.model.errors import ClaimLost, InvalidArgument
from tocsin.model.ids import LONGEST_ID, check_job_id
from tocsin.model.job import Header, check_timeout
from tocsin.model.outcome import NEW, REPLACE, SUCCEEDED
from tocsin.model.queue import Queue
from tocsin.model.record import encode_header
from tocsin.model.run import Claim
from tocsin.patterns.manual_claims import ManualClaims
from tocsin.store.transitions.jobs import PutItem

_NAME = "tocsin.patterns.DelayQueue"
_GIVEN_UP = "given out {n} times and never removed"


class Item(Struct, frozen=True):
    """An expired object, and the proof that it is ours for now."""

    obj: Any
    due: datetime
    token: int
    claim: Claim


class DelayQueue:
    """Any number of processes may use the same name. No worker serves it: who asks, gets."""

    def __init__(self, app: Tocsin, name: str) -> None:
        self._taker = ManualClaims(app, Queue(name, partitions=1), _NAME)

    async def enqueue(self, obj: Any, expiring_time: datetime) -> bool:
        """Enqueue an object, or give one that is there another time. True if it was not there."""
        due = epoch_ms(expiring_time, "expiring_time")
        header = Header(recurring=False, timeout=60_000, handler=self._taker.handler)
        record = encode_header(header) + self._taker.body(obj)
        queue = await self._taker.open()
        code, _ = await self._taker.jobs.put(queue, PutItem(_id_of(obj), record, max(due, 0), mode=REPLACE))
        return code == NEW

    async def get_expired(self, lock_for: Duration) -> Item | None:
        """The object that expired first, locked for `lock_for`; None if none has."""
        taken = await self._taker.take(check_timeout(lock_for), _GIVEN_UP)
        if taken is None:
            return None
        return Item(taken.obj, moment(taken.claim.due), taken.claim.token, taken.claim)

    async def remove(self, what: Any) -> bool:
        """Remove an item that we hold, or withdraw an object that nobody holds: True, or False if there is none.

        Raises ClaimLost for an item that another holds by now; nothing is changed then.
        """
        if not isinstance(what, Item):
            queue = await self._taker.bring_back()
            return await self._taker.jobs.delete(queue, _id_of(what), only="waiting")
        if not await self._taker.end(what.claim.member, what.token, SUCCEEDED):
            raise ClaimLost(what.claim.run_id)
        return True


def _id_of(obj: Any) -> str:
    """Text is its own id, as in the seed; anything else has that of its content."""
    if isinstance(obj, str) and obj and len(obj.encode()) <= LONGEST_ID - 1:
        return check_job_id(obj)
    try:
        return "#" + hashlib.blake2b(msgpack.encode(obj), digest_size=16).hexdigest()
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{reprlib.repr(obj)} cannot be stored: {error}") from None
