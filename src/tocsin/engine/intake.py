"""The intake: turns claims into units for the pool, and settles runs that must not be executed."""

from __future__ import annotations

import asyncio
import contextlib

from tocsin.engine import decide
from tocsin.engine.encode_outcome import UNPLANNED_S, reason_of
from tocsin.engine.finisher import Finisher
from tocsin.engine.handlers import Catalog
from tocsin.engine.outcome import EndedRun
from tocsin.engine.runner_pool import RunnerPool
from tocsin.engine.served_queue import ServedQueue
from tocsin.engine.unreadable_handlers import UnreadableHandlers
from tocsin.engine.work_item import WorkItem
from tocsin.model.clock import Clock
from tocsin.model.durations import Millis, ceil_ms
from tocsin.model.errors import RecordUnreadable, TriggerFailed
from tocsin.model.job import Failure, Spec
from tocsin.model.record import BAND, FLAGS, RECURRING, decode_spec, encode_failure
from tocsin.model.run import SUSPECT, Claim
from tocsin.store.transitions.claims import ClaimReply
from tocsin.telemetry import agent_log
from tocsin.telemetry.metrics import Counters

# Reading a recurrence rule may take 50 ms (model/step_budget.py). After this long other tasks get a turn.
GIVE_WAY_S = 0.02
# Records with a recurrence rule contain this.
_RULE = b"rrule"


class ClaimIntake:
    """Takes claims reply by reply."""

    def __init__(self, catalog: Catalog, pool: RunnerPool, finisher: Finisher, clock: Clock, tally: Counters) -> None:
        self._catalog = catalog
        self._pool = pool
        self._finisher = finisher
        self._clock = clock
        self._tally = tally
        self.unread = UnreadableHandlers(clock.monotonic)

    async def read_rules(self, answer: ClaimReply) -> None:
        """Call this before `admit`, which does not wait. Rules that were read are cached (model/rrule.py). A reply may
        bring a hundred slow ones, which would block the loop for seconds if they were read at once."""
        began = self._clock.monotonic()
        for claim in answer.claims:
            if claim.record[FLAGS] & RECURRING and _RULE in claim.record:
                with contextlib.suppress(RecordUnreadable):
                    decode_spec(claim.record)
                if self._clock.monotonic() - began >= GIVE_WAY_S:
                    await asyncio.sleep(0)
                    began = self._clock.monotonic()

    def admit(
        self, served: ServedQueue, answer: ClaimReply, units: list[WorkItem], batches: dict[str, WorkItem]
    ) -> None:
        """Every claim becomes a unit, or is released, parked or settled."""
        taken, now, age = self._clock.monotonic(), answer.now, answer.age
        self._measure(served, answer)
        if served.timetable is not None and agent_log.is_wanted():
            agent_log.acquired(answer.claims)
        if answer.claims:
            served.brings_recovered = answer.claims[-1].recoveries > 0
        find, seen = self._catalog.by_name.get, served.handlers.add
        for claim in answer.claims:
            try:
                spec = decode_spec(claim.record)
                recoveries, rules = claim.recoveries, spec.policy
                # Most runs have nothing about them that could be decided without executing them.
                ruled = rules is not None and (rules.misfire != "coalesce" or rules.overlap != "skip")
                odd = recoveries or claim.cancelled or not claim.attempt
                if (ruled or odd) and self._is_settled(served, claim, spec, now):
                    continue
            except Exception as error:
                # Whatever is wrong with one record, the other claims of the reply must not be lost.
                self._park(served, claim, None, reason_of(error, now))
                continue
            handler = find(spec.name)
            if handler is None:
                # The header names a handler that we have, the body another: two names share a digest, or the record is
                # garbage.
                self._park(served, claim, spec, Failure(f"no handler is named {spec.name!r}", at=now))
                continue
            seen(handler)
            unit = WorkItem(claim, spec, handler, served, taken, taken + (claim.deadline - now) / 1000)
            if age and claim.deadline - now <= age:
                # Most of its time passed before the reply arrived. A timeout now would be no fault of its handler.
                self._finisher.release(unit)
            elif recoveries and not self._accept_recovered(unit, batches):
                self._finisher.release(unit)
            elif handler.batch is None or recoveries >= SUSPECT:
                units.append(unit)
            else:
                self._add_to_batch(unit, units, batches)

    def _measure(self, served: ServedQueue, answer: ClaimReply) -> None:
        """Measure how long the runs waited, all at once: a call per run would cost as much as running it."""
        claims, now = answer.claims, answer.now

        def waited(claim: Claim) -> float:
            return (now - claim.due) / 1000

        self._tally.lateness.add_all(claims, waited)
        waits = self._tally.waits_of(served.name)
        # The third byte of a record is its band.
        bands = {claim.record[BAND] if claim.attempt == 1 else None for claim in claims}
        for band in bands:
            if band is not None:
                alike = len(bands) == 1
                first = (
                    claims if alike else [each for each in claims if each.attempt == 1 and each.record[BAND] == band]
                )
                waits[min(band, 4)].add_all(first, waited)

    def _accept_recovered(self, unit: WorkItem, batches: dict[str, WorkItem]) -> bool:
        """Accept no more recovered runs than permits: one may kill workers, and each that waits here would be recovered
        once more with it. Accept one suspect: a second comes only with a reply that was lost at first."""
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
        return whole if whole is not None and whole.served is unit.served and whole.size() < size else None

    def _add_to_batch(self, unit: WorkItem, units: list[WorkItem], batches: dict[str, WorkItem]) -> None:
        whole = self._open_batch(unit, batches)
        if whole is not None:
            whole.others = whole.others or []
            whole.others.append((unit.claim, unit.spec))
            whole.deadline = min(whole.deadline, unit.deadline)
        else:
            batches[unit.spec.name] = unit
            units.append(unit)

    def _is_settled(self, served: ServedQueue, claim: Claim, spec: Spec, now: Millis) -> bool:
        """Whether the run must not be executed; then settle it."""
        early = decide.decide_before_run(claim, spec, claim.record[FLAGS] & RECURRING != 0, now)
        if early is None:
            return False
        failure = encode_failure(Failure(early[1], at=now))
        self._finisher.add(EndedRun(served, claim, spec, "decided", error=failure, decision=early[0]))
        return True

    def _park(self, served: ServedQueue, claim: Claim, spec: Spec | None, why: Failure) -> None:
        wait = 0.0
        if why.type == TriggerFailed.__name__:
            wait = UNPLANNED_S
        elif spec is None:
            wait = self.unread.note(claim.record)
        error, decision = encode_failure(why), decide.Park(ceil_ms(wait))
        self._finisher.add(EndedRun(served, claim, spec, "decided", error=error, decision=decision))
