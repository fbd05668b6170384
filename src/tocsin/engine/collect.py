"""The collector: makes units for the pool of what was claimed, and settles at once what is not to be run."""

from __future__ import annotations

from tocsin.engine import decide
from tocsin.engine.catalog import Catalog
from tocsin.engine.finish import Finisher
from tocsin.engine.pool import Pool
from tocsin.engine.settle import Ended
from tocsin.engine.unit import Lane, Unit
from tocsin.model import codec
from tocsin.model.clock import Clock
from tocsin.model.errors import RecordUnreadable
from tocsin.model.job import Failure
from tocsin.model.run import Claim
from tocsin.store.runs import Claimed
from tocsin.telemetry.metrics import Tally


class Collector:
    """Answer by answer."""

    def __init__(self, catalog: Catalog, pool: Pool, finisher: Finisher, clock: Clock, tally: Tally) -> None:
        self._catalog = catalog
        self._pool = pool
        self._finisher = finisher
        self._clock = clock
        self._tally = tally

    def collect(self, lane: Lane, answer: Claimed, units: list[Unit], batches: dict[str, Unit]) -> None:
        """What was claimed is always run, released, parked or settled: nothing falls through."""
        taken, spare = self._clock.monotonic(), self._pool.free()
        self._measure(lane, answer)
        for claim in answer.claims:
            unit = self._unit(lane, claim, taken, answer.now)
            if unit is None:
                continue
            if claim.recoveries and len(units) >= spare:
                # It may be what kills workers: it never waits in a backlog together with others.
                self._finisher.release(unit)
            elif unit.handler.batch is None:
                units.append(unit)
            else:
                self._add_to_batch(unit, units, batches)

    def _measure(self, lane: Lane, answer: Claimed) -> None:
        """How long they waited. All at once: a call for each run would cost as much as running it."""
        now = answer.now
        self._tally.lateness.add_all([(now - claim.due) / 1000 for claim in answer.claims])
        first = [claim for claim in answer.claims if claim.attempt == 1]
        waits = self._tally.waits_of(lane.name)
        # The third byte of a record is its band.
        for band in {claim.record[2] for claim in first}:
            waited = [(now - claim.due) / 1000 for claim in first if claim.record[2] == band]
            waits[min(band, 4)].add_all(waited)

    def _add_to_batch(self, unit: Unit, units: list[Unit], batches: dict[str, Unit]) -> None:
        whole, size = batches.get(unit.spec.name), unit.handler.batch or 1
        if whole is not None and whole.lane is unit.lane and whole.size() < size:
            whole.others = whole.others or []
            whole.others.append((unit.claim, unit.spec))
            whole.deadline = min(whole.deadline, unit.deadline)
        else:
            batches[unit.spec.name] = unit
            units.append(unit)

    def _unit(self, lane: Lane, claim: Claim, taken: float, now: int) -> Unit | None:
        try:
            spec = codec.decode_spec(claim.record)
        except RecordUnreadable as error:
            failure = codec.encode_failure(Failure(str(error), at=now))
            self._finisher.add(Ended(lane, claim, None, "parked", error=failure))
            return None
        if claim.recoveries or claim.cancelled or spec.policy is not None:
            early = decide.before(claim, spec, claim.record[1] & codec.RECURRING != 0, now)
            if early is not None:
                failure = codec.encode_failure(Failure(early[1], at=now))
                self._finisher.add(Ended(lane, claim, spec, "settled", error=failure, decision=early[0]))
                return None
        handler = self._catalog.get(spec.name)
        if handler is None:
            # The header names a handler we have, the body another: two names with one digest, or garbage.
            failure = codec.encode_failure(Failure(f"no handler is named {spec.name!r}", at=now))
            self._finisher.add(Ended(lane, claim, spec, "parked", error=failure))
            return None
        lane.handlers.add(handler)
        return Unit(claim, spec, handler, lane, taken, taken + (claim.deadline - now) / 1000)
