"""Claims for programs that are no workers: they take the next job, hold it, and end it.

A job that is not ended by its deadline goes back to its position in line. The next call of any program does that.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import Any

from msgspec import Struct

from tocsin.app import Tocsin
from tocsin.model.durations import Millis
from tocsin.model.errors import InvalidConfig, QueueRepartitioned, RecordUnreadable, StoreChanged, StoreError
from tocsin.model.ids import check_queue_name
from tocsin.model.job import Failure, Spec
from tocsin.model.outcome import CANCELLED
from tocsin.model.queue import Queue
from tocsin.model.record import decode_header, decode_spec, encode_failure, encode_spec, handler_digest
from tocsin.model.run import MAX_RECOVERIES, Claim
from tocsin.store.store import LARGEST_BATCH, OpenQueue, Store
from tocsin.store.transitions.claims import ClaimRequest, Runs
from tocsin.store.transitions.jobs import Jobs
from tocsin.store.transitions.settle import Item, bury_or_park_item, finish_item, settle_for_owner

_NO_LEASE = 1e15


class HeldItem(Struct, frozen=True):
    """An object that is ours for now, and the claim that proves it."""

    obj: Any
    claim: Claim


class ManualClaims:
    """Claims from a queue with one partition that no worker serves. Each job has one object as its argument."""

    def __init__(self, app: Tocsin, queue: Queue, kind: str) -> None:
        """`kind` is the handler that the records name. Jobs of any other handler are parked."""
        app.refuse_declared(check_queue_name(queue.name))
        self._app = app
        self._queue = queue
        self._kind = kind
        self._runs: tuple[object, Runs] | None = None
        # One claim in flight at a time: only then can a call whose reply was lost be repeated.
        self._turn = asyncio.Lock()

    @property
    def handler(self) -> int:
        return handler_digest(self._kind)

    def body(self, obj: Any) -> bytes:
        return encode_spec(Spec(self._kind, (obj,)), self._app.config.limits.arguments_bytes)

    @property
    def store(self) -> Store:
        return self._app.store

    @property
    def jobs(self) -> Jobs:
        return Jobs(self._app.store)

    async def open(self) -> OpenQueue:
        queue = await self._app.store.open_queue(self._queue)
        if queue.partitions != 1:
            raise InvalidConfig(
                f"queue {queue.name!r} has {queue.partitions} partitions, and here it needs one: "
                f"run `tocsin queues repartition {queue.name} 1`"
            )
        return queue

    async def bring_back(self) -> OpenQueue:
        """Put all jobs that are past their deadline back in line, so that the next call sees the true line."""
        while True:
            queue = await self.open()
            with contextlib.suppress(QueueRepartitioned):
                answer = await self._app.store.change("run_recover", queue, 0, "", "0", 0, LARGEST_BATCH)
                if len(answer[2]) < LARGEST_BATCH:
                    return queue

    async def take(self, timeout: Millis, given_up: str, max_active: int | None = None) -> HeldItem | None:
        """Claim the next job for `timeout`. None if no job is due, or if `max_active` are claimed already.

        A job that was claimed and not ended too often goes to the dead letters, with `given_up` as the reason.
        """
        queue = await self.bring_back()
        async with self._turn:
            while (claim := await self._claim(ClaimRequest(queue, 0, 1, max_active=max_active), timeout)) is not None:
                try:
                    keep, obj = _read(claim)
                except RecordUnreadable as error:
                    await self._settle("park", queue, _failed(claim, str(error)))
                    continue
                if claim.cancelled:
                    await self._settle("finish", queue, finish_item(claim, 0, CANCELLED, keep))
                elif claim.recoveries >= MAX_RECOVERIES:
                    await self._settle("bury", queue, _failed(claim, given_up.format(n=claim.recoveries)))
                else:
                    return HeldItem(obj, claim)
        return None

    async def end(self, member: str, token: int | None, outcome: int, keep: int = 0) -> bool:
        """End the job that is held under this token, or with None under any. False if it is not held; then nothing
        changes."""
        # `open` refuses a queue with several partitions, because claims need one line. Ending works in any partition.
        queue = await self._app.store.open_queue(self._queue)
        held = await self.jobs.held(queue, member)
        if held is None and await self._app.store.queues.refresh_if_repartitioned(queue):
            held = await self.jobs.held(queue, member)
        if held is None or token not in (None, held.token):
            return False
        return await self.end_as(held.owner, member, held.token, outcome, keep)

    async def end_as(self, owner: str, member: str, token: int, outcome: int, keep: int = 0) -> bool:
        queue = await self._app.store.open_queue(self._queue)
        claim = Claim(queue.name, 0, member.encode(), token, 0, 1, 0, False, 0, b"")
        return await settle_for_owner(self._app.store, owner, "finish", queue, finish_item(claim, 0, outcome, keep))

    async def _settle(self, verb: str, queue: OpenQueue, item: Item) -> None:
        await settle_for_owner(self._app.store, self._claims().owner, verb, queue, item)

    async def _claim(self, wish: ClaimRequest, timeout: Millis) -> Claim | None:
        """Repeats the call while the server is away. `Runs` repeats it under the same seq, also for the next caller."""
        runs = self._claims()

        async def ask(_: Any) -> list[Claim]:
            [answer] = await runs.claim([wish], _NO_LEASE, timeout)
            if isinstance(answer, StoreError):
                raise answer
            return answer.claims

        try:
            claims = await self._app.store.run_repeatable(ask)
        except StoreChanged:
            if not await self._app.store.queues.refresh_if_repartitioned(wish.queue):
                raise
            await self.open()
            claims = await self._app.store.run_repeatable(ask)
        return claims[0] if claims else None

    def _claims(self) -> Runs:
        store = self._app.store
        if self._runs is None or self._runs[0] is not store:
            owner = f"{self._queue.name}:{secrets.token_hex(6)}"
            self._runs = (store, Runs(store, owner, [self.handler]))
        return self._runs[1]


def _read(claim: Claim) -> tuple[int, Any]:
    """For how many seconds to remember the job when it has ended, and its object."""
    header, spec = decode_header(claim.record), decode_spec(claim.record)
    if len(spec.args) != 1:
        raise RecordUnreadable(f"the record of {claim.member!r} holds no object")
    return header.keep, spec.args[0]


def _failed(claim: Claim, error: str) -> Item:
    return bury_or_park_item(claim, encode_failure(Failure(error, at=claim.due)))
