"""A queue of several partitions under test, with jobs of every kind in it, and all that Redis has of each."""

from __future__ import annotations

import zlib
from typing import Any

from msgspec.structs import replace

from tests.support.one_queue import FOR_EVER
from tests.support.records import HANDLER, STRANGE, record
from tocsin.inspection.doctor import Doctor
from tocsin.model import msgpack
from tocsin.model.errors import StoreError
from tocsin.model.outcome import EDIT, NEW, SUCCEEDED
from tocsin.model.queue import Queue
from tocsin.model.record import decode_header, decode_spec, encode_record, handler_digest
from tocsin.model.run import Claim
from tocsin.store.keys import BANDS
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.claims import ClaimRequest, Runs
from tocsin.store.transitions.dependencies import WATCHING, DependencyWait, Outbox, Upstream
from tocsin.store.transitions.fleet import Fleet
from tocsin.store.transitions.jobs import Jobs, PutItem
from tocsin.store.transitions.settle import Item, bury_or_park_item, finish_item, retry_item
from tocsin.store.views.audit import AuditReader
from tocsin.testing import ManualClock

# Of each kind so many, so that every partition has some.
EACH = 5
HASHES = ("jobs", "claims", "errors", "results", "needs", "spots")
ZSETS = ("waiting", "working", "paused", "parked", "dead", "done", "unnamed", "blocked", *BANDS)
# Entries about who waits for whom, and which part of one names the job that it goes with.
WAITS = {"watchers": 0, "outbox": 1}


class Wide:
    def __init__(self, store: Store, queue: OpenQueue, clock: ManualClock) -> None:
        self.store, self.queue, self.clock = store, queue, clock
        self.jobs = Jobs(store)
        self.outbox = Outbox(store)
        self.runs = Runs(store, "worker-1.1", [handler_digest(HANDLER)])

    def named(self, kind: str) -> list[str]:
        return [f"{kind}-{n}" for n in range(EACH)]

    async def put(self, member: str, due: int = 0, **about: Any) -> None:
        await self.jobs.put(self.queue, PutItem(member, self.record(member, **about), due, relative=True))

    def record(self, member: str, **about: Any) -> bytes:
        """With a priority and a tenant of its own, where the order of the queue knows them."""
        plain, order, number = record(**about), self.queue.queue.order, zlib.crc32(member.encode())
        band = 2 if order == "due" else number % 5
        tenant = ("acme", "b", "")[number % 3] if order == "fair" else ""
        return encode_record(replace(decode_header(plain), band=band, tenant=tenant), decode_spec(plain))

    async def claim(self, runs: Runs | None = None) -> dict[str, Claim]:
        """All that is due."""
        wishes = [ClaimRequest(self.queue, partition, 1000) for partition in range(self.queue.partitions)]
        found: dict[str, Claim] = {}
        for answer in await (runs or self.runs).claim(wishes, FOR_EVER):
            assert not isinstance(answer, StoreError), answer
            found |= {claim.member: claim for claim in answer.claims}
        return found

    async def settle(self, verb: str, claim: Claim, item: Item, runs: Runs | None = None) -> list[bytes]:
        """Whose claim was lost."""
        partition = self.queue.partition_of_key(claim.key)
        answer = await self.store.call((runs or self.runs).settle(verb, self.queue, partition, [item]))
        return list(answer[1])

    def finished(self, claim: Claim) -> Item:
        return finish_item(claim, 0, SUCCEEDED)

    async def fill(self) -> dict[str, Claim]:
        """Jobs of each kind; those that are worked on, held by `runs`."""
        for kind in ("retrying", "working", "to-pause", "to-remove", "to-edit", "to-cancel", "parked", "dead"):
            for member in self.named(kind):
                await self.put(member)
        for member in self.named("done"):
            await self.put(member, keep=600)
        for member in self.named("unnamed"):
            await self.put(member, keep=600, unnamed=True)
        for member in self.named("strange"):
            await self.put(member, handler=STRANGE)
        held = await self.claim()
        await self._settle(held)
        await self._intend()
        for member in (*self.named("waiting"), *self.named("paused")):
            await self.put(member, 60_000)
        for member in self.named("paused"):
            await self.jobs.pause(self.queue, member)
        for member in self.named("recurring"):
            await self.put(member, 60_000, every=60)
            await self.jobs.fire(self.queue, member, [self.clock.ms - 5, 0])
        for member in self.named("due"):
            await self.put(member)
        for n in range(EACH):
            await self._block(n)
        return held

    async def _block(self, n: int) -> None:
        """Two that wait: for one that they watch, for one that they are still to watch, and for one that has ended."""
        watched, asked, ended = f"waiting-{n}", f"paused-{n}", f"ended-{n}"
        await self.put(ended)
        for member in (f"blocked-{n}", f"to-pause-then-{n}"):
            wait = DependencyWait(
                f"life{n}", True, [Upstream("wide", upstream) for upstream in (asked, ended, watched)]
            )
            put = PutItem(member, self.record(member), 5000, relative=True)
            assert await self.outbox.block(self.queue, [(put, wait)]) == bytes([NEW])
            watcher = wait.watcher("wide", member)
            pairs = [(upstream.encode(), watcher) for upstream in (watched, ended)]
            assert await self.outbox.watch(self.queue, pairs) == WATCHING * 2
            carried = wait.entries(member)[1:]
            assert [told.codes async for told in self.outbox.unblock(self.queue, [], carried)] == [b""]
        await self.jobs.pause(self.queue, f"to-pause-then-{n}")
        await self.jobs.delete(self.queue, ended)

    async def _settle(self, held: dict[str, Claim]) -> None:
        error = b"\x91\xa3bad"
        for member in self.named("retrying"):
            await self.settle("retry", claim := held.pop(member), retry_item(claim, 1000, error))
        for member in self.named("parked"):
            await self.settle("park", claim := held.pop(member), bury_or_park_item(claim, error))
        for member in self.named("dead"):
            await self.settle("bury", claim := held.pop(member), bury_or_park_item(claim, error))
        for member in self.named("done"):
            item = finish_item(claim := held.pop(member), 0, SUCCEEDED, keep=600, result=msgpack.encode(7))
            await self.settle("finish", claim, item)
        for member in self.named("unnamed"):
            await self.settle("finish", claim := held.pop(member), finish_item(claim, 0, SUCCEEDED, 600, unnamed=True))

    async def _intend(self) -> None:
        for member in self.named("to-pause"):
            await self.jobs.pause(self.queue, member)
        for member in self.named("to-remove"):
            await self.jobs.delete(self.queue, member)
        for member in self.named("to-cancel"):
            await self.jobs.cancel(self.queue, member)
        for member in self.named("to-edit"):
            await self.jobs.put(self.queue, PutItem(member, self.record(member, args=("new",)), 0, mode=EDIT))

    # What Redis holds

    async def content(self) -> dict[str, dict[str, Any]]:
        """By job, all that any partition has of it, and what goes with it; a test that finds one in two partitions has
        found a bug."""
        found: dict[str, dict[str, Any]] = {}
        where: dict[str, int] = {}
        for (partition, base), entries in (await self._dump()).items():
            for key, value in entries.items() if base in HASHES else entries:
                member, what = self._named(base, key)
                about = found.setdefault(member, {})
                assert what not in about, f"{what} is there twice"
                about[what] = value
                assert where.setdefault(member, partition) == partition, f"{member} is in two partitions"
                assert self.queue.partition_of(member) == partition, f"{member} is in the wrong partition"
        return found

    def _named(self, base: str, key: bytes) -> tuple[str, Any]:
        """The job that it is about, and what it says."""
        if base in WAITS:
            return key.split(b"\0")[WAITS[base]].decode(), (base, key)
        if base in BANDS and self.queue.queue.order == "fair":
            return key.split(b"\0", 3)[-1].decode(), (base, key)
        return key.decode(), base

    async def _dump(self) -> dict[tuple[int, str], Any]:
        bases = [(partition, base) for partition in range(16) for base in (*HASHES, *ZSETS, *WAITS)]
        async with self.store.client.pipeline(transaction=False) as pipe:
            for partition, base in bases:
                key = self.store.keys.partition(self.queue.name, partition)[base]
                if base in HASHES:
                    pipe.hgetall(key)
                else:
                    pipe.zrange(key, 0, -1, withscores=True)
            return dict(zip(bases, await pipe.execute(), strict=True))

    async def metas(self) -> list[dict[str, Any]]:
        found = [await self.store.client.hgetall(keys["meta"]) for keys in self.queue.keys[: self.queue.partitions]]
        return [{key.decode(): value.decode() for key, value in meta.items()} for meta in found]

    async def total(self, counter: str) -> int:
        return sum(int(meta.get(counter, 0)) for meta in await self.metas())

    async def working_by_tenants(self) -> int:
        """How many runs the tenants of a fair queue have together, as they are counted for their caps."""
        found = [await self.store.client.hgetall(keys["tenants"]) for keys in self.queue.keys]
        return sum(int.from_bytes(raw[:4], "big") for tenants in found for raw in tenants.values())

    async def troubles(self) -> list[str]:
        """What `tocsin doctor` finds, that is of jobs and queues."""
        report = await Doctor(AuditReader(self.store), Fleet(self.store), patience_s=0).run()
        notes = ("no-aof", "parked", "dead", "stale-session")
        return [f"{finding.kind}: {finding.examples}" for finding in report.findings if finding.kind not in notes]

    async def left_behind(self) -> set[str]:
        """Keys of partitions that the queue does not have."""
        beyond = range(self.queue.partitions, 20)
        names = [name for p in beyond for name in self.store.keys.partition(self.queue.name, p).values()]
        async with self.store.client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.exists(name)
            return {name for name, there in zip(names, await pipe.execute(), strict=True) if there}


async def wide(store: Store, clock: ManualClock, order: str = "due", partitions: int = 4) -> Wide:
    queue = await store.open_queue(Queue("wide", order, partitions))  # type: ignore[arg-type]
    return Wide(store, queue, clock)
