"""Encode outcomes: decide what becomes of an ended run's job, and pack that as an item for the server."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from tocsin.engine import decide
from tocsin.engine.decide import Park, Release, next_tick_if_on_time
from tocsin.engine.encode_error import LONGEST_ERROR, ResultEncoder
from tocsin.engine.outcome import EndedRun
from tocsin.model.delivery import Delivered, note_of
from tocsin.model.durations import Millis, ceil_ms
from tocsin.model.errors import RecordUnreadable, TriggerFailed
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

# When a job whose trigger failed is tried again. It fails again unless somebody installs a newer version or zone
# database, and each try takes as long as a trigger may.
UNPLANNED_S = 3600.0
# The outcome of a run whose job is parked afterwards; otherwise it failed.
_ENDS = {"succeeded": SUCCEEDED, "cancelled": CANCELLED}


class OutcomeEncoder:
    """Decides one run after the other. Knows how often each job failed in a row on this worker."""

    def __init__(self, backoff: BackoffSettings, largest_result: int = LARGEST_RESULT) -> None:
        self._backoff = backoff
        self._results = ResultEncoder(largest_result)
        self._streaks = Streaks()
        # Released runs wait for a random part of this long.
        self.spread_ms = 0.0

    @property
    def settled(self) -> Callable[[EndedRun, Millis], tuple[str, Item, Millis]]:
        """Look this up once for many runs: logging the steps of agents costs nothing while nobody reads them."""
        return self._settle_and_log if agent_log.is_wanted() else self._settle

    def _settle_and_log(self, ended: EndedRun, now: Millis) -> tuple[str, Item, Millis]:
        if ended.claim.queue == AGENTS_QUEUE:
            agent_log.executed(ended.claim, _shown(ended))
        return self._settle(ended, now)

    def _settle(self, ended: EndedRun, now: Millis) -> tuple[str, Item, Millis]:
        """The verb, its item, and until when the job then waits; 0 if it does not, or the time is unknown."""
        claim, spec, decision = ended.claim, ended.spec, ended.decision
        recurring = claim.record[FLAGS] & RECURRING != 0
        if ended.how == "succeeded" and spec is not None:
            if not recurring:
                return "finish", self._done(claim, spec, ended.result), 0
            if self._streaks.by_job:
                self._streaks.succeeded(_job(claim))
            if ended.result is None and (following := next_tick_if_on_time(claim, spec, now)):
                return "finish", on_time_item(claim, following), following
            note = b"" if ended.result is None else _note(ended.result)
            return _item(claim, decide.after_success(claim, spec, recurring, now), b"", now, note)
        if isinstance(decision, Release):
            delay = int(self.spread_ms * random.random()) + decision.delay
            return "release", release_item(claim, delay), max(claim.due, now + delay)
        if isinstance(decision, Park) or spec is None:
            wait = decision.wait if isinstance(decision, Park) else 0
            return "park", park_item(claim, ended.error, wait=wait), 0
        if decision is None:
            if ended.how == "cancelled":
                decision = decide.after_cancel(claim, spec, recurring, now)
            else:
                decision = self._failed(ended, spec, recurring, now)
        note = b"" if ended.failure is None else note_of(ended.failure.told)
        return _item(claim, decision, ended.error, now, note)

    def unplanned(self, ended: EndedRun, error: Exception, now: Millis) -> tuple[str, Item, Millis]:
        """Nobody can know what follows this run, mostly because its trigger fails. The run counts as it ended. The job
        is parked with the reason, so that a person can give it another trigger."""
        reason, outcome = reason_of(error, now), _ENDS.get(ended.how, FAILED)
        if outcome == FAILED and ended.error:
            last = decode_failure(ended.error)
            reason = replace(reason, error=f"{reason.error}; its last run failed: {last.error}")
        ended.stuck = reason
        note = b"" if ended.failure is None else note_of(ended.failure.told)
        item = park_item(ended.claim, encode_failure(reason), note, outcome, ceil_ms(UNPLANNED_S))
        return "park", item, 0

    def _done(self, claim: Claim, spec: Spec, result: Any) -> Item:
        """The item of a one-shot that succeeded."""
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
        streak = self._streaks.failed(_job(claim)) if recurring else claim.attempt
        facts = decide.FailureFacts(random.random(), ended.kind, streak)
        if failure is not None:
            wait = None if failure.retry_after is None else ceil_ms(failure.retry_after)
            facts = decide.FailureFacts(facts.chance, ended.kind, streak, failure.final, wait)
        return decide.after_failure(claim, spec, recurring, now, facts, self._backoff)


def reason_of(error: Exception, now: Millis) -> Failure:
    """Why a job is parked."""
    kind = type(error).__name__
    text = str(error) if isinstance(error, (RecordUnreadable, TriggerFailed)) else f"{kind}: {error}"
    return Failure(text[:LONGEST_ERROR], at=now, type=kind if isinstance(error, TriggerFailed) else "")


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
    return "bury", bury_or_park_item(claim, error, note), 0


def _job(claim: Claim) -> str:
    """Identifies a job among those of all queues."""
    return f"{claim.queue} {claim.job_id}"


def _shown(ended: EndedRun) -> str:
    """How a run ended, in the log."""
    if ended.how != "decided":
        return ended.how
    decision = ended.decision
    return "released" if isinstance(decision, Release) else "parked" if isinstance(decision, Park) else "settled"
