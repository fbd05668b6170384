"""Counts of queues: their depth, and how many jobs were ever put and claimed, from the sets and the counters in
`meta`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice
from typing import Any

from tocsin.store.connection.errors import FAILURES, answers_of, translate
from tocsin.store.keys import BANDS
from tocsin.store.numbers import whole
from tocsin.store.store import OpenQueue, Store
from tocsin.telemetry.queue_metrics import QueueNumbers

# One look asks at most so many partitions. If the queues have more, they take turns.
AT_ONCE = 64


class QueueCountReader:
    """Reads the counts of some queues, and keeps the last ones."""

    def __init__(self, store: Store, queues: Sequence[OpenQueue]) -> None:
        self._store = store
        self._queues = queues
        self._places: list[tuple[OpenQueue, int]] = []
        self._turns = cycle(self._places)
        self._seen: dict[tuple[str, int], QueueNumbers] = {}
        self._by_queue: Mapping[str, QueueNumbers] = {}

    def by_queue(self) -> Mapping[str, QueueNumbers]:
        """The counts of queues whose partitions were all read. May be called on another thread."""
        return self._by_queue

    async def look(self) -> None:
        """One read. Raises StoreUnavailable at once."""
        if len(self._places) != sum(queue.partitions for queue in self._queues):
            # The first look, or a queue was repartitioned.
            self._places = [(queue, partition) for queue in self._queues for partition in range(queue.partitions)]
            self._turns, self._seen = cycle(self._places), {}
        asked = list(islice(self._turns, min(AT_ONCE, len(self._places))))
        try:
            async with self._store.client.pipeline(transaction=False) as pipe:
                for queue, partition in asked:
                    _ask(pipe, queue, partition)
                answers = iter(await answers_of(pipe))
        except FAILURES as error:
            raise translate(error, self._store.address) from error
        for queue, partition in asked:
            numbers = _numbers(queue, answers)
            if numbers is not None:
                self._seen[queue.name, partition] = numbers
        self._by_queue = {queue.name: found for queue in self._queues if (found := self._sum(queue)) is not None}

    def _sum(self, queue: OpenQueue) -> QueueNumbers | None:
        seen = [self._seen.get((queue.name, partition)) for partition in range(queue.partitions)]
        known = [each for each in seen if each is not None]
        if len(known) < len(seen):
            return None
        return QueueNumbers(*(sum(getattr(each, field) for each in known) for field in QueueNumbers.__struct_fields__))


def _bands(queue: OpenQueue) -> tuple[str, ...]:
    return () if queue.queue.order == "due" else BANDS


def _ask(pipe: Any, queue: OpenQueue, partition: int) -> None:
    keys = queue.keys[partition]
    for base in ("working", "waiting", *_bands(queue)):
        pipe.zcard(keys[base])
    pipe.hmget(keys["meta"], "put", "claimed")


def _numbers(queue: OpenQueue, answers: Iterator[Any]) -> QueueNumbers | None:
    """None for a garbled partition: its earlier counts stay."""
    found = [next(answers) for _ in range(3 + len(_bands(queue)))]
    if any(isinstance(answer, Exception) for answer in found):
        return None
    active, waiting, *ready, (put, claimed) = found
    return QueueNumbers(waiting + sum(ready), active, whole(put), whole(claimed))
