"""The collector: makes units for the pool of what was claimed, and settles at once what is not to be run."""

from __future__ import annotations

import asyncio
import contextlib

from tocsin.engine import decide
from tocsin.engine.encode_outcome import UNPLANNED_S, EndedRun, reason_of
from tocsin.engine.finisher import Finisher
from tocsin.engine.handlers import Catalog
from tocsin.engine.runner_pool import RunnerPool
from tocsin.engine.served_queue import ServedQueue
from tocsin.engine.unreadable_handlers import UnreadableHandlers
from tocsin.engine.work_item import WorkItem
from tocsin.model import codec
from tocsin.model.clock import Clock
from tocsin.model.codec import decode_spec
from tocsin.model.durations import Millis
from tocsin.model.errors import RecordUnreadable, TriggerFailed
from tocsin.model.job import Failure, Spec
from tocsin.model.run import SUSPECT, Claim
from tocsin.store.transitions.claims import ClaimReply
from tocsin.telemetry import agent_log
from tocsin.telemetry.metrics import Counters

# Reading a recurrence rule may take 50 ms (model/step_budget.py). After so much of it others get their turn.
GIVE_WAY_S = 0.02
# By what its record is known, before it is read.
_RULE = b"rrule"


class ClaimIntake:
    """Answer by answer."""

    def __init__(self, catalog: Catalog, pool: RunnerPool, finisher: Finisher, clock: Clock, tally: Counters) -> None:
        self._catalog = catalog
        self._pool = pool
        self._finisher = finisher
        self._clock = clock
        self._tally = tally
        self.unread = UnreadableHandlers(clock.monotonic)

    async def read_rules(self, answer: ClaimReply) -> None:
        """Before `collect`, which does not wait: rules that were read are remembered (model/rrule.py). An answer may
        bring a hundred slow ones, and all at once would block the loop for seconds."""
        began = self._clock.monotonic()
        for claim in answer.claims:
            if claim.record[1] & codec.RECURRING and _RULE in claim.record:
                with contextlib.suppress(RecordUnreadable):
                    decode_spec(claim.record)
                if self._clock.monotonic() - began >= GIVE_WAY_S:
                    await asyncio.sleep(0)
                    began = self._clock.monotonic()

    def collect(
        self, lane: ServedQueue, answer: ClaimReply, units: list[WorkItem], batches: dict[str, WorkItem]
    ) -> None:
        """What was claimed is always run, released, parked or settled: nothing falls through."""
        taken, now, age = self._clock.monotonic(), answer.now, answer.age
        self._measure(lane, answer)
        if lane.timetable is not None and agent_log.is_wanted():
            agent_log.acquired(answer.claims)
        if answer.claims:
            lane.brings_recovered = answer.claims[-1].recoveries > 0
        find, seen = self._catalog.by_name.get, lane.handlers.add
        for claim in answer.claims:
            try:
                spec = decode_spec(claim.record)
                recoveries, rules = claim.recoveries, spec.policy
                # Most runs have nothing about them that could be decided before they are executed.
                ruled = rules is not None and (rules.misfire != "coalesce" or rules.overlap != "skip")
                odd = recoveries or claim.cancelled or not claim.attempt
                if (ruled or odd) and self._is_settled(lane, claim, spec, now):
                    continue
            except Exception as error:
                # Whatever is wrong with one record, the other runs of the claim must not be lost with it.
                self._park(lane, claim, None, reason_of(error, now))
                continue
            handler = find(spec.name)
            if handler is None:
                # The header names a handler we have, the body another: two names with one digest, or garbage.
                self._park(lane, claim, spec, Failure(f"no handler is named {spec.name!r}", at=now))
                continue
            seen(handler)
            unit = WorkItem(claim, spec, handler, lane, taken, taken + (claim.deadline - now) / 1000)
            if age and claim.deadline - now <= age:
                # Most of its time went by before we heard of it. A timeout now would be no fault of its handler.
                self._finisher.release(unit)
            elif recoveries and not self._accept_recovered(unit, batches):
                self._finisher.release(unit)
            elif handler.batch is None or recoveries >= SUSPECT:
                units.append(unit)
            else:
                self._add_to_batch(unit, units, batches)

    def _measure(self, lane: ServedQueue, answer: ClaimReply) -> None:
        """How long they waited. All at once: a call for each run would cost as much as running it."""
        claims, now = answer.claims, answer.now

        def waited(claim: Claim) -> float:
            return (now - claim.due) / 1000

        self._tally.lateness.add_all(claims, waited)
        waits = self._tally.waits_of(lane.name)
        # The third byte of a record is its band.
        bands = {claim.record[2] if claim.attempt == 1 else None for claim in claims}
        for band in bands:
            if band is not None:
                alike = len(bands) == 1
                first = claims if alike else [each for each in claims if each.attempt == 1 and each.record[2] == band]
                waits[min(band, 4)].add_all(first, waited)

    def _accept_recovered(self, unit: WorkItem, batches: dict[str, WorkItem]) -> bool:
        """No more of them than permits: one may be what kills workers, and each that waits here would be recovered once
        more with it. Of suspects one: a second comes only with an answer that was lost at first."""
        pool, is_suspect = self._pool, unit.claim.recoveries >= SUSPECT
        joined = unit if is_suspect else self._open_batch(unit, batches) or unit
        if not joined.recovered:
            if pool.suspects if is_suspect else pool.recovered >= pool.permits:
                return False
            joined.recovered = True
            pool.recovered += 1
        return True

    def _open_batch(self, unit: WorkItem, batches: dict[str, WorkItem]) -> WorkItem | None:
        whole, size = batches.get(unit.spec.name), unit.handler.batch or 1
        return whole if whole is not None and whole.lane is unit.lane and whole.size() < size else None

    def _add_to_batch(self, unit: WorkItem, units: list[WorkItem], batches: dict[str, WorkItem]) -> None:
        whole = self._open_batch(unit, batches)
        if whole is not None:
            whole.others = whole.others or []
            whole.others.append((unit.claim, unit.spec))
            whole.deadline = min(whole.deadline, unit.deadline)
        else:
            batches[unit.spec.name] = unit
            units.append(unit)

    def _is_settled(self, lane: ServedQueue, claim: Claim, spec: Spec, now: Millis) -> bool:
        """Whether it is not to be executed: that is settled then."""
        early = decide.before(claim, spec, claim.record[1] & codec.RECURRING != 0, now)
        if early is None:
            return False
        failure = codec.encode_failure(Failure(early[1], at=now))
        self._finisher.add(EndedRun(lane, claim, spec, "settled", error=failure, decision=early[0]))
        return True

    def _park(self, lane: ServedQueue, claim: Claim, spec: Spec | None, why: Failure) -> None:
        ended = EndedRun(lane, claim, spec, "parked", error=codec.encode_failure(why))
        if why.type == TriggerFailed.__name__:
            ended.delay = UNPLANNED_S
        elif spec is None:
            ended.delay = self.unread.note(claim.record)
        self._finisher.add(ended)
