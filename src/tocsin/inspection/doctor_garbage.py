"""The doctor's check for foreign data: keys that hold another type of data, and entries that nobody can read."""

from __future__ import annotations

import asyncio

from tocsin.inspection.findings import Findings
from tocsin.model.clock import monotonic
from tocsin.store.keys import TYPES, Keys
from tocsin.store.store import OpenQueue
from tocsin.store.views import wrong_types
from tocsin.store.views.garbage import Garbage
from tocsin.store.views.strays import STAGES, StrayReader

# How often we read the workers' counters while we wait for heartbeats.
PAUSE_S = 0.5


class GarbageAudit:
    """Checks the fleet's keys, then one partition after the other. With `repair` it clears what it finds."""

    def __init__(self, garbage: Garbage, strays: StrayReader, keys: Keys, findings: Findings, *, repair: bool) -> None:
        self._garbage = garbage
        self._strays = strays
        self._keys = keys
        self._findings = findings
        self._repair = repair

    async def fleet_keys(self) -> set[str]:
        """Check the keys of the whole fleet. Returns those that hold another type of data and were not repaired."""
        return await self._check_types("", list(self._keys.types_of_fleet().items()))

    async def queue_keys(self, queue: OpenQueue) -> set[str]:
        """Check the keys of a queue in the same way."""
        expected = [(self._keys.bell(queue.name), TYPES["bell"])]
        for partition in range(len(queue.keys)):
            expected += wrong_types.of_partition(queue, partition)
        return await self._check_types(queue.name, expected)

    async def _check_types(self, where: str, expected: list[tuple[str, str]]) -> set[str]:
        found, mended = await self._garbage.misused(expected, mend=self._repair)
        examples = [f"{key} holds a {kind}" for key, kind in found.items()]
        self._findings.add("wrong-type", where, *examples, mended=len(mended))
        return set(found) - mended

    async def register(self, garbled: list[str]) -> None:
        mended = [name for name in garbled if await self._mend_register(name)]
        self._findings.add("unreadable-queue", "", *garbled, mended=len(mended))

    async def _mend_register(self, name: str) -> bool:
        # The settings of the first partition describe the queue, but their key may hold another type of data too.
        meta = self._keys.partition(name, 0)["meta"]
        misused = await self._check_types(name, [(meta, TYPES["meta"])])
        return self._repair and not misused and await self._garbage.mend_register(name)

    async def partition(self, queue: OpenQueue, partition: int) -> None:
        """Check one partition. Call it before its jobs are checked: dropping entries may leave a job in a wrong place,
        which the check of the jobs then finds."""
        mends = self._repair and bool(queue.epochs[partition])
        fields = await self._garbage.settings(queue, partition, mend=self._repair)
        self._findings.add("garbled-settings", queue.name, *fields, mended=len(fields) if self._repair else 0)
        async for base, names in self._garbage.in_partition(queue, partition, mend=mends):
            if base in STAGES and mends:
                # The check of the jobs removes names without a record.
                await self._strays.rescore(queue, partition, names)
            self._add(queue.name, base, names, len(names) if mends else 0)

    async def fleet(self) -> None:
        async for base, names in self._garbage.in_fleet(mend=self._repair):
            self._add("", base, names, len(names) if self._repair else 0)

    def _add(self, where: str, base: str, names: list[bytes], mended: int) -> None:
        examples = [f"{base}: {name.decode(errors='replace')}" for name in names]
        self._findings.add("garbage", where, *examples, mended=mended)

    async def workers(self, patience_s: float) -> None:
        """Find unreadable entries of workers. With `repair` remove those that do not change for `patience_s`: a live
        worker writes its entry again with each heartbeat."""
        found = await self._garbage.workers()
        left, give_up = found, monotonic() + patience_s
        while self._repair and left and monotonic() < give_up:
            await asyncio.sleep(min(PAUSE_S, patience_s))
            now = await self._garbage.workers()
            left = {name: counter for name, counter in left.items() if name in now and now[name] == counter}
        names = [name.decode(errors="replace") for name in (left if self._repair else found)]
        for name, counter in left.items() if self._repair else ():
            await self._garbage.bury(name, counter)
        self._findings.add("unreadable-worker", "", *names, mended=len(names) if self._repair else 0)

    async def sealed(self, queue: OpenQueue, partition: int) -> None:
        mended = self._repair and await self._garbage.unseal(queue, partition)
        self._findings.add("sealed", queue.name, f"partition {partition}", mended=int(mended))
