"""Events: what each changing call did, kept for a while; from them, the runs that ended lately."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import msgspec

from tocsin.model.durations import Millis, moment
from tocsin.model.ids import job_of, run_id
from tocsin.store.jobs import DUE_MASK, OUTCOMES
from tocsin.store.store import OpenQueue, Store

PAGE = 100
_RUN = struct.Struct(">QIB")
_ids = msgspec.msgpack.Decoder(list[str])
# Attempts that did not end their run are told by the call that ended them.
_ENDS = {b"retry": "retried", b"bury": "dead"}


class PastRun(msgspec.Struct, frozen=True):
    """An attempt that ended."""

    id: str
    job_id: str
    queue: str
    due_ms: Millis
    attempt: int
    outcome: str
    ended_ms: Millis

    @property
    def due(self) -> datetime:
        return moment(self.due_ms)

    @property
    def ended(self) -> datetime:
        return moment(self.ended_ms)


async def past_runs(store: Store, queue: OpenQueue, partition: int) -> AsyncIterator[PastRun]:
    """What ended in a partition, newest first, as far back as events are kept."""
    key, before = queue.keys[partition]["events"], "+"
    while True:
        page = await store.read(lambda c, b=before: c.xrevrange(key, max=b, count=PAGE))  # type: ignore[misc]
        for _, event in page:
            for run in reversed(_runs(queue.name, event)):
                yield run
        if len(page) < PAGE:
            return
        before = "(" + page[-1][0].decode()


def _runs(queue: str, event: dict[bytes, Any]) -> list[PastRun]:
    ends, at = event.get(b"runs", b""), int(event[b"at"])
    if not ends:
        return []
    try:
        members = _ids.decode(event[b"ids"])
    except msgspec.MsgspecError:
        return []
    return [
        PastRun(
            id=run_id(member, due & DUE_MASK),
            job_id=job_of(member),
            queue=queue,
            due_ms=due & DUE_MASK,
            attempt=attempt,
            outcome=_ENDS.get(event[b"kind"], OUTCOMES[outcome]),
            ended_ms=at,
        )
        for member, (due, attempt, outcome) in zip(members, _RUN.iter_unpack(ends), strict=False)
    ]
