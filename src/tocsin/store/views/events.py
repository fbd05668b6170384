"""Events: what each changing call did, kept for a while. They tell the runs that ended lately, and what became of each
tick of a schedule."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from datetime import datetime
from typing import Any

import msgspec

from tocsin.model import msgpack
from tocsin.model.durations import Millis, moment
from tocsin.model.ids import job_of, run_id
from tocsin.model.outcome import OUTCOMES, SUCCEEDED
from tocsin.model.skipped_ticks import SkipReason
from tocsin.store.formats import event_runs
from tocsin.store.numbers import time_of
from tocsin.store.store import OpenQueue, Store

PAGE = 100
_ids = msgspec.msgpack.Decoder(list[str])
_skips = msgspec.msgpack.Decoder(list[str | int])
_told_of = msgspec.json.Decoder(dict[str, Any])
# Events that name a job, but are about jobs that wait for it.
_ABOUT_OTHERS = (b"watch", b"end")
# What reading a garbled event raises.
_GARBLED = (*msgpack.UNREADABLE, KeyError)
# The kind of event is the outcome of attempts that did not finish their run.
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
    # The note of its target: the status, the time it took, the head of the answer.
    told: dict[str, Any] = {}

    def __hash__(self) -> int:
        """Without `told`, which cannot be hashed. No attempt ends twice, so the rest is enough."""
        return hash((self.queue, self.id, self.attempt, self.ended_ms))

    @property
    def due(self) -> datetime:
        return moment(self.due_ms)

    @property
    def ended(self) -> datetime:
        return moment(self.ended_ms)


class Decision(msgspec.Struct, frozen=True):
    """What became of a tick, or of all of a job's ticks from `first_ms` up to, not including, `until_ms`.

    `what` is ran (`why`: its outcome), coalesced (into the run before it), or skipped because of `why`: paused,
    overlap, misfire, capped, edited, backoff or cancelled.
    """

    job_id: str
    queue: str
    first_ms: Millis
    until_ms: Millis
    what: str
    why: str
    at_ms: Millis

    @property
    def first(self) -> datetime:
        return moment(self.first_ms)

    @property
    def until(self) -> datetime:
        return moment(self.until_ms)

    @property
    def at(self) -> datetime:
        return moment(self.at_ms)


async def past_runs(store: Store, queue: OpenQueue, partition: int) -> AsyncIterator[PastRun]:
    """Attempts that ended in a partition, newest first, as far back as events are kept."""
    async for event in _newest_first(store, queue, partition):
        for run in reversed(_runs(queue.name, event)):
            yield run


async def decisions(store: Store, queue: OpenQueue, partition: int) -> AsyncIterator[Decision]:
    """What became of the ticks of a partition's jobs, newest first, as far back as events are kept."""
    async for event in _newest_first(store, queue, partition):
        for decision in reversed(_decisions(queue.name, event)):
            yield decision


async def succeeded_last(store: Store, queue: OpenQueue, partition: int, members: Collection[bytes]) -> set[bytes]:
    """Which of these jobs of a partition succeeded, by their newest event. For jobs of which nothing else is left."""
    left, found = set(members), set[bytes]()
    async for event in _newest_first(store, queue, partition):
        try:
            if event[b"kind"] in _ABOUT_OTHERS:
                continue
            ids = [key.encode() for key in _ids.decode(event[b"ids"])]
            if left.isdisjoint(ids):
                continue
            ends = event_runs(event.get(b"runs", b"")) if event[b"kind"] == b"finish" else []
        except _GARBLED:
            continue
        found |= {key for key, end in zip(ids, ends, strict=False) if key in left and end[2] == SUCCEEDED}
        left -= set(ids)
        if not left:
            break
    return found


async def _newest_first(store: Store, queue: OpenQueue, partition: int) -> AsyncIterator[dict[bytes, Any]]:
    key, before = queue.keys[partition]["events"], "+"
    while True:
        page = await store.run_repeatable(lambda c, b=before: c.xrevrange(key, max=b, count=PAGE))  # type: ignore[misc]
        for _, event in page:
            yield event
        if len(page) < PAGE:
            return
        before = "(" + page[-1][0].decode()


def _runs(queue: str, event: dict[bytes, Any]) -> list[PastRun]:
    """Nothing for a garbled event."""
    try:
        return _readable_runs(queue, event)
    except _GARBLED:
        return []


def _readable_runs(queue: str, event: dict[bytes, Any]) -> list[PastRun]:
    ends, at = event.get(b"runs", b""), time_of(event[b"at"])
    if not ends:
        return []
    members, notes = _ids.decode(event[b"ids"]), _notes(event)
    return [
        PastRun(
            id=run_id(member, due),
            job_id=job_of(member),
            queue=queue,
            due_ms=due,
            attempt=attempt,
            outcome=_ENDS.get(event[b"kind"], OUTCOMES[outcome]),
            ended_ms=at,
            told=notes.get(member, {}),
        )
        # Runs come first among the members. The other members of the event have not ended.
        for member, (due, attempt, outcome) in zip(members, event_runs(ends), strict=False)
    ]


def _notes(event: dict[bytes, Any]) -> dict[str, dict[str, Any]]:
    if b"notes" not in event:
        return {}
    try:
        flat = _ids.decode(event[b"notes"])
        return {member: _told_of.decode(note) for member, note in zip(*[iter(flat)] * 2, strict=True)}
    except msgpack.UNREADABLE:
        return {}


def _decisions(queue: str, event: dict[bytes, Any]) -> list[Decision]:
    """Ranges first, then runs. An attempt that another one follows decides nothing, and a skipped run is in a range."""
    try:
        flat = _skips.decode(event[b"skips"]) if b"skips" in event else []
        found = [
            Decision(
                job_of(str(member)), queue, int(first), int(until), *_told(SkipReason(int(why))), time_of(event[b"at"])
            )
            for member, first, until, why in zip(*[iter(flat)] * 4, strict=True)
        ]
    except _GARBLED:
        found = []
    found += [
        Decision(run.job_id, queue, run.due_ms, run.due_ms + 1, "ran", run.outcome, run.ended_ms)
        for run in _runs(queue, event)
        if run.outcome not in ("retried", "skipped")
    ]
    return found


def _told(why: SkipReason) -> tuple[str, str]:
    return ("coalesced", "") if why is SkipReason.COALESCED else ("skipped", why.name.lower())
