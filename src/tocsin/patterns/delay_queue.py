"""A delay queue with three calls: enqueue an object for a time, get one that has expired, remove it when done.

What is got is locked for a while; if it is not removed by then, it is given to another, its due time unchanged.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from datetime import datetime
from typing import Any

from msgspec import Struct

from tocsin.app import Tocsin
from tocsin.model import codec
from tocsin.model.durations import Duration, epoch_ms, moment
from tocsin.model.errors import ClaimLost, InvalidArgument, InvalidConfig, StoreError
from tocsin.model.ids import LONGEST_ID, check_job_id
from tocsin.model.job import Failure, Header, Spec, check_timeout
from tocsin.model.queue import Queue
from tocsin.model.run import MAX_RECOVERIES, Claim
from tocsin.store.jobs import NEW, REPLACE, Jobs, Put
from tocsin.store.runs import SUCCEEDED, Runs, Wish, failed_item, finish_item
from tocsin.store.store import OpenQueue

_NAME = "tocsin.patterns.DelayQueue"
_NO_LEASE = 1e15


class Item(Struct, frozen=True):
    """An expired object, and the proof that it is ours for now."""

    obj: Any
    due: datetime
    token: int
    claim: Claim


class DelayQueue:
    """Any number of processes may use the same name. No worker serves it: who asks, gets."""

    def __init__(self, app: Tocsin, name: str) -> None:
        app.refuse_declared(name)
        self._app = app
        self._queue = Queue(name, partitions=1)
        self._runs: Runs | None = None
        # One claim in flight at a time: that is what makes a lost reply repeatable.
        self._turn = asyncio.Lock()

    async def enqueue(self, obj: Any, expiring_time: datetime) -> bool:
        """Enqueue an object, or give one that is there another time. True if it was not there."""
        due = epoch_ms(expiring_time, "expiring_time")
        body = codec.encode_spec(Spec(_NAME, (obj,)))
        header = Header(recurring=False, timeout=60_000, handler=codec.handler_digest(_NAME))
        queue, jobs = await self._open()
        put = Put(_id_of(obj), codec.encode_header(header) + body, max(due, 0), mode=REPLACE)
        code, _ = await jobs.put(queue, put)
        return code == NEW

    async def get_expired(self, lock_for: Duration) -> Item | None:
        """The object that expired first, locked for `lock_for`; None if none has."""
        timeout = check_timeout(lock_for)
        queue, _ = await self._open()
        async with self._turn:
            runs = self._claims()
            while True:
                await runs.recover(queue, 0, owner="")
                [answer] = await runs.claim([Wish(queue, 0, 1)], _NO_LEASE, timeout)
                if isinstance(answer, StoreError):
                    raise answer
                if not answer.claims:
                    return None
                claim = answer.claims[0]
                if claim.recoveries < MAX_RECOVERIES:
                    return Item(codec.decode_spec(claim.record).args[0], moment(claim.due), claim.token, claim)
                await self._give_up(runs, queue, claim)

    async def remove(self, what: Any) -> bool:
        """Remove an item that we hold, or withdraw an object that nobody holds: True, or False if there is none.

        Raises ClaimLost for an item that another holds by now; nothing is changed then.
        """
        queue, jobs = await self._open()
        if not isinstance(what, Item):
            await self._claims().recover(queue, 0, owner="")
            return await jobs.delete(queue, _id_of(what), only="waiting")
        async with self._turn:
            call = self._claims().settle("finish", queue, 0, [finish_item(what.claim, 0, SUCCEEDED)])
            answer = await self._app.store.repeat(call)
        if answer[1]:
            raise ClaimLost(what.claim.run_id)
        return True

    async def _give_up(self, runs: Runs, queue: OpenQueue, claim: Claim) -> None:
        """Nobody who got it ever removed it: it joins the dead letters instead of going round for ever."""
        failure = Failure(f"given out {claim.recoveries} times and never removed", at=claim.due)
        call = runs.settle("bury", queue, 0, [failed_item(claim, codec.encode_failure(failure))])
        await self._app.store.repeat(call)

    async def _open(self) -> tuple[OpenQueue, Jobs]:
        queue = await self._app.store.open_queue(self._queue)
        if queue.partitions != 1:
            raise InvalidConfig(
                f"queue {queue.name!r} has {queue.partitions} partitions, and a DelayQueue needs one: "
                f"run `tocsin queues repartition {queue.name} 1`"
            )
        return queue, Jobs(self._app.store)

    def _claims(self) -> Runs:
        if self._runs is None:
            self._runs = Runs(self._app.store, f"delay-queue:{secrets.token_hex(6)}")
        return self._runs


def _id_of(obj: Any) -> str:
    """Text is its own id, as in the seed; anything else has that of its content."""
    if isinstance(obj, str) and obj and len(obj.encode()) <= LONGEST_ID - 1:
        return check_job_id(obj)
    try:
        return "#" + hashlib.blake2b(codec.encode(obj), digest_size=16).hexdigest()
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{obj!r:.100} cannot be stored: {error}") from None
