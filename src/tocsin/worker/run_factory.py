"""The run factory: makes the `Run` that a handler gets, with which it can extend its deadline."""

from __future__ import annotations

import asyncio
from typing import Any

from tocsin.engine.incarnation import Incarnation
from tocsin.engine.work_item import WorkItem
from tocsin.model.durations import ceil_ms, moment
from tocsin.model.errors import ClaimLost
from tocsin.model.job import Spec
from tocsin.model.record import decode_header
from tocsin.model.run import Claim, Run
from tocsin.store.store import OpenQueue, Store
from tocsin.telemetry.metrics import Counters


class RunFactory:
    def __init__(self, store: Store, incarnation: Incarnation, tally: Counters) -> None:
        self._prefix = store.keys.prefix
        self._clock = store.clock
        self._incarnation = incarnation
        self._tally = tally
        self._loop = asyncio.get_running_loop()

    def make(self, unit: WorkItem, claim: Claim, spec: Spec) -> Run:
        # The run must not hold its unit: the unit holds the run, and the garbage collector does not look into units.
        queue = unit.served.queue

        def extend(run: Run, seconds: float) -> Any:
            return self._extend(queue, claim, run, seconds)

        return Run(claim, decode_header(claim.record), spec, self._prefix, extend)

    def _extend(self, queue: OpenQueue, claim: Claim, run: Run, seconds: float) -> Any:
        """Awaitable on the event loop; done on return in a thread."""
        work = self._extend_claim(queue, claim, run, seconds)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        return work

    async def _extend_claim(self, queue: OpenQueue, claim: Claim, run: Run, seconds: float) -> None:
        try:
            run.deadline = moment(await self._incarnation.runs.extend(queue, claim, ceil_ms(seconds)))
        except ClaimLost:
            self._tally.contention["extend"] += 1
            raise
        run.extended_until = self._clock.monotonic() + seconds
