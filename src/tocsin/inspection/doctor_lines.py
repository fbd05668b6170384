"""The doctor's check of lines: caps, and in a fair queue each job's place in line and each tenant's turn."""

from __future__ import annotations

from tocsin.inspection.findings import Findings
from tocsin.store.formats import id_of_member
from tocsin.store.store import OpenQueue
from tocsin.store.transitions.fleet import Fleet
from tocsin.store.views.audit_line import TENANTS_AT_ONCE, FairLineReader, Place, TenantFault

KINDS = {
    TenantFault.PASSED_OVER: "passed-over",
    TenantFault.MISCOUNTED: "miscounted-tenant",
    TenantFault.RESTS_IN_VAIN: "rests-in-vain",
}


class LineAudit:
    """Checks one partition after the other. With `repair` it repairs what it finds."""

    def __init__(self, lines: FairLineReader, fleet: Fleet, findings: Findings, *, repair: bool) -> None:
        self._lines = lines
        self._fleet = fleet
        self._findings = findings
        self._repair = repair

    async def places(self, queue: OpenQueue, partition: int) -> set[bytes]:
        """Find places in line that belong to no job, or to a job that has another place. Returns their ids. Call it
        before the jobs are checked, because it settles which place each job has."""
        strays: set[Place] = set()
        mended = 0
        if queue.queue.order == "fair":
            async for page in self._lines.places(queue, partition):
                found, repaired = await self._check_places(queue, partition, [p for p in page if p not in strays])
                strays.update(found)
                mended += repaired
        names = sorted(id_of_member(member) for _, member in strays)
        self._findings.add("stray-place", queue.name, *map(_name, names), mended=mended)
        return set(names)

    async def _check_places(self, queue: OpenQueue, partition: int, page: list[Place]) -> tuple[list[Place], int]:
        wrong, _ = await self._lines.look(queue, partition, page, [])
        found = [place for place, is_stray in zip(page, wrong, strict=True) if is_stray]
        if not found or not self._repairs(queue, partition):
            return found, 0
        mended = await self._lines.mend(queue, partition, found, [])
        await self._fleet.ring(queue, partition)
        return found, sum(mended)

    async def tenants(self, queue: OpenQueue, partition: int) -> None:
        """Check the tenants. Call it after the jobs were checked and repaired, because it counts their claims."""
        if queue.queue.order != "fair":
            return
        seen: set[bytes] = set()
        fresh: list[bytes] = []
        async for page in self._lines.tenants(queue, partition):
            for tenant in page:
                if tenant not in seen:
                    seen.add(tenant)
                    fresh.append(tenant)
            while len(fresh) >= TENANTS_AT_ONCE:
                await self._check_tenants(queue, partition, fresh[:TENANTS_AT_ONCE])
                del fresh[:TENANTS_AT_ONCE]
        if fresh:
            await self._check_tenants(queue, partition, fresh)

    async def _check_tenants(self, queue: OpenQueue, partition: int, names: list[bytes]) -> None:
        _, faults = await self._lines.look(queue, partition, [], names)
        found = {name: fault for name, fault in zip(names, faults, strict=True) if fault}
        left = dict(found)
        if found and self._repairs(queue, partition):
            await self._lines.mend(queue, partition, [], list(found))
            await self._fleet.ring(queue, partition)
            _, after = await self._lines.look(queue, partition, [], list(found))
            left = dict(zip(found, after, strict=True))
        for name, fault in found.items():
            for kind in fault:
                self._findings.add(KINDS[kind], queue.name, _name(name), mended=kind not in left[name])

    async def cap(self, queue: OpenQueue, partition: int) -> None:
        """Check invariant 4. Runs that were working when the cap was set may go on; until enough of them have ended,
        nothing is claimed."""
        cap = await self._lines.cap(queue, partition)
        if cap.exceeded:
            kind = "over-cap" if cap.claimed_since else "cap-lowered"
            self._findings.add(kind, queue.name, f"{cap.working} of {cap.max_active}")

    def _repairs(self, queue: OpenQueue, partition: int) -> bool:
        return self._repair and bool(queue.epochs[partition])


def _name(member: bytes) -> str:
    return member.decode(errors="replace")
