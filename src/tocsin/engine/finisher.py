"""The finisher: decides what became of runs and writes it down, in batches, until the server has answered.

What could not be written because the server was away is kept and repeated under the same seq when it is back. What it
refuses is tried again in the next passes, each outcome alone.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from msgspec import Struct

from tocsin.engine import decide
from tocsin.engine.encode_error import batch_outcomes, describe, timed_out
from tocsin.engine.encode_outcome import EndedRun, OutcomeEncoder
from tocsin.engine.partition_faults import PartitionFaults
from tocsin.engine.refused_outcomes import Place, RefusedOutcomes, evidence_in
from tocsin.engine.served_queue import ServedQueue
from tocsin.engine.stop_requests import StopRequests, Tell
from tocsin.engine.unwritten_outcomes import UnwrittenOutcomes
from tocsin.engine.work_item import PendingCall, WorkItem
from tocsin.model.clock import Clock
from tocsin.model.delivery import DeliveryFailed
from tocsin.model.errors import (
    InvalidConfig,
    NodeUnavailable,
    QueueRepartitioning,
    StoreChanged,
    StoreError,
    StoreUnavailable,
)
from tocsin.model.failure_class import FailureClass
from tocsin.model.outcome import LARGEST_RESULT
from tocsin.resilience.backoff import BackoffSettings
from tocsin.resilience.breaker import Breaker, BreakerSettings, Permit
from tocsin.resilience.classify import Classifier
from tocsin.store.connection.nodes import by_node, each_by_itself
from tocsin.store.store import LARGEST_BATCH, OpenQueue, Store
from tocsin.store.transitions.claims import Runs
from tocsin.store.transitions.settle import Item, fitting, key_of
from tocsin.telemetry.logs import get_logger
from tocsin.telemetry.metrics import Counters

log = get_logger("tocsin.finish")

# After a pass with this many outcomes the next one gathers for this long, unless there are many already.
BUSY = 50
PACE_S = 0.01
# While the server writes down the outcomes of one pass, another gathers. It goes on before those are written if there
# are many, or the answer takes so long.
PASSES = 2
SLOW_S = 0.05
# About as many outcomes a pass: what is due meanwhile waits until the server has written them down.
MOST_PER_PASS = 150
# Finding a job's next due time may take 50 ms (model/step_budget.py). After that long a pass stops and leaves the rest.
GIVE_WAY_S = 0.05
# While a queue is being repartitioned, its node is away, or one of its partitions fails: how often that is tried again.
STILL_S = 0.25


class AnsweredCalls(Struct):
    """What came of some calls, apart from their answers."""

    # Calls into queues that have changed: for later.
    changed: list[tuple[Place, PendingCall]] = []
    trouble: StoreError | None = None
    # A node is away, or a partition fails by itself: what is theirs need not be tried at once.
    rests: bool = False


class Finisher:
    """Collects outcomes from the runners and settles their claims."""

    name = "finish"

    def __init__(
        self,
        store: Store,
        runs: Callable[[], Runs],
        clock: Clock,
        on_lost: Callable[[str], None],
        on_due: Callable[[ServedQueue, int], None],
        classifier: Classifier | None = None,
        backoff: BackoffSettings = decide.NO_BACKOFF,
        breaker: Breaker | None = None,
        tally: Counters | None = None,
        batch: int = LARGEST_BATCH,
        tell: Tell | None = None,
        on_carry: Callable[[OpenQueue, int], None] = lambda queue, partition: None,
        largest_result: int = LARGEST_RESULT,
        report: Callable[[EndedRun, str, int, int], None] = lambda ended, verb, due, now: None,
    ) -> None:
        self.wake = asyncio.Event()
        self.waiting: deque[EndedRun] = deque()
        self.lost = 0
        self._store = store
        self._runs = runs
        self._clock = clock
        self._classifier = classifier or Classifier()
        self._settler = OutcomeEncoder(backoff, largest_result)
        self.breaker = breaker or Breaker(BreakerSettings(), clock.monotonic)
        self._tally = tally or Counters()
        self._batch = batch
        self._on_lost = on_lost
        # Something is due sooner than the fetcher knows.
        self._on_due = on_due
        # Others wait for what ended there.
        self._on_carry = on_carry
        # Gets each outcome that is no success, with what was decided.
        self.report = report
        # Calls by place: one of each in flight at most, so that repeating keeps their order.
        self._unanswered: dict[Place, PendingCall] = {}
        # Those of them that another pass is waiting for.
        self._in_flight: set[Place] = set()
        self._rescue = RefusedOutcomes(clock, self._tally)
        # How many outcomes the last pass took, and when it sent them.
        self._sent = 0
        self._sent_at = 0.0
        self._letters = StopRequests(tell)
        self.unwritten = UnwrittenOutcomes(clock)
        # Lanes that have outcomes which no call has taken yet.
        self._unsent: set[ServedQueue] = set()
        # The number of the last call for each place: who waits longest is next.
        self._calls: dict[Place, int] = {}
        self._count, self._faults = itertools.count(1), PartitionFaults(clock)

    # Reports of the runners

    def succeeded(self, unit: WorkItem, result: Any) -> None:
        if unit.handler.batch is not None:
            self._batch_ended(unit, result)
            return
        unit.handler.tally.succeeded += 1
        if not self.waiting:
            # Whoever was woken for those that wait takes this one too.
            self.wake.set()
        self.waiting.append(EndedRun(unit.lane, unit.claim, unit.spec, "succeeded", result))
        self.unwritten.add()

    def failed(self, unit: WorkItem, error: BaseException) -> None:
        described, kind = describe(error, self._clock.server_ms()), self._classifier.classify(error)
        if isinstance(error, DeliveryFailed):
            ended = EndedRun(unit.lane, unit.claim, unit.spec, "failed", error=described, kind=kind, failure=error)
            ended.cause = error
            self.add(ended)
        else:
            self._add(unit, "failed", described, kind, error)

    def stopped(self, unit: WorkItem, reason: str) -> None:
        """Its handler was cancelled by us: why decides what becomes of it."""
        if reason == "timeout":
            self._add(unit, "failed", timed_out(unit.claim, int(self._clock.server_ms())))
        elif reason == "cancelled":
            self._add(unit, "cancelled", b"")
        elif reason == "handover":
            self.release(unit)
        # "lost": another incarnation or worker has it; there is nothing to write.

    def release(self, unit: WorkItem, delay: float = 0.0) -> None:
        if delay:
            self.add(EndedRun(unit.lane, unit.claim, unit.spec, "released", delay=delay))
        else:
            self._add(unit, "released", b"")

    def spread_releases(self, seconds: float) -> None:
        """From now on what goes back waits for a random part of this long: a fleet that stops wakes others gently."""
        self._settler.spread_ms = seconds * 1000

    def add(self, ended: EndedRun) -> None:
        self.waiting.append(ended)
        self.unwritten.add()
        self.wake.set()

    def _add(
        self,
        unit: WorkItem,
        how: str,
        error: bytes,
        kind: FailureClass = FailureClass.UNKNOWN,
        cause: BaseException | None = None,
    ) -> None:
        for claim, spec in unit.all():
            self.add(EndedRun(unit.lane, claim, spec, how, error=error, kind=kind, cause=cause))

    def _batch_ended(self, unit: WorkItem, returned: Any) -> None:
        try:
            outcomes = batch_outcomes(unit.handler.name, unit.size(), returned)
        except TypeError as error:
            self._add(unit, "failed", describe(error, self._clock.server_ms()), cause=error)
            return
        for (claim, spec), outcome in zip(unit.all(), outcomes, strict=True):
            if isinstance(outcome, BaseException):
                error_bytes = describe(outcome, self._clock.server_ms())
                kind = self._classifier.classify(outcome)
                self.add(EndedRun(unit.lane, claim, spec, "failed", error=error_bytes, kind=kind, cause=outcome))
            else:
                unit.handler.tally.succeeded += 1
                self.add(EndedRun(unit.lane, claim, spec, "succeeded", outcome))

    # The pass

    def idle(self) -> bool:
        return not (self.waiting or self._unanswered or self._unsent or self._rescue)

    def left(self) -> list[str]:
        """The ids of the jobs whose outcomes the server has not confirmed."""
        items = [item for sent in self._unanswered.values() for item in sent.items]
        items += [item for lane in self._unsent for some in lane.unsent.values() for item in some]
        items += self._rescue.items()
        keys = [key_of(item).decode(errors="replace") for item in items]
        return sorted({*keys, *(ended.claim.member for ended in self.waiting)})

    def keys_in_hand(self, lane: ServedQueue) -> set[bytes]:
        """The runs of a lane whose outcomes are not confirmed, and those whose outcomes were refused: run again
        at once, they would be refused again."""
        items = [item for sent in self._unanswered.values() if sent.lane is lane for item in sent.items]
        items += [item for some in lane.unsent.values() for item in some] + self._rescue.items(lane)
        ended = [each.claim.key for each in self.waiting if each.lane is lane]
        return {*map(key_of, items), *ended, *self._rescue.given_up(lane.name)}

    def forget(self) -> None:
        """A new incarnation: what the old one held is no longer ours to settle."""
        self.waiting.clear()
        self._unanswered.clear()
        self._rescue.forget()
        self.unwritten.wrote(self.unwritten.count)
        for lane in self._unsent:
            lane.unsent.clear()
            if lane.timetable is not None:
                lane.timetable.forget_plans()
        self._unsent.clear()

    async def step(self) -> float:
        if not self.unwritten.full:
            if self._in_flight and self._clock.monotonic() - self._sent_at < SLOW_S:
                return PACE_S
            if self._sent >= BUSY and not self._unsent:
                # Under load a few milliseconds make one call of what would be many small ones.
                await asyncio.sleep(PACE_S)
        self._sent = len(self.waiting)
        self._decide_all()
        # What was refused goes first: under load its place would never be free.
        self._prepare(self._rescue.places())
        if not self._rescue and not self._sendable():
            return PACE_S if self.waiting else 60.0
        permit = self.breaker.allow()
        if permit is None:
            return max(self.breaker.status().probe_in, PACE_S)
        heard = AnsweredCalls()
        if self._rescue:
            await self._try_refused(permit, heard)
            self._prepare()
        rest = 0.0
        if not isinstance(heard.trouble, StoreUnavailable) and (sent := self._sendable()):
            self._sent_at = self._clock.monotonic()
            # All of them before any is sent: another pass may begin meanwhile.
            self._in_flight.update(key for key, _ in sent)
            groups = by_node(self._store, sent, lambda each: (each[1].call.queue, each[1].call.partition))
            rest = await each_by_itself(groups, lambda some: self._send_to_node(some, permit))
        rest = max(rest, await self._after(heard))
        return 60.0 if self.idle() else rest

    async def _send_to_node(self, sent: list[tuple[Place, PendingCall]], permit: Permit) -> float:
        """Seconds to rest."""
        answers = await self._call(sent)
        own = self._faults.tell(self.breaker, permit, [key[:2] for key, _ in sent], answers)
        heard = AnsweredCalls()
        for (key, each), answer, is_own in zip(sent, answers, own, strict=True):
            self._hear(key, each, answer, heard, is_own)
        return await self._after(heard)

    async def _after(self, heard: AnsweredCalls) -> float:
        """Seconds to rest. Last, because it waits, and the other pass goes on meanwhile."""
        await self._letters.post()
        resting = STILL_S if heard.rests else 0.0
        rest = max([await self._follow(key, each) for key, each in heard.changed], default=resting)
        if heard.trouble is not None:
            await self._store.revive_server()
            raise heard.trouble
        return rest

    def _sendable(self) -> list[tuple[Place, PendingCall]]:
        return [(key, each) for key, each in self._unanswered.items() if key not in self._in_flight]

    async def _call(self, sent: list[tuple[Place, PendingCall]]) -> list[list[Any] | StoreError]:
        self._in_flight.update(key for key, _ in sent)
        try:
            return await self._store.call_all([each.call for _, each in sent])
        finally:
            self._in_flight.difference_update(key for key, _ in sent)

    def _hear(
        self, key: Place, sent: PendingCall, answer: list[Any] | StoreError, heard: AnsweredCalls, is_own: bool
    ) -> None:
        """`is_own`: it is a failure of its partition alone."""
        if self._unanswered.get(key, sent) is not sent:
            return  # The other pass was told first, and the key is that of a later call.
        if isinstance(answer, NodeUnavailable):
            # The client says so in the log, and the others of the cluster go on.
            heard.rests = True
        elif isinstance(answer, StoreUnavailable):
            heard.trouble = answer
        elif isinstance(answer, StoreChanged):
            heard.changed.append((key, sent))
        elif isinstance(answer, StoreError):
            self._refused(key, sent, answer)
            heard.rests = heard.rests or is_own
            heard.trouble = heard.trouble or (None if is_own else answer)
        else:
            self._answered(key, sent, answer)

    async def _try_refused(self, permit: Permit, heard: AnsweredCalls) -> None:
        """Each alone."""
        answers: list[list[Any] | StoreError] = []
        for key, refused in self._rescue.due(self._unanswered, self._unsent):
            call = self._runs().settle(key[2], refused.lane.queue, key[1], [refused.item])
            sent = self._unanswered[key] = PendingCall(refused.lane, call, [refused.item], refused.tries + 1)
            [answer] = await self._call([(key, sent)])
            [is_own] = self._faults.own([key[:2]], [answer])
            if not is_own:
                answers.append(answer)
            self._hear(key, sent, answer, heard, is_own)
            if isinstance(heard.trouble, StoreUnavailable):
                break
        evidence = evidence_in(answers)
        if evidence is not None:
            self.breaker.answered(permit, evidence)

    async def _follow(self, key: Place, sent: PendingCall) -> float:
        """Open the queue again; where it was repartitioned, the jobs of the call are elsewhere. Seconds to rest.
        If the claims are gone with the store they were made in, the token check will say so."""
        lane = sent.lane
        try:
            await self._store.reopen(lane.queue)
        except StoreUnavailable:
            raise
        except (StoreError, InvalidConfig) as error:
            if not isinstance(error, QueueRepartitioning) and self._unanswered.get(key) is sent:
                # Its settings are garbled. Other queues do not wait for it.
                self._refused(key, sent, error)
            return STILL_S
        if sent.call.layout == lane.queue.layout:
            return 0.0
        answer = await self._store.find_kept_answer(sent.call)
        if self._unanswered.get(key) is not sent:
            pass  # The other pass was told first, or a new incarnation has forgotten it.
        elif answer is not None:
            self._answered(key, sent, answer)
        else:
            self._forget_call(key, lane, written=False)
            lane.follow()
            lane.send_again(key[2], sent.items)
            self._unsent.add(lane)
        return 0.0

    def _refused(self, key: Place, sent: PendingCall, error: Exception) -> None:
        """The server is there and fails this call: its outcomes are tried alone in the next passes, then given up."""
        self._forget_call(key, sent.lane, written=False)
        given_up = self._rescue.refuse(key, sent)
        if given_up:
            self.unwritten.wrote(len(given_up))
            names = [key_of(item).decode(errors="replace") for item in given_up]
            log.error("outcome refused by the server: its run will be recovered", jobs=names, error=str(error))

    def _forget_call(self, key: Place, lane: ServedQueue, written: bool = True) -> None:
        # A new incarnation may have forgotten it meanwhile.
        sent = self._unanswered.pop(key, None)
        if sent is not None and written:
            self.unwritten.wrote(len(sent.items))
        if lane.timetable is not None:
            lane.timetable.answered(key[2])
            self._on_due(lane, key[1])

    def _answered(self, key: Place, sent: PendingCall, answer: list[Any]) -> None:
        lane = sent.lane
        self._rescue.saved(sent)
        lane.log_answer(key[2], answer[1])
        self._forget_call(key, lane)
        for member in answer[1]:
            self.lost += 1
            self._tally.claims_lost += 1
            self._tally.contention[key[2]] += 1
            self._on_lost(member.decode(errors="replace"))
        self._letters.write(answer[4] if len(answer) > 4 else ())
        if answer[3]:
            self._on_carry(lane.queue, key[1])
        if answer[2] >= 0 and lane.timetable is None and lane.expect(key[1], answer[2]):
            self._on_due(lane, key[1])

    def _prepare(self, left_free: Collection[Place] = ()) -> None:
        """Turn what is unsent into calls where none is unanswered: few calls with many outcomes each."""
        busy = {*self._unanswered, *left_free}
        ready: list[tuple[int, Place, ServedQueue, list[Item]]] = []
        for lane in list(self._unsent):
            lane.follow()
            left = [((lane.name, partition, verb), items) for (verb, partition), items in lane.unsent.items()]
            ready += [(self._calls.get(key, 0), key, lane, items) for key, items in left if key not in busy]
            if not left:
                self._unsent.discard(lane)
        ready.sort(key=lambda each: each[0])
        room = MOST_PER_PASS
        for _, key, lane, items in ready:
            if room <= 0:
                return
            room -= len(items)
            self._send(key, lane, items)

    def _send(self, key: Place, lane: ServedQueue, items: list[Item]) -> None:
        size = fitting(items, self._batch)
        batch, rest = items[:size], items[size:]
        self._unanswered[key] = PendingCall(lane, self._runs().settle(key[2], lane.queue, key[1], batch), batch)
        self._calls[key] = next(self._count)
        if rest:
            lane.unsent[key[2], key[1]] = rest
        else:
            del lane.unsent[key[2], key[1]]
        if lane.timetable is not None:
            lane.timetable.sent(key[2], size)

    def _decide_all(self) -> None:
        now, began = int(self._clock.server_ms()), self._clock.monotonic()
        waiting, settled, lane = self.waiting, self._settler.settled, None
        while waiting:
            ended = waiting.popleft()
            try:
                verb, item, due = settled(ended, now)
            except Exception as error:
                # Whatever a trigger raises: its outcome and those behind it must not be lost with it.
                verb, item, due = self._settler.unplanned(ended, error, now)
            if ended.lane is not lane:
                lane = ended.lane
                lane.follow()
                self._unsent.add(lane)
                unsent, timetable, moved = lane.unsent, lane.timetable, lane.layout != ""
            claim = ended.claim
            place = verb, lane.partition_of(claim) if moved else claim.partition
            if place in unsent:
                unsent[place].append(item)
            else:
                unsent[place] = [item]
            if timetable is not None:
                timetable.plan(verb, claim.member, due)
            # Last, because it calls the program's hooks: whatever they do, the outcome is not lost.
            if ended.how != "succeeded" or ended.stuck is not None:
                self.report(ended, verb, due, now)
            if ended.spec is not None and ended.spec.trigger and self._clock.monotonic() - began >= GIVE_WAY_S:
                return
