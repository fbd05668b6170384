"""The parts of an open app, built once when it opens."""

from __future__ import annotations

from msgspec import Struct

from tocsin.app.agents import Agents
from tocsin.app.bulk_control import BulkControl
from tocsin.app.declarations import Declarations
from tocsin.app.dependencies import DependentWriter, EndCarrier
from tocsin.app.job_control import JobControl
from tocsin.app.job_options import JobLimits
from tocsin.app.job_writer import JobWriter
from tocsin.app.lookup import Lookup
from tocsin.app.queue_control import QueueControl
from tocsin.inspection.why.explain import JobExplainer
from tocsin.store.store import Store
from tocsin.store.transitions.fleet import BellRinger, Fleet
from tocsin.store.transitions.jobs import Jobs


class AppParts(Struct, frozen=True, kw_only=True):
    """What the calls of `Tocsin` go to."""

    store: Store
    limits: JobLimits
    ringer: BellRinger
    lookup: Lookup
    explainer: JobExplainer
    writer: JobWriter
    jobs: JobControl
    bulk: BulkControl
    queues: QueueControl
    agents: Agents

    async def close(self) -> None:
        """Disconnect when the puts under way have ended."""
        try:
            await self.store.putter.quiet()
            await self.ringer.quiet()
        finally:
            # Also when the puts were cancelled with the event loop.
            await self.store.close()


def build_parts(store: Store, declarations: Declarations, limits: JobLimits) -> AppParts:
    """`store` is open."""
    fleet = Fleet(store)
    ringer = BellRinger(fleet)
    carrier = EndCarrier(store, ringer.ring)
    jobs = Jobs(store, carrier.carry)
    lookup = Lookup(store, jobs)
    control = JobControl(store, jobs, lookup, ringer, fleet)
    return AppParts(
        store=store,
        limits=limits,
        ringer=ringer,
        lookup=lookup,
        explainer=JobExplainer(store),
        writer=JobWriter(
            store=store,
            declarations=declarations,
            limits=limits,
            jobs=jobs,
            lookup=lookup,
            dependents=DependentWriter(store, lookup, jobs, carrier.new),
            ringer=ringer,
            cancel=control.cancel_job,
        ),
        jobs=control,
        bulk=BulkControl(store, jobs, lookup, ringer),
        queues=QueueControl(store, jobs, ringer, fleet),
        agents=Agents(store, declarations, ringer),
    )
