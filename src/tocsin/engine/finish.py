"""The finisher: decides what became of runs and writes it down, in batches, until the server has answered.

What could not be written because the server was away is kept and repeated under the same seq when it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from tocsin.engine import decide
from tocsin.engine.lane import Lane
from tocsin.engine.settle import Ended, Settler
from tocsin.engine.told import describe
from tocsin.engine.unit import Sent, Unit
from tocsin.engine.unwritten import Unwritten
from tocsin.model import codec
from tocsin.model.clock import Clock
from tocsin.model.delivery import DeliveryFailed
from tocsin.model.errors import QueueMoving, StoreChanged, StoreError, StoreUnavailable
from tocsin.model.job import Failure
from tocsin.resilience.backoff import BackoffSettings
from tocsin.resilience.breaker import Breaker, BreakerSettings
from tocsin.resilience.classify import Classifier
from tocsin.resilience.failure import FailureClass
from tocsin.store.runs import Item, Runs, fitting, key_of
from tocsin.store.store import LARGEST_BATCH, OpenQueue, Store
from tocsin.telemetry.logs import get_logger
from tocsin.telemetry.metrics import Tally

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
# How often a call is tried that the server refuses; one that could not be sent is kept until it is answered.
MOST_TRIES = 3
# While a queue is being repartitioned: how often it is asked whether that is over.
STILL_S = 0.25


class Finisher:
    """Collects outcomes from the runners and settles their claims."""

    name = "finish"

    def __init__(
        self,
        store: Store,
        runs: Callable[[], Runs],
        clock: Clock,
        on_lost: Callable[[str], None],
        on_due: Callable[[Lane, int], None],
        classifier: Classifier | None = None,
        backoff: BackoffSettings = decide.NO_BACKOFF,
        breaker: Breaker | None = None,
        tally: Tally | None = None,
        batch: int = LARGEST_BATCH,
        tell: Callable[[str, dict[str, Any]], Awaitable[None]] | None = None,
        on_carry: Callable[[OpenQueue, int], None] = lambda queue, partition: None,
        largest_result: int = codec.LARGEST_RESULT,
        report: Callable[[Ended, str, int, int], None] = lambda ended, verb, due, now: None,
    ) -> None:
        self.wake = asyncio.Event()
        self.waiting: deque[Ended] = deque()
        self.lost = 0
        self._store = store
        self._runs = runs
        self._clock = clock
        self._classifier = classifier or Classifier()
        self._settler = Settler(backoff, largest_result)
        self.breaker = breaker or Breaker(BreakerSettings(), clock.monotonic)
        self._tally = tally or Tally()
        self._batch = batch
        self._on_lost = on_lost
        # Something is due sooner than the fetcher knows.
        self._on_due = on_due
        # Others wait for what ended there.
        self._on_carry = on_carry
        # Gets each outcome that is no success, with what was decided.
        self.report = report
        # Calls by partition and verb: one of each in flight at most, so that repeating keeps their order.
        self._unanswered: dict[tuple[str, int, str], Sent] = {}
        # How often the server refused each of them.
        self._tries: dict[tuple[str, int, str], int] = {}
        # The last runs that were given up for it, by queue and key.
        self._refused_runs: deque[tuple[str, bytes]] = deque(maxlen=5 * LARGEST_BATCH)
        # Those of them that another pass is waiting for.
        self._in_flight: set[tuple[str, int, str]] = set()
        # How many outcomes the last pass took, and when it sent them.
        self._sent = 0
        self._sent_at = 0.0
        # Mail for workers: who, and what.
        self._tell = tell
        self._letters: list[tuple[str, dict[str, Any]]] = []
        self.unwritten = Unwritten(clock)
        # Lanes that have outcomes which no call has taken yet.
        self._unsent: set[Lane] = set()
        # The number of the last call for each partition and verb: who waits longest is next.
        self._calls: dict[tuple[str, int, str], int] = {}
        self._count = itertools.count(1)

    # Reports of the runners

    def succeeded(self, unit: Unit, result: Any) -> None:
        if unit.handler.batch is not None:
            self._batch_ended(unit, result)
            return
        unit.handler.tally.succeeded += 1
        if not self.waiting:
            # Whoever was woken for those that wait takes this one too.
            self.wake.set()
        self.waiting.append(Ended(unit.lane, unit.claim, unit.spec, "succeeded", result))
        self.unwritten.add()

    def failed(self, unit: Unit, error: BaseException) -> None:
        described, kind = describe(error, self._clock.server_ms()), self._classifier.classify(error)
        if isinstance(error, DeliveryFailed):
            ended = Ended(unit.lane, unit.claim, unit.spec, "failed", error=described, kind=kind, failure=error)
            ended.cause = error
            self.add(ended)
        else:
            self._add(unit, "failed", described, kind, error)

    def stopped(self, unit: Unit, reason: str) -> None:
        """Its handler was cancelled by us: why decides what becomes of it."""
        if reason == "timeout":
            now = int(self._clock.server_ms())
            seconds = (unit.claim.deadline - now) / 1000
            text = f"timed out {-seconds:.1f} s past its deadline" if seconds < 0 else "timed out"
            self._add(unit, "failed", codec.encode_failure(Failure(text, at=now, type="TimeoutError")))
        elif reason == "cancelled":
            self._add(unit, "cancelled", b"")
        elif reason == "handover":
            self.release(unit)
        # "lost": another incarnation or worker has it; there is nothing to write.

    def release(self, unit: Unit, delay: float = 0.0) -> None:
        if delay:
            self.add(Ended(unit.lane, unit.claim, unit.spec, "released", delay=delay))
        else:
            self._add(unit, "released", b"")

    def spread_releases(self, seconds: float) -> None:
        """From now on what goes back waits for a random part of this long: a fleet that stops wakes others gently."""
        self._settler.spread_ms = seconds * 1000

    def add(self, ended: Ended) -> None:
        self.waiting.append(ended)
        self.unwritten.add()
        self.wake.set()

    def _add(
        self,
        unit: Unit,
        how: str,
        error: bytes,
        kind: FailureClass = FailureClass.UNKNOWN,
        cause: BaseException | None = None,
    ) -> None:
        for claim, spec in unit.all():
            self.add(Ended(unit.lane, claim, spec, how, error=error, kind=kind, cause=cause))

    def _batch_ended(self, unit: Unit, outcomes: Any) -> None:
        """None: all done. Otherwise one outcome per run; an exception among them fails its run."""
        pairs = unit.all()
        if outcomes is None:
            outcomes = [None] * len(pairs)
        if not isinstance(outcomes, (list, tuple)) or len(outcomes) != len(pairs):
            error = TypeError(
                f"{unit.handler.name} must return None or a list of {len(pairs)} outcomes, not {_shape(outcomes)}"
            )
            self._add(unit, "failed", describe(error, self._clock.server_ms()), cause=error)
            return
        for (claim, spec), outcome in zip(pairs, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                error_bytes = describe(outcome, self._clock.server_ms())
                kind = self._classifier.classify(outcome)
                self.add(Ended(unit.lane, claim, spec, "failed", error=error_bytes, kind=kind, cause=outcome))
            else:
                unit.handler.tally.succeeded += 1
                self.add(Ended(unit.lane, claim, spec, "succeeded", outcome))

    # The pass

    def idle(self) -> bool:
        return not self.waiting and not self._unanswered and not self._unsent

    def left(self) -> list[str]:
        """The ids of the jobs whose outcomes the server has not confirmed."""
        items = [item for sent in self._unanswered.values() for item in sent.items]
        items += [item for lane in self._unsent for some in lane.unsent.values() for item in some]
        keys = [key_of(item).decode(errors="replace") for item in items]
        return sorted({*keys, *(ended.claim.member for ended in self.waiting)})

    def keys_in_hand(self, lane: Lane) -> set[bytes]:
        """The runs of a lane whose outcomes are not confirmed, and those whose outcomes were refused: run again
        at once, they would be refused again."""
        items = [item for sent in self._unanswered.values() if sent.lane is lane for item in sent.items]
        items += [item for some in lane.unsent.values() for item in some]
        ended = [each.claim.key for each in self.waiting if each.lane is lane]
        return {*map(key_of, items), *ended, *(key for name, key in self._refused_runs if name == lane.name)}

    def forget(self) -> None:
        """A new incarnation: what the old one held is no longer ours to settle."""
        self.waiting.clear()
        self._unanswered.clear()
        self._tries.clear()
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
        self._prepare()
        sent = [(key, each) for key, each in self._unanswered.items() if key not in self._in_flight]
        if not sent:
            return 60.0
        permit = self.breaker.allow()
        if permit is None:
            return max(self.breaker.status().probe_in, PACE_S)
        self._in_flight.update(key for key, _ in sent)
        self._sent_at = self._clock.monotonic()
        try:
            answers = await self._store.call_all([each.call for _, each in sent])
        finally:
            self._in_flight.difference_update(key for key, _ in sent)
        self.breaker.answered(permit, answers)
        trouble: StoreError | None = None
        changed: list[tuple[tuple[str, int, str], Sent]] = []
        for (key, each), answer in zip(sent, answers, strict=True):
            lane = each.lane
            if self._unanswered.get(key, each) is not each:
                continue  # The other pass was told first, and the key is that of a later call.
            if isinstance(answer, StoreUnavailable):
                trouble = answer
            elif isinstance(answer, StoreChanged):
                changed.append((key, each))
            elif isinstance(answer, StoreError):
                trouble = trouble or answer
                self._refused(key, lane, answer)
            else:
                self._answered(key, lane, answer)
        # Last, because it waits, and the other pass goes on meanwhile.
        await self._post()
        rest = max([await self._follow(key, each) for key, each in changed], default=0.0)
        if trouble is not None:
            await self._store.revive_server()
            raise trouble
        return 60.0 if self.idle() else rest

    async def _follow(self, key: tuple[str, int, str], sent: Sent) -> float:
        """Open the queue again; where it was repartitioned, the jobs of the call are elsewhere. Seconds to rest.
        If the claims are gone with the store they were made in, the token check will say so."""
        lane = sent.lane
        try:
            await self._store.reopen(lane.queue)
        except QueueMoving:
            return STILL_S
        if sent.call.layout == lane.queue.layout:
            return 0.0
        answer = await self._store.answer_of(sent.call)
        if self._unanswered.get(key) is not sent:
            pass  # The other pass was told first, or a new incarnation has forgotten it.
        elif answer is not None:
            self._answered(key, lane, answer)
        else:
            self._forget_call(key, lane, written=False)
            lane.follow()
            lane.send_again(key[2], sent.items)
            self._unsent.add(lane)
        return 0.0

    async def _post(self) -> None:
        """Ask workers to stop runs that others replace. One that does not hear of it ends by itself, later."""
        tell, letters, self._letters = self._tell, self._letters, []
        if tell is None:
            return
        for owner, message in letters:
            with contextlib.suppress(StoreError):
                await tell(owner, message)

    def _refused(self, key: tuple[str, int, str], lane: Lane, error: StoreError) -> None:
        """The server is there and fails this call: another try in each of the next passes, then the claims are given
        up, and their runs come back when their deadline is over."""
        self._tries[key] = self._tries.get(key, 0) + 1
        if self._tries[key] < MOST_TRIES:
            return
        log.error("outcomes refused by the server: their runs will be recovered", partition=key, error=str(error))
        self._tally.retry_exhausted += 1
        self._tally.recovery[False] += 1
        if key in self._unanswered:
            self._refused_runs.extend((lane.name, key_of(item)) for item in self._unanswered[key].items)
        self._forget_call(key, lane)

    def _forget_call(self, key: tuple[str, int, str], lane: Lane, written: bool = True) -> None:
        # A new incarnation may have forgotten it meanwhile.
        sent = self._unanswered.pop(key, None)
        if sent is not None and written:
            self.unwritten.wrote(len(sent.items))
        self._tries.pop(key, None)
        if lane.timetable is not None:
            lane.timetable.answered(key[2])
            self._on_due(lane, key[1])

    def _answered(self, key: tuple[str, int, str], lane: Lane, answer: list[Any]) -> None:
        if key in self._tries:
            self._tally.recovery[True] += 1
        self._forget_call(key, lane)
        for member in answer[1]:
            self.lost += 1
            self._tally.claims_lost += 1
            self._tally.contention[key[2]] += 1
            self._on_lost(member.decode(errors="replace"))
        for member, owner, token in zip(*[iter(answer[4] if len(answer) > 4 else ())] * 3, strict=True):
            self._letters.append((owner.decode(), {"cancel": member.decode(errors="replace"), "token": token}))
        if answer[3]:
            self._on_carry(lane.queue, key[1])
        if answer[2] >= 0 and lane.timetable is None and lane.expect(key[1], answer[2]):
            self._on_due(lane, key[1])

    def _prepare(self) -> None:
        """Turn what is unsent into calls where none is unanswered: few calls with many outcomes each."""
        ready: list[tuple[int, tuple[str, int, str], Lane, list[Item]]] = []
        for lane in list(self._unsent):
            lane.follow()
            left = [((lane.name, partition, verb), items) for (verb, partition), items in lane.unsent.items()]
            ready += [(self._calls.get(key, 0), key, lane, items) for key, items in left if key not in self._unanswered]
            if not left:
                self._unsent.discard(lane)
        ready.sort(key=lambda each: each[0])
        room = MOST_PER_PASS
        for _, key, lane, items in ready:
            if room <= 0:
                return
            room -= len(items)
            self._send(key, lane, items)

    def _send(self, key: tuple[str, int, str], lane: Lane, items: list[Item]) -> None:
        size = fitting(items, self._batch)
        batch, rest = items[:size], items[size:]
        self._unanswered[key] = Sent(lane, self._runs().settle(key[2], lane.queue, key[1], batch), batch)
        self._calls[key] = next(self._count)
        if rest:
            lane.unsent[key[2], key[1]] = rest
        else:
            del lane.unsent[key[2], key[1]]
        if lane.timetable is not None:
            lane.timetable.sent(key[2], size)

    def _decide_all(self) -> None:
        now = int(self._clock.server_ms())
        waiting, settled, lane = self.waiting, self._settler.settled, None
        while waiting:
            ended = waiting.popleft()
            verb, item, due = settled(ended, now)
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
            if ended.how != "succeeded":
                self.report(ended, verb, due, now)


def _shape(outcomes: Any) -> str:
    """Not the values: what a handler returns has no place in an error."""
    is_list = isinstance(outcomes, (list, tuple))
    return f"a {type(outcomes).__name__}" + (f" of {len(outcomes)}" if is_list else "")
