"""The telemetry of a worker: its metrics and its health. It reads the parts and changes none."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from tocsin.engine.claim_planner import MOST_PER_PASS
from tocsin.engine.loop import Part
from tocsin.model.clock import wall_ms
from tocsin.model.errors import NodeUnavailable, StoreUnavailable
from tocsin.resilience.breaker import BreakerState
from tocsin.store.connection.nodes import nodes_away
from tocsin.store.store import OpenQueue
from tocsin.store.views.backlog import Backlog, BacklogReader
from tocsin.store.views.queue_counts import QueueCountReader
from tocsin.store.views.server_memory import full_servers
from tocsin.telemetry.metrics import Counters, Levels, MetricsFlusher, shared
from tocsin.telemetry.queue_metrics import shared as queue_metrics
from tocsin.upkeep.health import Health, HealthState, Snapshot
from tocsin.upkeep.health_check import HealthCheck
from tocsin.worker.queue_gauges import QueueGauges
from tocsin.worker.stats import orphans_cleaned

if TYPE_CHECKING:
    from tocsin.worker.worker import Worker

# How often the server is asked whether it has memory left.
MEMORY_EVERY_S = 10.0


class WorkerTelemetry:
    """One per worker; its parts run with the others."""

    def __init__(self, worker: Worker) -> None:
        settings = worker.settings
        self._worker = worker
        self._parts = worker.parts
        self._ready = BacklogReader(worker.store, worker.queues, self._own_agents)
        self._backlog = Backlog()
        self._claimed = 0
        self._turned_away = 0
        self._full: tuple[str, ...] = ()
        self._next_memory = -math.inf
        # The store's counts as last reported: it may serve others before and after this worker.
        store = worker.store
        self._scripts = (store.scripts.errors, store.scripts.reloaded, store.scripts.fallbacks)
        self._zombies = 0
        self._orphans: Counter[str] = Counter()
        self.check = HealthCheck(self._read, worker.clock, settings.poll_s, settings.summary_s)
        counts = QueueCountReader(worker.store, worker.queues)
        self.gauges = QueueGauges(counts, queue_metrics(), worker.clock, settings.poll_s)
        self._forget: Callable[[], None] | None = None
        self._flusher: MetricsFlusher | None = None

    def parts(self) -> list[Part]:
        """Begin to report. OpenTelemetry sees the worker only from now on. These parts do not need the server."""
        self._forget = shared().watch(self._levels)
        self._flusher = MetricsFlusher(shared(), self._worker.tally, self._gather, self._worker.settings.poll_s)
        self.gauges.begin()
        return [self.check, self._flusher]

    def end(self) -> None:
        if self._flusher is not None:
            self._flusher.flush()
        self.gauges.end()
        if self._forget is not None:
            self._forget()
        self._flusher = self._forget = None

    # Metrics

    def _gather(self, tally: Counters) -> None:
        worker, parts = self._worker, self._parts
        for name, breaker in (("acquisition", parts.acquisition_breaker), ("redis", parts.redis_breaker)):
            status = breaker.status()
            tally.breaker(name, status.trips, status.blocked, status.recoveries)
        gates = parts.host_gates
        tally.breaker("host", gates.trips, gates.blocked, gates.recoveries)
        tally.submission_failures += worker.pool.not_started
        worker.pool.not_started = 0
        store = worker.store
        counted = (store.scripts.errors, store.scripts.reloaded, store.scripts.fallbacks)
        errors, reloads, fallbacks = (now - before for now, before in zip(counted, self._scripts, strict=True))
        self._scripts = counted
        tally.script_errors += errors
        tally.script_reloads += reloads
        tally.eval_fallbacks += fallbacks
        zombies, orphans = worker.sweep.zombies, orphans_cleaned(worker)
        tally.zombies += zombies - self._zombies
        tally.orphans += orphans - self._orphans
        self._zombies, self._orphans = zombies, orphans
        queue_metrics().flush(tally.waits)

    def _levels(self) -> Levels:
        worker, backlog = self._worker, self._backlog
        return Levels(
            oldest_overdue_s=backlog.oldest_overdue_s,
            degraded=self.health().degraded,
            ready=backlog.ready,
            capacity_per_cycle=self._capacity(),
            permits_free=worker.pool.free(),
            clock_skew_s=(worker.clock.server_ms() - wall_ms()) / 1000,
        )

    def _capacity(self) -> float:
        """How many runs one cycle can claim: at most the permits, and at most a batch if its size is limited."""
        permits, batch = self._worker.pool.permits, self._worker.settings.batching.size
        return permits if batch >= MOST_PER_PASS else min(permits, batch)

    # Health

    async def _read(self) -> Snapshot:
        worker, parts = self._worker, self._parts
        away = worker.held() > 0
        if not away:
            try:
                self._backlog = await self._ready.look()
                await self._look_at_memory()
            except NodeUnavailable:
                # The other nodes work on; keep the last values.
                pass
            except StoreUnavailable:
                # A call that was cut off because our own event loop was blocked says nothing about the server.
                if not parts.loop_watch.is_waking():
                    raise
        backlog, claimed = self._backlog, worker.fetcher.claimed
        acquired, self._claimed = claimed - self._claimed, claimed
        permits = parts.host_gates.permits
        turned_away, self._turned_away = permits.turned_away - self._turned_away, permits.turned_away
        return Snapshot(
            enabled=worker.settings.enabled,
            registered=worker.reconciler.registered if worker.reconciler else 0,
            active=worker.running,
            scripts=worker.store.scripts.loaded,
            ready=backlog.ready,
            ready_is_estimate=backlog.ready_is_estimate,
            oldest_overdue_s=backlog.oldest_overdue_s,
            interval_s=worker.reconciler.interval_s if worker.reconciler else 0.0,
            capacity_per_cycle=self._capacity(),
            permits_free=worker.pool.free(),
            permits_total=worker.pool.permits,
            backlog=worker.pool.waiting,
            acquired=acquired,
            acquisition_breaker=parts.acquisition_breaker.state,
            redis_breaker=parts.redis_breaker.state,
            zombies_cleaned=worker.sweep.zombies,
            orphans_cleaned=orphans_cleaned(worker).total(),
            queue_depth=backlog.depth,
            stuck=worker.sweep.stuck,
            loop_blocked_s=parts.loop_watch.longest(),
            outside_limit=permits.limit,
            outside_still_s=permits.stalled_for_s(),
            outside_handed_back=turned_away,
            away=away,
            full=self._full,
            nodes_away=nodes_away(worker.store),
            faults=worker.fetcher.faults.reasons(),
            advice=backlog.outgrown,
        )

    async def _look_at_memory(self) -> None:
        now = self._worker.clock.monotonic()
        if now >= self._next_memory:
            self._full = tuple(await full_servers(self._worker.store))
            self._next_memory = now + MEMORY_EVERY_S

    def health(self) -> Health:
        """The last health check, and whether the event loop, which runs the check, is blocked. For any thread."""
        blocked = self._parts.loop_watch.blocked_for()
        if not blocked:
            return self.check.health
        by = self._parts.loop_watch.blocked_by()
        reason = f"the event loop has been blocked for {blocked:.0f} s" + (f" by {by}" if by else "")
        return Health(HealthState.DEGRADED, (reason, *self.check.health.reasons))

    def open_breakers(self) -> dict[str, str]:
        """The breakers that were not closed at the last health check. Called on the heartbeat's thread, while only the
        event loop may use a breaker."""
        seen = self.check.snapshot
        states = {"acquisition": seen.acquisition_breaker, "redis": seen.redis_breaker}
        return {name: str(state) for name, state in states.items() if state is not BreakerState.CLOSED}

    def _own_agents(self, queue: OpenQueue) -> Collection[str] | None:
        return self._worker.served[queue.name].timetable
