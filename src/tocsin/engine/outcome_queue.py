"""The outcome queue: every outcome that the server has not confirmed, from the end of the run to the answer.

A crash would repeat these runs, so their number is limited to what the server writes in a moment. Above the limit the
pool starts no run until half of them are written, and the fetcher, whose permits stay taken, claims nothing.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterator

from msgspec import Struct

from tocsin.engine.incarnation import Incarnation
from tocsin.engine.outcome import EndedRun, PendingCall, Place
from tocsin.engine.refused_outcomes import RefusedOutcomes
from tocsin.engine.served_queue import ServedQueue
from tocsin.engine.signals import Signals
from tocsin.engine.throughput import HEADROOM, Throughput
from tocsin.model.clock import Clock
from tocsin.store.transitions.settle import Item, fitting, key_of
from tocsin.telemetry.metrics import Counters

# At most as many outcomes are unwritten as the server writes in this time, and within these bounds.
MOMENT_S = 0.05
FEWEST_UNWRITTEN, MOST_UNWRITTEN = 400, 5000
# One pass makes calls for about this many outcomes: new work waits until the server has written them.
MOST_PER_PASS = 150


class UnsentItems(Struct):
    """Settle items of one queue that no call has taken yet, by verb and partition."""

    # The layout of the queue that the partitions belong to.
    layout: str
    items: dict[tuple[str, int], list[Item]]


class OutcomeQueue:
    """The finisher takes outcomes from here, decides and sends them, and reports the answers."""

    def __init__(self, incarnation: Incarnation, clock: Clock, signals: Signals, tally: Counters, batch: int) -> None:
        """`batch`: how many outcomes one call takes at most."""
        # Not decided yet.
        self.ended: deque[EndedRun] = deque()
        # Outcomes that are not written. At `most` they are too many, from then on until half of them are written.
        self.count = 0
        self.most = MOST_UNWRITTEN
        self.full = False
        self._incarnation = incarnation
        self._clock = clock
        self._signals = signals
        self._batch = batch
        self._unsent: dict[ServedQueue, UnsentItems] = {}
        self._pending: dict[Place, PendingCall] = {}
        # Places of pending calls that a pass has sent and waits for.
        self.in_flight: set[Place] = set()
        self.refused = RefusedOutcomes(clock, tally)
        # The number of the last call of each place: the place that waits longest goes first.
        self._numbers: dict[Place, int] = {}
        self._next_number = itertools.count(1)
        self._written = 0
        self._throughput = Throughput()

    def add(self, ended: EndedRun) -> None:
        self.ended.append(ended)
        self.count += 1
        if self.count >= self.most and not self.full:
            self.full = True
            self._signals.outcomes_pile_up()

    def _wrote(self, count: int) -> None:
        """Also outcomes that are given up."""
        self.count -= count
        self._written += count
        self._throughput.look(self._written, self._clock.monotonic())
        # The rate has headroom: it is what may be fetched, not what was measured.
        most = self._throughput.rate * MOMENT_S / HEADROOM
        self.most = int(min(max(most, FEWEST_UNWRITTEN), MOST_UNWRITTEN))
        if self.full and self.count <= self.most // 2:
            self.full = False
            self._signals.outcomes_written()

    # What it holds

    def is_empty(self) -> bool:
        return not (self.ended or self._pending or self._unsent or self.refused)

    def _items(self, served: ServedQueue | None = None) -> list[Item]:
        """Items of one queue or of all."""
        items = [item for call in self._pending.values() if served in (None, call.served) for item in call.items]
        for queue, unsent in self._unsent.items():
            if served in (None, queue):
                items += itertools.chain.from_iterable(unsent.items.values())
        return items + self.refused.items(served)

    def job_ids(self) -> list[str]:
        """The ids of the jobs whose outcomes the server has not confirmed."""
        keys = [key_of(item).decode(errors="replace") for item in self._items()]
        return sorted({*keys, *(ended.claim.member for ended in self.ended)})

    def keys_in_hand(self, served: ServedQueue) -> set[bytes]:
        """The runs of a queue whose outcomes are not confirmed, and those whose outcomes were refused: if they ran
        again at once, they would be refused again."""
        ended = [each.claim.key for each in self.ended if each.served is served]
        return {*map(key_of, self._items(served)), *ended, *self.refused.given_up(served.name)}

    def forget(self) -> None:
        """This worker begins a new life and may not settle what the last one held."""
        self.ended.clear()
        self._pending.clear()
        self.refused.forget()
        self._wrote(self.count)
        for served in self._unsent:
            if served.timetable is not None:
                served.timetable.forget_plans()
        self._unsent.clear()

    # Items that no call has taken

    def unsent_of(self, served: ServedQueue) -> dict[tuple[str, int], list[Item]]:
        """By verb and partition. If the queue was repartitioned meanwhile, items move to where their jobs are now."""
        served.follow()
        unsent = self._unsent.get(served)
        if unsent is None:
            unsent = self._unsent[served] = UnsentItems(served.layout, {})
        elif unsent.layout != served.layout:
            before, unsent.layout, unsent.items = unsent.items, served.layout, {}
            for (verb, _), items in before.items():
                _add_items(unsent.items, served, verb, items)
        return unsent.items

    def send_again(self, served: ServedQueue, verb: str, items: list[Item]) -> None:
        _add_items(self.unsent_of(served), served, verb, items)

    # Calls

    def make_calls(self, left_free: Collection[Place] = ()) -> None:
        """Turn unsent items into calls where none is pending: few calls with many outcomes each."""
        ready: list[tuple[int, Place, ServedQueue, list[Item]]] = []
        for served in list(self._unsent):
            unsent = self.unsent_of(served)
            if not unsent:
                del self._unsent[served]
            for (verb, partition), items in unsent.items():
                place = served.name, partition, verb
                if place not in self._pending and place not in left_free:
                    ready.append((self._numbers.get(place, 0), place, served, items))
        ready.sort(key=lambda each: each[0])
        room = MOST_PER_PASS
        for _, place, served, items in ready:
            if room <= 0:
                return
            room -= len(items)
            self._make_call(place, served, items)

    def _make_call(self, place: Place, served: ServedQueue, items: list[Item]) -> None:
        _, partition, verb = place
        size = fitting(items, self._batch)
        batch, rest = items[:size], items[size:]
        self._put(place, served, batch)
        self._numbers[place] = next(self._next_number)
        unsent = self._unsent[served].items
        if rest:
            unsent[verb, partition] = rest
        else:
            del unsent[verb, partition]
        if served.timetable is not None:
            served.timetable.sent(verb, size)

    def _put(self, place: Place, served: ServedQueue, items: list[Item], tries: int = 0) -> PendingCall:
        call = self._incarnation.runs.settle(place[2], served.queue, place[1], items)
        pending = self._pending[place] = PendingCall(place, served, call, items, tries)
        return pending

    def calls_to_send(self) -> list[PendingCall]:
        """Pending calls that no pass waits for."""
        return [pending for place, pending in self._pending.items() if place not in self.in_flight]

    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def refused_calls(self) -> Iterator[PendingCall]:
        """A call for each refused outcome that this pass is to try again, alone."""
        for place, refused in self.refused.due(self._pending, self.send_again):
            yield self._put(place, refused.served, [refused.item], refused.tries + 1)

    # Answers

    def is_pending(self, call: PendingCall) -> bool:
        """False if another pass has heard the answer first, or a new life of the worker forgot the call."""
        return self._pending.get(call.place) is call

    def is_replaced(self, call: PendingCall) -> bool:
        """Whether its place has another call by now."""
        return self._pending.get(call.place, call) is not call

    def written(self, call: PendingCall, lost: Collection[bytes]) -> None:
        """The server has written the outcomes of a call, except those of `lost` claims."""
        self.refused.saved(call)
        if call.served.timetable is not None:
            call.served.timetable.log_answer(call.place[2], lost)
        if self._pending.pop(call.place, None) is not None:
            self._wrote(len(call.items))
        self._end_plan(call)

    def moved(self, call: PendingCall) -> None:
        """The queue was repartitioned before the call arrived: send its items to where their jobs are now."""
        self._pending.pop(call.place, None)
        self._end_plan(call)
        self.send_again(call.served, call.place[2], call.items)

    def refuse(self, call: PendingCall) -> list[Item]:
        """The server refuses this call: try its outcomes again, each alone. Those that were tried often enough."""
        self._pending.pop(call.place, None)
        self._end_plan(call)
        given_up = self.refused.refuse(call)
        if given_up:
            self._wrote(len(given_up))
        return given_up

    def _end_plan(self, call: PendingCall) -> None:
        """A timetable believes the due times of a call from its answer on."""
        if call.served.timetable is not None:
            call.served.timetable.answered(call.place[2])
            self._signals.due_earlier(call.served, call.place[1])


def _add_items(unsent: dict[tuple[str, int], list[Item]], served: ServedQueue, verb: str, items: list[Item]) -> None:
    for item in items:
        unsent.setdefault((verb, served.queue.partition_of_key(key_of(item))), []).append(item)
