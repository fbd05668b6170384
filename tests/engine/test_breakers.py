"""Breakers around claims and finishes, fed by what the server really answers."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.captured_logs import capture_logs
from tests.support.servers import Server
from tests.support.waiting import eventually, run_dry
from tocsin import StoreUnavailable, Tocsin
from tocsin.engine.decide import Finish
from tocsin.engine.refused_outcomes import MOST_TRIES
from tocsin.model.errors import StoreError
from tocsin.resilience.breaker import BreakerSettings, BreakerState
from tocsin.store.transitions.claims import Deadlines
from tocsin.testing import ManualClock

QUICK = BreakerSettings(failure_threshold=3, failure_window_ms=10_000, cooldown_ms=5000, half_open_duration_ms=1000)


async def break_key(app, base: str) -> None:
    """A key that holds another type makes every script that writes to it fail."""
    [*_, keys] = [queue.keys for queue in app.store.open_queues.values() if queue.name == "line"]
    await app.store.client.delete(keys[0][base])
    await app.store.client.set(keys[0][base], "not ours")


async def mend_key(app, base: str) -> None:
    [*_, keys] = [queue.keys for queue in app.store.open_queues.values() if queue.name == "line"]
    await app.store.client.delete(keys[0][base])


@pytest.fixture
def line(tocsin_app):
    """One partition, so that one broken key breaks every claim; and a job for it."""
    tocsin_app.queue("line", partitions=1)
    ran = []

    @tocsin_app.job(queue="line")
    async def job(n):
        ran.append(n)

    job.ran = ran
    return job


async def fails(step) -> None:
    with pytest.raises(StoreError):
        await step()


async def test_claims_that_fail_open_the_breaker_and_then_nobody_asks(tocsin_app, tocsin_clock, make_worker, line):
    worker = await make_worker(queues=["line"], breaker=QUICK)
    await tocsin_app.enqueue(line, 1)
    await break_key(tocsin_app, "sessions")
    for _ in range(3):
        await fails(worker.fetcher.step)
    assert worker.parts.acquisition_breaker.state is BreakerState.OPEN
    calls = (await tocsin_app.store.client.info("commandstats"))["cmdstat_evalsha"]["calls"]
    for _ in range(20):
        assert await worker.fetcher.step() > 0
    assert (await tocsin_app.store.client.info("commandstats"))["cmdstat_evalsha"]["calls"] == calls
    status = worker.stats().acquisition_breaker
    assert (status.state, status.trips, status.blocked) == (BreakerState.OPEN, 1, 20)


async def test_after_the_cooldown_one_good_claim_closes_it(tocsin_app, tocsin_clock, make_worker, line):
    worker = await make_worker(queues=["line"], breaker=QUICK)
    await tocsin_app.enqueue(line, 1)
    await break_key(tocsin_app, "sessions")
    for _ in range(3):
        await fails(worker.fetcher.step)
    await mend_key(tocsin_app, "sessions")
    rest = await worker.fetcher.step()
    tocsin_clock.advance(rest)
    await run_dry(worker)
    assert line.ran == [1]
    status = worker.stats().acquisition_breaker
    assert (status.state, status.recoveries) == (BreakerState.CLOSED, 1)
    worker.telemetry._gather(worker.tally)
    assert worker.tally.recoveries == {"acquisition": 1, "redis": 0, "host": 0}


async def test_a_person_may_close_both(tocsin_app, make_worker, line):
    worker = await make_worker(queues=["line"], breaker=QUICK)
    await tocsin_app.enqueue(line, 1)
    await break_key(tocsin_app, "sessions")
    for _ in range(3):
        await fails(worker.fetcher.step)
    await mend_key(tocsin_app, "sessions")
    worker.reset_breakers()
    await run_dry(worker)
    assert line.ran == [1]


async def test_a_breaker_that_is_switched_off_never_opens(tocsin_app, make_worker, line):
    worker = await make_worker(queues=["line"], breaker=BreakerSettings(enabled=False))
    await tocsin_app.enqueue(line, 1)
    await break_key(tocsin_app, "sessions")
    for _ in range(10):
        await fails(worker.fetcher.step)
    await mend_key(tocsin_app, "sessions")
    await run_dry(worker)
    assert line.ran == [1]


async def claimed_and_ended(worker) -> None:
    await worker.fetcher.step()
    while worker.pool.busy:
        await asyncio.sleep(0)


async def test_a_finish_that_the_server_refuses_is_tried_once_a_pass_and_rescued(tocsin_app, make_worker, line):
    worker = await make_worker(queues=["line"], breaker=BreakerSettings(enabled=False))
    await tocsin_app.enqueue(line, 1, id="j")
    await claimed_and_ended(worker)
    await break_key(tocsin_app, "sessions")
    for _ in range(MOST_TRIES):
        await fails(worker.finisher.step)
    await mend_key(tocsin_app, "sessions")
    await worker.finisher.step()
    assert worker.finisher.idle()
    assert await tocsin_app.get("j") is None
    # The first call was no recovery yet.
    assert worker.tally.recovery == {False: MOST_TRIES - 1, True: 1}
    assert worker.tally.retry_exhausted == 0


async def test_after_three_tries_the_claim_is_given_up_and_comes_back_when_its_deadline_is_over(
    tocsin_app, tocsin_clock, make_worker, line
):
    worker = await make_worker(queues=["line"], breaker=BreakerSettings(enabled=False))
    await tocsin_app.enqueue(line, 1, id="j")
    await claimed_and_ended(worker)
    await break_key(tocsin_app, "sessions")
    with capture_logs() as logs:
        for _ in range(1 + 3):
            await fails(worker.finisher.step)
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] != []
    await mend_key(tocsin_app, "sessions")
    assert worker.finisher.idle()
    assert (worker.tally.retry_exhausted, worker.tally.recovery) == (1, {False: 3})
    # Released at once, it would run and be refused over and over.
    await worker.parts.upkeep.unheld_runs.step()
    tocsin_clock.advance("3s")
    await worker.parts.upkeep.unheld_runs.step()
    assert (await tocsin_app.get("j")).stage == "working"
    tocsin_clock.advance("1h")
    other = await make_worker(queues=["line"])
    assert await other.parts.incarnation.runs.recover(other.queues[0], 0, "", Deadlines(30_000)) == 1
    await run_dry(other)
    assert line.ran == [1, 1]


def spoil_outcome(worker, member: str) -> None:
    """The script fails on an outcome that it does not know, before it has written anything."""
    [ended] = [ended for ended in worker.finisher.outcomes.ended if ended.claim.member == member]
    ended.how, ended.decision = "decided", Finish(next_due=0, outcome=7)


async def test_one_bad_outcome_is_given_up_alone_and_the_others_are_written(tocsin_app, make_worker, line):
    worker = await make_worker(queues=["line"], concurrency=100)
    names = [f"j{n}" for n in range(50)]
    for n, name in enumerate(names):
        await tocsin_app.enqueue(line, n, id=name)
    await claimed_and_ended(worker)
    spoil_outcome(worker, "j7")
    await fails(worker.finisher.step)
    assert worker.tally.recovery.total() == 0
    await fails(worker.finisher.step)
    assert worker.tally.recovery == {True: 49, False: 1}
    assert [name for name in names if await tocsin_app.get(name) is not None] == ["j7"]
    # New ones are written meanwhile.
    await tocsin_app.enqueue(line, 50, id="new")
    worker.served["line"].mark_due(0)
    await claimed_and_ended(worker)
    with capture_logs() as logs:
        for _ in range(MOST_TRIES - 1):
            await fails(worker.finisher.step)
    assert await tocsin_app.get("new") is None
    assert [entry["jobs"] for entry in logs if "refused by the server" in entry["event"]] == [["j7"]]
    await worker.finisher.step()
    assert worker.finisher.idle()
    assert (worker.tally.retry_exhausted, worker.tally.recovery[False]) == (1, MOST_TRIES)
    assert worker.finisher.outcomes.count == 0
    assert worker.parts.redis_breaker.state is BreakerState.CLOSED


@pytest.mark.agents
async def test_an_agent_whose_outcome_was_given_up_runs_again_after_half_a_minute(
    tocsin_app, tocsin_clock, make_worker
):
    ran = []

    @tocsin_app.agent(every="1h", name="refresh")
    async def refresh():
        ran.append(tocsin_clock.monotonic())

    worker = await make_worker(queues=["agents"], breaker=BreakerSettings(enabled=False))
    await worker.reconciler.step()
    await claimed_and_ended(worker)
    sessions = worker.queues[0].keys[0]["sessions"]
    await tocsin_app.store.client.delete(sessions)
    await tocsin_app.store.client.set(sessions, "not ours")
    for _ in range(1 + MOST_TRIES):
        await fails(worker.finisher.step)
    await tocsin_app.store.client.delete(sessions)
    for seconds in (0, 3, 26):
        tocsin_clock.advance(seconds)
        await worker.parts.upkeep.unheld_runs.step()
        assert (await tocsin_app.get("refresh")).stage == "working"
    for _ in range(2):
        tocsin_clock.advance("2s")
        await worker.parts.upkeep.unheld_runs.step()
    await run_dry(worker)
    assert ran == [0, 33]
    assert (await tocsin_app.get("refresh")).stage == "waiting"


async def test_the_redis_breaker_derives_from_the_same_settings_and_holds_finishes_back(
    tocsin_app, tocsin_clock, make_worker, line
):
    worker = await make_worker(queues=["line"], breaker=QUICK)
    for n in range(3):
        await tocsin_app.enqueue(line, n)
    await claimed_and_ended(worker)
    await break_key(tocsin_app, "sessions")
    for _ in range(3):
        await fails(worker.finisher.step)
    status = worker.stats().redis_breaker
    assert status.state is BreakerState.OPEN
    # 0.7 of five seconds.
    assert 3.4 < status.probe_in <= 3.5


async def test_a_worker_whose_breaker_is_open_shows_it(tocsin_app, make_worker, line):
    worker = await make_worker(queues=["line"], breaker=QUICK)
    await tocsin_app.enqueue(line, 1)
    await break_key(tocsin_app, "sessions")
    for _ in range(3):
        await fails(worker.fetcher.step)
    await worker.telemetry.check.step()
    health = worker.stats().health
    assert (str(health.state), health.reasons) == ("DEGRADED", ("the acquisition breaker is OPEN",))
    assert worker.about().health == "DEGRADED"


# A server that is away, at the defaults: every call hangs for the 3 s of redis.connection.timeout


async def hang(clock, step) -> None:
    clock.advance("3s")
    with pytest.raises(StoreUnavailable):
        await step()


async def test_a_hanging_server_opens_both_breakers_and_the_first_beat_that_gets_through_ends_it(
    make_worker, monkeypatch
):
    monkeypatch.setattr("tocsin.store.calls.PATIENCE_S", 0.0)
    clock, ran = ManualClock(), []
    with Server.valkey(aof=True) as server:
        async with Tocsin(server.url, clock=clock) as app:

            @app.job
            async def job(n):
                ran.append(n)

            worker = await make_worker(app)
            await app.enqueue(job, 1)
            await claimed_and_ended(worker)
            server.kill()
            worker.served["default"].forget_dues()
            for _ in range(4):
                await hang(clock, worker.fetcher.step)
            assert (worker.parts.acquisition_breaker.state, worker.held()) == (BreakerState.CLOSED, 0.0)
            await hang(clock, worker.fetcher.step)
            assert (worker.parts.acquisition_breaker.state, worker.held()) == (BreakerState.OPEN, 30.0)
            for _ in range(3):
                await hang(clock, worker.finisher.step)
            assert worker.parts.redis_breaker.state is BreakerState.OPEN
            # After the cooldown the heart alone tries, until it hears the server.
            await asyncio.to_thread(worker.heart.beat)
            clock.advance("1m")
            assert worker.parts.redis_breaker.state is BreakerState.HALF_OPEN
            assert worker.held() > 0
            server.start()
            await asyncio.to_thread(worker.heart.beat)
            await eventually(lambda: worker.held() == 0, "the parts may call")
            await run_dry(worker)
            await app.enqueue(job, 2)
            worker.served["default"].mark_due(0)
            await run_dry(worker)
            assert ran == [1, 2]
            states = worker.parts.acquisition_breaker.state, worker.parts.redis_breaker.state
            assert states == (BreakerState.CLOSED, BreakerState.CLOSED)
            await worker.kill()


@pytest.mark.agents
async def test_a_worker_none_of_whose_agents_is_due_finds_out_too(make_worker, monkeypatch):
    monkeypatch.setattr("tocsin.store.calls.PATIENCE_S", 0.0)
    clock = ManualClock()
    with Server.valkey(aof=True) as server:
        async with Tocsin(server.url, clock=clock) as app:

            @app.agent(every="1h", name="refresh")
            async def refresh():
                pass

            worker = await make_worker(app, queues=["agents"])
            await worker.reconciler.register()
            await run_dry(worker)
            server.kill()
            for _ in range(5):
                assert worker.held() == 0.0
                await hang(clock, worker.fetcher.step)
            assert (worker.parts.acquisition_breaker.state, worker.held()) == (BreakerState.OPEN, 30.0)
            # Nobody asks meanwhile.
            clock.advance("3s")
            assert await worker.fetcher.step() > 0
            server.start()
            await asyncio.to_thread(worker.heart.beat)
            await eventually(lambda: worker.held() == 0, "the parts may call")
            clock.advance("3s")
            await run_dry(worker)
            assert worker.parts.acquisition_breaker.state is BreakerState.CLOSED
            await worker.kill()


async def calls_of(app) -> dict[str, int]:
    """How often each command was called, without those of this test."""
    stats = await app.store.client.info("commandstats")
    return {name: about["calls"] for name, about in stats.items() if name != "cmdstat_info"}


@pytest.mark.agents
async def test_while_the_redis_breaker_is_open_no_part_calls_the_server_but_the_heart(tocsin_app, make_worker):
    @tocsin_app.agent(every="30s", name="refresh")
    async def refresh():
        pass

    worker = await make_worker(beat_s=3600.0, start=True)
    await eventually(lambda: worker.stats().ran == 1 and worker.stats().leading, "it is at work")
    for _ in range(3):
        worker.parts.redis_breaker.failed(worker.parts.redis_breaker.allow())
    assert worker.parts.redis_breaker.state is BreakerState.OPEN
    # Claims have a breaker of their own.
    for _ in range(5):
        worker.parts.acquisition_breaker.failed(worker.parts.acquisition_breaker.allow())

    async def wake_all() -> None:
        for part in worker._looped.values():
            part.wake.set()
        for _ in range(100):
            await asyncio.sleep(0.001)

    await wake_all()
    before = await calls_of(tocsin_app)
    for _ in range(3):
        await wake_all()
    assert await calls_of(tocsin_app) == before
    worker.reset_breakers()
    await eventually(lambda: _more_calls(tocsin_app, before), "they go on")


async def _more_calls(app, before: dict[str, int]) -> bool:
    after = await calls_of(app)
    return after["cmdstat_evalsha"] > before["cmdstat_evalsha"]


async def test_claims_that_the_server_refuses_hold_up_claims_only(tocsin_app, make_worker, line):
    """Other parts may be what mends it."""
    worker = await make_worker(queues=["line"])
    await tocsin_app.enqueue(line, 1)
    await break_key(tocsin_app, "sessions")
    for _ in range(5):
        await fails(worker.fetcher.step)
    assert (worker.parts.acquisition_breaker.state, worker.held()) == (BreakerState.OPEN, 0.0)
