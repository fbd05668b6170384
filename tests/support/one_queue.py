"""A queue of one partition under test: every transition as one call, and everything it left in Redis."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tests.support.records import HANDLER, record
from tocsin.model.errors import StoreError
from tocsin.model.job import Job
from tocsin.model.outcome import EDIT, IGNORE, SUCCEEDED
from tocsin.model.queue import check_weights, settings_as_text
from tocsin.model.record import handler_digest
from tocsin.model.run import Claim
from tocsin.model.skipped_ticks import SkippedTicks
from tocsin.store.formats import ClaimEntry, decode_claim_entry, not_before
from tocsin.store.keys import STAGE_KEYS
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.claims import ClaimReply, ClaimRequest, Deadlines, Runs
from tocsin.store.transitions.jobs import Jobs, PutItem
from tocsin.store.transitions.queue_settings import update
from tocsin.store.transitions.settle import (
    Item,
    bury_or_park_item,
    extra_run_item,
    finish_item,
    release_item,
    retry_item,
)
from tocsin.store.views.events import decisions
from tocsin.testing import ManualClock

FOR_EVER = 1e15


async def dump(client: Any, prefix: str) -> dict[str, Any]:
    """Every key of a namespace with all that is in it."""
    found: dict[str, Any] = {}
    async for key in client.scan_iter(match=f"{prefix}*", count=1000):
        kind = (await client.type(key)).decode()
        name = key.decode().removeprefix(prefix)
        if kind == "hash":
            found[name] = await client.hgetall(key)
        elif kind == "zset":
            found[name] = await client.zrange(key, 0, -1, withscores=True)
        elif kind == "stream":
            found[name] = await client.xrange(key)
        else:
            found[name] = await client.lrange(key, 0, -1)
    return found


class Line:
    """A worker `runs`, another worker `other`, and a program that puts and changes jobs."""

    def __init__(self, store: Store, queue: OpenQueue, clock: ManualClock) -> None:
        self.store = store
        self.queue = queue
        self.clock = clock
        self.jobs = Jobs(store)
        self.runs = self.worker("worker-1.1")
        self.other = self.worker("worker-2.1")
        self.keys = queue.keys[0]
        self._seq = itertools.count(1)

    def worker(self, owner: str, *handlers: str) -> Runs:
        known = [handler_digest(name) for name in handlers or (HANDLER,)]
        return Runs(self.store, owner, known)

    @property
    def now(self) -> int:
        return self.clock.ms

    # What a program does

    async def put(self, member: str, due: int = 0, *, mode: int = IGNORE, expected: int = 0, **about: Any) -> int:
        """`due` is a delay, or with EDIT and 0 the wish to keep the one it has."""
        relative = not (mode == EDIT and due == 0)
        code, _ = await self.jobs.put(self.queue, PutItem(member, record(**about), due, relative, mode, expected))
        return code

    async def put_all(self, members: Sequence[str], **about: Any) -> None:
        """In one call, due now."""
        puts = [PutItem(member, record(**about), 0, True) for member in members]
        await self.jobs.put_many(self.queue, puts)

    async def set(self, weights: dict[str, float] | None = None, **settings: Any) -> None:
        """As an operator does."""
        wanted = settings_as_text(self.queue.queue, settings)
        await update(self.store, self.queue, wanted, check_weights(weights or {}), operator=True)

    async def delete(self, member: str, only: str = "") -> bool:
        return await self.jobs.delete(self.queue, member, only)

    async def pause(self, member: str) -> int:
        return int((await self.store.change("job_pause", self.queue, 0, member))[1])

    async def resume(self, member: str, expected: int = 0, due: int = 0) -> int:
        return (await self.jobs.resume(self.queue, member, expected, due))[0]

    async def cancel(self, member: str, due: int = 0) -> int:
        return (await self.jobs.cancel(self.queue, member, due))[0]

    async def fire(self, member: str, *dues: int) -> list[int]:
        return await self.jobs.fire(self.queue, member, list(dues) or [0])

    async def revive(self, member: str) -> bool:
        return await self.jobs.revive(self.queue, member)

    async def unpark(self, member: str) -> bool:
        return await self.jobs.unpark(self.queue, member)

    # What a worker does

    async def ask(
        self,
        runs: Runs | None = None,
        *,
        limit: int = 1000,
        members: Sequence[str] = (),
        lease: float = FOR_EVER,
        timeout: int = 0,
    ) -> ClaimReply:
        [answer] = await (runs or self.runs).claim([ClaimRequest(self.queue, 0, limit, members)], lease, timeout)
        if isinstance(answer, StoreError):
            raise answer
        return answer

    async def claim(self, runs: Runs | None = None, **options: Any) -> list[Claim]:
        return (await self.ask(runs, **options)).claims

    async def names(self, runs: Runs | None = None, **options: Any) -> list[str]:
        return [claim.member for claim in await self.claim(runs, **options)]

    async def take(self, member: str, runs: Runs | None = None) -> Claim:
        """Claim this one, which must be due."""
        if self.queue.queue.order == "due":
            [claim] = await self.claim(runs, members=[member])
            return claim
        claims = {claim.member: claim for claim in await self.claim(runs)}
        claim = claims.pop(member)
        for other in claims.values():
            await self.release(other, runs=runs)
        return claim

    async def settle(self, verb: str, *items: Item, runs: Runs | None = None) -> list[str]:
        """The members whose claim was lost."""
        answer = await self.store.call((runs or self.runs).settle(verb, self.queue, 0, items))
        return [member.decode() for member in answer[1]]

    async def finish(
        self, claim: Claim, next_due: int = 0, outcome: int = SUCCEEDED, *, runs: Runs | None = None, **kept: Any
    ) -> list[str]:
        return await self.settle("finish", finish_item(claim, next_due, outcome, **kept), runs=runs)

    async def plan(
        self,
        claim: Claim,
        next_due: int = 0,
        *,
        alone: bool = False,
        skips: Sequence[SkippedTicks] = (),
        runs: Runs | None = None,
    ) -> list[Any]:
        """A run of its own for what was claimed. Who lost their claim, and who is to be told of a cancellation."""
        item = extra_run_item(claim, next_due, alone, skips)
        answer = await self.store.call((runs or self.runs).settle("plan", self.queue, 0, [item]))
        return [answer[1], answer[4]]

    async def finish_all(self, claims: Sequence[Claim]) -> list[str]:
        return await self.settle("finish", *(finish_item(claim, 0, SUCCEEDED) for claim in claims))

    async def retry(self, claim: Claim, delay: int = 1000, *, runs: Runs | None = None) -> list[str]:
        return await self.settle("retry", retry_item(claim, delay, b"\x91\xa3bad"), runs=runs)

    async def release(self, claim: Claim, *, runs: Runs | None = None) -> list[str]:
        return await self.settle("release", release_item(claim), runs=runs)

    async def bury(self, claim: Claim, *, runs: Runs | None = None) -> list[str]:
        return await self.settle("bury", bury_or_park_item(claim, b"\x91\xa3bad"), runs=runs)

    async def park(self, claim: Claim, *, runs: Runs | None = None) -> list[str]:
        return await self.settle("park", bury_or_park_item(claim, b"\x91\xa3odd"), runs=runs)

    async def recover(self, owner: str = "worker-1.1", overdue: int = 0, **deadlines: Any) -> int:
        return await self.other.recover(self.queue, 0, owner, Deadlines(overdue, **deadlines))

    # What Redis holds

    async def stage(self, member: str) -> str | None:
        """Where it is; a test that finds it in two places, or in none with a record, has found a bug."""
        client = self.store.client
        scores = {stage: await client.zscore(self.keys[stage], member) for stage in STAGE_KEYS}
        stages = [stage for stage, score in scores.items() if score is not None]
        stages += ["ready"] * await self._times_ready(member)
        exists = await client.hexists(self.keys["jobs"], member)
        assert len(stages) == int(exists), f"{member!r} {'has a' if exists else 'has no'} record and is in {stages}"
        return stages[0] if stages else None

    async def _times_ready(self, member: str) -> int:
        """How often it stands there; in a fair queue its spot must say where."""
        client, fair = self.store.client, self.queue.queue.order == "fair"
        spot = await client.hget(self.keys["spots"], member)
        found = [
            (band, name)
            for band in range(5)
            for name in await client.zrange(self.keys[f"ready{band}"], 0, -1)
            if name == member.encode() or (fair and name.endswith(b"\0" + member.encode()))
        ]
        if fair:
            assert [b"%d%s" % (band, name.removesuffix(b"\0" + member.encode())) for band, name in found] == (
                [] if spot is None else [spot]
            )
        return len(found)

    async def lose(self, member: str) -> None:
        """As if somebody had taken it out of its line by hand."""
        client = self.store.client
        await client.zrem(self.keys["waiting"], member)
        for band in range(5):
            for name in await client.zrange(self.keys[f"ready{band}"], 0, -1):
                if name == member.encode() or name.endswith(b"\0" + member.encode()):
                    await client.zrem(self.keys[f"ready{band}"], name)
        await client.hdel(self.keys["spots"], member)

    async def job(self, member: str) -> Job:
        found = await self.jobs.get(self.queue, member)
        assert found is not None
        return found

    async def entry(self, member: str) -> ClaimEntry | None:
        raw = await self.store.client.hget(self.keys["claims"], member)
        return None if raw is None else decode_claim_entry(raw)

    async def not_before(self, member: str) -> int | None:
        score = await self.store.client.zscore(self.keys["waiting"], member)
        return None if score is None else int(not_before(score))

    async def commands(self) -> int:
        """How many the server has executed, those of scripts included."""
        stats = await self.store.client.info("commandstats")
        return sum(each["calls"] for each in stats.values())

    async def outcome(self, member: str) -> str | None:
        found = await self.jobs.outcome(self.queue, member)
        return None if found is None else found.name

    async def spoil(self, member: str, bytes_: bytes) -> None:
        """Let a record be what no version of ours wrote."""
        await self.store.client.hset(self.keys["jobs"], member, bytes_)

    async def meta(self) -> dict[str, int | str]:
        found = await self.store.client.hgetall(self.keys["meta"])
        return {k.decode(): int(v) if v.isdigit() else v.decode() for k, v in found.items() if k != b"epoch"}

    async def events(self) -> list[dict[bytes, bytes]]:
        return [fields for _, fields in await self.store.client.xrange(self.keys["events"])]

    async def decisions(self) -> list[tuple[str, int, int, str]]:
        """Oldest first: job, first and until, and how: its outcome where it ran, why where it was skipped."""
        found = [told async for told in decisions(self.store, self.queue, 0)]
        return [(told.job_id, told.first_ms, told.until_ms, told.why or told.what) for told in reversed(found)]

    async def dump(self) -> dict[str, Any]:
        return await dump(self.store.client, self.store.keys.prefix)

    # Calls as they go over the wire

    async def raw(
        self, name: str, args: Sequence[Any], *, session: str = "s", seq: int | None = None, epoch: bytes | None = None
    ) -> list[Any]:
        """One script call with nothing between it and us."""
        what = self.queue.script(name)
        about = [
            self.queue.epochs[0] if epoch is None else epoch,
            self.now,
            session,
            next(self._seq) if seq is None else seq,
        ]
        return await what(self.store.client, self.queue.keys_of(what, 0), [*about, *args])
