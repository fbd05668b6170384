"""`app.sync`: every call, blocking, without an event loop of one's own."""

from __future__ import annotations

import asyncio
import fcntl
import secrets
import subprocess
import sys
import threading
from datetime import timedelta

import pytest

from tocsin import (
    Every,
    InvalidArgument,
    ResultTimeout,
    RunCancelled,
    RunFailed,
    StoreUnavailable,
    Tocsin,
    TocsinError,
    UnknownJob,
)


@pytest.fixture
def app(tocsin_server, tocsin_clock):
    """Never opened: app.sync has its own connection."""
    app = Tocsin(tocsin_server.url, prefix=f"sync-{secrets.token_hex(4)}:", clock=tocsin_clock)
    yield app
    app.sync.close()


@pytest.fixture
def job(app):
    @app.job(name="job")
    async def job(what=None, *, fail=None):
        if fail:
            raise ValueError(fail)
        return what

    return job


def test_a_job_is_enqueued_worked_on_and_its_result_read(app, job):
    handle = app.sync.enqueue(job, 42, id="j")
    assert (handle.id, handle.new, handle.queue) == ("j", True, "default")
    assert handle.status() == "waiting"
    app.sync.work(until="idle")
    assert handle.status() == "succeeded"
    assert handle.result() == 42
    assert handle.result(timeout="1s") == 42
    assert not app.sync.enqueue(job, 43, id="j").new


def test_a_queue_is_repartitioned_and_what_waits_in_it_goes_on(app, job):
    first = app.sync.enqueue(job, 1, keep="1h")
    later = [app.sync.enqueue(job, n, after=[first], keep="1h") for n in range(20)]
    done = app.sync.repartition_queue("default", 3)
    assert (done.before, done.after) == (1, 3)
    assert {handle.status() for handle in later} == {"blocked"}
    app.sync.work(until="idle")
    assert [handle.result() for handle in later] == list(range(20))


def test_results_that_do_not_come_raise_what_they_raise(app, job):
    waiting = app.sync.enqueue(job, id="w", delay="1h")
    with pytest.raises(ResultTimeout):
        waiting.result("10ms")
    assert waiting.cancel() is True
    assert waiting.cancel() is False
    with pytest.raises(RunCancelled):
        waiting.result()
    failed = app.sync.enqueue(job, id="f", fail="bad")
    app.sync.work(until="idle")
    with pytest.raises(RunFailed, match="bad"):
        failed.result()


def test_a_schedule_is_put_changed_paused_resumed_and_removed(app, job, tocsin_clock):
    handle = app.sync.schedule(job, Every("1m"), "x", id="s")
    assert handle.new
    assert app.sync.update("s", args=("y",)) is True
    assert app.sync.get("s").args == ("y",)
    assert app.sync.pause("s") is True
    assert handle.status() == "paused"
    assert app.sync.resume("s", replay=True) is True
    now = tocsin_clock.now
    assert app.sync.next_runs("s", 2) == [now + timedelta(minutes=1), now + timedelta(minutes=2)]
    assert app.sync.fire("s").job_id == "s"
    assert app.sync.backfill("s", now - timedelta(minutes=3), now) == 3
    app.sync.work(until="idle")
    assert app.sync.get("s").succeeded == 4
    assert len(list(app.sync.runs("s"))) == 4
    assert [decision.what for decision in app.sync.decisions("s")] == ["ran"] * 4
    assert app.sync.remove("s") is True
    assert app.sync.get("s") is None
    assert app.sync.remove("s") is False


def test_many_are_put_and_listed(app, job):
    assert app.sync.enqueue_many(job, [(n,) for n in range(10)], ids=[f"j{n}" for n in range(10)], delay="1m") == 10
    assert app.sync.schedule_many(job, [(f"s{n}", Every("1h"), (n,)) for n in range(5)]) == 5
    assert [each.id for each in app.sync.jobs()] == [f"j{n}" for n in range(10)] + [f"s{n}" for n in range(5)]
    assert len(list(app.sync.jobs(due_after=app.sync.get("s0").due))) == 5
    assert next(iter(app.sync.jobs())).id == "j0"


def test_a_generator_of_rows_is_consumed_lazily(app, job):
    seen = []

    def rows():
        for n in range(3):
            seen.append(threading.current_thread().name)
            yield (n,)

    assert app.sync.enqueue_many(job, rows()) == 3
    assert len(seen) == 3


def test_the_dead_are_listed_revived_and_dropped(app, job):
    for n in range(2):
        app.sync.enqueue(job, id=f"d{n}", fail="bad")
    app.sync.work(until="idle")
    assert sorted(each.id for each in app.sync.dead()) == ["d0", "d1"]
    assert app.sync.retry_dead("d0") is True
    assert app.sync.drop_dead("d1") is True
    assert app.sync.unpark("d1") is False
    assert list(app.sync.dead()) == []


def test_a_run_is_cancelled_and_a_queue_paused(app, job, tocsin_clock):
    app.sync.enqueue(job, id="j")
    assert app.sync.cancel(f"j@{tocsin_clock.ms}") is True
    assert app.sync.pause_queue("default") is True
    assert app.sync.resume_queue("default") is True


def test_errors_are_those_of_the_async_calls(app, job):
    with pytest.raises(InvalidArgument, match="did you mean 'delay'"):
        app.sync.enqueue(job, dely=1)
    with pytest.raises(UnknownJob):
        app.sync.fire("nobody")
    with pytest.raises(InvalidArgument, match="did you mean 'dead'"):
        list(app.sync.jobs(stage="ded"))
    with pytest.raises(AttributeError):
        app.sync.no_such_call()


def test_it_is_opened_by_the_first_call_closed_on_demand_and_opened_again(app, job):
    def threads() -> int:
        return sum(thread.name == "tocsin sync" for thread in threading.enumerate())

    before = threads()
    app.sync.enqueue(job, id="j", delay="1h")
    app.sync.get("j")
    assert threads() == before + 1
    app.sync.close()
    app.sync.close()
    assert threads() == before
    assert app.sync.get("j").id == "j"


def test_it_can_be_used_from_many_threads(app, job):
    results: list[bool] = []

    def enqueue(n: int) -> None:
        results.append(app.sync.enqueue(job, n, id=f"j{n}").new)

    threads = [threading.Thread(target=enqueue, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 20


def test_a_server_that_is_not_there_is_told_each_time_and_leaves_nothing_behind(tmp_path):
    app = Tocsin(f"unix://{tmp_path}/nothing")
    before = threading.active_count()
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            app.sync.get("j")
    assert threading.active_count() == before


FORKING = """
import os, signal, sys
from tocsin import Tocsin

app = Tocsin(sys.argv[1], prefix=sys.argv[2])


@app.job(name="job")
async def job(): ...


app.sync.enqueue(job, id="parent", delay="1h")
child = os.fork()
if child == 0:
    signal.alarm(30)
    new = app.sync.enqueue(job, id="child", delay="1h").new
    os._exit(0 if new and app.sync.get("parent") else 1)
assert os.waitpid(child, 0)[1] == 0
assert app.sync.get("child").id == "child"
app.sync.close()
"""


def test_a_forked_child_opens_its_own_connection(tocsin_server, tmp_path):
    """A web server that imports the program and forks its workers afterwards."""
    program = tmp_path / "program.py"
    program.write_text(FORKING)
    command = [sys.executable, program, tocsin_server.url, f"fork-{secrets.token_hex(4)}:"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_handler_in_a_thread_may_use_it(app, job):
    """As a Django view does, or a plain function that enqueues the next."""

    @app.job(name="first")
    def first():
        return app.sync.enqueue(job, "second", id="second").new

    handle = app.sync.enqueue(first, id="first")

    async def work():
        async with app:
            await app.work(until="idle")

    asyncio.run(work())
    assert handle.result() is True
    assert app.sync.get("second") is None


async def test_it_may_be_called_where_an_event_loop_runs(app, job):
    """It blocks that loop, as any blocking call would, and does not deadlock."""
    assert app.sync.enqueue(job, id="j").new


def test_calling_it_from_its_own_loop_is_an_error_and_no_deadlock(app):
    told = []

    @app.job(name="inner")
    async def inner():
        try:
            app.sync.get("j")
        except (RuntimeError, TocsinError) as error:
            told.append(str(error))

    app.sync.enqueue(inner)
    app.sync.work(until="idle")
    assert "use the async call there" in told[0]


def test_what_takes_several_calls_can_be_done_in_one(app, job):
    async def put_two(inside):
        return [(await inside.enqueue(job, id=name, delay="1h")).new for name in ("a", "a")]

    assert app.sync.run(put_two) == [True, False]


EMBEDDED = """
import sys
from tocsin import Tocsin
app = Tocsin(data=sys.argv[1])

@app.job
async def job(n): ...

print(app.sync.enqueue(job, 1).status())
"""


def test_a_program_on_an_embedded_server_ends_without_a_word_and_takes_the_server_along(tmp_path):
    program = [sys.executable, "-c", EMBEDDED, str(tmp_path / "data")]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "waiting\n", "")
    with (tmp_path / "data" / "server.lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
