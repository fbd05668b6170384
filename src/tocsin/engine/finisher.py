"""The finisher: decides what becomes of ended runs and writes it to the server in batches.

While the server is away, calls are kept and repeated under the same sequence number when it is back. Outcomes that the
server refuses are tried again in the next passes, each alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from tocsin.engine.decide import Release
from tocsin.engine.encode_error import batch_outcomes, encode_error, timed_out
from tocsin.engine.encode_outcome import OutcomeEncoder
from tocsin.engine.failure_reports import FailureReports
from tocsin.engine.outcome import EndedRun, PendingCall
from tocsin.engine.outcome_queue import OutcomeQueue
from tocsin.engine.partition_faults import PartitionFaults
from tocsin.engine.refused_outcomes import evidence_in
from tocsin.engine.signals import Signals
from tocsin.engine.stop_requests import StopRequests
from tocsin.engine.work_item import WorkItem
from tocsin.model.delivery import DeliveryFailed
from tocsin.model.durations import ceil_ms
from tocsin.model.errors import (
    InvalidConfig,
    NodeUnavailable,
    QueueRepartitioning,
    StoreChanged,
    StoreError,
    StoreUnavailable,
)
from tocsin.model.failure_class import FailureClass
from tocsin.resilience.breaker import Breaker, Permit
from tocsin.resilience.classify import Classifier
from tocsin.store.connection.nodes import by_node, each_by_itself
from tocsin.store.store import Store
from tocsin.store.transitions.settle import key_of
from tocsin.telemetry.logs import get_logger
from tocsin.telemetry.metrics import Counters

log = get_logger("tocsin.finish")

# After a pass with this many outcomes the next one gathers for this long, unless there are many already.
BUSY = 50
PACE_S = 0.01
# While the server writes the outcomes of one pass, another pass gathers. It goes on before they are written if there
# are many, or if the answer takes this long.
PASSES = 2
SLOW_S = 0.05
# Finding a job's next due time may take 50 ms (model/step_budget.py). After that long a pass leaves the rest.
GIVE_WAY_S = 0.05
# How often a call is tried again while its queue is repartitioned, its node is away, or its partition fails.
STILL_S = 0.25
# Without work.
REST_S = 60.0


class AnsweredCalls(Struct):
    """What is left to do after some calls were answered."""

    # Calls into queues that have changed.
    changed: list[PendingCall] = []
    trouble: StoreError | None = None
    # A node is away, or a partition fails: its calls need not be tried at once.
    rests: bool = False


class Finisher:
    """Collects outcomes from the runners and settles their claims."""

    name = "finish"

    def __init__(
        self,
        *,
        store: Store,
        outcomes: OutcomeQueue,
        encoder: OutcomeEncoder,
        classifier: Classifier,
        failures: FailureReports,
        stop_requests: StopRequests,
        breaker: Breaker,
        signals: Signals,
        tally: Counters,
    ) -> None:
        self.wake = asyncio.Event()
        self.outcomes = outcomes
        # Claims that were lost before their outcome was written.
        self.lost = 0
        self.breaker = breaker
        # Gets each outcome that is no success, with the decision.
        self.failures = failures
        self._store = store
        self._clock = store.clock
        self._encoder = encoder
        self._classifier = classifier
        self._stop_requests = stop_requests
        self._signals = signals
        self._tally = tally
        # How many outcomes the last pass took, and when it sent them.
        self._sent = 0
        self._sent_at = 0.0
        self._faults = PartitionFaults(self._clock)

    # Reports of the runners

    def succeeded(self, unit: WorkItem, result: Any) -> None:
        if unit.handler.batch is not None:
            self._batch_ended(unit, result)
            return
        unit.handler.tally.succeeded += 1
        outcomes = self.outcomes
        if not outcomes.ended:
            # The pass that this wakes takes all outcomes that follow.
            self.wake.set()
        outcomes.add(EndedRun(unit.served, unit.claim, unit.spec, "succeeded", result))

    def failed(self, unit: WorkItem, error: BaseException) -> None:
        encoded, kind = encode_error(error, self._clock.server_ms()), self._classifier.classify(error)
        if isinstance(error, DeliveryFailed):
            ended = EndedRun(unit.served, unit.claim, unit.spec, "failed", error=encoded, kind=kind, failure=error)
            ended.cause = error
            self.add(ended)
        else:
            self._add(unit, "failed", encoded, kind, error)

    def stopped(self, unit: WorkItem, reason: str) -> None:
        """The worker cancelled its handler; `reason` says why."""
        if reason == "timeout":
            self._add(unit, "failed", timed_out(unit.claim, int(self._clock.server_ms())))
        elif reason == "cancelled":
            self._add(unit, "cancelled", b"")
        elif reason == "handover":
            self.release(unit)
        # "lost": another worker, or another life of this one, has it: write nothing.

    def release(self, unit: WorkItem, delay: float = 0.0) -> None:
        """Give its claims back for others, after `delay` seconds."""
        decision = Release(ceil_ms(delay))
        for claim, spec in unit.all():
            self.add(EndedRun(unit.served, claim, spec, "decided", decision=decision))

    def spread_releases(self, seconds: float) -> None:
        """From now on each released run waits a random part of this long, so that a stop wakes others gently."""
        self._encoder.spread_ms = seconds * 1000

    def add(self, ended: EndedRun) -> None:
        self.outcomes.add(ended)
        self.wake.set()

    def _add(
        self,
        unit: WorkItem,
        how: Literal["failed", "cancelled"],
        error: bytes,
        kind: FailureClass = FailureClass.UNKNOWN,
        cause: BaseException | None = None,
    ) -> None:
        for claim, spec in unit.all():
            self.add(EndedRun(unit.served, claim, spec, how, error=error, kind=kind, cause=cause))

    def _batch_ended(self, unit: WorkItem, returned: Any) -> None:
        try:
            results = batch_outcomes(unit.handler.name, unit.size(), returned)
        except TypeError as error:
            self._add(unit, "failed", encode_error(error, self._clock.server_ms()), cause=error)
            return
        for (claim, spec), result in zip(unit.all(), results, strict=True):
            if isinstance(result, BaseException):
                encoded = encode_error(result, self._clock.server_ms())
                kind = self._classifier.classify(result)
                self.add(EndedRun(unit.served, claim, spec, "failed", error=encoded, kind=kind, cause=result))
            else:
                unit.handler.tally.succeeded += 1
                self.add(EndedRun(unit.served, claim, spec, "succeeded", result))

    def idle(self) -> bool:
        """Whether every outcome is written."""
        return self.outcomes.is_empty()

    # The pass

    async def step(self) -> float:
        outcomes = self.outcomes
        if not outcomes.full:
            if outcomes.in_flight and self._clock.monotonic() - self._sent_at < SLOW_S:
                return PACE_S
            if self._sent >= BUSY and not outcomes.has_unsent():
                # Under load, waiting a few milliseconds turns many small calls into one.
                await asyncio.sleep(PACE_S)
        self._sent = len(outcomes.ended)
        self._decide_all()
        # Refused outcomes go first: under load their places would never be free.
        outcomes.make_calls(left_free=outcomes.refused.places())
        if not outcomes.refused and not outcomes.calls_to_send():
            return PACE_S if outcomes.ended else REST_S
        permit = self.breaker.allow()
        if permit is None:
            return max(self.breaker.status().probe_in, PACE_S)
        answered = AnsweredCalls()
        if outcomes.refused:
            await self._try_refused(permit, answered)
            outcomes.make_calls()
        rest = 0.0
        if not isinstance(answered.trouble, StoreUnavailable) and (calls := outcomes.calls_to_send()):
            rest = await self._send_all(calls, permit)
        rest = max(rest, await self._after(answered))
        return REST_S if self.idle() else rest

    async def _send_all(self, calls: list[PendingCall], permit: Permit) -> float:
        """Seconds to rest."""
        self._sent_at = self._clock.monotonic()
        # Mark all of them before the first is sent: another pass may begin meanwhile.
        self.outcomes.in_flight.update(call.place for call in calls)
        groups = by_node(self._store, calls, lambda each: (each.call.queue, each.call.partition))
        return await each_by_itself(groups, lambda some: self._send_to_node(some, permit))

    async def _send_to_node(self, calls: list[PendingCall], permit: Permit) -> float:
        """Seconds to rest."""
        answers = await self._send(calls)
        own = self._faults.report(self.breaker, permit, [call.place[:2] for call in calls], answers)
        answered = AnsweredCalls()
        for call, answer, is_own in zip(calls, answers, own, strict=True):
            self._read_answer(call, answer, answered, is_own)
        return await self._after(answered)

    async def _after(self, answered: AnsweredCalls) -> float:
        """Seconds to rest. This comes last because it waits, and the other pass goes on meanwhile."""
        await self._stop_requests.post()
        resting = STILL_S if answered.rests else 0.0
        rest = max([await self._follow(call) for call in answered.changed], default=resting)
        if answered.trouble is not None:
            await self._store.revive_server()
            raise answered.trouble
        return rest

    async def _send(self, calls: list[PendingCall]) -> list[list[Any] | StoreError]:
        in_flight = self.outcomes.in_flight
        in_flight.update(call.place for call in calls)
        try:
            return await self._store.call_all([call.call for call in calls])
        finally:
            in_flight.difference_update(call.place for call in calls)

    async def _try_refused(self, permit: Permit, answered: AnsweredCalls) -> None:
        """Each alone."""
        answers: list[list[Any] | StoreError] = []
        for call in self.outcomes.refused_calls():
            [answer] = await self._send([call])
            [is_own] = self._faults.own([call.place[:2]], [answer])
            if not is_own:
                answers.append(answer)
            self._read_answer(call, answer, answered, is_own)
            if isinstance(answered.trouble, StoreUnavailable):
                break
        evidence = evidence_in(answers)
        if evidence is not None:
            self.breaker.answered(permit, evidence)

    # Answers

    def _read_answer(
        self, call: PendingCall, answer: list[Any] | StoreError, answered: AnsweredCalls, is_own: bool
    ) -> None:
        """`is_own`: the failure is that of one partition, not of the server."""
        if self.outcomes.is_replaced(call):
            return  # The other pass has heard the answer first.
        if isinstance(answer, NodeUnavailable):
            # The client logs it, and the other nodes of the cluster go on.
            answered.rests = True
        elif isinstance(answer, StoreUnavailable):
            answered.trouble = answer
        elif isinstance(answer, StoreChanged):
            answered.changed.append(call)
        elif isinstance(answer, StoreError):
            self._refused(call, answer)
            answered.rests = answered.rests or is_own
            answered.trouble = answered.trouble or (None if is_own else answer)
        else:
            self._written(call, answer)

    def _written(self, call: PendingCall, answer: list[Any]) -> None:
        """`answer`: lost claims, when the partition has work next, whether others wait, runs to stop."""
        served, (_, partition, verb) = call.served, call.place
        lost: Sequence[bytes] = answer[1]
        self.outcomes.written(call, lost)
        for member in lost:
            self.lost += 1
            self._tally.claims_lost += 1
            self._tally.contention[verb] += 1
            self._signals.claim_lost(member.decode(errors="replace"))
        self._stop_requests.add(answer[4] if len(answer) > 4 else ())
        if answer[3]:
            self._signals.others_wait(served.queue, partition)
        if answer[2] >= 0 and served.timetable is None and served.expect(partition, answer[2]):
            self._signals.due_earlier(served, partition)

    def _refused(self, call: PendingCall, error: Exception) -> None:
        """The server answers and refuses this call."""
        if given_up := self.outcomes.refuse(call):
            names = [key_of(item).decode(errors="replace") for item in given_up]
            log.error("outcome refused by the server: its run will be recovered", jobs=names, error=str(error))

    async def _follow(self, call: PendingCall) -> float:
        """Open the queue again. If it was repartitioned, the jobs of the call are elsewhere. Returns seconds to rest.
        If the claims are gone with their server's data, the token check will find out."""
        served = call.served
        try:
            await self._store.reopen(served.queue)
        except StoreUnavailable:
            raise
        except (StoreError, InvalidConfig) as error:
            if not isinstance(error, QueueRepartitioning) and self.outcomes.is_pending(call):
                # The settings of the queue are garbled. Other queues do not wait for it.
                self._refused(call, error)
            return STILL_S
        if call.call.layout == served.queue.layout:
            return 0.0
        answer = await self._store.find_kept_answer(call.call)
        if not self.outcomes.is_pending(call):
            pass  # The other pass has heard the answer first, or a new life of the worker forgot the call.
        elif answer is not None:
            self._written(call, answer)
        else:
            self.outcomes.moved(call)
        return 0.0

    # Decisions

    def _decide_all(self) -> None:
        now, began = int(self._clock.server_ms()), self._clock.monotonic()
        outcomes, settled, served = self.outcomes, self._encoder.settled, None
        waiting = outcomes.ended
        while waiting:
            ended = waiting.popleft()
            try:
                verb, item, due = settled(ended, now)
            except Exception as error:
                # Whatever a trigger raises, its outcome and those behind it must not be lost.
                verb, item, due = self._encoder.unplanned(ended, error, now)
            if ended.served is not served:
                served = ended.served
                unsent = outcomes.unsent_of(served)
                timetable, moved = served.timetable, served.layout != ""
            claim = ended.claim
            place = verb, served.partition_of(claim) if moved else claim.partition
            if place in unsent:
                unsent[place].append(item)
            else:
                unsent[place] = [item]
            if timetable is not None:
                timetable.plan(verb, claim.member, due)
            # This comes last because it calls the program's hooks: whatever they do, the outcome is kept.
            if ended.how != "succeeded" or ended.stuck is not None:
                self.failures.report(ended, verb, due, now)
            if ended.spec is not None and ended.spec.trigger and self._clock.monotonic() - began >= GIVE_WAY_S:
                return
