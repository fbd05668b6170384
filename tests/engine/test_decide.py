"""What becomes of a run: each case a line in a table. The interval is 10 s, the run was due at T."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from tocsin import Cron, Every, Once, Retry
from tocsin.engine import decide
from tocsin.engine.decide import DEAD, DONE, FailureFacts, Finish, RetryIn
from tocsin.model.failure_class import FailureClass
from tocsin.model.job import Policy, Spec
from tocsin.model.outcome import CANCELLED, FAILED, SKIPPED, SUCCEEDED
from tocsin.model.run import MAX_RECOVERIES, Claim
from tocsin.resilience.backoff import BackoffSettings

T = 1_900_000_000_000


def claim(*, attempt: int = 1, recoveries: int = 0, cancelled: bool = False) -> Claim:
    return Claim("default", 0, b"job", 1, T, attempt, recoveries, cancelled, T + 60_000, b"")


def once(retry: Retry | None = None) -> Spec:
    return Spec("handler", retry=retry)


def every(retry: Retry | None = None, **rules) -> Spec:
    return Spec("handler", trigger=Every("10s"), retry=retry, policy=Policy(**rules) if rules else None)


def bare(decision):
    """Without the ticks that it passes: those are in tests/triggers/test_plan.py."""
    return replace(decision, skips=()) if isinstance(decision, Finish) else decision


THREE = Retry(3, "200ms", "500ms")


@pytest.mark.parametrize(
    ("given", "spec", "recurring", "late", "decided"),
    [
        ({}, once(), False, 0, None),
        ({}, once(), False, 10**9, None),
        ({}, every(), True, 10**9, None),
        ({"attempt": 4, "recoveries": MAX_RECOVERIES - 1}, once(), False, 0, None),
        ({"recoveries": MAX_RECOVERIES}, once(), False, 0, DEAD),
        ({"recoveries": MAX_RECOVERIES}, every(), True, 0, Finish(T + 10_000, FAILED)),
        ({"recoveries": MAX_RECOVERIES}, every(ends=T), True, 0, Finish(0, FAILED)),
        ({"cancelled": True}, once(THREE), False, 0, Finish(0, CANCELLED)),
        ({"cancelled": True}, every(), True, 25_000, Finish(T + 30_000, CANCELLED)),
        ({"cancelled": True, "recoveries": MAX_RECOVERIES}, once(), False, 0, Finish(0, CANCELLED)),
        ({}, every(misfire="skip"), True, 9_999, None),
        ({}, every(misfire="skip"), True, 10_000, Finish(T + 10_000, SKIPPED)),
        ({}, every(misfire="skip"), True, 25_000, Finish(T + 30_000, SKIPPED)),
        ({}, every(misfire="skip", grace=1.0), True, 1_001, Finish(T + 10_000, SKIPPED)),
        ({}, every(misfire="skip", ends=T + 5), True, 10_000, Finish(0, SKIPPED)),
        # An extra run of a schedule is a one-shot with the schedule's body: it is never too late.
        ({}, every(misfire="skip"), False, 25_000, None),
    ],
)
def test_what_needs_no_execution_is_decided_before_it(given, spec, recurring, late, decided):
    found = decide.decide_before_run(claim(**given), spec, recurring, T + late)
    assert (found if found is None else bare(found[0])) == decided


def test_a_decision_before_execution_says_why():
    _, why = decide.decide_before_run(claim(recoveries=5), once(), False, T)
    assert "recovered 5 times" in why


@pytest.mark.parametrize(
    ("spec", "recurring", "late", "decided"),
    [
        (once(), False, 0, DONE),
        (Spec("handler", trigger=Once(datetime(2030, 1, 1, tzinfo=UTC))), False, 0, DONE),
        (every(), False, 0, DONE),
        (every(), True, 0, Finish(T + 10_000, SUCCEEDED)),
        (every(), True, 25_000, Finish(T + 30_000, SUCCEEDED)),
        (every(misfire="all"), True, 25_000, Finish(T + 10_000, SUCCEEDED)),
        (every(misfire="all", catch_up=10.0), True, 25_000, Finish(T + 20_000, SUCCEEDED)),
        (every(ends=T + 9_999), True, 0, Finish(0, SUCCEEDED)),
        (every(error_interval=60.0), True, 0, Finish(T + 10_000, SUCCEEDED)),
    ],
)
def test_after_success_one_shots_end_and_schedules_wait_for_their_next_time(spec, recurring, late, decided):
    assert bare(decide.after_success(claim(), spec, recurring, T + late)) == decided


@pytest.mark.parametrize(
    ("spec", "late", "following"),
    [
        (every(), 0, T + 10_000),
        (every(jitter=60.0), 9_999, T + 10_000),
        (every(misfire="all", overlap="buffer_all"), 10_000, T + 10_000),
        # What is behind, may end, or follows the wall clock is for after_success.
        (every(), 10_001, 0),
        (every(misfire="all"), 25_000, 0),
        (every(ends=T + 10_000), 0, 0),
        (Spec("handler", trigger=Every(10, anchor=datetime(2030, 1, 1, tzinfo=UTC))), 0, 0),
        (Spec("handler", trigger=Cron("* * * * *")), 0, 0),
        (once(), 0, 0),
    ],
)
def test_an_interval_whose_next_tick_is_to_come_waits_for_that(spec, late, following):
    assert decide.next_tick_if_on_time(claim(), spec, T + late) == following
    if following:
        assert decide.after_success(claim(), spec, True, T + late) == Finish(following, SUCCEEDED)


@pytest.mark.parametrize(
    ("attempt", "spec", "recurring", "late", "chance", "decided"),
    [
        (1, once(), False, 0, 0.0, DEAD),
        (1, once(Retry(0, "1s")), False, 0, 0.0, DEAD),
        (1, once(THREE), False, 0, 0.0, RetryIn(200)),
        (2, once(THREE), False, 0, 0.0, RetryIn(400)),
        (3, once(THREE), False, 0, 0.5, RetryIn(1_050)),
        (4, once(THREE), False, 0, 0.0, DEAD),
        (1, once(Retry(1, 0)), False, 0, 0.0, RetryIn(0)),
        (1, every(THREE), True, 0, 0.0, RetryIn(200)),
        (4, every(THREE), True, 0, 0.0, Finish(T + 10_000, FAILED)),
        (1, every(), True, 0, 0.0, Finish(T + 10_000, FAILED)),
        (1, every(), True, 25_000, 0.0, Finish(T + 30_000, FAILED)),
        (1, every(ends=T + 5), True, 0, 0.0, Finish(0, FAILED)),
        (1, every(error_interval=60.0, agent=True), True, 300, 0.0, Finish(T + 60_300, FAILED)),
        (1, every(THREE, error_interval=60.0), True, 0, 0.0, RetryIn(200)),
        (4, every(THREE, error_interval=60.0), True, 0, 0.0, Finish(T + 60_000, FAILED)),
        # An extra run of a schedule has its retries and then is dead, as any one-shot.
        (1, every(THREE), False, 0, 0.0, RetryIn(200)),
        (4, every(THREE), False, 0, 0.0, DEAD),
    ],
)
def test_after_failure_retry_says_how_often_and_how_long(attempt, spec, recurring, late, chance, decided):
    assert (
        bare(decide.after_failure(claim(attempt=attempt), spec, recurring, T + late, FailureFacts(chance))) == decided
    )


FORBIDDEN, THROTTLED = FailureClass.PERMANENT_FORBIDDEN, FailureClass.THROTTLED
TRANSIENT, SERVER_ERROR, UNKNOWN = FailureClass.TRANSIENT, FailureClass.SERVER_ERROR, FailureClass.UNKNOWN
BACKOFF = BackoffSettings(enabled=True, max_immediate_retries=2, jitter_ratio=0.1)
AGENT = every(error_interval=60.0, agent=True)
HOURLY = Spec("handler", trigger=Every(3600), policy=Policy(error_interval=300.0, agent=True))


@pytest.mark.parametrize(
    ("kind", "streak", "attempt", "spec", "recurring", "decided"),
    [
        # A one-shot with a permanent failure is dead at once, retries or not.
        (FORBIDDEN, 1, 1, once(THREE), False, DEAD),
        (FORBIDDEN, 1, 1, AGENT, True, Finish(T + 1_800_000, FAILED)),
        # The class's own delay, whatever the interval of the agent.
        (FORBIDDEN, 1, 1, HOURLY, True, Finish(T + 1_800_000, FAILED)),
        (THROTTLED, 1, 1, HOURLY, True, Finish(T + 30_000, FAILED)),
        (THROTTLED, 5, 1, HOURLY, True, Finish(T + 480_000, FAILED)),
        # Other schedules: 30 minutes, then the first of their ticks.
        (FORBIDDEN, 7, 1, every(THREE), True, Finish(T + 1_800_000, FAILED)),
        (FORBIDDEN, 1, 1, every(ends=T + 60_000), True, Finish(0, FAILED)),
        (THROTTLED, 1, 1, AGENT, True, Finish(T + 30_000, FAILED)),
        (THROTTLED, 3, 1, AGENT, True, Finish(T + 120_000, FAILED)),
        (THROTTLED, 99, 1, AGENT, True, Finish(T + 600_000, FAILED)),
        # `Retry` says how often, the class how long.
        (THROTTLED, 2, 2, once(THREE), False, RetryIn(60_000)),
        (THROTTLED, 4, 4, once(THREE), False, DEAD),
        (THROTTLED, 1, 1, every(THREE), True, RetryIn(30_000)),
        (TRANSIENT, 1, 1, AGENT, True, RetryIn(0)),
        (SERVER_ERROR, 2, 2, AGENT, True, RetryIn(0)),
        (TRANSIENT, 3, 3, AGENT, True, Finish(T + 60_000, FAILED)),
        (TRANSIENT, 1, 1, once(THREE), False, RetryIn(450)),
        (TRANSIENT, 1, 1, once(), False, DEAD),
        (UNKNOWN, 1, 1, AGENT, True, Finish(T + 60_000, FAILED)),
        (UNKNOWN, 1, 1, every(), True, Finish(T + 10_000, FAILED)),
        (UNKNOWN, 1, 1, every(THREE), True, RetryIn(450)),
    ],
)
def test_the_class_of_a_failure_says_how_long_and_retry_how_often(kind, streak, attempt, spec, recurring, decided):
    setback = FailureFacts(0.5, kind, streak)
    assert bare(decide.after_failure(claim(attempt=attempt), spec, recurring, T, setback, BACKOFF)) == decided


@pytest.mark.parametrize(("spec", "due"), [(HOURLY, T + 29_500), (every(), T + 30_000), (every(ends=T + 5), 0)])
def test_the_other_side_says_when_an_agent_comes_back_and_which_tick_another_schedule_goes_on_with(spec, due):
    decided = decide.after_failure(claim(), spec, True, T, FailureFacts(0.5, UNKNOWN, wait=29_500), BACKOFF)
    assert bare(decided).next_due == due


@pytest.mark.parametrize("kind", FailureClass)
def test_without_failure_backoff_every_failure_of_an_agent_waits_for_its_error_interval(kind):
    decided = decide.after_failure(claim(), AGENT, True, T, FailureFacts(0.5, kind, 5), replace(BACKOFF, enabled=False))
    assert bare(decided) == Finish(T + 60_000, FAILED)


@pytest.mark.parametrize(("chance", "share"), [(0.0, 0.9), (0.5, 1.0), (0.999999, 1.1)])
@pytest.mark.parametrize(
    ("kind", "enabled", "wait"),
    [
        (UNKNOWN, True, 60_000),
        (FORBIDDEN, True, 1_800_000),
        (THROTTLED, True, 30_000),
        # The default: no class has a delay of its own.
        (UNKNOWN, False, 60_000),
        (THROTTLED, False, 60_000),
    ],
)
def test_every_backoff_of_an_agent_has_jitter_both_ways(kind, enabled, wait, chance, share):
    backoff = replace(BACKOFF, enabled=enabled)
    decided = decide.after_failure(claim(), AGENT, True, T, FailureFacts(chance, kind), backoff)
    assert bare(decided).next_due == pytest.approx(T + wait * share, abs=5)


@pytest.mark.parametrize(
    ("spec", "recurring", "decided"),
    [
        (once(THREE), False, Finish(0, CANCELLED)),
        (every(THREE), True, Finish(T + 10_000, CANCELLED)),
        (every(ends=T), True, Finish(0, CANCELLED)),
    ],
)
def test_a_cancelled_run_is_not_retried(spec, recurring, decided):
    assert bare(decide.after_cancel(claim(), spec, recurring, T)) == decided
