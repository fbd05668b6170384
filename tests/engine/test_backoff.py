"""Failures of agents: their class says when they run again, on a real worker."""

from __future__ import annotations

import pytest

from tests.support.waiting import run_dry
from tocsin import FailureClass, InvalidArgument
from tocsin.resilience.backoff import BackoffSettings

pytestmark = pytest.mark.agents

BACKOFF = BackoffSettings(enabled=True, jitter_ratio=0.0)


class VendorError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"vendor says {status}")
        self.status = status


async def test_a_program_says_what_its_own_failures_are(tocsin_app, tocsin_clock, make_worker):
    @tocsin_app.classify
    def vendor(error: BaseException) -> str | None:
        return "PERMANENT_FORBIDDEN" if isinstance(error, VendorError) and error.status == 9 else None

    @tocsin_app.agent(every="1m", error_interval="5m", name="refresh")
    async def refresh():
        raise VendorError(9)

    await run_dry(await make_worker(backoff=BACKOFF))
    job = await tocsin_app.get("refresh")
    assert job.due_ms - tocsin_clock.ms == 30 * 60_000


async def test_throttled_agents_wait_longer_each_time_and_start_over_after_a_success(
    tocsin_app, tocsin_clock, make_worker
):
    outcomes = [VendorError(429), VendorError(429), None, VendorError(429)]

    @tocsin_app.agent(every="1s", error_interval="5m", name="refresh")
    async def refresh():
        error = outcomes.pop(0)
        if error is not None:
            raise RuntimeError("wrapped") from error

    @tocsin_app.classify
    def vendor(error: BaseException) -> FailureClass | None:
        return FailureClass.THROTTLED if isinstance(error, VendorError) else None

    worker = await make_worker(backoff=BACKOFF)
    waits = []
    for _ in range(4):
        await run_dry(worker)
        waits.append((await tocsin_app.get("refresh")).due_ms - tocsin_clock.ms)
        tocsin_clock.advance(waits[-1] / 1000)
    assert waits == [30_000, 60_000, 1_000, 30_000]


@pytest.mark.parametrize(
    ("enabled", "status", "lowest", "highest"),
    [(True, 429, 27_000, 33_000), (True, 403, 1_620_000, 1_980_000), (False, 429, 270_000, 330_000)],
)
@pytest.mark.parametrize("every", ["45m", "1h"])
async def test_agents_that_fail_together_come_back_at_different_times_however_long_their_interval(
    tocsin_app, tocsin_clock, make_worker, every, enabled, status, lowest, highest
):
    @tocsin_app.classify
    def vendor(error: BaseException) -> FailureClass | None:
        return {429: FailureClass.THROTTLED, 403: FailureClass.PERMANENT_FORBIDDEN}.get(getattr(error, "status", 0))

    async def refresh():
        raise VendorError(status)

    for n in range(30):
        tocsin_app.agent(every=every, error_interval="5m", name=f"refresh {n}")(refresh)
    await run_dry(await make_worker(backoff=BackoffSettings(enabled=enabled)))
    dues = [(await tocsin_app.get(f"refresh {n}")).due_ms for n in range(30)]
    waits = [due - tocsin_clock.ms for due in dues]
    assert lowest <= min(waits) < max(waits) <= highest
    assert len(set(waits)) > 20


async def test_the_cadence_of_an_agent_goes_on_from_the_end_of_its_backoff(tocsin_app, tocsin_clock, make_worker):
    outcomes = [VendorError(429), None]

    @tocsin_app.agent(every="1h", name="refresh")
    async def refresh():
        if error := outcomes.pop(0):
            raise error

    @tocsin_app.classify
    def vendor(error: BaseException) -> FailureClass | None:
        return FailureClass.THROTTLED

    worker = await make_worker(backoff=BACKOFF)
    waits = []
    for _ in range(2):
        await run_dry(worker)
        waits.append((await tocsin_app.get("refresh")).due_ms - tocsin_clock.ms)
        tocsin_clock.advance(waits[-1] / 1000)
    assert waits == [30_000, 3_600_000]


@pytest.mark.parametrize("error", [ConnectionResetError("gone"), MemoryError()], ids=repr)
async def test_what_is_passing_is_tried_again_at_once_and_memory_is_not(tocsin_app, tocsin_clock, make_worker, error):
    ran = []

    @tocsin_app.agent(every="1s", error_interval="5m", name="refresh")
    async def refresh(run):
        ran.append((run.due, run.attempt))
        raise error

    await run_dry(await make_worker(backoff=BackoffSettings(enabled=True, jitter_ratio=0.0, max_immediate_retries=2)))
    wait = (await tocsin_app.get("refresh")).due_ms - tocsin_clock.ms
    if isinstance(error, MemoryError):
        assert (len(ran), wait) == (1, 30_000)
    else:
        assert len({due for due, _ in ran}) == 1
        assert ([attempt for _, attempt in ran], wait) == ([1, 2, 3], 300_000)


async def test_each_run_of_a_batch_has_its_own_class(tocsin_app, tocsin_clock, make_worker):
    @tocsin_app.job(batch=10)
    async def index(items):
        return [PermissionError("no") if item.args == (1,) else None for item in items]

    await tocsin_app.enqueue_many(index, [(1,), (2,)], ids=["bad", "good"])
    await run_dry(await make_worker(backoff=BACKOFF))
    assert (await tocsin_app.get("bad")).stage == "dead"
    assert await tocsin_app.get("good") is None


def test_what_cannot_classify_is_refused(tocsin_app):
    with pytest.raises(InvalidArgument):
        tocsin_app.classify("not a function")
