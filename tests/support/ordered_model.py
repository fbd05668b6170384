"""The lines of ordered queues in plain Python: who is next by priority, and whose turn it is between tenants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.claim_model import Picked
from tests.support.model_job import Job
from tests.support.state_model import Model
from tocsin.model.outcome import CHANGED, NEW

BANDS = range(5)


@dataclass
class OrderedModel(Model):
    """In bands; within one by due time, then first come, first served."""

    settings: dict[str, float] = field(default_factory=dict)
    # Who has an entry in `claims`.
    entries: set[str] = field(default_factory=set)
    _placed: tuple[int, int] = (0, -1)

    # The line

    def line_up(self, member: str, not_before: int) -> None:
        job = self.jobs[member]
        plain = not (job.place or job.attempt > 1 or job.recoveries or job.cancelled or job.unread)
        if job.place is None or (plain and not_before == job.due):
            self.entries.discard(member)
        self.enter(member, not_before)

    def keep_place(self, member: str) -> None:
        if self.jobs[member].stage == "ready" or self.jobs[member].apart:
            self.enter(member, self.jobs[member].due)

    def enter(self, member: str, not_before: int) -> None:
        job = self.jobs[member]
        if not_before > self.now:
            job.move("waiting", not_before)
            job.place = job.place if member in self.entries else None
        elif job.is_suspect:
            self.stand_apart(member)
        else:
            self._stand(member)

    def enter_ready(self, member: str) -> None:
        self._stand(member)

    def _stand(self, member: str) -> None:
        job = self.jobs[member]
        if job.place is None:
            at, last = self._placed
            job.place = last + 1 if at == self.now else 0
            self._placed = (self.now, job.place)
        job.move("ready", job.due)

    def set_aside(self, member: str, score: int) -> None:
        super().set_aside(member, score)
        self.jobs[member].place = self.jobs[member].place or 0
        self.entries.add(member)

    def block(self, now: int, member: str, *what: Any) -> int:
        code = super().block(now, member, *what)
        if code in (NEW, CHANGED):
            self.entries.discard(member)
        return code

    def pause(self, now: int, member: str) -> int:
        code = super().pause(now, member)
        if code == 2:
            self.entries.add(member)
        return code

    def revive(self, now: int, member: str) -> str:
        code = super().revive(now, member)
        if code == "1":
            self.entries.add(member)
        return code

    def claim(self, now: int, owner: str, handlers: set[str], token: int, found: list[str], parked: list[str]) -> None:
        super().claim(now, owner, handlers, token, found, parked)
        self.entries.update(found)

    def end_call(self) -> None:
        """What the end of each call does to the line."""
        self.entries &= set(self.jobs)

    # Who is next

    def pick(self, handlers: set[str], limit: int, suspects: int) -> Picked:
        if "max_active" in self.settings:
            limit = max(0, min(limit, int(self.settings["max_active"]) - self.count("working")))
        picked, most = Picked(), min(suspects, limit)
        for member in self.due_now(self.now):
            self.jobs[member].place = self.jobs[member].place or 0
            self.enter(member, self.jobs[member].due)
        self.keep_for_those_who_know(self.now, handlers, self.jobs)
        self.enter_parked(handlers, most)
        self.call_up(picked, handlers, most)
        self.end_call()
        if limit > 0:
            self._pick(picked, handlers, limit, suspects)
        return picked

    def _pick(self, picked: Picked, handlers: set[str], limit: int, suspects: int) -> None:
        for member in sorted(self.ready(), key=self._key):
            if len(picked.taken) == limit:
                return
            suspects -= self.serve(picked, member, handlers, suspects) == "suspect"

    def _key(self, member: str) -> tuple[Any, ...]:
        job = self.jobs[member]
        band, place = job.definition.band, job.place or 0
        age = job.due + place / 4096 + band * self.settings["aging"] if "aging" in self.settings else 0
        return age, band, job.due, place, member

    def key_apart(self, member: str) -> tuple[int, int, str]:
        job = self.jobs[member]
        return job.definition.band, job.due, member

    def ready(self) -> list[str]:
        return [member for member, job in self.jobs.items() if job.stage == "ready"]

    def count(self, stage: str) -> int:
        return sum(job.stage == stage for job in self.jobs.values())

    def is_full(self) -> bool:
        return "max_active" in self.settings and self.count("working") >= self.settings["max_active"]

    def head(self) -> int:
        """When the first in line may start; -1 if there is none."""
        return self.now if self.ready() else self.waiting_head()

    def waiting_head(self) -> int:
        return min((job.score for _, job in self.in_line()), default=-1)

    def stand_up(self) -> bool:
        """The limits changed: whether somebody who rested may try again."""
        return False


@dataclass
class FairModel(OrderedModel):
    """In bands, and within one each tenant in its turn: who is served is charged, the least charged is next."""

    weights: dict[str, float] = field(default_factory=dict)
    # By band: tenant -> start tag.
    turns: list[dict[str, float]] = field(default_factory=lambda: [{} for _ in BANDS])
    virtual: list[float] = field(default_factory=lambda: [0.0 for _ in BANDS])
    # By tenant and band: the finish tag of those who left the turns.
    tags: dict[str, list[float]] = field(default_factory=dict)
    resting: set[str] = field(default_factory=set)
    # Whose share each run takes that is being worked on.
    shares: dict[str, str] = field(default_factory=dict)
    _joining: set[tuple[int, str]] = field(default_factory=set)

    def _stand(self, member: str) -> None:
        super()._stand(member)
        self._joining.add(self._lane(self.jobs[member]))

    def claim(self, now: int, owner: str, handlers: set[str], token: int, found: list[str], parked: list[str]) -> None:
        super().claim(now, owner, handlers, token, found, parked)
        # Runs count only where tenants have a cap: those that started before it was set do not.
        taken = [member for member in found if self.jobs[member].stage == "working"]
        if "tenant_max_active" in self.settings:
            self.shares.update({member: self.jobs[member].definition.tenant for member in taken})

    def end_call(self) -> None:
        super().end_call()
        for member, tenant in list(self.shares.items()):
            if member not in self.jobs or self.jobs[member].stage != "working":
                del self.shares[member]
                self._wake(tenant)
                self._forget_charges(tenant)
        for band, tenant in sorted(self._joining):
            if tenant not in self.resting and tenant not in self.turns[band]:
                self.turns[band][tenant] = max(self.virtual[band], self._tags(tenant)[band])
        self._joining.clear()

    def stand_up(self) -> bool:
        rested = sorted(self.resting)
        for tenant in rested:
            self._wake(tenant)
        return bool(rested)

    def _wake(self, tenant: str) -> None:
        if tenant in self.resting:
            self.resting.discard(tenant)
            lanes = (self._lane(self.jobs[member]) for member in self.ready())
            self._joining.update(lane for lane in lanes if lane[1] == tenant)

    def _forget_charges(self, tenant: str) -> None:
        if not self.active(tenant) and all(tag <= at for tag, at in zip(self._tags(tenant), self.virtual, strict=True)):
            del self.tags[tenant]

    def active(self, tenant: str) -> int:
        return list(self.shares.values()).count(tenant)

    def _tags(self, tenant: str) -> list[float]:
        return self.tags.setdefault(tenant, [0.0 for _ in BANDS])

    def _lane(self, job: Job) -> tuple[int, str]:
        return job.definition.band, job.definition.tenant

    def head(self) -> int:
        return self.now if any(self.turns) else self.waiting_head()

    # Whose turn it is

    def _pick(self, picked: Picked, handlers: set[str], limit: int, suspects: int) -> None:
        lines = {lane: iter(self._in_order(lane)) for lane in map(self._lane, map(self.jobs.__getitem__, self.ready()))}
        nexts: dict[tuple[int, str], str | None] = {lane: next(line) for lane, line in lines.items()}
        active = {tenant: self.active(tenant) for tenant in self.shares.values()}
        touched: set[str] = set()
        while len(picked.taken) < limit and (lane := self._next_lane(nexts)) is not None:
            band, tenant = lane
            member, tag = nexts.get(lane), self.turns[band][tenant]
            if active.get(tenant, 0) >= self.settings.get("tenant_max_active", float("inf")):
                self.resting.add(tenant)
                self._leave_turns(lane, tag, touched)
            elif member is None:
                self._leave_turns(lane, tag, touched)
            else:
                nexts[lane] = next(lines[lane], None)
                how = self.serve(picked, member, handlers, suspects)
                suspects -= how == "suspect"
                if how in ("taken", "suspect"):
                    active[tenant] = active.get(tenant, 0) + 1
                    touched.add(tenant)
                    to = self._charge(lane, tag, self.jobs[member])
                    if nexts[lane] is not None:
                        self.turns[band][tenant] = to
                    else:
                        self._leave_turns(lane, to, touched)
        for tenant in touched:
            if not active.get(tenant):
                self._forget_charges(tenant)

    def _in_order(self, lane: tuple[int, str]) -> Iterator[str]:
        members = [member for member in self.ready() if self._lane(self.jobs[member]) == lane]
        yield from sorted(members, key=lambda member: (self.jobs[member].due, self.jobs[member].place, member))

    def _next_lane(self, nexts: dict[Any, str | None]) -> tuple[int, str] | None:
        firsts = []
        for band in BANDS:
            turns = [(tag, tenant) for tenant, tag in self.turns[band].items()]
            if turns:
                lane = (band, min(turns)[1])
                member = nexts.get(lane)
                due = self.jobs[member].due if member else 0
                firsts.append((due + band * self.settings["aging"] if "aging" in self.settings else 0, band, lane))
        return min(firsts)[2] if firsts else None

    def _leave_turns(self, lane: tuple[int, str], tag: float, touched: set[str]) -> None:
        band, tenant = lane
        del self.turns[band][tenant]
        self._tags(tenant)[band] = tag
        touched.add(tenant)

    def _charge(self, lane: tuple[int, str], tag: float, job: Job) -> float:
        band, tenant = lane
        to = tag + max(job.definition.cost, 1) / self.weights.get(tenant, 1.0)
        self.virtual[band] = max(tag, min(self.virtual[band] + min(to - tag, 1) / 64, to))
        return to
