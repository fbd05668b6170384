"""What becomes of a run that has ended, and the item that tells the server so."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tocsin.engine import decide
from tocsin.engine.decide import on_time
from tocsin.engine.encode_error import LONGEST_ERROR, ResultEncoder
from tocsin.engine.served_queue import ServedQueue
from tocsin.model.delivery import Delivered, DeliveryFailed, note_of
from tocsin.model.durations import Millis, ceil_ms
from tocsin.model.errors import RecordUnreadable, TriggerFailed
from tocsin.model.failure_class import FailureClass
from tocsin.model.job import Failure, Spec
from tocsin.model.outcome import CANCELLED, FAILED, LARGEST_RESULT, SUCCEEDED
from tocsin.model.queue import AGENTS_QUEUE
from tocsin.model.record import (
    FLAGS,
    KEEP,
    NOT_KEPT,
    RECURRING,
    decode_failure,
    encode_failure,
    is_unnamed,
    keep_of,
)
from tocsin.model.run import Claim
from tocsin.resilience.backoff import BackoffSettings, Streaks
from tocsin.store.transitions.settle import (
    Item,
    advance_item,
    bury_or_park_item,
    extra_run_item,
    finish_item,
    on_time_item,
    park_item,
    release_item,
    retry_item,
)
from tocsin.telemetry import agent_log

# When a job whose trigger failed is tried again. It will fail again, unless somebody has brought a newer version or
# zone database, and each try takes as long as a trigger may.
UNPLANNED_S = 3600.0
# How a run ended that a job cannot go on from; otherwise it failed.
_ENDS = {"succeeded": SUCCEEDED, "cancelled": CANCELLED}


class EndedRun(Struct, gc=False):
    """A run that has ended and is not written down yet."""

    lane: ServedQueue
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
    # Released or parked: for so many seconds.
    delay: float = 0.0
    # Why nobody can tell when its job is due next.
    stuck: Failure | None = None


class OutcomeEncoder:
    """Decides one run after the other. Knows how often each job failed in a row, as this worker saw it."""

    def __init__(self, backoff: BackoffSettings, largest_result: int = LARGEST_RESULT) -> None:
        self._backoff = backoff
        self._results = ResultEncoder(largest_result)
        self._streaks = Streaks()
        # What is released waits for a random part of this long.
        self.spread_ms = 0.0

    @property
    def settled(self) -> Callable[[EndedRun, Millis], tuple[str, Item, Millis]]:
        """To be looked up once for many runs: the way that logs costs nothing while nobody reads that."""
        return self._settle_and_log if agent_log.is_wanted() else self._settle

    def _settle_and_log(self, ended: EndedRun, now: Millis) -> tuple[str, Item, Millis]:
        if ended.claim.queue == AGENTS_QUEUE:
            agent_log.executed(ended.claim, ended.how)
        return self._settle(ended, now)

    def _settle(self, ended: EndedRun, now: Millis) -> tuple[str, Item, Millis]:
        """The verb, its item, and when the job waits for then; 0 if it does not, or nobody can tell."""
        claim, how, spec = ended.claim, ended.how, ended.spec
        recurring = claim.record[FLAGS] & RECURRING != 0
        if how == "succeeded" and spec is not None:
            if not recurring:
                return "finish", self._done(claim, spec, ended.result), 0
            if self._streaks.by_job:
                self._streaks.succeeded(_who(claim))
            if ended.result is None and (following := on_time(claim, spec, now)):
                return "finish", on_time_item(claim, following), following
            note = b"" if ended.result is None else _note(ended.result)
            return _item(claim, decide.after_success(claim, spec, recurring, now), b"", now, note)
        if how == "released":
            delay = int(self.spread_ms * random.random()) + ceil_ms(ended.delay)
            return "release", release_item(claim, delay), max(claim.due, now + delay)
        if how == "parked" or spec is None:
            return "park", park_item(claim, ended.error, wait=ceil_ms(ended.delay)), 0
        if how == "settled" and ended.decision is not None:
            decision = ended.decision
        elif how == "cancelled":
            decision = decide.after_cancel(claim, spec, recurring, now)
        else:
            decision = self._failed(ended, spec, recurring, now)
        note = b"" if ended.failure is None else note_of(ended.failure.told)
        return _item(claim, decision, ended.error, now, note)

    def unplanned(self, ended: EndedRun, error: Exception, now: Millis) -> tuple[str, Item, Millis]:
        """Nobody can tell what follows this run, mostly because its trigger fails. It counts as it ended; its job is
        set aside with the reason, and a person may give it another trigger."""
        reason, outcome = reason_of(error, now), _ENDS.get(ended.how, FAILED)
        if outcome == FAILED and ended.error:
            last = decode_failure(ended.error)
            reason = replace(reason, error=f"{reason.error}; its last run failed: {last.error}")
        ended.stuck = reason
        note = b"" if ended.failure is None else note_of(ended.failure.told)
        item = park_item(ended.claim, encode_failure(reason), note, outcome, ceil_ms(UNPLANNED_S))
        return "park", item, 0

    def _done(self, claim: Claim, spec: Spec, result: Any) -> Item:
        """A one-shot that succeeded."""
        record = claim.record
        if record[KEEP] == NOT_KEPT:
            return finish_item(claim, 0, SUCCEEDED, note=b"" if result is None else _note(result))
        note, unnamed = b"", is_unnamed(record)
        if isinstance(result, Delivered):
            note = note_of(result.told)
            result = result.told if result.result is None else result.result
        packed = b"" if result is None else self._results.packed(result, spec)
        return finish_item(claim, 0, SUCCEEDED, keep_of(record), packed, note=note, unnamed=unnamed)

    def _failed(self, ended: EndedRun, spec: Spec, recurring: bool, now: Millis) -> decide.Decision:
        claim, failure = ended.claim, ended.failure
        streak = self._streaks.failed(_who(claim)) if recurring else claim.attempt
        setback = decide.FailureFacts(random.random(), ended.kind, streak)
        if failure is not None:
            wait = None if failure.retry_after is None else ceil_ms(failure.retry_after)
            setback = decide.FailureFacts(setback.chance, ended.kind, streak, failure.final, wait)
        return decide.after_failure(claim, spec, recurring, now, setback, self._backoff)


def reason_of(error: Exception, now: Millis) -> Failure:
    """Why a job is parked."""
    kind = type(error).__name__
    told = str(error) if isinstance(error, (RecordUnreadable, TriggerFailed)) else f"{kind}: {error}"
    return Failure(told[:LONGEST_ERROR], at=now, type=kind if isinstance(error, TriggerFailed) else "")


def _note(result: Any) -> bytes:
    return note_of(result.told) if isinstance(result, Delivered) else b""


def _item(claim: Claim, decision: decide.Decision, error: bytes, now: Millis, note: bytes) -> tuple[str, Item, Millis]:
    if isinstance(decision, decide.Finish):
        keep = 0 if decision.next_due else keep_of(claim.record)
        failure, unnamed = error if decision.outcome == FAILED else b"", is_unnamed(claim.record)
        item = finish_item(
            claim, decision.next_due, decision.outcome, keep, b"", failure, decision.skips, note, unnamed
        )
        return "finish", item, decision.next_due
    if isinstance(decision, decide.Advance):
        return "advance", advance_item(claim, decision.next_due, decision.skips), decision.next_due
    if isinstance(decision, decide.ExtraRun):
        return "plan", extra_run_item(claim, decision.next_due, decision.alone, decision.skips), decision.next_due
    if isinstance(decision, decide.RetryIn):
        return "retry", retry_item(claim, decision.delay, error, note), now + decision.delay
    if isinstance(decision, decide.Dead):
        return "bury", bury_or_park_item(claim, error, note), 0
    return "release", release_item(claim), claim.due


def _who(claim: Claim) -> str:
    """A job, among those of all queues."""
    return f"{claim.queue} {claim.job_id}"
