"""What becomes of a run that was not delivered: each case a line in a table. The interval is 10 s, it was due at T."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tocsin import Every, Retry
from tocsin.engine import decide
from tocsin.engine.decide import DEAD, Decision, FailureFacts, Finish, RetryIn
from tocsin.model.failure_class import FailureClass
from tocsin.model.job import Policy, Spec
from tocsin.model.outcome import FAILED
from tocsin.model.run import Claim
from tocsin.resilience.backoff import BackoffSettings

T = 1_900_000_000_000
OFF = BackoffSettings()
ON = BackoffSettings(enabled=True, max_immediate_retries=2, jitter_ratio=0)
FORBIDDEN, THROTTLED = FailureClass.PERMANENT_FORBIDDEN, FailureClass.THROTTLED
SERVER, TRANSIENT, UNKNOWN = FailureClass.SERVER_ERROR, FailureClass.TRANSIENT, FailureClass.UNKNOWN

TWICE = Retry(2, "1s")
NEXT = Finish(T + 10_000, FAILED)


def once(retry: Retry | None = None) -> Spec:
    return Spec("handler", retry=retry)


def every(retry: Retry | None = None, **rules: float) -> Spec:
    return Spec("handler", trigger=Every("10s"), retry=retry, policy=Policy(**rules) if rules else None)  # type: ignore[arg-type]


def final(kind: FailureClass) -> FailureFacts:
    return FailureFacts(kind=kind, final=True)


def later(kind: FailureClass, wait: int) -> FailureFacts:
    return FailureFacts(kind=kind, wait=wait)


CASES: list[tuple[str, Spec, FailureFacts, BackoffSettings, int, Decision]] = [
    # 404, a refused address, a redirect: trying again does not mend it.
    ("final, one-shot", once(), final(UNKNOWN), OFF, 1, DEAD),
    ("final, one-shot with retries", once(TWICE), final(UNKNOWN), OFF, 1, DEAD),
    ("final, one-shot with retries, backoff", once(TWICE), final(UNKNOWN), ON, 1, DEAD),
    ("final, schedule", every(), final(UNKNOWN), OFF, 1, NEXT),
    ("final, schedule with retries", every(TWICE), final(UNKNOWN), OFF, 1, NEXT),
    ("final, schedule with retries, backoff", every(TWICE), final(UNKNOWN), ON, 1, NEXT),
    ("final though of a passing kind", every(TWICE), final(TRANSIENT), ON, 1, NEXT),
    # 401, 403.
    ("forbidden, one-shot", once(TWICE), final(FORBIDDEN), OFF, 1, DEAD),
    ("forbidden, one-shot, backoff", once(TWICE), final(FORBIDDEN), ON, 1, DEAD),
    ("forbidden, schedule", every(TWICE), final(FORBIDDEN), OFF, 1, NEXT),
    ("forbidden, schedule, backoff", every(TWICE), final(FORBIDDEN), ON, 1, Finish(T + 1_800_000, FAILED)),
    # 429 without a word.
    ("throttled, one-shot", once(), FailureFacts(kind=THROTTLED), OFF, 1, DEAD),
    ("throttled, one-shot with retries", once(TWICE), FailureFacts(kind=THROTTLED), OFF, 1, RetryIn(1_000)),
    ("throttled, one-shot with retries, backoff", once(TWICE), FailureFacts(kind=THROTTLED), ON, 1, RetryIn(30_000)),
    ("throttled, out of retries", once(TWICE), FailureFacts(kind=THROTTLED), ON, 3, DEAD),
    ("throttled, schedule", every(), FailureFacts(kind=THROTTLED), OFF, 1, NEXT),
    ("throttled, schedule, backoff", every(), FailureFacts(kind=THROTTLED), ON, 1, Finish(T + 30_000, FAILED)),
    # 429 and 503 that say when.
    ("asked to wait, one-shot", once(), later(THROTTLED, 5_000), OFF, 1, DEAD),
    ("asked to wait, one-shot with retries", once(TWICE), later(THROTTLED, 5_000), OFF, 1, RetryIn(5_000)),
    ("asked to wait, backoff", once(TWICE), later(THROTTLED, 5_000), ON, 1, RetryIn(5_000)),
    ("asked to wait, 503", once(TWICE), later(SERVER, 5_000), ON, 1, RetryIn(5_000)),
    ("asked to wait, out of retries", once(TWICE), later(SERVER, 5_000), OFF, 3, DEAD),
    ("asked to wait, schedule", every(), later(SERVER, 25_000), OFF, 1, Finish(T + 30_000, FAILED)),
    ("asked to wait, schedule, backoff", every(), later(THROTTLED, 25_000), ON, 1, Finish(T + 30_000, FAILED)),
    ("asked to wait, schedule with retries", every(TWICE), later(SERVER, 25_000), OFF, 1, RetryIn(25_000)),
    # 5xx and the network.
    ("passing, one-shot", once(), FailureFacts(kind=SERVER), OFF, 1, DEAD),
    ("passing, one-shot with retries", once(TWICE), FailureFacts(kind=TRANSIENT), OFF, 2, RetryIn(2_000)),
    ("passing, one-shot with retries, backoff", once(TWICE), FailureFacts(kind=SERVER), ON, 1, RetryIn(1_000)),
    ("passing, schedule", every(), FailureFacts(kind=SERVER), OFF, 1, NEXT),
    ("passing, schedule, backoff", every(), FailureFacts(kind=TRANSIENT), ON, 1, RetryIn(0)),
    ("passing, schedule, backoff, often", every(), FailureFacts(kind=TRANSIENT, streak=3), ON, 3, NEXT),
    # A certificate that cannot be verified, a secret that is not there.
    ("unknown, one-shot", once(), FailureFacts(kind=UNKNOWN), ON, 1, DEAD),
    ("unknown, one-shot with retries", once(TWICE), FailureFacts(kind=UNKNOWN), ON, 1, RetryIn(1_000)),
    ("unknown, schedule", every(), FailureFacts(kind=UNKNOWN), ON, 1, NEXT),
]


@pytest.mark.parametrize(
    ("spec", "setback", "backoff", "attempt", "decided"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_what_becomes_of_it(
    spec: Spec, setback: FailureFacts, backoff: BackoffSettings, attempt: int, decided: Decision
) -> None:
    claim = Claim("default", 0, b"job", 1, T, attempt, 0, False, T + 60_000, b"\0" * 16)
    decision = decide.after_failure(claim, spec, spec.trigger is not None, T, setback, backoff)
    if isinstance(decision, Finish):
        decision = replace(decision, skips=())
    assert decision == decided
