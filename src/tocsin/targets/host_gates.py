"""The gates of a worker to all hosts, and the outages of hosts that workers share through Redis.

Five failures, less the successes since, open the breaker of a host. The worker reports the outage to the fleet, and no
worker sends to the host until the cooldown is over. Then the first run for that host goes through as a probe, alone; if
the host answers, all may send again. Meanwhile runs go back without counting an attempt, so an outage uses up nobody's
retries. A worker that cannot reach the fleet goes by its own breaker.

Each worker reads the failing hosts once a second while it delivers to any host, and not at all while it does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from collections.abc import Iterator
from types import TracebackType

from tocsin.engine.handlers import TryLater
from tocsin.model.clock import Clock
from tocsin.model.delivery import DeliveryFailed
from tocsin.model.durations import Millis
from tocsin.model.errors import StoreError
from tocsin.resilience.breaker import Breaker, BreakerSettings, BreakerState, Permit
from tocsin.store.transitions.host_outages import HostOutages, HostProbe
from tocsin.targets.host_gate import SHORTEST_AWAY_S, HostGate, HostPermits, limit_of
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.gates")

# How often the failing hosts are read, and how old that list may be when a delivery starts after a pause.
READ_EVERY_S = 1.0
STALE_S = 2.0
# A worker that has delivered nothing for so long reads nothing.
BUSY_S = 10.0
IDLE_S = 3600.0
# How long a run waits for the fleet's answer; then the worker's own breaker decides.
FLEET_TIMEOUT_S = 1.0
# With more gates than this, idle ones are forgotten.
MOST_IDLE_GATES = 1000


class HostDelivery:
    """One delivery to a host: put `async with gates.delivery_to(host):` around the sending, and nothing else.

    A final error is not the host's fault. If the host answers that it failed, set `ok` to False.
    """

    __slots__ = ("_deadline", "_gate", "_gates", "is_probe", "ok", "permit", "probe", "since")

    def __init__(self, gates: HostGates, gate: HostGate, deadline: float) -> None:
        self._gates = gates
        self._gate = gate
        self._deadline = deadline
        self.ok = True
        # Whether it finds out if a failing host answers again.
        self.is_probe = False
        # The permission to send: from this worker's breaker, or from the fleet, which identifies a probe by a name
        # and the begin of the outage.
        self.permit: Permit | None = None
        self.probe = ""
        self.since: Millis = 0

    async def __aenter__(self) -> HostDelivery:
        await self._gates.begin(self._gate, self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ok = self._verdict(error)
        self._gate.release(progress=ok is not False)
        self._gates.end(self._gate, self, ok)
        if self.is_probe and ok is False and isinstance(error, DeliveryFailed) and not error.sent:
            # This run was the probe, and nothing of it has reached the host: no attempt.
            raise self._gates.try_later(self._gate) from error

    def _verdict(self, error: BaseException | None) -> bool | None:
        """Whether the host works; None if the outcome does not say."""
        if error is None:
            return self.ok
        if isinstance(error, DeliveryFailed):
            return None if error.final else False
        if isinstance(error, asyncio.CancelledError) and self._gates.clock.monotonic() >= self._deadline:
            return False
        return None


class HostGates:
    """Also the part of the worker that reports outages to the fleet, and reads those of other workers."""

    name = "hosts"

    def __init__(
        self,
        outages: HostOutages,
        clock: Clock,
        permits: float,
        most_per_host: int,
        settings: BreakerSettings | None = None,
        *,
        shared: bool = False,
    ) -> None:
        """`permits`: of the worker, 0 or less for any number; `most_per_host`: deliveries to one host at a time;
        `shared`: the worker has handlers of its own, which need some of the permits."""
        self.wake = asyncio.Event()
        self.clock = clock
        # Counts since the worker began. A breaker opened by another worker counts in `blocked` only.
        self.trips = self.blocked = self.recoveries = 0
        self._outages = outages
        self._settings = settings or BreakerSettings()
        permits = permits if permits > 0 else math.inf
        self.permits = HostPermits(permits, most_per_host, limit_of(permits, shared), clock.monotonic)
        self._gates: dict[str, HostGate] = {}
        # The failing hosts as last read from Redis.
        self._failing: dict[str, Millis] = {}
        # Still to be reported: for each trip the name of the probe that failed, for each recovery the outage it ends.
        self._unreported_trips: dict[str, str] = {}
        self._unreported_recoveries: dict[str, Millis] = {}
        self._read_at = -math.inf
        self._reading = asyncio.Lock()
        self._used_at = -math.inf
        self._idle = True

    def delivery_to(self, host: str, deadline: float = math.inf) -> HostDelivery:
        """`deadline`: of the run, in monotonic seconds. A host that is still silent then has failed.
        Raises TryLater at once if the host is known to be failing or full, so no work is spent on the delivery."""
        self._used_at = self.clock.monotonic()
        if self._idle:
            self._idle = False
            self.wake.set()
        gate = self._gates.get(host)
        if gate is None:
            gate = self._gates[host] = self._new(host)
        if gate.is_healthy():
            gate.check_free()
        elif self._is_cooling_down(gate):
            raise self.try_later(gate)
        return HostDelivery(self, gate, deadline)

    @contextlib.contextmanager
    def program_permit(self) -> Iterator[None]:
        """Hold a permit while a program runs. Programs share the limit with deliveries to hosts. Raises TryLater."""
        self.permits.check()
        self.permits.take()
        try:
            yield
        finally:
            self.permits.release()

    async def begin(self, gate: HostGate, delivery: HostDelivery) -> None:
        """Raises TryLater."""
        if self.clock.monotonic() - self._read_at >= STALE_S:
            await self._refresh()
        while gate.is_healthy():
            if not await gate.acquire():
                continue
            if gate.is_healthy():
                delivery.permit = gate.breaker.allow()
                return
            gate.release()
        await self._begin_as_probe(gate, delivery)

    def end(self, gate: HostGate, delivery: HostDelivery, ok: bool | None) -> None:
        """`ok`: whether the host works; None if the outcome does not say."""
        if delivery.probe:
            gate.probing = False
            if ok:
                self._unreported_recoveries[gate.host] = delivery.since
                self.recoveries += 1
                self._host_recovered(gate)
            elif ok is False:
                gate.breaker.trip()
                self._note_trip(gate, delivery.probe)
        elif delivery.permit is not None and ok is not None:
            self._count(gate, delivery.permit, ok)

    def try_later(self, gate: HostGate) -> TryLater:
        """Sends a run back until the host may be probed."""
        self.blocked += 1
        wait = self._probe_in_s(gate)
        return gate.try_later(
            f"{gate.host} fails, and is left alone for a while", wait if wait > 0 else SHORTEST_AWAY_S
        )

    # Within this worker

    def _new(self, host: str) -> HostGate:
        gate = HostGate(host, self.permits, Breaker(self._settings, self.clock.monotonic), self.clock.monotonic)
        if host in self._failing:
            self._host_fails(gate, self._failing[host])
        return gate

    def _count(self, gate: HostGate, permit: Permit, ok: bool) -> None:
        was = gate.breaker.state
        if not ok:
            gate.breaker.failed(permit)
        elif was is BreakerState.CLOSED:
            gate.breaker.drop_oldest_failure(permit)
        else:
            gate.breaker.succeeded(permit)
        state = gate.breaker.state
        if state is BreakerState.OPEN and was is not BreakerState.OPEN:
            gate.dismiss_waiters()
            self._note_trip(gate, "")
            if was is BreakerState.CLOSED:
                log.warning("host fails: nothing is sent to it for a while", host=gate.host)
        elif state is BreakerState.CLOSED and was is not BreakerState.CLOSED:
            self.recoveries += 1
            self._host_recovered(gate)

    def _host_fails(self, gate: HostGate, until: Millis) -> None:
        """Another worker found it failing."""
        gate.until = until
        if gate.is_healthy():
            gate.breaker.trip()
            gate.dismiss_waiters()
            log.info("host fails, as another worker found: nothing is sent to it for a while", host=gate.host)

    def _host_recovered(self, gate: HostGate) -> None:
        self._failing.pop(gate.host, None)
        self._unreported_trips.pop(gate.host, None)
        gate.breaker.reset()
        gate.reset()
        if gate.host in self._unreported_recoveries:
            self.wake.set()
        log.info("host answers again", host=gate.host)

    def _note_trip(self, gate: HostGate, probe: str) -> None:
        self.trips += 1
        gate.until = 0
        self._unreported_recoveries.pop(gate.host, None)
        self._unreported_trips[gate.host] = probe
        self.wake.set()

    # Probes

    async def _begin_as_probe(self, gate: HostGate, delivery: HostDelivery) -> None:
        if self._is_cooling_down(gate):
            raise self.try_later(gate)
        self.permits.check()
        gate.probing = True
        # Take the permit before asking the fleet: other deliveries may take the last one meanwhile.
        gate.take()
        try:
            await self._become_probe(gate, delivery)
        except BaseException:
            gate.release(progress=False)
            raise

    async def _become_probe(self, gate: HostGate, delivery: HostDelivery) -> None:
        name = secrets.token_hex(8)
        try:
            probe = await self._ask_fleet(gate, name)
        finally:
            gate.probing = False
        delivery.is_probe = True
        if probe is None:
            # The worker's own breaker lets a few through.
            delivery.permit = gate.breaker.allow()
            if delivery.permit is None:
                raise self.try_later(gate)
        elif not probe.go:
            gate.until = probe.until
            raise self.try_later(gate)
        elif probe.since:
            gate.probing = True
            gate.until = probe.until
            delivery.probe, delivery.since = name, probe.since
        else:
            # Another worker found the host working meanwhile.
            self._host_recovered(gate)
            delivery.permit = gate.breaker.allow()

    async def _ask_fleet(self, gate: HostGate, name: str) -> HostProbe | None:
        """None if the fleet does not know of this outage yet, or does not answer."""
        if gate.host in self._unreported_trips:
            return None
        try:
            async with asyncio.timeout(FLEET_TIMEOUT_S):
                return await self._outages.probe(gate.host, name, self._settings.half_open_duration_ms)
        except (StoreError, TimeoutError):
            return None

    def _is_cooling_down(self, gate: HostGate) -> bool:
        return gate.probing or self._probe_in_s(gate) > 0

    def _probe_in_s(self, gate: HostGate) -> float:
        """Seconds until the host may be probed."""
        if gate.until:
            return (gate.until - self.clock.server_ms()) / 1000
        return gate.breaker.status().probe_in

    # With the fleet

    async def step(self) -> float:
        async with self._reading:
            await self._report()
            if self.clock.monotonic() - self._used_at >= BUSY_S:
                self._idle = True
                return IDLE_S
            await self._read_failing()
        self._forget_idle_gates()
        return READ_EVERY_S

    async def _refresh(self) -> None:
        """Read the failing hosts after a pause. Errors are ignored here: health reports outages of the server."""
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(FLEET_TIMEOUT_S), self._reading:
                if self.clock.monotonic() - self._read_at >= STALE_S:
                    await self._read_failing()
        self._read_at = max(self._read_at, self.clock.monotonic() - READ_EVERY_S)

    async def _report(self) -> None:
        for host, probe in list(self._unreported_trips.items()):
            until = await self._outages.trip(host, self._settings.cooldown_ms, probe)
            if self._unreported_trips.get(host) == probe:
                del self._unreported_trips[host]
                self._gates[host].until = until
        for host, since in list(self._unreported_recoveries.items()):
            await self._outages.close(host, since)
            if self._unreported_recoveries.get(host) == since:
                del self._unreported_recoveries[host]

    async def _read_failing(self) -> None:
        asked_at = self.clock.monotonic()
        failing = self._failing = await self._outages.failing()
        # Only after the reply: deliveries that begin meanwhile wait for it.
        self._read_at = asked_at
        for host, gate in self._gates.items():
            if gate.probing or host in self._unreported_trips or host in self._unreported_recoveries:
                continue  # This worker knows something newer.
            if host in failing:
                self._host_fails(gate, failing[host])
            elif not gate.is_healthy():
                self._host_recovered(gate)

    def _forget_idle_gates(self) -> None:
        if len(self._gates) > MOST_IDLE_GATES:
            self._gates = {host: gate for host, gate in self._gates.items() if not gate.is_idle}
