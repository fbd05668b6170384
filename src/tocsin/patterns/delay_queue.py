"""A delay queue with three calls: enqueue an object for a time, get an expired object, remove it when done.

An object that a caller got is locked for a while. If it is not removed by then, another caller gets it, with its due
time unchanged.
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
    """An expired object, and the claim that proves that it is ours for now."""

    obj: Any
    due: datetime
    token: int
    claim: Claim


class DelayQueue:
    """Any number of processes may use the same name. Callers take objects themselves; no worker serves the queue."""

    def __init__(self, app: Tocsin, name: str) -> None:
        self._claims = ManualClaims(app, Queue(name, partitions=1), _NAME)

    async def enqueue(self, obj: Any, expiring_time: datetime) -> bool:
        """Enqueue an object, or give an enqueued object another time. True if the object was not enqueued yet."""
        due = epoch_ms(expiring_time, "expiring_time")
        header = Header(recurring=False, timeout=60_000, handler=self._claims.handler)
        record = encode_header(header) + self._claims.body(obj)
        queue = await self._claims.open()
        code, _ = await self._claims.jobs.put(queue, PutItem(_id_of(obj), record, max(due, 0), mode=REPLACE))
        return code == NEW

    async def get_expired(self, lock_for: Duration) -> Item | None:
        """The object that expired first, locked for `lock_for`; None if no object has expired."""
        held = await self._claims.take(check_timeout(lock_for), _GIVEN_UP)
        if held is None:
            return None
        return Item(held.obj, moment(held.claim.due), held.claim.token, held.claim)

    async def remove(self, what: Any) -> bool:
        """Remove an item that we hold, or withdraw an object that nobody holds. False if the object is not there.

        Raises ClaimLost for an item that another caller holds by now, and changes nothing then.
        """
        if not isinstance(what, Item):
            queue = await self._claims.bring_back()
            return await self._claims.jobs.delete(queue, _id_of(what), only="waiting")
        if not await self._claims.end(what.claim.member, what.token, SUCCEEDED):
            raise ClaimLost(what.claim.run_id)
        return True


def _id_of(obj: Any) -> str:
    """Short text is its own id; the id of anything else is a hash of its content."""
    if isinstance(obj, str) and obj and len(obj.encode()) <= LONGEST_ID - 1:
        return check_job_id(obj)
    try:
        return "#" + hashlib.blake2b(msgpack.encode(obj), digest_size=16).hexdigest()
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{reprlib.repr(obj)} cannot be stored: {error}") from None
