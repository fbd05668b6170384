"""What the Redis Priority Scheduler promises and no other test shows, on a real worker."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.captured_logs import capture_logs
from tests.support.servers import Server
from tests.support.waiting import Gate, eventually, run_dry
from tocsin import StoreUnavailable, Tocsin
from tocsin.engine.claim_planner import Batching
from tocsin.model.queue import AGENTS_QUEUE
from tocsin.resilience.backoff import BackoffSettings
from tocsin.resilience.breaker import BreakerSettings, BreakerState
from tocsin.store.store import LARGEST_BATCH
from tocsin.upkeep.agent_ownership import Ownership
from tocsin.upkeep.health import Signal
from tocsin.worker.settings import Cleanup, StopTimes, ZombieRules

pytestmark = pytest.mark.agents

# Failures


class VendorError(Exception):
    def __init__(self, status: int | None, message: str = "no") -> None:
        super().__init__(message)
        self.status = status


@pytest.mark.parametrize(
    ("error", "minutes"),
    [
        (VendorError(403), 30),
        (VendorError(None, "AccessDenied: not yours"), 30),
        (VendorError(429), 0.5),
        (VendorError(None, "API rate limit exceeded"), 0.5),
        (MemoryError(), 0.5),
        (VendorError(503), 5),
        (ConnectionResetError("gone"), 5),
        (VendorError(404), 5),
    ],
    ids=repr,
)
async def test_what_a_vendor_answers_says_how_long_an_agent_waits(
    tocsin_app, tocsin_clock, make_worker, error, minutes
):
    @tocsin_app.agent(every="30s", error_interval="5m", name="refresh")
    async def refresh():
        raise error

    await run_dry(await make_worker(backoff=BackoffSettings(enabled=True, jitter_ratio=0.0)))
    assert (await tocsin_app.get("refresh")).due_ms - tocsin_clock.ms == minutes * 60_000


# Outcomes and breakers


async def evalsha_calls(app: Tocsin) -> int:
    return (await app.store.client.info("commandstats"))["cmdstat_evalsha"]["calls"]


async def test_while_the_breaker_is_open_outcomes_wait_and_no_try_is_spent(tocsin_app, tocsin_clock, make_worker):
    @tocsin_app.agent(every="30s", name="refresh")
    async def refresh():
        pass

    worker = await make_worker()
    await worker.reconciler.step()
    await worker.fetcher.step()
    while worker.pool.busy:
        await asyncio.sleep(0)
    for _ in range(3):
        worker.parts.redis_breaker.failed(worker.parts.redis_breaker.allow())
    assert worker.parts.redis_breaker.state is BreakerState.OPEN
    calls = await evalsha_calls(tocsin_app)
    rests = [await worker.finisher.step() for _ in range(10)]
    assert await evalsha_calls(tocsin_app) == calls
    assert not worker.finisher.idle()
    assert (worker.tally.retry_exhausted, worker.tally.recovery.total()) == (0, 0)
    tocsin_clock.advance(rests[-1])
    await worker.finisher.step()
    assert worker.finisher.idle()
    job = await tocsin_app.get("refresh")
    assert (job.stage, job.succeeded) == ("waiting", 1)


async def test_a_server_that_is_away_trips_the_breaker_and_the_first_heartbeat_opens_the_way(monkeypatch, make_worker):
    monkeypatch.setattr("tocsin.store.calls.PATIENCE_S", 0.0)
    ran = []
    with Server.valkey(aof=True) as server:
        async with Tocsin(server.url) as app:

            @app.job
            async def job():
                ran.append(1)

            await app.enqueue(job)
            worker = await make_worker(app, breaker=BreakerSettings(failure_threshold=2, cooldown_ms=3_600_000))
            server.kill()
            for _ in range(2):
                with pytest.raises(StoreUnavailable):
                    await worker.fetcher.step()
            assert worker.parts.acquisition_breaker.state is BreakerState.OPEN
            assert await worker.fetcher.step() > 60
            assert worker.stats().acquisition_breaker.blocked == 1
            server.start()
            await asyncio.to_thread(worker.heart.beat)
            await eventually(lambda: worker.parts.acquisition_breaker.state is BreakerState.HALF_OPEN, "it may try")
            await run_dry(worker)
            assert ran == [1]
            status = worker.stats().acquisition_breaker
            assert (status.state, status.trips, status.recoveries) == (BreakerState.CLOSED, 1, 1)
            await worker.kill()


async def test_a_run_that_no_thread_could_be_started_for_is_counted(tocsin_app, make_worker, monkeypatch):
    @tocsin_app.agent(every="30s", name="refresh")
    def refresh():
        raise AssertionError("must not run")

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    worker = await make_worker()
    await worker.reconciler.step()
    monkeypatch.setattr("tocsin.targets.python.threads.threading.Thread.start", refuse)
    await worker.fetcher.step()
    while worker.pool.busy:
        await asyncio.sleep(0)
    worker.telemetry._gather(worker.tally)
    assert worker.tally.submission_failures == 1
    assert worker.pool.free() == worker.pool.permits
    monkeypatch.undo()
    await worker.finisher.step()
    assert (await tocsin_app.get("refresh")).stage == "waiting"


# Order


@pytest.mark.parametrize("permits", [1, 2, 100])
async def test_the_agent_that_is_due_longest_runs_first_and_of_equals_the_first_by_name(
    tocsin_app, tocsin_clock, make_worker, permits
):
    ran: list[str] = []

    async def agent(run):
        ran.append(run.job_id)

    for names in (("z", "y"), ("c", "d"), ("b", "a")):
        for name in names:
            tocsin_app.agent(every="1h", name=name)(agent)
        await tocsin_app.register_agents()
        tocsin_clock.advance("1s")
    await run_dry(await make_worker(queues=[AGENTS_QUEUE], concurrency=permits))
    assert ran == ["y", "z", "c", "d", "a", "b"]


# Patterns


@pytest.mark.parametrize(("extra_attempts", "found"), [(0.0, []), (0.5, ["mine"]), (1.0, ["mine"])])
async def test_extra_attempts_find_extra_runs_that_wait_behind_a_page_of_others(
    tocsin_app, tocsin_clock, make_worker, extra_attempts, found
):
    ran: list[str] = []

    @tocsin_app.agent(every="1h", name="mine")
    async def mine(run):
        ran.append(run.job_id)

    worker = await make_worker(batching=Batching(extra_attempts=extra_attempts))
    await worker.reconciler.step()
    await run_dry(worker)
    ran.clear()
    tocsin_clock.advance("1m")
    await tocsin_app.fire("mine")
    waiting = worker.served[AGENTS_QUEUE].queue.keys[0]["waiting"]
    foreign = {f"foreign-{n}": tocsin_clock.ms - 1 for n in range(LARGEST_BATCH)}
    await tocsin_app.store.client.zadd(waiting, foreign)
    await tocsin_app.store.client.zadd(waiting, {b"\xff\xfe": 1})
    worker.served[AGENTS_QUEUE].mark_due(0)
    await run_dry(worker)
    assert ran == found
    # The next look goes on where this one ended.
    worker.served[AGENTS_QUEUE].mark_due(0)
    await run_dry(worker)
    assert ran == ["mine"]


@pytest.mark.parametrize(("extra_attempts", "claimed"), [(0.0, 0), (0.5, 1)])
async def test_extra_attempts_find_an_agent_behind_those_that_another_worker_has_taken(
    tocsin_app, tocsin_clock, make_worker, extra_attempts, claimed
):
    gate = Gate()
    for n in range(80):

        @tocsin_app.agent(every="30s", name=f"agent-{n:02d}")
        async def agent(run):
            await gate.enter(run.job_id)

    batching = Batching(extra_attempts=extra_attempts)
    mine = await make_worker(queues=[AGENTS_QUEUE], concurrency=1, batching=batching)
    other = await make_worker(queues=[AGENTS_QUEUE], concurrency=60)
    await other.fetcher.step()
    assert other.fetcher.claimed == 60
    # A worker with one permit names fifty ids in a claim: all of them are taken by now.
    await mine.fetcher.step()
    assert mine.fetcher.claimed == claimed
    # Without extra attempts it names the next ones in its next claim.
    await mine.fetcher.step()
    assert mine.fetcher.claimed == 1


async def test_agents_that_a_worker_may_not_run_are_nothing_that_it_is_behind_with(
    tocsin_app, tocsin_clock, make_worker
):
    for name in ("aws-1", "aws-2", "gcp-1"):

        @tocsin_app.agent(every="10s", name=name)
        async def agent():
            pass

    await tocsin_app.register_agents()
    tocsin_clock.advance("1h")
    mine, nobodys = await make_worker(owns=Ownership("gcp-.*")), await make_worker(owns=Ownership(".*", ".*"))
    for worker in (mine, nobodys):
        await worker.reconciler.step()
        for _ in range(3):
            await worker.telemetry.check.step()
    assert (mine.telemetry.check.snapshot.ready, nobodys.telemetry.check.snapshot.ready) == (1, 0)
    assert any(reason.startswith("slot filling") for reason in mine.stats().health.reasons)
    assert mine.stats().signals == (Signal.CAPACITY_SKEW, Signal.ZERO_PROGRESS)
    assert (nobodys.stats().health.reasons, nobodys.stats().signals) == ((), ())


# Upkeep


async def test_the_summary_of_a_worker_is_in_its_log_each_period(tocsin_app, tocsin_clock, make_worker):
    for name in ("a", "b"):

        @tocsin_app.agent(every="2h", name=name)
        async def agent():
            pass

    worker = await make_worker(summary_s=600.0)
    await worker.reconciler.step()
    await run_dry(worker)
    with capture_logs() as logs:
        for _ in range(30):
            await worker.telemetry.check.step()
            tocsin_clock.advance("1m")
    lines = [entry["event"] for entry in logs if entry["event"].startswith("Scheduler health")]
    assert len(lines) == 2
    for field in (
        "health=HEALTHY",
        "[agents registered=2 active=futures=0 scripts=",
        "[backlog ready=0 oldest_overdue=0s capacity_per_cycle=100]",
        "[permits 100/100 (100.0%)]",
        "[cleanup zombies_cleaned=0 orphans_cleaned=0]",
        "queue_depth=2",
    ):
        assert field in lines[0]


async def test_without_an_election_each_worker_cleans_up_in_its_shard(tocsin_app, tocsin_clock, make_worker):
    @tocsin_app.agent(every="1h", name="a")
    async def agent():
        pass

    aws, gcp = [
        await make_worker(owns=Ownership(pattern), cleanup=Cleanup(force_all=True)) for pattern in ("aws-.*", "gcp-.*")
    ]
    client, keys = tocsin_app.store.client, aws.served[AGENTS_QUEUE].queue.keys[0]
    await client.zadd(keys["waiting"], {"aws-1": tocsin_clock.ms, "gcp-1": tocsin_clock.ms, "gcp-2": tocsin_clock.ms})
    # Only agents have shards.
    await client.zadd(aws.served["default"].queue.keys[0]["waiting"], {"gcp-3": tocsin_clock.ms})
    for worker in (aws, gcp):
        await worker.parts.upkeep.elector.step()
        await worker.parts.upkeep.orphan_cleaner.step()
    assert (aws.stats().orphans, gcp.stats().orphans) == (2, 2)
    assert await client.get(tocsin_app.store.keys.leader()) is None


@pytest.mark.parametrize(("cleanup", "leads"), [(Cleanup(), True), (None, False)])
async def test_orphan_cleanup_that_is_switched_off_elects_nobody_and_cleans_nothing(
    tocsin_app, tocsin_clock, make_worker, cleanup, leads
):
    @tocsin_app.agent(every="1h", name="a")
    async def agent():
        pass

    worker = await make_worker(cleanup=cleanup)
    waiting = worker.served[AGENTS_QUEUE].queue.keys[0]["waiting"]
    await tocsin_app.store.client.zadd(waiting, {"stray": tocsin_clock.ms})
    await worker.start()
    await eventually(lambda: worker.stats().ran == 1, "its agent has run")
    await eventually(lambda: worker.stats().leading is leads, "it leads, if anybody does")
    # At once, and not when the next interval is over.
    await eventually(lambda: worker.stats().orphans == leads, "it cleans up, if anybody does")
    assert await tocsin_app.store.client.zscore(waiting, "stray") == (None if leads else tocsin_clock.ms)
    assert (await tocsin_app.store.client.get(tocsin_app.store.keys.leader()) is not None) is leads


@pytest.mark.parametrize("part", ["reconcile", "sweep", "orphans"])
@pytest.mark.parametrize(
    ("ending", "how"),
    [(StopTimes(30.0, 30.0), "by itself"), (StopTimes(0.0, 30.0), "cleaned up"), (StopTimes(0.0, 0.0), "cut off")],
)
async def test_a_stop_waits_for_each_part_as_long_as_its_two_keys_say(tocsin_app, make_worker, part, ending, how):
    @tocsin_app.agent(every="1h", name="a")
    async def agent():
        pass

    usual = StopTimes(30.0, 30.0)
    endings = {name: ending if name == part else usual for name in ("reconcile", "sweep", "orphans")}
    worker = await make_worker(
        start=True,
        reconcile_ending=endings["reconcile"],
        zombies=ZombieRules(ending=endings["sweep"]),
        cleanup=Cleanup(ending=endings["orphans"]),
    )
    # To lead wakes the parts of a leader.
    await eventually(lambda: worker.stats().leading, "it leads")
    inside, told = asyncio.Event(), []

    async def take_a_while() -> None:
        for _ in range(10_000):
            await asyncio.sleep(0)

    async def slow_pass() -> float:
        inside.set()
        try:
            # Set when a stop comes to this part.
            await looped.wake.wait()
            await take_a_while()
            told.append("by itself")
        except asyncio.CancelledError:
            try:
                await take_a_while()
                told.append("cleaned up")
            except asyncio.CancelledError:
                told.append("cut off")
            raise
        return 60.0

    looped = {"reconcile": worker.reconciler, "sweep": worker.sweep, "orphans": worker.parts.upkeep.orphan_cleaner}[
        part
    ]
    looped.step = slow_pass
    looped.wake.set()
    await asyncio.wait_for(inside.wait(), 10)
    await worker.kill()
    assert told == [how]
