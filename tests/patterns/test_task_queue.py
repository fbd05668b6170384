"""The FairQueue scheduler's queue: tasks of users, in turn and by priority, each with an id of its own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.waiting import eventually
from tocsin import InvalidArgument, InvalidConfig, Retry, StoreUnavailable, Tocsin
from tocsin.patterns import Task, TaskQueue
from tocsin.testing import run_until_idle


def payloads(tasks):
    return [task.payload for task in tasks]


async def test_the_handler_gets_all_of_a_task(desk, tocsin_clock):
    pushed = desk.queue.push(Task.create("ada", "HIGH", {"report": 7}))
    [task] = await desk.handle()
    assert task == Task("ada", "high", {"report": 7}, f"{pushed}@{tocsin_clock.ms}")


async def test_a_plain_function_handles_tasks_in_a_thread(tocsin_app):
    handled = []
    queue = TaskQueue(tocsin_app, "plain", handled.append)
    queue.push(Task("ada", payload=1))
    await run_until_idle(tocsin_app, queues=["plain"])
    assert payloads(handled) == [1]
    tocsin_app.sync.close()


async def test_any_worker_of_the_app_works_for_it(desk, tocsin_app):
    desk.queue.push(Task("ada", payload=1))
    await run_until_idle(tocsin_app)
    assert payloads(desk.tasks) == [1]


@pytest.mark.parametrize(
    "task",
    [
        Task("ada", "low", 1),
        {"user_id": "ada", "priority": "low", "payload": 1},
        SimpleNamespace(user_id="ada", priority="low", payload=1),
    ],
    ids=["Task", "mapping", "object"],
)
async def test_a_task_is_anything_that_has_its_fields(desk, task):
    desk.queue.push(task)
    [handled] = await desk.handle()
    assert (handled.user_id, handled.priority, handled.payload) == ("ada", "low", 1)


async def test_the_priority_of_a_task_is_honoured(desk):
    priorities = ["background", "low", "normal", "high", "critical"]
    for priority in priorities:
        desk.queue.push(Task("ada", priority, priority))
    assert payloads(await desk.handle()) == priorities[::-1]


async def test_tasks_of_one_user_come_in_the_order_in_which_they_were_pushed(desk):
    for n in range(40):
        desk.queue.push(Task("ada", payload=n))
    assert payloads(await desk.handle()) == list(range(40))


async def test_users_take_turns_however_many_tasks_one_of_them_has(desk):
    for n in range(50):
        desk.queue.push(Task("ada", payload=f"a{n}"))
    for n in range(3):
        desk.queue.push(Task("bob", payload=f"b{n}"))
    users = [task.user_id for task in await desk.handle()]
    assert users[:6].count("bob") == 3
    assert users[6:] == ["ada"] * 47


async def test_each_push_is_a_task_of_its_own(desk):
    task = Task("ada", payload=1)
    assert desk.queue.push(task) != desk.queue.push(task)
    handled = await desk.handle()
    assert len({task.task_id for task in handled}) == len(handled) == 2


async def test_a_task_that_says_its_id_is_pushed_once_also_after_it_was_handled(desk):
    task = Task("ada", payload=1, task_id="report-7")
    assert desk.queue.push(task) == desk.queue.push(task) == "report-7"
    assert len(await desk.handle()) == 1
    desk.queue.push(task)
    assert await desk.handle() == []


async def test_a_handler_that_raises_is_tried_again_and_then_a_dead_letter(tocsin_app):
    tried = []

    async def fails(task):
        tried.append(task.task_id)
        raise ValueError("no")

    queue = TaskQueue(tocsin_app, "failing", fails, retry=Retry(2, 0), timeout="1m")
    pushed = queue.push(Task("ada"))
    await run_until_idle(tocsin_app, queues=["failing"])
    job = await tocsin_app.get(pushed)
    assert (len(tried), len(set(tried)), job.stage, job.timeout) == (3, 1, "dead", 60.0)
    tocsin_app.sync.close()


async def test_ping_says_that_the_server_answers(desk):
    assert desk.queue.ping() is True


async def test_ping_tells_that_the_server_does_not_answer(tmp_path):
    app = Tocsin(f"unix://{tmp_path / 'nobody'}")
    with pytest.raises(StoreUnavailable):
        TaskQueue(app, "tasks", print).ping()


async def test_ping_tells_that_the_queue_is_another_one(desk, tocsin_app, tocsin_server):
    async with Tocsin(tocsin_server.url, prefix=tocsin_app.store.keys.prefix) as other:
        other.queue("ours", order="priority")
        await other.enqueue(other.job(name="any", queue="ours")(print), delay="1h")
    with pytest.raises(InvalidConfig, match="declare it the same"):
        TaskQueue(tocsin_app, "ours", print).ping()


async def test_a_push_while_a_worker_sleeps_wakes_it(desk, tocsin_app):
    worker = await tocsin_app.worker(queues=["tasks"])
    desk.workers.append(worker)
    await worker.start()
    desk.queue.push(Task("ada", payload=1))
    await eventually(lambda: payloads(desk.tasks) == [1], "it is handled")


@pytest.mark.parametrize(
    "task",
    [
        None,
        7,
        {},
        {"payload": 1},
        {"user_id": "ada", "prioritty": "low"},
        Task(""),
        Task(7),
        Task("a\0b"),
        Task("x" * 251),
        Task("ada", "urgent"),
        Task("ada", payload=print),
        Task("ada", task_id="a\x1fb"),
    ],
    ids=str,
)
async def test_a_task_that_cannot_be_is_refused(desk, task):
    with pytest.raises(InvalidArgument):
        desk.queue.push(task)
    assert await desk.handle() == []


@pytest.mark.parametrize(
    ("name", "handler", "says"),
    [
        ("", print, "queue name"),
        ("a b", print, "queue name"),
        ("x" * 95, print, "queue name"),
        ("agents", print, "declared"),
        ("tasks", print, "declared"),
        ("tasks.schedules", None, "function"),
    ],
)
async def test_a_queue_that_cannot_be_is_refused(desk, tocsin_app, name, handler, says):
    with pytest.raises(InvalidArgument, match=says):
        TaskQueue(tocsin_app, name, handler)


def test_a_queue_needs_an_app():
    with pytest.raises(InvalidArgument, match="app"):
        TaskQueue("redis://localhost", "tasks", print)
