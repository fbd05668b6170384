"""What the FairQueue scheduler says in its log, line by line, and how few calls it makes of many schedules."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.captured_logs import capture_logs
from tests.support.servers import Server
from tests.support.task_bench import SCHEDULES, Desk, at
from tests.support.waiting import eventually
from tocsin import Tocsin
from tocsin.model.clock import monotonic
from tocsin.model.errors import StoreError
from tocsin.patterns.tasks.push_log import IN_FULL

MANY = 150


@pytest.fixture
def logs():
    with capture_logs("tocsin.taskscheduler") as lines:
        yield lines


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


def said(logs, event: str) -> list[dict]:
    return [line for line in logs if line["event"] == event]


async def test_each_execution_is_logged(desk, tocsin_clock, logs):
    scheduler, _ = await desk.scheduler()
    made = scheduler.add_schedule("* * * * *", "ada")
    tocsin_clock.move_to(at("00:02:30"))
    await desk.push()
    [first, second] = said(logs, "task pushed")
    assert (first["log_level"], first["schedule"], first["user"]) == ("info", made, "ada")
    assert [line["due"] for line in (first, second)] == [at("00:01:00").isoformat(), at("00:02:00").isoformat()]
    assert first["task"] == (await desk.handle())[0].task_id.rsplit("@", 1)[0]


async def test_a_cron_expression_that_is_hardly_meant_is_warned_of_when_it_is_given(desk):
    scheduler, _ = await desk.scheduler()
    with capture_logs("tocsin.schedules") as lines:
        odd = scheduler.add_schedule("*/90 * * * *", "ada")
        other = scheduler.add_schedule("*/15 * * * *", "ada")
        scheduler.update_schedule(other, cron_expression="0 */25 * * *")
        scheduler.update_schedule(other, payload=1)
    assert [(line["log_level"], line["job"]) for line in lines] == [("warning", odd), ("warning", other)]
    assert "use Every('90m')" in lines[0]["odd"]


async def test_many_executions_are_pushed_in_few_calls_and_logged_in_few_lines(desk, tocsin_clock, logs):
    scheduler, worker = await desk.scheduler()
    for n in range(MANY):
        scheduler.add_schedule("0 1 * * *", f"user-{n}", payload=n)
    await desk.push()
    tocsin_clock.move_to(at("01:00:07"))
    before = await calls(desk.app)
    await desk.push(worker)
    # Among them the beat, the claims, and one that finds nothing more.
    assert await calls(desk.app) - before < MANY / 5
    assert scheduler.statistics().pushed == MANY
    await eventually(lambda: said(logs, "more tasks pushed"), "the rest is told as a number")
    assert len(said(logs, "task pushed")) == IN_FULL
    assert sum(line["tasks"] for line in said(logs, "more tasks pushed")) == MANY - IN_FULL
    assert sorted(task.payload for task in await desk.handle()) == list(range(MANY))
    shown = scheduler.list_schedules()
    assert {(each.last_run, each.last_due) for each in shown} == {(at("01:00:07"), at("01:00:00"))}
    assert len(shown) == MANY


async def calls(app: Tocsin) -> int:
    stats = await app.store.client.info("commandstats")
    return sum(stats[f"cmdstat_{name}"]["calls"] for name in ("evalsha", "eval") if f"cmdstat_{name}" in stats)


async def test_what_is_left_to_tell_is_told_when_the_scheduler_ends(desk, tocsin_clock, logs):
    scheduler, worker = await desk.scheduler()
    for n in range(IN_FULL + 3):
        scheduler.add_schedule("0 1 * * *", f"user-{n}")
    tocsin_clock.move_to(at("01:00:00"))
    await desk.push(worker)
    scheduler._recorder.ended()
    assert [line["tasks"] for line in said(logs, "more tasks pushed")] == [3]


async def test_one_push_that_fails_takes_no_other_of_its_call_along(desk, tocsin_clock, logs):
    scheduler, worker = await desk.scheduler()
    bad, good = (scheduler.add_schedule("* * * * *", user) for user in ("ada", "bob"))
    # As a program wrote it that knew more priorities.
    assert await desk.app.update(bad, args=[{"priority": "urgent", "payload": 1, "created": 1, "updated": 1}])
    tocsin_clock.move_to(at("00:01:00"))
    await desk.push(worker)
    [line] = said(logs, "tasks could not be pushed: they are tried again")
    assert (line["log_level"], line["schedules"], line["tasks"]) == ("warning", [bad], 1)
    assert "there is no priority 'urgent'" in line["error"]
    assert [line["schedule"] for line in said(logs, "task pushed")] == [good]
    assert (scheduler.statistics().push_error_count, scheduler.get_schedule(bad).last_run) == (1, None)


async def test_a_server_that_refuses_pushes_is_one_line_and_one_error_for_all_of_them(
    away_desk, server, tocsin_clock, logs
):
    scheduler, worker = await away_desk.scheduler()
    made = {scheduler.add_schedule("* * * * *", user) for user in ("ada", "bob")}
    tocsin_clock.move_to(at("00:01:00"))
    await asyncio.to_thread(worker.heart.beat)
    with server.client() as client:
        client.config_set("maxmemory", 1)
        await away_desk.push()
        client.config_set("maxmemory", 0)
    [line] = said(logs, "tasks could not be pushed: they are tried again")
    assert (line["log_level"], line["tasks"], set(line["schedules"])) == ("warning", 2, made)
    told = scheduler.statistics()
    assert (told.push_error_count, told.redis_error_count) == (2, 1)
    tocsin_clock.advance("1s")
    await away_desk.push()
    assert {line["schedule"] for line in said(logs, "task pushed")} == made


async def test_an_outage_is_logged_when_it_begins_and_when_it_is_over(away_desk, server, tocsin_clock, logs):
    _, worker = await away_desk.scheduler()
    await away_desk.push()
    server.kill()
    for _ in range(2):
        for served in worker.served.values():
            served.forget_dues()
        with pytest.raises(StoreError):
            await worker.fetcher.step()
    [line] = said(logs, "the server does not serve this scheduler: it goes on trying")
    assert line["log_level"] == "warning"
    assert line["error"]
    assert said(logs, "the server serves this scheduler again") == []
    server.start()
    tocsin_clock.advance("1s")
    await away_desk.push()
    assert [line["log_level"] for line in said(logs, "the server serves this scheduler again")] == ["info"]


async def test_a_claim_that_is_not_answered_in_time_is_logged(away_desk, server, tocsin_clock, logs):
    scheduler, worker = await away_desk.scheduler()
    scheduler.add_schedule("* * * * *", "ada")
    tocsin_clock.move_to(at("00:01:00"))
    await asyncio.to_thread(worker.heart.beat)
    server.pause()
    with pytest.raises(StoreError):
        await worker.fetcher.step()
    server.resume()
    [line] = said(logs, "no claim: the server did not answer in time")
    assert line["log_level"] == "warning"


async def test_a_push_that_outlasts_lock_timeout_is_logged_and_its_time_counts(away_desk, server, tocsin_clock, logs):
    scheduler, worker = await away_desk.scheduler(lock_timeout="10s")
    made = scheduler.add_schedule("* * * * *", "ada")
    tocsin_clock.move_to(at("00:01:00"))
    await asyncio.to_thread(worker.heart.beat)
    await worker.fetcher.step()
    began = monotonic()
    server.pause()
    await eventually(lambda: list(worker.pool.running()) and monotonic() - began > 0.1, "it has waited for a while")
    tocsin_clock.advance("10s")
    await worker.sweep.step()
    await eventually(lambda: not worker.pool.busy, "its push is stopped")
    server.resume()
    [line] = said(logs, "tasks were not pushed within lock_timeout: they are tried again")
    assert (line["log_level"], line["schedules"]) == ("warning", [made])
    # Not only the claim, which was answered at once.
    assert scheduler.statistics().mean_pass_s > 0.05


async def test_what_another_scheduler_has_is_logged(desk, tocsin_clock, logs):
    scheduler, worker = await desk.scheduler("s1", check_interval="1h")
    _, rival = await desk.scheduler("s2")
    scheduler.add_schedule("* * * * *", "ada")
    await desk.push(worker)
    tocsin_clock.move_to(at("00:01:00"))
    await desk.push(rival)
    await asyncio.to_thread(worker.heart.beat)
    await worker.fetcher.step()
    [line] = said(logs, "nothing to push: another scheduler has what was due")
    assert line["log_level"] == "debug"


@pytest.mark.parametrize(
    ("spoil", "event"),
    [
        (lambda record: record[:60] + b"\xc1", "a schedule cannot be read and is set aside"),
        (
            lambda record: record.replace(b"0 1 * * *", b"0 99 * * "),
            "a schedule has a wrong cron expression and is set aside",
        ),
    ],
    ids=["malformed", "cron"],
)
async def test_a_schedule_that_is_set_aside_is_logged_once_with_its_id_and_the_error(
    desk, tocsin_clock, logs, spoil, event
):
    scheduler, _ = await desk.scheduler()
    made = scheduler.add_schedule("0 1 * * *", "ada")
    where = await desk.app.store.find_queue(SCHEDULES)
    record = await desk.app.store.client.hget(where.keys[0]["jobs"], made)
    await desk.app.store.client.hset(where.keys[0]["jobs"], made, spoil(record))
    for hour in ("01", "02"):
        tocsin_clock.move_to(at(f"{hour}:00:00"))
        await desk.push()
    [line] = said(logs, event)
    assert (line["log_level"], line["schedule"]) == ("error", made)
    assert line["error"]
