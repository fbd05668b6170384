"""The FairQueue scheduler, pass by pass: what a cron expression says is due is pushed, once, and no edit is undone."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tests.support.task_bench import SCHEDULES, START, at, dues
from tests.support.waiting import run_dry
from tocsin import InvalidArgument, InvalidTrigger, StoreUnavailable, Tocsin
from tocsin.patterns import Schedule, TaskQueue, TaskScheduler
from tocsin.patterns.tasks import schedules

# Pushing what is due


async def test_a_task_is_pushed_when_its_schedule_is_due_and_not_before(desk, tocsin_clock):
    scheduler, _ = await desk.scheduler()
    made = scheduler.add_schedule("0 9 * * *", "ada", "High", {"report": 7}, "Europe/Paris")
    tocsin_clock.move_to(at("07:59:59.999"))
    await desk.push()
    assert await desk.handle() == []
    tocsin_clock.move_to(at("08:00:00"))
    await desk.push()
    [task] = await desk.handle()
    assert (task.user_id, task.priority, task.payload) == ("ada", "high", {"report": 7})
    assert task.task_id.startswith(f"{made}@")


async def test_a_schedule_shows_all_of_itself_before_and_after_a_run(desk, tocsin_clock):
    scheduler, _ = await desk.scheduler()
    made = scheduler.add_schedule("0 9 * * *", "ada", "high", [1], "Europe/Paris")
    before = Schedule(
        made, "0 9 * * *", "ada", "high", [1], "Europe/Paris", True, None, at("08:00:00"), START, START, None
    )
    assert scheduler.get_schedule(made) == before
    tocsin_clock.move_to(at("08:00:01"))
    await desk.push()
    after = scheduler.get_schedule(made)
    # It ran a second late.
    assert (after.last_run, after.last_due) == (at("08:00:01"), at("08:00:00"))
    assert after.next_run == at("08:00:00") + timedelta(days=1)
    assert (after.created_at, after.updated_at) == (START, at("08:00:01"))


async def test_each_occurrence_is_pushed_also_those_that_passed_while_nobody_looked(desk, tocsin_clock):
    scheduler, _ = await desk.scheduler()
    scheduler.add_schedule("* * * * *", "ada")
    tocsin_clock.move_to(at("00:05:30"))
    await desk.push()
    tasks = await desk.handle()
    assert dues(tasks) == [at(f"00:0{minute}:00") for minute in range(1, 6)]
    assert len({task.task_id for task in tasks}) == 5


async def test_several_schedulers_push_each_occurrence_once(desk, tocsin_clock):
    scheduler, one = await desk.scheduler("s1")
    _, two = await desk.scheduler("s2")
    for user in ("ada", "bob"):
        scheduler.add_schedule("* * * * *", user)
    for minute, (first, second) in enumerate([(one, two), (two, one), (one, two)], start=1):
        tocsin_clock.move_to(at(f"00:0{minute}:00"))
        for worker in (first, second):
            for served in worker.served.values():
                served.forget_dues()
            await asyncio.to_thread(worker.heart.beat)
        # Both ask at once.
        await asyncio.gather(first.fetcher.step(), second.fetcher.step())
        await desk.push(first, second)
    tasks = await desk.handle()
    assert len({task.task_id for task in tasks}) == len(tasks) == 6


async def test_what_was_pushed_before_a_crash_is_not_pushed_again(desk, tocsin_clock):
    """The scheduler dies after the push and before it is written down; the task is done by then."""
    scheduler, dying = await desk.scheduler("s1")
    _, heir = await desk.scheduler("s2")
    scheduler.add_schedule("* * * * *", "ada")
    tocsin_clock.move_to(at("00:01:00"))
    await asyncio.to_thread(dying.heart.beat)
    await dying.fetcher.step()
    while dying.pool.busy:
        await asyncio.sleep(0.001)
    assert dues(await desk.handle()) == [at("00:01:00")]
    await dying.kill()
    where = await desk.app.store.find_queue(SCHEDULES)
    await heir.parts.incarnation.runs.recover(where, 0, owner=dying.name)
    tocsin_clock.move_to(at("00:02:00"))
    await desk.push(heir)
    assert dues(await desk.handle()) == [at("00:02:00")]


async def test_tasks_of_schedules_are_in_line_by_priority_and_by_when_they_were_due(desk, tocsin_clock):
    scheduler, _ = await desk.scheduler()
    scheduler.add_schedule("*/2 * * * *", "ada", "low", "low")
    scheduler.add_schedule("* * * * *", "ada", "high", "high")
    tocsin_clock.move_to(at("00:04:30"))
    await desk.push()
    tasks = await desk.handle()
    assert [task.payload for task in tasks] == ["high"] * 4 + ["low"] * 2
    assert dues(tasks) == [at(f"00:0{minute}:00") for minute in (1, 2, 3, 4, 2, 4)]


async def test_the_scheduler_is_the_owner_of_what_it_claims(desk, tocsin_clock):
    scheduler, worker = await desk.scheduler("night-shift", lock_timeout="40s")
    made = scheduler.add_schedule("* * * * *", "ada")
    tocsin_clock.move_to(at("00:01:00"))
    await asyncio.to_thread(worker.heart.beat)
    await worker.fetcher.step()
    job = await desk.app.get(made)
    assert job.owner.startswith("night-shift:")
    assert (job.stage, job.timeout) == ("working", 40.0)


async def test_check_interval_is_the_longest_that_a_schedule_nobody_told_of_waits(desk, tocsin_clock):
    scheduler, worker = await desk.scheduler(check_interval="10s")
    await desk.push()
    # The bell that is rung for it is not heard here.
    scheduler.add_schedule("* * * * * *", "ada")
    for after, pushed in (("9s", 0), ("1s", 10)):
        tocsin_clock.advance(after)
        await run_dry(worker)
        assert len(await desk.handle()) == pushed


# Editing


async def test_a_changed_cron_counts_from_now_and_fires_nothing(desk, tocsin_clock):
    scheduler, _ = await desk.scheduler()
    made = scheduler.add_schedule("0 * * * *", "ada")
    tocsin_clock.move_to(at("02:10:00"))
    assert scheduler.update_schedule(made, cron_expression="*/15 * * * *")
    await desk.push()
    assert await desk.handle() == []
    assert scheduler.get_schedule(made).next_run == at("02:15:00")
    assert scheduler.update_schedule(made, timezone="Asia/Kathmandu")
    shown = scheduler.get_schedule(made)
    assert (shown.cron_expression, shown.timezone, shown.next_run) == ("*/15 * * * *", "Asia/Kathmandu", at("02:15:00"))


async def test_an_update_changes_what_it_names_and_keeps_the_due_time(desk, tocsin_clock):
    scheduler, _ = await desk.scheduler()
    made = scheduler.add_schedule("0 * * * *", "ada", "low", 1)
    tocsin_clock.move_to(at("00:30:00"))
    assert scheduler.update_schedule(made, user_id="bob", priority="Critical")
    assert scheduler.update_schedule(made, payload=None)
    shown = scheduler.get_schedule(made)
    assert (shown.user_id, shown.priority, shown.payload) == ("bob", "critical", None)
    assert (shown.next_run, shown.created_at, shown.updated_at) == (at("01:00:00"), START, at("00:30:00"))
    tocsin_clock.move_to(at("01:00:00"))
    await desk.push()
    [task] = await desk.handle()
    assert (task.user_id, task.priority, task.payload) == ("bob", "critical", None)


async def test_an_inactive_schedule_pushes_nothing_and_does_not_make_up_for_it(desk, tocsin_clock):
    scheduler, _ = await desk.scheduler()
    made = scheduler.add_schedule("0 * * * *", "ada")
    assert scheduler.update_schedule(made, is_active=False)
    tocsin_clock.move_to(at("05:30:00"))
    await desk.push()
    shown = scheduler.get_schedule(made)
    assert (shown.is_active, shown.next_run) == (False, None)
    assert scheduler.update_schedule(made, is_active=True)
    await desk.push()
    assert await desk.handle() == []
    assert scheduler.get_schedule(made).next_run == at("06:00:00")
    tocsin_clock.move_to(at("06:00:00"))
    await desk.push()
    assert dues(await desk.handle()) == [at("06:00:00")]


async def test_a_schedule_may_be_changed_while_it_rests_and_go_on_as_it_was_changed(desk, tocsin_clock):
    scheduler, _ = await desk.scheduler()
    made = scheduler.add_schedule("0 * * * *", "ada")
    assert scheduler.update_schedule(made, is_active=False, cron_expression="*/10 * * * *")
    assert not scheduler.get_schedule(made).is_active
    tocsin_clock.move_to(at("03:05:00"))
    assert scheduler.update_schedule(made, is_active=True, payload="new")
    await desk.push()
    assert await desk.handle() == []
    tocsin_clock.move_to(at("03:10:00"))
    await desk.push()
    assert [task.payload for task in await desk.handle()] == ["new"]


async def claimed(desk, worker, clock):
    """The occurrence of 00:01 is in the worker's hands, and not pushed yet."""
    clock.move_to(at("00:01:00"))
    for served in worker.served.values():
        served.forget_dues()
    await asyncio.to_thread(worker.heart.beat)
    await worker.fetcher.step()
    assert worker.pool.busy == 1


async def test_a_schedule_is_shown_while_it_is_being_pushed(desk, tocsin_clock):
    scheduler, worker = await desk.scheduler()
    made = scheduler.add_schedule("* * * * *", "ada")
    await claimed(desk, worker, tocsin_clock)
    [shown] = scheduler.list_schedules(user_id="ada", is_active=True)
    assert shown == scheduler.get_schedule(made)
    assert shown.next_run == at("00:01:00")


async def test_an_edit_that_is_made_during_a_pass_is_not_undone_by_it(desk, tocsin_clock):
    scheduler, worker = await desk.scheduler()
    made = scheduler.add_schedule("* * * * *", "ada", "low", "old")
    await claimed(desk, worker, tocsin_clock)
    assert scheduler.update_schedule(made, payload="new", priority="high", cron_expression="*/5 * * * *")
    await desk.push()
    shown = scheduler.get_schedule(made)
    assert (shown.payload, shown.priority, shown.cron_expression) == ("new", "high", "*/5 * * * *")
    assert (shown.last_run, shown.next_run) == (at("00:01:00"), at("00:05:00"))
    # What was being pushed goes by what it was.
    assert [task.payload for task in await desk.handle()] == ["old"]


async def test_an_edit_between_the_look_and_the_write_of_a_pass_is_not_undone(desk, tocsin_clock):
    scheduler, _ = await desk.scheduler()
    made = scheduler.add_schedule("* * * * *", "ada", payload="old")
    where, looks = await desk.app.store.find_queue(SCHEDULES), []

    def note(job):
        looks.append(job.version)
        if len(looks) == 1:
            scheduler.update_schedule(made, payload="new")
        return schedules.with_last_run(job, tocsin_clock.ms, tocsin_clock.ms)

    assert await schedules.revise(desk.app.store, where, made, note)
    shown = scheduler.get_schedule(made)
    assert (len(looks), shown.payload, shown.last_run) == (2, "new", tocsin_clock.now)


async def test_a_schedule_that_is_put_to_rest_during_a_pass_rests(desk, tocsin_clock):
    scheduler, worker = await desk.scheduler()
    made = scheduler.add_schedule("* * * * *", "ada")
    await claimed(desk, worker, tocsin_clock)
    assert scheduler.update_schedule(made, is_active=False)
    await desk.push()
    assert not scheduler.get_schedule(made).is_active
    tocsin_clock.move_to(at("00:09:00"))
    await desk.push()
    assert dues(await desk.handle()) == [at("00:01:00")]


async def test_a_schedule_that_is_removed_during_a_pass_does_not_come_back(desk, tocsin_clock):
    scheduler, worker = await desk.scheduler()
    made = scheduler.add_schedule("* * * * *", "ada")
    await claimed(desk, worker, tocsin_clock)
    assert scheduler.remove_schedule(made)
    await desk.push()
    assert scheduler.get_schedule(made) is None
    assert scheduler.list_schedules() == []


async def test_a_removed_schedule_is_gone(desk, tocsin_clock):
    scheduler, _ = await desk.scheduler()
    made = scheduler.add_schedule("* * * * *", "ada")
    assert scheduler.remove_schedule(made)
    assert not scheduler.remove_schedule(made)
    assert not scheduler.update_schedule(made, payload=1)
    assert not scheduler.update_schedule(made, is_active=True)
    assert not scheduler.update_schedule(made, is_active=False)
    tocsin_clock.move_to(at("00:09:00"))
    await desk.push()
    assert (scheduler.get_schedule(made), await desk.handle()) == (None, [])


async def test_schedules_are_listed_by_user_and_by_whether_they_are_active(desk):
    scheduler, _ = await desk.scheduler()
    other, _ = await desk.scheduler("s2")
    daily = scheduler.add_schedule("0 9 * * *", "ada")
    hourly = scheduler.add_schedule("0 * * * *", "ada")
    resting = scheduler.add_schedule("0 * * * *", "bob")
    scheduler.update_schedule(resting, is_active=False)

    def ids(**which):
        return [schedule.schedule_id for schedule in other.list_schedules(**which)]

    assert ids() == [hourly, daily, resting]
    assert ids(user_id="ada") == [hourly, daily]
    assert ids(is_active=False) == ids(user_id="bob") == [resting]
    assert ids(user_id="ada", is_active=False) == ids(user_id="nobody") == []


# Bad input


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"cron_expr": "every day"}, InvalidTrigger),
        ({"cron_expr": "99 * * * *"}, InvalidTrigger),
        ({"cron_expr": "0 0 30 2 *"}, InvalidTrigger),
        ({"cron_expr": 7}, InvalidTrigger),
        ({"timezone": "Europe/Atlantis"}, InvalidTrigger),
        ({"user_id": ""}, InvalidArgument),
        ({"user_id": None}, InvalidArgument),
        ({"user_id": "x" * 251}, InvalidArgument),
        ({"priority": "urgent"}, InvalidArgument),
        ({"payload": print}, InvalidArgument),
        ({"payload": "x" * 600_000}, InvalidArgument),
    ],
    ids=lambda given: str(given)[:40],
)
async def test_a_schedule_that_cannot_be_is_refused_when_it_is_added_and_when_it_is_changed(desk, given, error):
    scheduler, _ = await desk.scheduler()
    with pytest.raises(error):
        scheduler.add_schedule(**{"cron_expr": "* * * * *", "user_id": "ada"} | given)
    made = scheduler.add_schedule("0 * * * *", "ada")
    before = scheduler.get_schedule(made)
    change = {"cron_expression" if name == "cron_expr" else name: value for name, value in given.items()}
    with pytest.raises(error):
        scheduler.update_schedule(made, **change)
    assert scheduler.list_schedules() == [before]


async def test_an_update_of_what_a_schedule_does_not_have_names_the_nearest(desk):
    scheduler, _ = await desk.scheduler()
    made = scheduler.add_schedule("0 * * * *", "ada")
    with pytest.raises(InvalidArgument, match="did you mean 'timezone'"):
        scheduler.update_schedule(made, time_zone="UTC")
    with pytest.raises(InvalidArgument, match="True or False"):
        scheduler.update_schedule(made, is_active="no")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"queue": "tasks"}, "TaskQueue"),
        ({"scheduler_id": ""}, "scheduler_id"),
        ({"scheduler_id": "a b"}, "scheduler_id"),
        ({"scheduler_id": None}, "scheduler_id"),
        ({"check_interval": 0}, "check_interval"),
        ({"check_interval": -1}, "check_interval"),
        ({"check_interval": "often"}, "check_interval"),
        ({"lock_timeout": 0}, "timeout"),
        ({"lock_timeout": "50d"}, "timeout"),
    ],
    ids=str,
)
async def test_a_scheduler_that_cannot_be_is_refused(desk, given, says):
    with pytest.raises(InvalidArgument, match=says):
        TaskScheduler(**{"queue": desk.queue, "scheduler_id": "s1"} | given)


def test_a_scheduler_asks_whether_the_server_is_there(tmp_path):
    queue = TaskQueue(Tocsin(f"unix://{tmp_path / 'nobody'}"), "tasks", print)
    with pytest.raises(StoreUnavailable):
        TaskScheduler(queue, "s1")
