"""The gates of a worker to all hosts, and what the fleet tells about them.

Five failures, less what succeeded since, open the breaker of a host. The worker tells the fleet, and nobody sends to
the host until its time is over. Then the first who has something for it is let through as a probe, alone; if that is
answered, all may send again. Runs meanwhile go back, and no attempt of theirs is counted: an outage uses up nobody's
retries. Whoever cannot reach the fleet goes by its own breaker.

Each worker reads what fails once a second while it delivers anything outside, and not at all while it does not.
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

# How often what fails is read, and how old it may be when something is sent after a pause.
LOOK_S = 1.0
STALE_S = 2.0
# A worker that has sent nothing for so long reads nothing.
BUSY_S = 10.0
IDLE_S = 3600.0
# How long a run waits for what the fleet says; then the worker's own breaker decides.
ASK_S = 1.0
# Gates at rest are forgotten when there are more.
MOST_AT_REST = 1000


class HostDelivery:
    """One delivery to a host: `async with gates.to(host):` around what is sent, and nothing else.

    An error that is final is none of the host's. Where it answers that it failed, set `ok` to False.
    """

    __slots__ = ("_deadline", "_gate", "_gates", "is_probe", "ok", "permit", "probe", "since")

    def __init__(self, gates: HostGates, gate: HostGate, deadline: float) -> None:
        self._gates = gates
        self._gate = gate
        self._deadline = deadline
        self.ok = True
        # Whether it is to find out about a host that fails.
        self.is_probe = False
        # By whose leave: of the host's breaker here, or of the fleet, which knows it by a name and the outage.
        self.permit: Permit | None = None
        self.probe = ""
        self.since: Millis = 0

    async def __aenter__(self) -> HostDelivery:
        await self._gates.enter(self._gate, self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ok = self._verdict(error)
        self._gate.leave(moves=ok is not False)
        self._gates.left(self._gate, self, ok)
        if self.is_probe and ok is False and isinstance(error, DeliveryFailed) and not error.sent:
            # It was this run's turn to find out, and nothing of it has reached anybody.
            raise self._gates.away(self._gate) from error

    def _verdict(self, error: BaseException | None) -> bool | None:
        """Whether the host does what it is for; None: that is not known."""
        if error is None:
            return self.ok
        if isinstance(error, DeliveryFailed):
            return None if error.final else False
        if isinstance(error, asyncio.CancelledError) and self._gates.clock.monotonic() >= self._deadline:
            return False
        return None


class HostGates:
    """Also the part that tells the fleet of hosts, and reads what it tells."""

    name = "hosts"

    def __init__(
        self,
        hosts: HostOutages,
        clock: Clock,
        permits: float,
        most: int,
        settings: BreakerSettings | None = None,
        *,
        shared: bool = False,
    ) -> None:
        """`most`: deliveries to one host at a time; `permits`: of the worker, 0 or less for any number; `shared`: the
        worker has handlers of its own, which need some of them."""
        self.wake = asyncio.Event()
        self.clock = clock
        # Of all breakers, since the beginning; of those that others opened, only what was held back here.
        self.trips = self.blocked = self.recoveries = 0
        self._hosts = hosts
        self._settings = settings or BreakerSettings()
        permits = permits if permits > 0 else math.inf
        self.room = HostPermits(permits, most, limit_of(permits, shared), clock.monotonic)
        self._gates: dict[str, HostGate] = {}
        # What fails, as it was read last; what the fleet is to be told: the probe that found it, or the outage.
        self._failing: dict[str, Millis] = {}
        self._trips: dict[str, str] = {}
        self._closes: dict[str, Millis] = {}
        self._looked = -math.inf
        self._looking = asyncio.Lock()
        self._used = -math.inf
        self._idle = True

    def to(self, host: str, deadline: float = math.inf) -> HostDelivery:
        """`deadline`: of the run, in monotonic seconds. A host that is still silent then has failed.
        Raises NotYet at once where that is known, before anything is done for the delivery."""
        self._used = self.clock.monotonic()
        if self._idle:
            self._idle = False
            self.wake.set()
        gate = self._gates.get(host)
        if gate is None:
            gate = self._gates[host] = self._new(host)
        if gate.is_well():
            gate.check_line()
        elif self._is_left_alone(gate):
            raise self.away(gate)
        return HostDelivery(self, gate, deadline)

    @contextlib.contextmanager
    def beside_hosts(self) -> Iterator[None]:
        """Around what goes to no host, and holds a permit like all that does: a program. Raises NotYet."""
        self.room.check()
        self.room.take()
        try:
            yield
        finally:
            self.room.leave()

    async def enter(self, gate: HostGate, passage: HostDelivery) -> None:
        """Raises NotYet."""
        if self.clock.monotonic() - self._looked >= STALE_S:
            await self._look()
        while gate.is_well():
            if not await gate.slot():
                continue
            if gate.is_well():
                passage.permit = gate.breaker.allow()
                return
            gate.leave()
        await self._enter_as_probe(gate, passage)

    def left(self, gate: HostGate, passage: HostDelivery, ok: bool | None) -> None:
        """What came of it."""
        if passage.probe:
            gate.probing = False
            if ok:
                self._closes[gate.host] = passage.since
                self.recoveries += 1
                self._open_to_all(gate)
            elif ok is False:
                gate.breaker.trip()
                self._tell_trip(gate, passage.probe)
        elif passage.permit is not None and ok is not None:
            self._count(gate, passage.permit, ok)

    def away(self, gate: HostGate) -> TryLater:
        """Until the host may be probed."""
        self.blocked += 1
        wait = self._rest(gate)
        return gate.away(f"{gate.host} fails, and is left alone for a while", wait if wait > 0 else SHORTEST_AWAY_S)

    # Within this worker

    def _new(self, host: str) -> HostGate:
        gate = HostGate(host, self.room, Breaker(self._settings, self.clock.monotonic), self.clock.monotonic)
        if host in self._failing:
            self._shut(gate, self._failing[host])
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
            gate.shut()
            self._tell_trip(gate, "")
            if was is BreakerState.CLOSED:
                log.warning("host fails: nothing is sent to it for a while", host=gate.host)
        elif state is BreakerState.CLOSED and was is not BreakerState.CLOSED:
            self.recoveries += 1
            self._open_to_all(gate)

    def _shut(self, gate: HostGate, until: Millis) -> None:
        """As others found."""
        gate.until = until
        if gate.is_well():
            gate.breaker.trip()
            gate.shut()
            log.info("host fails, as another worker found: nothing is sent to it for a while", host=gate.host)

    def _open_to_all(self, gate: HostGate) -> None:
        self._failing.pop(gate.host, None)
        self._trips.pop(gate.host, None)
        gate.breaker.reset()
        gate.opened()
        if gate.host in self._closes:
            self.wake.set()
        log.info("host answers again", host=gate.host)

    def _tell_trip(self, gate: HostGate, probe: str) -> None:
        self.trips += 1
        gate.until = 0
        self._closes.pop(gate.host, None)
        self._trips[gate.host] = probe
        self.wake.set()

    # Probes

    async def _enter_as_probe(self, gate: HostGate, passage: HostDelivery) -> None:
        if self._is_left_alone(gate):
            raise self.away(gate)
        self.room.check()
        gate.probing = True
        # Before the fleet is asked: others may fill the room meanwhile.
        gate.take()
        try:
            await self._become_probe(gate, passage)
        except BaseException:
            gate.leave(moves=False)
            raise

    async def _become_probe(self, gate: HostGate, passage: HostDelivery) -> None:
        name = secrets.token_hex(8)
        try:
            probe = await self._ask(gate, name)
        finally:
            gate.probing = False
        passage.is_probe = True
        if probe is None:
            # The worker's own breaker lets a few through.
            passage.permit = gate.breaker.allow()
            if passage.permit is None:
                raise self.away(gate)
        elif not probe.go:
            gate.until = probe.until
            raise self.away(gate)
        elif probe.since:
            gate.probing = True
            gate.until = probe.until
            passage.probe, passage.since = name, probe.since
        else:
            # Somebody found it well meanwhile.
            self._open_to_all(gate)
            passage.permit = gate.breaker.allow()

    async def _ask(self, gate: HostGate, name: str) -> HostProbe | None:
        """None: the fleet knows nothing of it yet, or cannot be asked."""
        if gate.host in self._trips:
            return None
        try:
            async with asyncio.timeout(ASK_S):
                return await self._hosts.probe(gate.host, name, self._settings.half_open_duration_ms)
        except (StoreError, TimeoutError):
            return None

    def _is_left_alone(self, gate: HostGate) -> bool:
        return gate.probing or self._rest(gate) > 0

    def _rest(self, gate: HostGate) -> float:
        """Seconds until the host may be probed."""
        if gate.until:
            return (gate.until - self.clock.server_ms()) / 1000
        return gate.breaker.status().probe_in

    # With the fleet

    async def step(self) -> float:
        async with self._looking:
            await self._tell()
            if self.clock.monotonic() - self._used >= BUSY_S:
                self._idle = True
                return IDLE_S
            await self._read()
        self._forget()
        return LOOK_S

    async def _look(self) -> None:
        """For who sends something after a pause. Whether the server answers is for others to tell."""
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(ASK_S), self._looking:
                if self.clock.monotonic() - self._looked >= STALE_S:
                    await self._read()
        self._looked = max(self._looked, self.clock.monotonic() - LOOK_S)

    async def _tell(self) -> None:
        for host, probe in list(self._trips.items()):
            until = await self._hosts.trip(host, self._settings.cooldown_ms, probe)
            if self._trips.get(host) == probe:
                del self._trips[host]
                self._gates[host].until = until
        for host, since in list(self._closes.items()):
            await self._hosts.close(host, since)
            if self._closes.get(host) == since:
                del self._closes[host]

    async def _read(self) -> None:
        asked = self.clock.monotonic()
        failing = self._failing = await self._hosts.failing()
        # Not before: who comes meanwhile waits for it.
        self._looked = asked
        for host, gate in self._gates.items():
            if gate.probing or host in self._trips or host in self._closes:
                continue  # What is known here is newer.
            if host in failing:
                self._shut(gate, failing[host])
            elif not gate.is_well():
                self._open_to_all(gate)

    def _forget(self) -> None:
        if len(self._gates) > MOST_AT_REST:
            self._gates = {host: gate for host, gate in self._gates.items() if not gate.at_rest}
