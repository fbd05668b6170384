"""What can go wrong in the FairQueue scheduler, made to happen: each is counted, and none stops what is well."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.support.servers import Server
from tests.support.task_bench import SCHEDULES, Desk, at, dues
from tocsin import InvalidTrigger, Tocsin
from tocsin.model.errors import StoreError
from tocsin.patterns.tasks.statistics import ERRORS
from tocsin.store.keys import STAGE_KEYS
from tocsin.telemetry.metrics import COUNTS


@pytest.fixture
def server():
    with Server.valkey() as server:
        yield server


@pytest.fixture
async def away_desk(server, tocsin_clock, tmp_path):
    """On a server of its own, which is waited for only shortly."""
    config = tmp_path / "tocsin.yaml"
    config.write_text("redis: {connection: {timeout: 200, connect-timeout: 200}}")
    async with Tocsin(server.url, clock=tocsin_clock, config=config) as app:
        made = Desk(app, tocsin_clock)
        yield made
        await made.close()


def counted(scheduler, worker):
    """The counters that are not zero. The same are metrics."""
    told = scheduler.statistics()
    assert {name: getattr(worker.tally, name) for name in ERRORS} == {name: getattr(told, name) for name in ERRORS}
    found = {name: getattr(told, name) for name in ERRORS if getattr(told, name)}
    assert {name for name, rate in told.error_rates.items() if rate} == found.keys()
    return found


def test_each_counter_is_a_metric():
    assert {f"tocsin.taskScheduler.{name}" for name in ERRORS} <= {count.name for count in COUNTS}


async def record_of(app, schedule):
    where = await app.store.find_queue(SCHEDULES)
    return where.keys[0]["jobs"], await app.store.client.hget(where.keys[0]["jobs"], schedule)


async def stage_of(app, schedule):
    where = await app.store.find_queue(SCHEDULES)
    scores = {stage: await app.store.client.zscore(where.keys[0][stage], schedule) for stage in STAGE_KEYS}
    return [stage for stage, score in scores.items() if score is not None]


@pytest.mark.parametrize("kept", [0, 7, 39, 60], ids=["nothing", "a piece", "a header", "half"])
async def test_a_malformed_schedule_is_parked_counted_and_shown_inactive(desk, tocsin_clock, kept):
    scheduler, worker = await desk.scheduler()
    bad, good = (scheduler.add_schedule("* * * * *", user) for user in ("ada", "bob"))
    key, record = await record_of(desk.app, bad)
    await desk.app.store.client.hset(key, bad, record[:kept] + b"\xc1")
    for minute in (1, 2):
        tocsin_clock.move_to(at(f"00:0{minute}:00"))
        await desk.push()
    assert counted(scheduler, worker) == {"deserialization_error_count": 1}
    assert await stage_of(desk.app, bad) == ["parked"]
    assert [task.user_id for task in await desk.handle()] == ["bob", "bob"]
    [shown] = scheduler.list_schedules(is_active=False)
    assert (shown.schedule_id, shown.is_active, shown.next_run) == (bad, False, None)
    assert scheduler.get_schedule(bad) == shown
    assert scheduler.get_schedule(good).is_active
    with pytest.raises(StoreError, match="remove it and add it again"):
        scheduler.update_schedule(bad, payload=1)
    assert scheduler.remove_schedule(bad)
    assert scheduler.list_schedules(is_active=False) == []


async def test_a_schedule_that_does_not_say_what_to_push_is_set_aside_and_counted(desk, tocsin_clock):
    scheduler, worker = await desk.scheduler()
    bad = scheduler.add_schedule("* * * * *", "ada")
    await desk.app.update(bad, args=[{"priority": 7}])
    for minute in (1, 2):
        tocsin_clock.move_to(at(f"00:0{minute}:00"))
        await desk.push()
    assert counted(scheduler, worker) == {"deserialization_error_count": 1}
    [shown] = scheduler.list_schedules(is_active=False)
    assert (shown.schedule_id, shown.cron_expression, shown.user_id) == (bad, "* * * * *", "ada")
    assert await desk.handle() == []


@pytest.mark.parametrize(
    ("old", "new"), [(b"0 1 * * *", b"0 99 * * "), (b"Europe/Paris", b"Europe/Atlan")], ids=["expression", "zone"]
)
async def test_a_cron_error_disables_that_schedule_only_until_it_is_mended(desk, tocsin_clock, old, new):
    scheduler, worker = await desk.scheduler()
    bad, good = (scheduler.add_schedule("0 1 * * *", user, "high", [1], "Europe/Paris") for user in ("ada", "bob"))
    key, record = await record_of(desk.app, bad)
    await desk.app.store.client.hset(key, bad, record.replace(old, new))
    tocsin_clock.move_to(at("00:00:00"))
    tocsin_clock.advance("1d")
    await desk.push()
    assert counted(scheduler, worker) == {"cron_error_count": 1}
    assert [task.user_id for task in await desk.handle()] == ["bob"]
    shown = scheduler.get_schedule(bad)
    assert (shown.is_active, shown.user_id, shown.priority, shown.payload) == (False, "ada", "high", [1])
    assert new.decode() in (shown.cron_expression, shown.timezone)
    with pytest.raises(InvalidTrigger):
        scheduler.update_schedule(bad, is_active=True)
    assert scheduler.update_schedule(bad, cron_expression="0 2 * * *", timezone="UTC")
    mended = scheduler.get_schedule(bad)
    assert (mended.is_active, mended.cron_expression, mended.payload) == (True, "0 2 * * *", [1])
    await desk.push()
    assert await desk.handle() == []
    tocsin_clock.advance("2h")
    await desk.push()
    assert [task.user_id for task in await desk.handle()] == ["ada"]
    assert counted(scheduler, worker) == {"cron_error_count": 1}
    assert scheduler.get_schedule(good).is_active


async def test_a_push_that_fails_changes_nothing_and_is_tried_again(away_desk, server, tocsin_clock):
    desk = away_desk
    scheduler, worker = await desk.scheduler()
    made = scheduler.add_schedule("* * * * *", "ada")
    tocsin_clock.move_to(at("00:01:00"))
    await asyncio.to_thread(worker.heart.beat)
    before = scheduler.get_schedule(made)
    with server.client() as client:
        client.config_set("maxmemory", 1)
        await desk.push()
        assert counted(scheduler, worker) == {"push_error_count": 1, "redis_error_count": 1}
        failed = scheduler.get_schedule(made)
        assert (failed.is_active, failed.last_run, failed.next_run) == (True, None, at("00:01:00"))
        assert (failed.updated_at, failed.error is None) == (before.updated_at, False)
        tocsin_clock.advance("1s")
        await desk.push()
        assert counted(scheduler, worker) == {"push_error_count": 2, "redis_error_count": 2}
        client.config_set("maxmemory", 0)
    tocsin_clock.advance("1s")
    await desk.push()
    assert dues(await desk.handle()) == [at("00:01:00")]
    told = scheduler.statistics()
    assert (told.pushed, told.push_success_rate) == (1, 1 / 3)
    assert (await desk.app.get(made)).due == at("00:02:00")


async def test_a_server_that_is_away_is_counted_and_its_return_noticed(away_desk, server, tocsin_clock):
    desk = away_desk
    scheduler, worker = await desk.scheduler()
    await desk.push()
    before = scheduler.statistics()
    assert (before.connected, before.last_successful_pass) == (True, tocsin_clock.now)
    server.kill()
    for served in worker.served.values():
        served.forget_dues()
    with pytest.raises(StoreError):
        await worker.fetcher.step()
    assert counted(scheduler, worker) == {"redis_error_count": 1}
    assert not scheduler.statistics().connected
    server.start()
    tocsin_clock.advance("1s")
    await desk.push()
    after = scheduler.statistics()
    assert (after.connected, after.last_successful_pass) == (True, tocsin_clock.now)


async def test_a_claim_that_is_not_answered_in_time_is_counted(away_desk, server, tocsin_clock):
    desk = away_desk
    scheduler, worker = await desk.scheduler()
    scheduler.add_schedule("* * * * *", "ada")
    tocsin_clock.move_to(at("00:01:00"))
    await asyncio.to_thread(worker.heart.beat)
    server.pause()
    with pytest.raises(StoreError):
        await worker.fetcher.step()
    server.resume()
    assert counted(scheduler, worker) == {"lock_timeout_count": 1, "redis_error_count": 1}
    assert scheduler.statistics().claim_success_rate == 0.0
    await desk.push()
    assert dues(await desk.handle()) == [at("00:01:00")]


async def test_a_push_that_takes_longer_than_lock_timeout_is_stopped_counted_and_tried_again(
    away_desk, server, tocsin_clock
):
    desk = away_desk
    scheduler, worker = await desk.scheduler(lock_timeout="10s")
    scheduler.add_schedule("* * * * *", "ada")
    tocsin_clock.move_to(at("00:01:00"))
    await asyncio.to_thread(worker.heart.beat)
    await worker.fetcher.step()
    server.pause()
    # Into its put, which the server hears when it goes on.
    while not list(worker.pool.running()):
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    tocsin_clock.advance("10s")
    await worker.sweep.step()
    while worker.pool.busy:
        await asyncio.sleep(0.001)
    server.resume()
    assert counted(scheduler, worker) == {"lock_timeout_count": 1}
    await worker.finisher.step()
    tocsin_clock.advance("1s")
    await desk.push()
    tocsin_clock.advance("1s")
    await desk.push()
    assert dues(await desk.handle()) == [at("00:01:00")]


async def test_an_occurrence_that_another_scheduler_has_is_counted_as_contention(desk, tocsin_clock):
    # It looks when it believes that something is due, and not by the way.
    scheduler, worker = await desk.scheduler("s1", check_interval="1h")
    quick, rival = await desk.scheduler("s2")
    scheduler.add_schedule("* * * * *", "ada")
    await desk.push(worker)
    tocsin_clock.move_to(at("00:01:00"))
    await desk.push(rival)
    await asyncio.to_thread(worker.heart.beat)
    await worker.fetcher.step()
    told, other = scheduler.statistics(), quick.statistics()
    assert (told.contention, told.claim_success_rate, told.pushed) == (1.0, 0.0, 0)
    assert (other.contention, other.claim_success_rate, other.pushed) == (0.0, 1.0, 1)


async def test_statistics_before_anything_happened(desk):
    scheduler, worker = await desk.scheduler()
    told = scheduler.statistics()
    assert (told.state, told.uptime_s, told.passes, told.pushed) == ("stopped", 0.0, 0, 0)
    assert (told.claim_success_rate, told.push_success_rate, told.contention) == (1.0, 1.0, 0.0)
    assert (told.schedules_per_second, told.mean_pass_s, told.last_successful_pass) == (0.0, 0.0, None)
    assert (told.connected, told.critical_error, counted(scheduler, worker)) == (True, None, {})
    with contextlib.suppress(StoreError):
        await desk.push()
    assert scheduler.statistics().passes == 1
