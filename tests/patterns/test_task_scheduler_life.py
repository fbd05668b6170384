"""The FairQueue scheduler as it lives: states, threads, and a stop that says how it went."""

from __future__ import annotations

import secrets
import threading
import time

import pytest

from tests.support.captured_logs import capture_logs
from tests.support.servers import Server
from tests.support.waiting import until
from tocsin import StoreRefused, StoreUnavailable, Tocsin, TocsinError
from tocsin.patterns import State, Task, TaskQueue, TaskScheduler
from tocsin.worker import WorkerSettings

EACH_SECOND = "* * * * * *"


class Handler:
    """Notes the tasks that it is given, and may be made to wait."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.door = threading.Event()
        self.door.set()

    def __call__(self, task: Task) -> None:
        self.tasks.append(task)
        assert self.door.wait(20)


@pytest.fixture
def handler():
    made = Handler()
    yield made
    made.door.set()


@pytest.fixture
def app(tocsin_server):
    """On the server's own time."""
    app = Tocsin(tocsin_server.url, prefix=f"life-{secrets.token_hex(4)}:")
    yield app
    app.sync.close()


@pytest.fixture
def queue(app, handler):
    return TaskQueue(app, "tasks", handler)


@pytest.fixture
def scheduler(queue):
    made = TaskScheduler(queue, "s1", lock_timeout=20)
    yield made
    if made.state is State.RUNNING:
        made.stop(0)


@pytest.fixture
def server():
    with Server.valkey() as server:
        yield server


@pytest.fixture
def lonely(server, handler):
    """A scheduler whose server is its own."""
    app = Tocsin(server.url)
    yield TaskScheduler(TaskQueue(app, "tasks", handler), "s1")
    if server.process is not None:
        app.sync.close()


def in_thread(call, *args):
    """Called on another thread; what it returned or raised is in the list then."""
    ended: list[object] = []

    def run():
        try:
            ended.append(call(*args))
        except TocsinError as error:
            ended.append(error)

    threading.Thread(target=run, daemon=True).start()
    return ended


def test_a_scheduler_that_runs_pushes_what_is_due_and_works_for_its_queue(scheduler, handler):
    assert scheduler.state is State.STOPPED
    scheduler.start()
    assert scheduler.state is State.RUNNING
    # It would look again in a minute: it is told.
    made = scheduler.add_schedule(EACH_SECOND, "ada", payload=7)
    until(lambda: len(handler.tasks) >= 2, "its tasks are handled")
    # A task may be handled before the pass that pushed it has counted it.
    until(lambda: scheduler.statistics().pushed >= 2, "its pushes are counted")
    told = scheduler.statistics()
    assert (told.state, told.connected) == ("running", True)
    assert min(told.uptime_s, told.schedules_per_second, told.mean_pass_s) > 0
    assert scheduler.stop(10) == "graceful"
    assert scheduler.state is State.STOPPED
    assert scheduler.statistics().uptime_s == 0
    assert {task.task_id.split("@")[0] for task in handler.tasks} == {made}
    assert len({task.task_id for task in handler.tasks}) == len(handler.tasks)


def test_it_may_be_started_again_after_it_was_stopped(scheduler, handler):
    scheduler.add_schedule(EACH_SECOND, "ada")
    for ran in (1, 2):
        scheduler.start()
        until(lambda: len(handler.tasks) >= ran, "it pushes")  # noqa: B023
        assert scheduler.stop(10) == "graceful"


def test_what_is_stopped_is_stopped_already(scheduler):
    assert scheduler.stop(5) == "already stopped"
    scheduler.start()
    scheduler.stop(5)
    assert scheduler.stop(5) == "already stopped"


def test_a_running_scheduler_is_not_started_again(scheduler):
    scheduler.start()
    with pytest.raises(TocsinError, match="is running: start"):
        scheduler.start()
    assert scheduler.state is State.RUNNING


def test_while_it_stops_other_calls_are_refused(scheduler, queue, handler):
    handler.door.clear()
    scheduler.start()
    queue.push(Task("ada"))
    until(lambda: handler.tasks, "a task is handled")
    stopping = in_thread(scheduler.stop, 20)
    until(lambda: scheduler.state is State.STOPPING, "it stops")
    for call in (scheduler.start, scheduler.stop):
        with pytest.raises(TocsinError, match=f"is stopping: {call.__name__}"):
            call()
    # Schedules may be looked at and changed all the same.
    assert scheduler.remove_schedule(scheduler.add_schedule("0 0 * * *", "ada"))
    handler.door.set()
    until(lambda: stopping == ["graceful"], "it has stopped")


def test_while_it_starts_other_calls_are_refused(lonely, server):
    server.pause()
    starting = in_thread(lonely.start)
    until(lambda: lonely.state is State.STARTING, "it starts")
    for call in (lonely.start, lonely.stop):
        with pytest.raises(TocsinError, match=f"is starting: {call.__name__}"):
            call()
    server.resume()
    until(lambda: starting == [None], "it has started")
    assert lonely.stop(5) == "graceful"


def test_a_scheduler_that_cannot_start_is_stopped_and_may_be_started_later(lonely, server):
    server.kill()
    with pytest.raises(StoreUnavailable):
        lonely.start()
    assert (lonely.state, lonely.stop(0)) == (State.STOPPED, "already stopped")
    server.start()
    lonely.start()
    assert lonely.stop(5) == "graceful"


def test_what_does_not_end_in_time_is_handed_back_at_once(scheduler, app, queue, handler):
    handler.door.clear()
    scheduler.start()
    pushed = queue.push(Task("ada"))
    until(lambda: handler.tasks, "a task is handled")
    began = time.monotonic()
    with capture_logs() as logs:
        assert scheduler.stop(0.2) == "forced"
    assert time.monotonic() - began < 1.2
    assert [entry["how"] for entry in logs if entry["event"] == "scheduler stopped"] == ["forced"]
    job = app.sync.get(pushed)
    assert (job.stage, job.owner, job.attempt, job.recoveries) == ("ready", None, 1, 0)


def test_a_stop_ends_in_time_although_the_server_is_away(lonely, server):
    lonely.start()
    lonely.add_schedule(EACH_SECOND, "ada")
    until(lambda: lonely.statistics().pushed, "it pushes")
    server.pause()
    try:
        began = time.monotonic()
        assert lonely.stop(0.5) == "forced"
        assert time.monotonic() - began < 1.5
    finally:
        server.resume()
    assert (lonely.state, lonely.stop(1)) == (State.STOPPED, "already stopped")


def test_a_critical_error_ends_the_scheduler_and_is_told(lonely, server):
    lonely.start()
    lonely.add_schedule(EACH_SECOND, "ada")
    until(lambda: lonely.statistics().pushed, "it pushes")
    with capture_logs() as logs, server.client() as client:
        # Nothing that is tried again will help: it is not let in any more.
        client.config_set("requirepass", "secret")
        client.client_kill_filter(_type="normal", skipme=True)
        until(lambda: lonely.state is not State.RUNNING, "it notices")
        until(lambda: lonely.state is State.STOPPED, "it has ended")
        told = lonely.statistics()
        assert "password" in told.critical_error
        assert (told.connected, told.uptime_s) == (False, 0.0)
        assert told.redis_error_count >= 1
        assert told.critical_error_count == 1
        events = [entry["event"] for entry in logs if entry.get("scheduler") == "s1"]
        assert events[:2] == [
            "critical error, the scheduler ends",
            "scheduler stopped: mend what is wrong and start it again",
        ]
        assert lonely.stop(1) == "already stopped"
        with pytest.raises(StoreRefused):
            lonely.start()
        client.config_set("requirepass", "")
    before = lonely.statistics().pushed
    lonely.start()
    until(lambda: lonely.statistics().pushed > before, "it pushes again")
    assert lonely.stop(5) == "graceful"


def test_a_handler_cannot_stop_the_scheduler_that_runs_it(app):
    told = []

    async def stops(task):
        try:
            scheduler.stop(1)
        except TocsinError as error:
            told.append(str(error))

    queue = TaskQueue(app, "stopping", stops)
    scheduler = TaskScheduler(queue, "s1")
    scheduler.start()
    queue.push(Task("ada"))
    until(lambda: told, "the handler ran")
    assert "another thread" in told[0]
    assert scheduler.state is State.RUNNING
    assert scheduler.stop(5) == "graceful"


def test_what_a_scheduler_does_is_in_the_log(scheduler):
    with capture_logs() as logs:
        made = scheduler.add_schedule("0 0 * * *", "ada")
        scheduler.remove_schedule(made)
        scheduler.start()
        scheduler.stop(5)
        scheduler.stop(5)
    told = [(entry["event"], entry.get("how")) for entry in logs if entry["log_level"] == "info"]
    for event in ("schedule added", "schedule removed", "scheduler started", "scheduler stopping"):
        assert (event, None) in told
    assert told[-2:] == [("scheduler stopped", "graceful"), ("scheduler already stopped", None)]


def test_tasks_that_take_all_permits_do_not_hold_up_the_pushes(queue, handler):
    scheduler = TaskScheduler(queue, "s1", settings=WorkerSettings(concurrency=1))
    handler.door.clear()
    scheduler.start()
    scheduler.add_schedule(EACH_SECOND, "ada")
    until(lambda: scheduler.statistics().pushed >= 2, "it pushes on")
    assert len(handler.tasks) == 1
    handler.door.set()
    assert scheduler.stop(10) == "graceful"
