"""Keys of the Redis Priority Scheduler in a file, and what a worker then does: at the default, and at another value."""

from __future__ import annotations

import asyncio
import contextlib
import secrets

import pytest

from tests.support.captured_logs import capture_logs
from tests.support.waiting import Gate, eventually, run_dry
from tocsin import Tocsin
from tocsin.config import Config, merged, read_mapping
from tocsin.worker import Worker

pytestmark = pytest.mark.agents

S = "redis.scheduler"
BACKOFF = f"{S}.failure-backoff"


@pytest.fixture
async def configured(tocsin_server, tocsin_clock, topology):
    """An app with these settings, in a namespace of its own."""
    needed = {f"{S}.keys.hash-tag": "ps"} if topology == "cluster" else {}
    async with contextlib.AsyncExitStack() as opened:

        async def open_app(settings: dict[str, object]) -> Tocsin:
            given = {f"{S}.keys.prefix": f"keys-{secrets.token_hex(4)}:", **needed, **settings}
            config = merged(Config(), read_mapping(given)).config
            return await opened.enter_async_context(Tocsin(tocsin_server.url, clock=tocsin_clock, config=config))

        yield open_app


@pytest.fixture
async def by_hand():
    """A worker of the agents that does nothing by itself, as the app is configured."""
    made: list[Worker] = []

    async def build(app: Tocsin) -> Worker:
        made.append(await app.worker(queues=["agents"]))
        await asyncio.to_thread(made[-1].heart.beat)
        return made[-1]

    yield build
    for worker in made:
        await worker.kill()


def declare(app: Tocsin, count: int = 1, act=None, prefix: str = "agent", **options) -> list[str]:
    async def agent(run):
        if act is not None:
            await act(run)

    names = [f"{prefix}-{n:03d}" for n in range(count)]
    for name in names:
        app.agent(**{"every": "30s", "name": name, **options})(agent)
    return names


async def due_in(app: Tocsin, name: str, clock) -> float:
    """Seconds from now."""
    return ((await app.get(name, queue="agents")).due_ms - clock.ms) / 1000


# Quick Start

QUICK_START = """
redis:
  scheduler:
    enabled: true
    type: priority
  agent:
    max-concurrent-agents: 100  # Instance-wide limit; ≤0 = unbounded mode
"""


async def test_the_seeds_quick_start_is_enough_to_run_agents(tocsin_server, tmp_path):
    (tmp_path / "tocsin.yaml").write_text(QUICK_START)
    prefix = f"quick-{secrets.token_hex(4)}:"
    async with Tocsin(tocsin_server.url, prefix=prefix, config=tmp_path / "tocsin.yaml") as app:
        ran: list[str] = []

        async def note(run):
            ran.append(run.job_id)

        names = declare(app, 3, note, every="200ms")
        working = asyncio.create_task(app.work())
        await eventually(lambda: all(ran.count(name) >= 2 for name in names), "each ran again and again")
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


# redis.agent.*


@pytest.mark.parametrize(("settings", "inside"), [({}, 100), ({"redis.agent.max-concurrent-agents": 5}, 5),
                                                  ({"redis.agent.max-concurrent-agents": 0}, 120)])  # fmt: skip
async def test_a_worker_runs_as_many_agents_at_once_as_max_concurrent_agents_says(
    configured, by_hand, settings, inside
):
    app, gate = await configured(settings), Gate()
    declare(app, 120, lambda run: gate.enter(run.job_id))
    worker = await by_hand(app)
    for _ in range(10):
        await worker.fetcher.step()
    await eventually(lambda: len(gate.inside) == inside, "all permits are taken")
    assert worker.fetcher.claimed == inside


@pytest.mark.parametrize(
    ("settings", "runs"),
    [
        ({}, ["aws", "gcp"]),
        ({"redis.agent.enabled-pattern": "aws-.*"}, ["aws"]),
        ({"redis.agent.disabled-pattern": "aws-.*"}, ["gcp"]),
        ({"redis.agent.enabled-pattern": ".*", "redis.agent.disabled-pattern": ".*"}, []),
    ],
    ids=str,
)
async def test_the_patterns_say_which_agents_run_here_and_the_disabled_one_wins(configured, by_hand, settings, runs):
    app, ran = await configured(settings), set()

    async def note(run):
        ran.add(run.job_id.partition("-")[0])

    declare(app, 2, note, "aws")
    declare(app, 2, note, "gcp")
    await run_dry(await by_hand(app))
    assert sorted(ran) == runs


# redis.scheduler.*


@pytest.mark.parametrize(("settings", "runs"), [({}, 1), ({f"{S}.enabled": False}, 0)], ids=str)
async def test_a_scheduler_that_is_not_enabled_runs_nothing(configured, settings, runs):
    app, ran = await configured(settings), []

    async def note(run):
        ran.append(run.job_id)

    declare(app, 1, note)
    worker = await app.worker()
    await worker.start()
    if runs:
        await eventually(lambda: ran, "it runs")
    else:
        # All its parts have had their turn.
        await eventually(lambda: worker.telemetry.check.snapshot.ready == 1, "it looked at what is ready")
        assert worker.stats().claimed == 0
    await worker.stop(grace=0)
    assert len(ran) == runs


@pytest.mark.parametrize(("settings", "seconds"), [({}, 30), ({f"{S}.refresh-period-seconds": 5}, 5)], ids=str)
async def test_agents_are_synchronised_each_refresh_period(configured, by_hand, tocsin_clock, settings, seconds):
    app = await configured(settings)
    [name] = declare(app)
    worker = await by_hand(app)
    await app.remove(name, queue="agents")
    assert await worker.reconciler.step() == pytest.approx(seconds)
    assert await app.get(name, queue="agents") is not None


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        ({}, 6),
        ({f"{S}.health-summary-period-seconds": 60}, 60),
        ({f"{S}.health-summary-period-seconds": 0}, 0),
        ({f"{S}.health-summary-period-seconds": -1}, 0),
    ],
    ids=str,
)
async def test_the_summary_is_logged_each_period_and_never_at_zero_or_less(
    configured, by_hand, tocsin_clock, settings, lines
):
    app = await configured(settings)
    declare(app, 1, every="2h")
    worker = await by_hand(app)
    await run_dry(worker)
    with capture_logs() as logs:
        for _ in range(60):
            tocsin_clock.advance("1m")
            await worker.telemetry.check.step()
    summaries = [line for line in logs if line["event"].startswith("Scheduler health")]
    assert lines - 1 <= len(summaries) <= lines


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({}, 20),
        ({f"{S}.batch-operations.batch-size": 7}, 7),
        ({f"{S}.batch-operations.batch-size": -1}, 20),
        ({f"{S}.batch-operations.enabled": False}, 1),
    ],
    ids=str,
)
async def test_a_claim_brings_a_batch_of_the_configured_size(configured, by_hand, settings, most):
    """How many agents one claim brings."""
    app = await configured(settings)
    declare(app, 20)
    worker = await by_hand(app)
    await worker.fetcher.step()
    assert worker.fetcher.claimed == most
    await run_dry(worker)
    assert worker.pool.ran == 20


@pytest.mark.parametrize(
    ("settings", "longest"), [({}, 0), ({f"{S}.jitter.initial-registration-seconds": 60}, 60)], ids=str
)
async def test_new_agents_are_spread_over_the_initial_registration_jitter(
    configured, by_hand, tocsin_clock, settings, longest
):
    app = await configured(settings)
    names = declare(app, 50)
    await by_hand(app)
    dues = [await due_in(app, name, tocsin_clock) for name in names]
    assert min(dues) >= 0
    assert max(dues) <= longest
    assert max(dues) >= longest / 2


# redis.scheduler.failure-backoff.*


class VendorError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


async def waits_after(configured, by_hand, clock, settings, error: Exception, failures: int) -> list[float]:
    """How long one agent, with an error interval of five minutes, waits after each of so many failures in a row."""
    app = await configured({f"{S}.jitter.failure-backoff-ratio": 0.0, **settings})

    async def fail(run):
        raise error

    [name] = declare(app, 1, fail, error_interval="5m")
    worker, waits = await by_hand(app), []
    for _ in range(failures):
        # A worker that has not beaten for long claims nothing.
        await asyncio.to_thread(worker.heart.beat)
        await worker.fetcher.step()
        await eventually(lambda: not worker.pool.busy, "it has failed")
        while not worker.finisher.idle():
            await worker.finisher.step()
        waits.append(await due_in(app, name, clock))
        clock.advance(max(waits[-1], 0))
    return waits


ON = {f"{BACKOFF}.enabled": True}


@pytest.mark.parametrize(
    ("settings", "error", "waits"),
    [
        # Off, the default: whatever it is, the error interval.
        ({}, VendorError(403), [300, 300]),
        ({}, VendorError(429), [300, 300]),
        ({}, ConnectionResetError(), [300, 300]),
        # On, with the defaults of all other keys.
        (ON, VendorError(403), [1800, 1800]),
        (ON, VendorError(429), [30, 60, 120, 240, 480, 600, 600]),
        (ON, MemoryError(), [30, 60]),
        (ON, ConnectionResetError(), [300, 300]),
        (ON, VendorError(503), [300, 300]),
        (ON, VendorError(404), [300, 300]),
        # Each key by itself.
        ({**ON, f"{BACKOFF}.permanent-forbidden-backoff-ms": 60_000}, VendorError(403), [60, 60]),
        ({**ON, f"{BACKOFF}.throttled.base-ms": 1000}, VendorError(429), [1, 2, 4]),
        ({**ON, f"{BACKOFF}.throttled.multiplier": 3.0}, VendorError(429), [30, 90, 270]),
        ({**ON, f"{BACKOFF}.throttled.cap-ms": 45_000}, VendorError(429), [30, 45, 45]),
        ({**ON, f"{BACKOFF}.max-immediate-retries": 2}, ConnectionResetError(), [0, 0, 300]),
        ({**ON, f"{BACKOFF}.max-immediate-retries": 2}, VendorError(503), [0, 0, 300]),
        ({**ON, f"{BACKOFF}.max-immediate-retries": 2}, VendorError(404), [300]),
    ],
    ids=lambda value: repr(value)[-60:],
)
async def test_each_kind_of_failure_waits_as_its_keys_say(configured, by_hand, tocsin_clock, settings, error, waits):
    found = await waits_after(configured, by_hand, tocsin_clock, settings, error, len(waits))
    assert found == waits


@pytest.mark.parametrize(("settings", "ratio"), [({}, 0.1), ({f"{S}.jitter.failure-backoff-ratio": 0.5}, 0.5)], ids=str)
async def test_waits_after_failures_vary_by_the_ratio_to_both_sides(configured, by_hand, tocsin_clock, settings, ratio):
    app = await configured({**ON, **settings})

    async def fail(run):
        raise VendorError(429)

    names = declare(app, 60, fail)
    await run_dry(await by_hand(app))
    waits = [await due_in(app, name, tocsin_clock) for name in names]
    assert min(waits) >= 30 * (1 - ratio)
    assert max(waits) <= 30 * (1 + ratio)
    # To both sides, and over most of the span.
    assert min(waits) < 30 * (1 - ratio / 2)
    assert max(waits) > 30 * (1 + ratio / 2)


# redis.scheduler.keys.*


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, ["waiting", "working", "cleanup-leader"]),
        ({f"{S}.keys.waiting-set": "line"}, ["line", "working", "cleanup-leader"]),
        ({f"{S}.keys.working-set": "busy"}, ["waiting", "busy", "cleanup-leader"]),
        ({f"{S}.keys.cleanup-leader-key": "chief"}, ["waiting", "working", "chief"]),
        ({f"{S}.keys.hash-tag": "ps"}, ["waiting{ps}", "working{ps}", "cleanup-leader{ps}"]),
    ],
    ids=str,
)
@pytest.mark.one_server(reason="on a cluster they have a hash tag")
async def test_the_sets_and_the_leader_have_the_configured_names(configured, by_hand, settings, names):
    app, gate = await configured({f"{S}.keys.prefix": "myapp:", **settings}), Gate()
    declare(app, 2, lambda run: gate.enter(run.job_id))
    worker = await by_hand(app)
    # One waits, one is at work, and somebody leads.
    worker.pool.permits = 1
    await worker.fetcher.step()
    await eventually(lambda: gate.inside, "one runs")
    await worker.parts.upkeep.elector.step()
    client = app.store.client
    try:
        kinds = [await client.type(f"myapp:{name}") for name in names]
        assert kinds == [b"zset", b"zset", b"string"]
    finally:
        await worker.kill()
        for key in [key async for key in client.scan_iter("myapp:*")]:
            await client.delete(key)
