"""`tocsin worker`: from its start, with a server or without, to a clean end; one process, or several."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.apps import shop
from tests.support.command_line import APPS, Running, Tool, alive
from tests.support.servers import Server
from tests.support.waiting import until
from tocsin import Tocsin
from tocsin.inspection.inspector import Inspector


@pytest.fixture(scope="module", autouse=True)
def doomed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, float]]:
    """A worker whose server never comes. It takes its time to give up, so it begins before the other tests."""
    words = ["worker", "shop:app", "--url", "redis://127.0.0.1:1"]
    running = Running(words, tmp_path_factory.mktemp("doomed") / "log")
    yield running, time.monotonic()
    running.kill()


async def stage_of(app: Tocsin, job_id: str) -> str:
    job = await app.get(job_id)
    return job.stage.value if job else "gone"


def test_it_runs_jobs_where_url_says_and_ends_with_0(tocsin: Tool) -> None:
    worker = tocsin.worker("--queues", "mail", "--concurrency", "3")

    async def ask(app: Tocsin) -> object:
        return await (await app.enqueue(shop.quick, 7, id="seven")).result(timeout=20)

    assert tocsin.do(ask) == 7
    [view] = tocsin.do(lambda app: Inspector(app.store).workers())
    assert (view.about.queues, view.about.concurrency) == (["mail"], 3)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert pids(tocsin, 0) == []
    # Not a terminal: each line is JSON.
    assert all(line.startswith('{"') for line in worker.said.splitlines())


def test_a_second_signal_hurries_and_the_run_is_handed_over(tocsin: Tool) -> None:
    worker = tocsin.worker("--grace", "1m")

    tocsin.do(lambda app: begin(app, "long", 600))
    worker.signal(signal.SIGTERM)
    worker.until_it_says("a second signal hurries")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert tocsin.do(lambda app: stage_of(app, "long")) == "waiting"


def test_a_queue_that_the_app_does_not_declare_is_an_error(tocsin: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(APPS)
    assert "queue 'mial' is not declared" in tocsin.quick("worker", "shop:app", "--queues", "mial", code=1)


def test_it_waits_for_a_server_that_comes_late(tocsin: Tool) -> None:
    with Server.valkey(tcp=True) as server:
        server.kill()
        tocsin.url = server.url
        worker = tocsin.start("worker", "shop:app")
        worker.until_it_says("server away, trying again")
        server.start()
        worker.until_it_says("worker started")
        worker.signal(signal.SIGINT)
        assert worker.wait() == 0


def test_told_to_stop_while_it_waits_for_a_server_it_stops(tocsin: Tool) -> None:
    tocsin.url = "redis://127.0.0.1:1"
    worker = tocsin.start("worker", "shop:app")
    worker.until_it_says("server away, trying again")
    worker.signal(signal.SIGTERM)
    assert worker.wait(5) == 0


@pytest.fixture
def at_a_terminal() -> Iterator[None]:
    """SIGHUP as a terminal leaves it, also where the tests were started with nohup: a process inherits that."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("at_a_terminal")
def test_a_closed_terminal_stops_it_like_any_other_signal(tocsin: Tool) -> None:
    worker = tocsin.worker()
    tocsin.do(lambda app: begin(app, "short", 0.5))
    worker.signal(signal.SIGHUP)
    assert worker.wait() == 0
    assert tocsin.do(lambda app: stage_of(app, "short")) == "gone"


def test_outcomes_that_cannot_be_written_are_named_and_it_ends_with_1(tmp_path: Path) -> None:
    with Server.valkey() as server:
        tocsin = Tool(server.url, "", tmp_path)
        try:
            worker = tocsin.worker("--grace", "2s")
            tocsin.do(lambda app: begin(app, "unwritten", 0.5))
            server.kill()
            worker.until_it_says('"part": "finish"')
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 1
            [lost] = [
                line for line in map(json.loads, worker.said.splitlines()) if "could not be written" in line["event"]
            ]
            assert "unwritten" in lost["jobs"]
            assert "the event loop is blocked" not in worker.said
        finally:
            tocsin.close()


# A scheduler of agents


async def succeeded(app: Tocsin, *names: str) -> dict[str, int]:
    jobs = {name: await app.get(name, queue="agents") for name in names}
    return {name: job.succeeded for name, job in jobs.items() if job is not None}


def test_it_runs_the_agents_of_a_scheduler_and_those_that_they_schedule(tocsin: Tool) -> None:
    worker = tocsin.start("worker", "patrol:scheduler", "--concurrency", "7")
    names = ("sergeant", "recruit", "rider", "off-duty")
    ran = {"sergeant": 1, "recruit": 1, "rider": 1}
    until(lambda: tocsin.do(lambda app: succeeded(app, *names)) == ran, "each has run", within=30)
    [view] = tocsin.do(lambda app: Inspector(app.store).workers())
    assert (view.about.queues, view.about.concurrency) == (["agents"], 7)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_the_agents_of_a_scheduler_are_shared_out_by_shards(tocsin: Tool) -> None:
    """By the digests of their names the sergeant is of the second of three parts, the rider of the third."""
    workers = [tocsin.start("worker", "patrol:scheduler", "--shard", f"{part}/3") for part in (1, 2)]
    until(lambda: all("worker started" in worker.said for worker in workers), "they started")
    there = {"sergeant": 1}
    until(lambda: tocsin.do(lambda app: succeeded(app, "sergeant", "rider")) == there, "it has run")


def test_a_scheduler_has_no_other_queues(tocsin: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(APPS)
    assert "--queues is for an app" in tocsin.quick("worker", "patrol:scheduler", "--queues", "mail", code=2)


# Several processes


def pids(tocsin: Tool, count: int) -> list[int]:
    """The processes of the workers, once there are as many as there should be and all of them live."""

    async def joined(app: Tocsin) -> list[int]:
        while True:
            workers = await Inspector(app.store).workers()
            found = [worker.about.pid for worker in workers if alive(worker.about.pid)]
            if len(found) == count:
                return found
            await asyncio.sleep(0.05)

    found: list[int] = tocsin.do(lambda app: asyncio.wait_for(joined(app), 30))
    return found


async def begin(app: Tocsin, job_id: str, seconds: float) -> None:
    """Let a worker have a run in its hands."""
    await app.enqueue(shop.slow, seconds, id=job_id)
    while await stage_of(app, job_id) != "working":
        await asyncio.sleep(0.01)


def test_a_process_that_dies_is_replaced_and_a_signal_to_all_at_once_is_one_signal(tocsin: Tool) -> None:
    crew = tocsin.worker("--processes", "2", "--queues", "mail")
    first, second = pids(tocsin, 2)
    os.kill(first, signal.SIGKILL)
    crew.until_it_says("worker process died, starting another")
    workers = pids(tocsin, 2)
    assert second in workers
    assert first not in workers
    # As systemd stops a service: it signals all, and the first process passes its own signal on. Were that taken for a
    # second one, the run would not get its grace period.
    tocsin.do(lambda app: begin(app, "rest", 4))
    for pid in workers:
        os.kill(pid, signal.SIGTERM)
    crew.until_it_says("stopping: ")
    crew.signal(signal.SIGTERM)
    assert crew.wait() == 0
    assert not any(map(alive, workers))
    assert tocsin.json("jobs", "show", "rest")["result"] == "rested"


def test_a_second_signal_hurries_all_processes(tocsin: Tool) -> None:
    crew = tocsin.worker("--processes", "2", "--queues", "mail", "--grace", "1m")
    pids(tocsin, 2)
    tocsin.do(lambda app: begin(app, "long", 600))
    crew.signal(signal.SIGINT)
    crew.until_it_says("a second signal hurries")
    crew.signal(signal.SIGINT)
    assert crew.wait() == 0
    assert tocsin.do(lambda app: stage_of(app, "long")) == "waiting"


def test_processes_do_not_outlive_the_one_that_started_them(tocsin: Tool) -> None:
    crew = tocsin.worker("--processes", "2", "--queues", "mail")
    workers = pids(tocsin, 2)
    crew.kill()
    until(lambda: not any(map(alive, workers)), "the workers are gone", within=20)


def test_it_gives_up_on_a_server_that_never_comes(doomed: tuple[Running, float]) -> None:
    running, begun = doomed
    assert running.wait(20) == 1
    assert "server away, trying again" in running.said
    assert running.said.splitlines()[-1].startswith("tocsin: redis://127.0.0.1:1 is not available")
    assert time.monotonic() - begun > 7


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--shard", "4/3"], "a shard is I/N"), (["--processes", "2", "--metrics-port", "9"], "is for one process")],
    ids=["shard", "metrics"],
)
def test_what_cannot_be_is_wrong_usage(tocsin: Tool, words: list[str], said: str) -> None:
    assert said in tocsin.quick("worker", "shop:app", *words, code=2)


def test_a_worker_shows_its_metrics_where_prometheus_looks(tocsin: Tool) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    worker = tocsin.worker("--metrics-port", str(port))

    async def ask(app: Tocsin) -> object:
        return await (await app.enqueue(shop.quick, 7, id="seven")).result(timeout=20)

    assert tocsin.do(ask) == 7

    def shown(name: str) -> list[str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return [line.rsplit(" ", 1)[1] for line in lines if line.startswith((f"{name} ", f"{name}{{"))]

    until(lambda: shown("tocsin_acquire_acquired_total")[0] > "0.0", "the run is counted")
    assert shown("tocsin_scheduler_degraded") == ["0.0"]
    until(lambda: shown('queue_schedule_total{queue="mail"}') == ["1.0"], "the queue's own total is read")
    assert shown('queue_enqueue_total{queue="mail"}') == ["1.0"]
    assert shown('queue_depth{queue="mail"}') == shown('queue_active{queue="mail"}') == ["0.0"]
    assert shown('queue_wait_time_count{priority="normal",queue="mail"}') == ["1.0"]
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
