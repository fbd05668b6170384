"""What becomes of a run that has ended, and the item that tells the server so."""

from __future__ import annotations

import random
from typing import Any

from msgspec import Struct

from tocsin.engine import decide
from tocsin.engine.decide import on_time
from tocsin.engine.lane import Lane
from tocsin.engine.told import Results, keep_of
from tocsin.model.codec import LARGEST_RESULT, RECURRING, UNNAMED
from tocsin.model.delivery import Delivered, DeliveryFailed, note_of
from tocsin.model.durations import Millis, ceil_ms
from tocsin.model.job import Spec
from tocsin.model.run import Claim
from tocsin.resilience.backoff import BackoffSettings, Streaks
from tocsin.resilience.failure import FailureClass
from tocsin.store.runs import (
    FAILED,
    SUCCEEDED,
    Item,
    failed_item,
    finish_item,
    next_item,
    plan_item,
    release_item,
    retry_item,
)

_NOT_KEPT = bytes(4)


class Ended(Struct, gc=False):
    """A run that has ended and is not written down yet."""

    lane: Lane
    claim: Claim
    spec: Spec | None
    # succeeded, failed, cancelled, released, parked or settled (already decided).
    how: str
    result: Any = None
    error: bytes = b""
    decision: decide.Decision | None = None
    kind: FailureClass = FailureClass.UNKNOWN
    # How the delivery failed, if it went outside.
    failure: DeliveryFailed | None = None
    # What the handler raised, if it did.
    cause: BaseException | None = None
    # Released: for so many seconds.
    delay: float = 0.0


class Settler:
    """Decides one run after the other. Knows how often each job failed in a row, as this worker saw it."""

    def __init__(self, backoff: BackoffSettings, largest_result: int = LARGEST_RESULT) -> None:
        self._backoff = backoff
        self._results = Results(largest_result)
        self._streaks = Streaks()
        # What is released waits for a random part of this long.
        self.spread_ms = 0.0

    def settled(self, ended: Ended, now: Millis) -> tuple[str, Item, Millis]:
        """The verb, its item, and when the job waits for then; 0 if it does not, or nobody can tell."""
        claim, how, spec = ended.claim, ended.how, ended.spec
        recurring = claim.record[1] & RECURRING != 0
        if how == "succeeded" and spec is not None:
            if not recurring:
                return "finish", self._done(claim, spec, ended.result), 0
            if self._streaks.by_job:
                self._streaks.succeeded(_who(claim))
            if ended.result is None and (following := on_time(claim, spec, now)):
                return "finish", next_item(claim, following), following
            note = b"" if ended.result is None else _note(ended.result)
            return _item(claim, decide.after_success(claim, spec, recurring, now), b"", now, note)
        if how == "released":
            delay = int(self.spread_ms * random.random()) + ceil_ms(ended.delay)
            return "release", release_item(claim, delay), max(claim.due, now + delay)
        if how == "parked" or spec is None:
            return "park", failed_item(claim, ended.error), 0
        if how == "settled" and ended.decision is not None:
            decision = ended.decision
        elif how == "cancelled":
            decision = decide.after_cancel(claim, spec, recurring, now)
        else:
            decision = self._failed(ended, spec, recurring, now)
        note = b"" if ended.failure is None else note_of(ended.failure.told)
        return _item(claim, decision, ended.error, now, note)

    def _done(self, claim: Claim, spec: Spec, result: Any) -> Item:
        """A one-shot that succeeded."""
        record = claim.record
        if record[9:13] == _NOT_KEPT:
            return finish_item(claim, 0, SUCCEEDED, note=b"" if result is None else _note(result))
        note, unnamed = b"", record[1] & UNNAMED != 0
        if isinstance(result, Delivered):
            note = note_of(result.told)
            result = result.told if result.result is None else result.result
        packed = b"" if result is None else self._results.packed(result, spec)
        return finish_item(claim, 0, SUCCEEDED, keep_of(record), packed, note=note, unnamed=unnamed)

    def _failed(self, ended: Ended, spec: Spec, recurring: bool, now: Millis) -> decide.Decision:
        claim, failure = ended.claim, ended.failure
        streak = self._streaks.failed(_who(claim)) if recurring else claim.attempt
        setback = decide.Setback(random.random(), ended.kind, streak)
        if failure is not None:
            wait = None if failure.retry_after is None else ceil_ms(failure.retry_after)
            setback = decide.Setback(setback.chance, ended.kind, streak, failure.final, wait)
        return decide.after_failure(claim, spec, recurring, now, setback, self._backoff)


def _note(result: Any) -> bytes:
    return note_of(result.told) if isinstance(result, Delivered) else b""


def _item(claim: Claim, decision: decide.Decision, error: bytes, now: Millis, note: bytes) -> tuple[str, Item, Millis]:
    if isinstance(decision, decide.Finish):
        keep = 0 if decision.next_due else keep_of(claim.record)
        failure, unnamed = error if decision.outcome == FAILED else b"", claim.record[1] & UNNAMED != 0
        item = finish_item(
            claim, decision.next_due, decision.outcome, keep, b"", failure, decision.skips, note, unnamed
        )
        return "finish", item, decision.next_due
    if isinstance(decision, decide.Plan):
        return "plan", plan_item(claim, decision.next_due, decision.alone, decision.skips), decision.next_due
    if isinstance(decision, decide.RetryIn):
        return "retry", retry_item(claim, decision.delay, error, note), now + decision.delay
    if isinstance(decision, decide.Bury):
        return "bury", failed_item(claim, error, note), 0
    return "release", release_item(claim), claim.due


def _who(claim: Claim) -> str:
    """A job, among those of all queues."""
    return f"{claim.queue} {claim.job_id}"
