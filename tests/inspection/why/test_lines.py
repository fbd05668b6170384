"""What is said of a job that is due: who is before it, what its queue and its tenant allow, who could run it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tests.support.worker_steps import claim, put_inside
from tocsin import Tocsin
from tocsin.inspection.why import JobExplainer
from tocsin.model.errors import StoreError
from tocsin.resilience.breaker import BreakerSettings
from tocsin.worker import Worker


async def told(app: Tocsin, job_id: str):
    """What it is doing, and the reasons by kind."""
    doing, *reasons = (await app.why(job_id)).reasons
    return doing, {reason.kind: reason for reason in reasons}


# Nothing in the way


async def test_a_job_that_is_due_with_nothing_in_its_way_says_so(tocsin_app, mail, make_worker):
    await make_worker()
    await tocsin_app.enqueue(mail, id="j")
    doing, reasons = await told(tocsin_app, "j")
    assert (doing.kind, reasons) == ("due", {})
    assert "nothing is in its way" in doing.says
    assert "microseconds" in doing.says


async def test_one_that_waits_all_the_same_says_where_to_look(tocsin_app, tocsin_clock, mail, make_worker):
    await make_worker()
    await tocsin_app.enqueue(mail, id="j")
    tocsin_clock.advance("90s")
    doing, reasons = await told(tocsin_app, "j")
    assert (doing.kind, list(reasons)) == ("due", ["unexplained"])
    assert "1m30s" in reasons["unexplained"].says


@pytest.mark.agents
async def test_an_agent_that_nobody_takes_says_what_ownership_depends_on(tocsin_app, tocsin_clock, make_worker):
    @tocsin_app.agent(every="1m", name="refresh")
    async def refresh():
        pass

    await make_worker(owns=lambda name: False)
    await tocsin_app.register_agents()
    tocsin_clock.advance("5m")
    _, reasons = await told(tocsin_app, "refresh")
    assert "--shard" in reasons["maybe_not_owned"].do[0]


# The line


async def test_a_job_says_how_many_are_before_it_in_its_partition(tocsin_app, tocsin_clock, mail, make_worker):
    await make_worker()
    for n in range(3):
        await tocsin_app.enqueue(mail, id=f"j{n}")
        tocsin_clock.advance("1s")
    await tocsin_app.enqueue(mail, id="later", delay="1h")
    doing, reasons = await told(tocsin_app, "j2")
    assert (doing.kind, reasons["behind"].facts["ahead"]) == ("in_line", 2)
    assert "behind 2 jobs in line" in reasons["behind"].says
    assert "behind" not in (await told(tocsin_app, "j0"))[1]


@pytest.fixture
def urgent(tocsin_app, gate):
    """A job of a queue by priority."""
    tocsin_app.queue("urgent", order="priority", max_active=1)

    @tocsin_app.job(name="urgent", queue="urgent")
    async def urgent():
        await gate.enter()

    return urgent


async def test_in_a_queue_by_priority_those_of_higher_bands_are_before_it(tocsin_app, urgent, make_worker):
    await make_worker()
    for n, priority in enumerate(["low", "low", "high", "background", "critical"]):
        await tocsin_app.enqueue(urgent, id=f"{priority} {n}", priority=priority)
    _, reasons = await told(tocsin_app, "low 1")
    assert reasons["behind"].facts == {"ahead": 3, "entering": 0}
    assert "its priority 'low'" in reasons["behind"].says


async def test_with_aging_the_age_of_a_band_is_told(tocsin_app, tocsin_clock, urgent, make_worker):
    await make_worker()
    await tocsin_app.enqueue(urgent, id="old", priority="low")
    tocsin_clock.advance("90s")
    await tocsin_app.enqueue(urgent, id="new", priority="high")
    await tocsin_app.queue_update("urgent", aging="1m")
    _, reasons = await told(tocsin_app, "old")
    assert "a band counts as 1m of age" in reasons["behind"].says
    tocsin_clock.advance("1h")
    await tocsin_app.enqueue(urgent, id="newer", priority="critical")
    _, reasons = await told(tocsin_app, "old")
    assert reasons["behind"].facts["ahead"] == 1


async def test_what_has_fallen_due_and_is_not_in_line_yet_is_told(tocsin_app, tocsin_clock, urgent, make_worker):
    await make_worker()
    await tocsin_app.enqueue(urgent, id="first")
    for n in range(2):
        await tocsin_app.enqueue(urgent, id=f"j{n}", delay="1s")
    tocsin_clock.advance("1s")
    _, reasons = await told(tocsin_app, "j1")
    assert reasons["behind"].facts == {"ahead": 1, "entering": 1}
    assert "1 other became due" in reasons["behind"].says


@pytest.fixture
def shared(tocsin_app, gate):
    """A job of a fair queue."""
    tocsin_app.queue("shared", order="fair")

    @tocsin_app.job(name="shared", queue="shared")
    async def shared():
        await gate.enter()

    return shared


async def test_in_a_fair_queue_its_tenants_jobs_and_the_turns_before_are_told(tocsin_app, shared, make_worker):
    await make_worker()
    for tenant in ("a", "b", "c"):
        for n in range(3):
            await tocsin_app.enqueue(shared, id=f"{tenant}{n}", tenant=tenant)
    await tocsin_app.enqueue(shared, id="vip", tenant="d", priority="high")
    _, reasons = await told(tocsin_app, "c2")
    assert reasons["behind"].facts == {"ahead": 2, "entering": 0, "above": 1, "turns": 2}
    assert "behind 2 jobs of its own tenant, 2 tenants to take a turn before its own" in reasons["behind"].says
    assert "behind" not in (await told(tocsin_app, "vip"))[1]


# Limits


async def test_a_paused_queue_says_how_it_is_resumed(tocsin_app, mail, make_worker):
    await make_worker()
    await tocsin_app.enqueue(mail, id="j")
    await tocsin_app.pause_queue("mail")
    doing, reasons = await told(tocsin_app, "j")
    assert (doing.kind, reasons["queue_paused"].do) == ("in_line", ("tocsin queues resume mail",))


async def test_a_queue_at_its_cap_says_how_many_run_and_since_when(tocsin_app, tocsin_clock, urgent, make_worker, gate):
    worker = await make_worker(queues=["urgent"])
    for n in range(2):
        await tocsin_app.enqueue(urgent, id=f"j{n}")
    await put_inside(worker, gate)
    await claim(worker)
    since = tocsin_clock.now
    tocsin_clock.advance("1m")
    _, reasons = await told(tocsin_app, "j1")
    assert list(reasons) == ["queue_full"]
    assert reasons["queue_full"].facts == {"active": 1, "max_active": 1, "since": since}
    assert "at its cap: 1 run, and max_active is 1" in reasons["queue_full"].says


async def test_a_queue_held_by_its_rate_says_when_the_next_may_start(
    tocsin_app, tocsin_clock, urgent, make_worker, gate
):
    worker = await make_worker(queues=["urgent"])
    await tocsin_app.queue_update("urgent", rate="1/10s", max_active=None)
    for n in range(2):
        await tocsin_app.enqueue(urgent, id=f"j{n}")
    await put_inside(worker, gate)
    _, reasons = await told(tocsin_app, "j1")
    assert list(reasons) == ["queue_rate"]
    assert reasons["queue_rate"].facts["until"] == tocsin_clock.now + timedelta(seconds=10)
    assert "its rate of 1/10s" in reasons["queue_rate"].says
    tocsin_clock.advance("10s")
    assert (await told(tocsin_app, "j1"))[0].kind == "due"


async def test_a_tenant_at_its_cap_says_how_many_run(tocsin_app, shared, make_worker, gate):
    worker = await make_worker(queues=["shared"])
    await tocsin_app.queue_update("shared", tenant_max_active=1)
    for n in range(2):
        await tocsin_app.enqueue(shared, id=f"j{n}", tenant="acme")
    await put_inside(worker, gate)
    await tocsin_app.enqueue(shared, id="other", tenant="b")
    _, reasons = await told(tocsin_app, "j1")
    # A tenant that is held has no turn, so none is before its own.
    assert list(reasons) == ["tenant_full"]
    assert reasons["tenant_full"].facts == {"tenant": "acme", "active": 1, "tenant_max_active": 1}
    assert (await told(tocsin_app, "other"))[0].kind == "due"


async def test_a_tenant_held_by_its_rate_says_when_its_next_may_start(
    tocsin_app, tocsin_clock, shared, make_worker, gate
):
    worker = await make_worker(queues=["shared"])
    await tocsin_app.queue_update("shared", tenant_rate="1/m")
    for n in range(2):
        await tocsin_app.enqueue(shared, id=f"j{n}", tenant="acme")
    await put_inside(worker, gate)
    _, reasons = await told(tocsin_app, "j1")
    assert list(reasons) == ["tenant_rate"]
    assert reasons["tenant_rate"].facts["until"] == tocsin_clock.now + timedelta(minutes=1)
    tocsin_clock.advance("1m")
    assert (await told(tocsin_app, "j1"))[0].kind == "due"


# Workers


async def test_without_a_worker_of_its_queue_it_says_how_to_start_one(tocsin_app, mail, make_worker):
    await make_worker(queues=["default"])
    await tocsin_app.enqueue(mail, id="j")
    _, reasons = await told(tocsin_app, "j")
    assert list(reasons) == ["no_worker"]
    assert "no worker serves queue mail; other queues have 1 worker" in reasons["no_worker"].says
    assert reasons["no_worker"].do == ("tocsin worker MODULE:APP --queues mail",)


async def test_workers_that_are_silent_do_not_count(tocsin_app, tocsin_clock, mail, make_worker):
    dead = await make_worker(beats=False)
    await tocsin_app.enqueue(mail, id="j")
    tocsin_clock.advance("3s")
    _, silent = (await JobExplainer(tocsin_app.store, patience_s=0.05).ask("j")).reasons
    assert (silent.kind, silent.facts["workers"]) == ("workers_silent", [dead.name])


async def test_dead_workers_of_other_queues_do_not_count_either(tocsin_app, tocsin_clock, mail, make_worker):
    await make_worker(queues=["default"], beats=False)
    await tocsin_app.enqueue(mail, id="j")
    tocsin_clock.advance("1m")
    _, nobody = (await JobExplainer(tocsin_app.store, patience_s=0.05).ask("j")).reasons
    assert (nobody.says, nobody.facts["workers"]) == ("no worker serves queue mail", [])


async def test_workers_that_do_not_know_its_handler_are_told(tocsin_app, mail, stranger, make_worker):
    stranger.queue("mail", partitions=1)
    other = await make_worker(stranger, queues=["mail"])
    await tocsin_app.enqueue(mail, id="j")
    _, reasons = await told(tocsin_app, "j")
    assert reasons["unknown_handler"].facts == {"handler": "mail", "workers": [other.name]}
    assert "queue mail has 1 live worker, and none knows its handler 'mail'" in reasons["unknown_handler"].says


async def test_workers_that_are_disabled_are_told(tocsin_app, mail, make_worker):
    worker = await make_worker(enabled=False)
    await tocsin_app.enqueue(mail, id="j")
    _, reasons = await told(tocsin_app, "j")
    assert reasons["workers_disabled"].facts == {"workers": [worker.name]}
    assert "redis.scheduler.enabled" in reasons["workers_disabled"].says


async def says_again(worker: Worker) -> None:
    """A beat after what it did: a worker at rest says what it is with each."""
    await asyncio.to_thread(worker.heart.beat)


async def test_workers_that_are_stopping_are_told(tocsin_app, mail, make_worker):
    worker = await make_worker(beats=False)
    await tocsin_app.enqueue(mail, id="j")
    await worker.quiet()
    await says_again(worker)
    worker.heart.start()
    assert "workers_stopping" in (await told(tocsin_app, "j"))[1]


QUICK = BreakerSettings(failure_threshold=3, failure_window_ms=10_000, cooldown_ms=60_000, half_open_duration_ms=1000)


async def refuse_calls(app: Tocsin, queue: str) -> str:
    """A key that holds another type makes every script that writes to it fail."""
    [sessions] = [each.keys[0]["sessions"] for each in app.store.open_queues.values() if each.name == queue]
    await app.store.client.delete(sessions)
    await app.store.client.set(sessions, "not ours")
    return sessions


@pytest.mark.parametrize("breaker", ["acquisition", "redis"])
async def test_an_open_breaker_of_the_workers_is_told(tocsin_app, mail, make_worker, gate, breaker):
    gate.open()
    worker = await make_worker(queues=["mail"], breaker=QUICK, beats=False)
    for n in range(3):
        await tocsin_app.enqueue(mail, id=f"before {n}")
    if breaker == "redis":
        await worker.fetcher.step()
        while worker.pool.busy:
            await asyncio.sleep(0)
    await tocsin_app.enqueue(mail, id="j")
    sessions = await refuse_calls(tocsin_app, "mail")
    step = worker.fetcher.step if breaker == "acquisition" else worker.finisher.step
    for _ in range(3):
        with pytest.raises(StoreError):
            await step()
    await tocsin_app.store.client.delete(sessions)
    await worker.telemetry.check.step()
    await says_again(worker)
    worker.heart.start()
    _, reasons = await told(tocsin_app, "j")
    assert reasons["breaker_open"].facts == {"breakers": {worker.name: {breaker: "OPEN"}}}
    assert f"the {breaker} breaker is open" in reasons["breaker_open"].says


async def test_workers_without_a_free_permit_are_told(tocsin_app, mail, make_worker, gate):
    worker = await make_worker(queues=["mail"], concurrency=1, beats=False)
    await tocsin_app.enqueue(mail, id="first")
    await put_inside(worker, gate)
    await says_again(worker)
    worker.heart.start()
    await tocsin_app.enqueue(mail, id="j")
    _, reasons = await told(tocsin_app, "j")
    assert reasons["workers_busy"].facts == {"running": 1, "permits": 1, "workers": [worker.name]}


async def test_one_worker_that_could_take_it_is_enough(tocsin_app, mail, stranger, make_worker):
    stranger.queue("mail", partitions=1)
    await make_worker(stranger, queues=["mail"])
    await make_worker(enabled=False)
    await make_worker()
    await tocsin_app.enqueue(mail, id="j")
    assert (await told(tocsin_app, "j"))[0].kind == "due"
