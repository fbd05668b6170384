"""The position of a job in its line, and what its queue and its tenant may start. Explains why a job waits."""

from __future__ import annotations

import math
from typing import Any

from msgspec import Struct

from tocsin.model.durations import Millis
from tocsin.model.job import Job, Stage
from tocsin.store.formats import (
    APART,
    OTHERS,
    ClaimEntry,
    band_of_spot,
    claim_entry_or_none,
    decode_tenant,
    is_apart,
    last_ready_member,
    last_ready_score,
    member_of_spot,
    members_under,
    parked_digest,
    tenant_of_spot,
)
from tocsin.store.keys import BANDS, TURNS
from tocsin.store.numbers import number
from tocsin.store.store import OpenQueue, Store
from tocsin.store.views.read_together import CombinedRead

_META = (
    "paused", "max_active", "rate", "every", "burst", "spent", "capped", "aging",
    "tenant_max_active", "tenant_rate", "tenant_every", "tenant_burst",
)  # fmt: skip


class Limit(Struct, frozen=True):
    """A limit on runs, counted like lua/lib/limits.lua does; None: no such limit."""

    active: int = 0
    most: int | None = None
    rate: str = ""
    every: float | None = None
    burst: float = 0.0
    # The time in ms up to which the rate is used.
    spent: float = 0.0

    @property
    def is_full(self) -> bool:
        return self.most is not None and self.active >= self.most

    def held_until(self, now: Millis) -> Millis | None:
        """When the rate lets the next run start; None: now."""
        # If more is spent than this rate can spend, the rate was slower before, and begins again (lua/lib/rate.lua).
        if self.every is None or not now + self.burst < self.spent <= now + self.burst + self.every:
            return None
        return max(math.ceil(self.spent - self.burst), now + 1)


class JobsAhead(Struct, frozen=True):
    """How many jobs come before a job. In a fair queue `ahead` counts only its tenant's."""

    ahead: int
    # How many other jobs are due and enter the line with the next claim.
    entering: int = 0
    # In a fair queue: jobs of higher priority, and tenants whose turn comes before its tenant's.
    above: int = 0
    turns: int = 0


class Position(Struct, frozen=True):
    """A job's position at one moment. `line` is None if it is in no line, or moved while we looked."""

    paused: bool
    capped: Millis | None
    aging: Millis | None
    limit: Limit
    tenant: Limit | None
    entry: ClaimEntry | None
    deadline: Millis | None
    # If it is parked, the digest of its handler; 0 if no worker could read the job so far.
    digest: int | None
    line: JobsAhead | None


class _ReadyPosition(Struct, frozen=True):
    """A place in `ready`: a score in a queue of order `priority`, the name of a member in a fair one. `is_taken`: the
    job is there; if not, the next claim puts it there."""

    band: int
    score: float = 0.0
    member: bytes = b""
    tenant: bytes = b""
    is_taken: bool = True


async def read_position(store: Store, queue: OpenQueue, job: Job, now: Millis) -> Position:
    """The position of a job that was read a moment ago. Two reads, each at one instant."""
    keys, member = queue.keys[queue.partition_of(job.id)], job.id.encode()
    together = CombinedRead()
    together.ask("HMGET", keys["meta"], *_META)
    together.ask("ZCARD", keys["working"])
    together.ask("HGET", keys["claims"], member)
    together.ask("ZSCORE", keys["working"], member)
    together.ask("ZSCORE", keys["parked"], member)
    together.ask("HGET", keys["tenants"], job.header.tenant)
    together.ask("HGET", keys["spots"], member)
    for band in BANDS:
        together.ask("ZSCORE", keys[band], member)
    found, working, claim, deadline, digest, tenant, spot, *scores = await together.answers(store)
    meta = dict(zip(_META, found, strict=True))
    aging = _whole(meta["aging"])
    place = _spot_of(queue, job, member, spot, [_number(score) for score in scores]) if _is_in_line(job, now) else None
    is_fair = queue.queue.order == "fair"
    return Position(
        paused=meta["paused"] is not None,
        capped=_whole(meta["capped"]),
        aging=aging,
        limit=_limit(meta, "", working, _number(meta["spent"]) or 0.0),
        tenant=_limit(meta, "tenant_", *decode_tenant(tenant)) if is_fair else None,
        entry=claim_entry_or_none(claim),
        deadline=_whole(deadline),
        digest=None if digest is None else parked_digest(_number(digest) or 0),
        line=None if place is None else await _line(store, queue, keys, member, place, aging, now),
    )


def _is_in_line(job: Job, now: Millis) -> bool:
    return job.stage is Stage.READY or (job.stage is Stage.WAITING and (job.not_before_ms or 0) <= now)


def _spot_of(
    queue: OpenQueue, job: Job, member: bytes, spot: bytes | None, scores: list[float | None]
) -> _ReadyPosition | None:
    """Its place in `ready`; for a due job that is not there yet, the place that the next claim will give it."""
    order, tenant = queue.queue.order, job.header.tenant.encode()
    if order == "due":
        return _ReadyPosition(0)
    if order == "fair" and spot is not None:
        return _ReadyPosition(band_of_spot(spot) or 0, member=member_of_spot(spot, member), tenant=tenant_of_spot(spot))
    at = next((band for band, score in enumerate(scores) if score is not None), None)
    if at is not None:
        return _ReadyPosition(at, score=scores[at] or 0.0)
    if job.stage is Stage.READY:
        return None
    # Behind all others of the same millisecond.
    last = last_ready_score(job.due_ms), last_ready_member(tenant, job.due_ms)
    return _ReadyPosition(job.header.band, *last, tenant, False)


async def _line(
    store: Store,
    queue: OpenQueue,
    keys: dict[str, str],
    member: bytes,
    spot: _ReadyPosition,
    aging: Millis | None,
    now: Millis,
) -> JobsAhead | None:
    order = queue.queue.order
    counted = {"due": _ask_due, "priority": _ask_priority, "fair": _ask_fair}[order]
    together = CombinedRead()
    together.ask("ZSCORE", keys["waiting"], member)
    together.ask("ZCOUNT", keys["waiting"], OTHERS, now)
    counted(together, keys, member, spot, aging)
    own, due, *counts = await together.answers(store)
    stands_apart = own is not None and is_apart(float(own))
    if order == "due":
        rank, apart = counts
        # Suspects are at the front of the set, but other jobs do not wait for them.
        return None if rank is None else JobsAhead(ahead=rank if stands_apart else rank - apart)
    entering = max(0, due - (own is not None and not stands_apart))
    if order == "priority":
        return None if None in counts else JobsAhead(ahead=sum(counts), entering=entering)
    ahead, turn, turns, *above = counts
    return JobsAhead(ahead, entering, above=sum(above), turns=turns if turn is None else turn)


def _ask_due(
    together: CombinedRead, keys: dict[str, str], member: bytes, spot: _ReadyPosition, aging: Millis | None
) -> None:
    together.ask("ZRANK", keys["waiting"], member)
    together.ask("ZCOUNT", keys["waiting"], *APART)


def _ask_priority(
    together: CombinedRead, keys: dict[str, str], member: bytes, spot: _ReadyPosition, aging: Millis | None
) -> None:
    """Count like claim_order_priority.lua: jobs of higher bands, or with aging, jobs that are older by their band's
    handicap."""
    for band, name in enumerate(BANDS):
        bound = f"{spot.score + (spot.band - band) * (aging or 0):.6f}"
        if band == spot.band and spot.is_taken:
            together.ask("ZRANK", keys[name], member)
        elif band < spot.band and aging is None:
            together.ask("ZCARD", keys[name])
        elif band <= spot.band:
            # Of two jobs of the same age, the one of higher priority is first.
            together.ask("ZCOUNT", keys[name], "-inf", bound)
        elif aging is not None:
            together.ask("ZCOUNT", keys[name], "-inf", f"({bound}")


def _ask_fair(
    together: CombinedRead, keys: dict[str, str], member: bytes, spot: _ReadyPosition, aging: Millis | None
) -> None:
    together.ask("ZLEXCOUNT", keys[BANDS[spot.band]], members_under(spot.tenant)[0], b"(" + spot.member)
    together.ask("ZRANK", keys[TURNS[spot.band]], spot.tenant)
    together.ask("ZCARD", keys[TURNS[spot.band]])
    for name in BANDS[: spot.band]:
        together.ask("ZCARD", keys[name])


def _limit(meta: dict[str, bytes | None], prefix: str, active: int, spent: float) -> Limit:
    rate = meta[f"{prefix}rate"]
    return Limit(
        active=active,
        most=_whole(meta[f"{prefix}max_active"]),
        rate="" if rate is None else rate.decode(errors="replace"),
        every=_number(meta[f"{prefix}every"]),
        burst=_number(meta[f"{prefix}burst"]) or 0.0,
        spent=spent,
    )


def _number(value: Any) -> float | None:
    return number(value)


def _whole(value: Any) -> int | None:
    found = number(value)
    return None if found is None else int(found)
