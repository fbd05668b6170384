"""The circuit breaker against a model of it that keeps everything and derives the state anew each time.

All times are multiples of 1/8 s, which floats hold exactly.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tocsin.resilience.breaker import PROBES, Breaker, BreakerSettings, BreakerState

THRESHOLD, WINDOW, COOLDOWN, HALF_OPEN = 3, 2.0, 4.0, 1.0
SETTINGS = BreakerSettings(True, THRESHOLD, int(WINDOW * 1000), int(COOLDOWN * 1000), int(HALF_OPEN * 1000))
steps = st.sampled_from([0.125, 0.5, 0.875, 1.0, 1.125, 2.0, 3.875, 4.0, 5.0, 60.0])


class Model:
    """Periods, each (state, since); a permit is the number of the period it was given in."""

    def __init__(self) -> None:
        self.now = 0.0
        self.periods = [(BreakerState.CLOSED, 0.0)]
        self.failures: list[float] = []
        self.probes: list[float] = []
        self.blocked = self.recoveries = 0

    def advance(self, step: float) -> None:
        """In eighths, so that everything that time does happens at its moment."""
        for _ in range(int(step * 8)):
            self.now += 0.125
            if self.state is BreakerState.OPEN and self.now - self.periods[-1][1] == COOLDOWN:
                self.begin(BreakerState.HALF_OPEN)
            if self.state is BreakerState.HALF_OPEN and self.probes and self.now - self.probes[0] == HALF_OPEN:
                self.begin(BreakerState.OPEN)

    @property
    def state(self) -> BreakerState:
        return self.periods[-1][0]

    @property
    def recent(self) -> int:
        return sum(self.now - at < WINDOW for at in self.failures)

    def begin(self, state: BreakerState) -> None:
        self.periods.append((state, self.now))
        self.probes = []
        if state is BreakerState.CLOSED:
            self.failures = []

    def allow(self) -> int | None:
        if self.state is BreakerState.OPEN or len(self.probes) == PROBES:
            self.blocked += 1
            return None
        if self.state is BreakerState.HALF_OPEN:
            self.probes.append(self.now)
        return len(self.periods)

    def answer(self, permit: int, good: bool) -> None:
        if permit != len(self.periods):
            return
        if self.state is BreakerState.HALF_OPEN:
            self.recoveries += good
            self.begin(BreakerState.CLOSED if good else BreakerState.OPEN)
        elif not good:
            self.failures.append(self.now)
            if self.recent == THRESHOLD:
                self.begin(BreakerState.OPEN)

    @property
    def trips(self) -> int:
        return sum(state is BreakerState.OPEN for state, _ in self.periods)


class BreakerAndModel(RuleBasedStateMachine):
    calls = Bundle("calls")

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.breaker = Breaker(SETTINGS, lambda: self.model.now)
        # Gets the same calls, and nobody looks at it: looking must not matter.
        self.unseen = Breaker(SETTINGS, lambda: self.model.now)

    @rule(target=calls)
    def call(self):
        permits = self.model.allow(), self.breaker.allow(), self.unseen.allow()
        assert len({permit is None for permit in permits}) == 1
        return permits

    @rule(call=consumes(calls), good=st.booleans())
    def answer(self, call, good):
        if call[0] is None:
            return
        self.model.answer(call[0], good)
        for breaker, permit in ((self.breaker, call[1]), (self.unseen, call[2])):
            (breaker.succeeded if good else breaker.failed)(permit)

    @rule(times=st.integers(1, 4))
    def fail(self, times):
        for _ in range(times):
            self.answer(self.call(), False)

    @rule(step=steps)
    def advance(self, step):
        self.model.advance(step)

    @rule()
    def reset(self):
        self.model.begin(BreakerState.CLOSED)
        self.breaker.reset()
        self.unseen.reset()

    @invariant()
    def they_agree(self):
        model, status = self.model, self.breaker.status()
        assert status.state is model.state
        assert (status.trips, status.blocked, status.recoveries) == (model.trips, model.blocked, model.recoveries)
        assert (status.probe_in > 0) == (model.state is BreakerState.OPEN or len(model.probes) == PROBES)
        if model.state is BreakerState.CLOSED:
            assert status.failures == model.recent

    def teardown(self):
        assert self.unseen.status() == self.breaker.status()


TestBreakerAndModel = BreakerAndModel.TestCase
TestBreakerAndModel.settings = settings(max_examples=400, stateful_step_count=30, deadline=None)
