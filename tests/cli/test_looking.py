"""`queues list`, `jobs list|show`, `workers`, `dead`: what an operator sees."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.apps import shop
from tests.support.command_line import APPS, Tool
from tests.support.servers import Server
from tests.support.waiting import until
from tocsin import Every, Http, Message, Tocsin
from tocsin.store.keys import Keys


@pytest.fixture(scope="module")
def seen(module_tool: Tool) -> Iterator[Tool]:
    """A worker, and jobs that wait, are paused, are dead, are done, and recur."""
    worker = module_tool.worker()

    async def fill(app: Tocsin) -> None:
        await app.enqueue(shop.quick, 1, id="later", delay="1h", tenant="acme")
        await app.enqueue(shop.quick, 2, id="soon", delay="20m")
        await app.schedule(shop.quick, Every("10m"), 3, id="again [x]\x1b")
        await app.enqueue(shop.quick, 4, id="set aside", delay="1d")
        await app.pause("set aside")
        dead = await app.enqueue(shop.bad, id="bad")
        done = await app.enqueue(shop.quick, 5, id="five")
        assert await done.result(timeout=20) == 5
        with pytest.raises(Exception, match=r"no \[good\]"):
            await dead.result(timeout=20)

    module_tool.do(fill)
    yield module_tool
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def ids(found: list[dict[str, Any]]) -> list[str]:
    return [job["id"] for job in found]


def test_queues_with_counts_per_stage(seen: Tool) -> None:
    queues = {queue["name"]: queue for queue in seen.json("queues", "list")}
    mail = queues["mail"]
    assert mail["partitions"] == 2
    assert mail["stages"] == {
        "waiting": 3, "working": 0, "blocked": 0, "paused": 1, "parked": 0, "dead": 1, "ready": 0,
    }  # fmt: skip
    assert (mail["due"], mail["done"], mail["counters"]["succeeded"]) == (0, 1, 1)
    # The dead one-shot.
    assert (mail["counters"]["failed"], mail["counters"]["buried"]) == (1, 1)
    assert queues["agents"]["stages"]["waiting"] == 1


def test_jobs_in_the_order_in_which_they_run(seen: Tool) -> None:
    found = seen.json("jobs", "list", "--queue", "mail")
    assert ids(found) == ["again [x]\x1b", "soon", "later", "set aside", "bad"]
    assert [job["stage"] for job in found] == ["waiting"] * 3 + ["paused", "dead"]
    assert found[0]["every"] == 600
    assert found[4]["error"] == "ValueError: no [good] at\nall"


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--stage", "dead"], ["bad"]),
        (["--tenant", "acme"], ["later"]),
        (["--name", "shop.bad"], ["bad"]),
        (["--stage", "waiting", "--due-before", "+30m", "--name", "shop.quick"], ["again [x]\x1b", "soon"]),
        (["--stage", "waiting", "--due-after", "+30m", "--limit", "1", "--queue", "mail"], ["later"]),
    ],
)
def test_jobs_can_be_chosen(seen: Tool, words: list[str], wanted: list[str]) -> None:
    assert ids(seen.json("jobs", "list", *words)) == wanted


def test_without_a_terminal_rows_are_lines_and_nothing_escapes(seen: Tool) -> None:
    lines = seen.quick("jobs", "list", "--queue", "mail").splitlines()
    assert lines[0].split()[:4] == ["id", "queue", "stage", "due"]
    assert len(lines) == 6
    assert lines[1].startswith("again [x]\\x1b ")
    assert "ValueError: no [good] at\\nall" in lines[5]


def test_a_list_that_was_cut_says_so_beside_it(seen: Tool) -> None:
    ran = seen.process("jobs", "list", "--limit", "2")
    assert len(ran.stdout.splitlines()) == 3
    assert "--limit 2 was reached" in ran.stderr


def test_a_queue_that_does_not_exist_names_the_nearest(seen: Tool) -> None:
    assert "there is no queue 'mial'; did you mean 'mail'?" in seen.quick("jobs", "list", "--queue", "mial", code=1)


def test_one_job_with_all_there_is_to_know(seen: Tool) -> None:
    said = seen("jobs", "show", "bad")
    assert "stage:        dead" in said
    assert "raise ValueError" in said
    assert "attempts:     2\n" in said
    counts = seen.json("jobs", "show", "bad")
    assert (counts["succeeded"], counts["failed"], counts["attempts"]) == (0, 1, 2)
    about = seen.json("jobs", "show", "later", "--queue", "mail")
    assert (about["stage"], about["args"], about["tenant"]) == ("waiting", [1], "acme")


def test_a_login_in_an_address_is_not_shown(tocsin: Tool) -> None:
    async def fill(app: Tocsin) -> None:
        await app.enqueue(Http.get("https://user:sesame@example.org/x"), id="hook", delay="1h")
        await app.enqueue(Message("kafka://user:sesame@broker/topic", b"x"), id="tick", delay="1h")

    tocsin.do(fill)
    for id, shown in (("hook", "https://***@example.org/x"), ("tick", "kafka://***@broker/topic")):
        said = tocsin("jobs", "show", id)
        assert shown in said
        assert "sesame" not in said
        assert tocsin.json("jobs", "show", id)["target"].endswith(shown)


def test_a_schedule_with_its_rules_and_the_ticks_that_did_not_run(tocsin: Tool) -> None:
    async def edit_late(app: Tocsin) -> None:
        await app.schedule(shop.hopeless, Every("1ms"), id="often", overlap="buffer_one")
        job = await app.get("often")
        while app.store.clock.server_ms() <= job.due_ms:
            await app.get("often")
        await app.update("often", trigger=Every("1h"))

    tocsin.do(edit_late)
    about = tocsin.json("jobs", "show", "often")
    assert (about["overlap"], about["misfire"]) == ("buffer_one", "coalesce")
    [passed] = about["passed"]
    assert (passed["what"], passed["why"]) == ("skipped", "edited")
    assert passed["first"] < passed["until"]
    assert f"passed:       edited from {passed['first']} to {passed['until']}" in tocsin("jobs", "show", "often")


def test_a_schedule_shows_how_often_it_succeeded_failed_and_was_tried(tocsin: Tool) -> None:
    async def run_some(app: Tocsin) -> None:
        await app.schedule(shop.quick, Every("1h"), 1, id="often")
        for _ in range(2):
            await app.fire("often")
        await app.work(until="idle")

    tocsin.do(run_some)
    about = tocsin.json("jobs", "show", "often")
    assert (about["succeeded"], about["failed"], about["attempts"]) == (2, 0, 2)
    assert "attempts:     2" in tocsin.quick("jobs", "show", "often")


def test_a_job_that_ended_is_shown_while_it_is_remembered(seen: Tool) -> None:
    about = seen.json("jobs", "show", "five")
    assert (about["stage"], about["outcome"], about["result"]) == ("done", "succeeded", 5)


def test_a_job_that_nobody_knows_is_an_error(seen: Tool) -> None:
    assert "there is no job 'nobody'" in seen.quick("jobs", "show", "nobody", code=1)


def test_workers_and_whether_they_live(seen: Tool) -> None:
    [worker] = seen.json("workers")
    assert worker["alive"] is True
    assert (worker["state"], worker["queues"]) == ("running", ["agents", "default", "mail"])
    assert worker["finished"] >= 3


def test_a_dead_worker_is_called_dead_whatever_it_said_last(tocsin: Tool, valkey: Server) -> None:
    worker = tocsin.worker()
    [before] = tocsin.json("workers")
    assert (before["alive"], before["state"], before["health"]) == (True, "running", "HEALTHY")
    assert 0 <= before["last_beat_s"] < 20
    worker.kill()
    with valkey.client() as client:
        seconds, _ = client.time()
        client.zadd(Keys(tocsin.prefix, tocsin.hash_tag).fleet()["pulses"], {before["id"]: (seconds - 200) * 1000})
    [dead] = tocsin.json("workers")
    assert (dead["alive"], dead["state"], dead["health"]) == (False, "dead", "DEAD")
    assert dead["reasons"][0].startswith("no heartbeat for 3m")
    said = tocsin.quick("workers")
    assert "DEAD; no heartbeat for 3m" in said
    assert "HEALTHY" not in said


def test_a_watched_list_is_shown_again_until_ctrl_c(seen: Tool) -> None:
    running = seen.start("queues", "list", "--watch", "--json")
    until(lambda: running.said.count("\n") >= 2, "two rounds", within=20)
    running.signal(signal.SIGINT)
    assert running.wait() == 0
    for line in running.said.splitlines():
        assert {queue["name"] for queue in json.loads(line)} == {"agents", "default", "mail"}


def test_a_reader_that_goes_away_ends_it_quietly(seen: Tool) -> None:
    words = [sys.executable, "-m", "tocsin.cli", "jobs", "list", "--watch", *seen.where]
    process = subprocess.Popen(words, cwd=APPS, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith(b"id")
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(20) == 0


def test_a_terminal_gets_a_table(seen: Tool) -> None:
    ours, theirs = os.openpty()
    env = os.environ | {"COLUMNS": "200", "TERM": "xterm"}
    words = [sys.executable, "-m", "tocsin.cli", "queues", "list", *seen.where]
    process = subprocess.Popen(words, cwd=APPS, stdout=theirs, stderr=subprocess.PIPE, env=env)
    os.close(theirs)
    said = b""
    while b"mail" not in said:
        said += os.read(ours, 4096)
    assert b"\x1b[1m" in said
    os.close(ours)
    _, error = process.communicate(timeout=20)
    assert error == b""


# Dead jobs, which are changed


@pytest.fixture
def dead(tocsin: Tool) -> Tool:
    """Three dead jobs, and no worker any more."""

    async def bury(app: Tocsin) -> None:
        for n in range(3):
            await app.enqueue(shop.hopeless, id=f"bad {n}")
        await app.work(queues=["mail"], until="idle")

    tocsin.do(bury)
    return tocsin


def test_dead_jobs_are_retried_or_dropped_by_id(dead: Tool) -> None:
    assert ids(dead.json("dead", "list")) == ["bad 0", "bad 1", "bad 2"]
    assert dead("dead", "retry", "bad 0") == "retried 1 dead job\n"
    assert dead.json("dead", "drop", "bad 1", "bad 0", code=1) == {
        "dropped": ["bad 1"],
        "refused": {"bad 0": "no dead job has the id 'bad 0'"},
    }
    stages = {job["id"]: job["stage"] for job in dead.json("jobs", "list")}
    assert stages == {"bad 0": "waiting", "bad 2": "dead"}


def test_all_dead_jobs_are_retried_or_dropped_and_counted(dead: Tool) -> None:
    assert dead.quick("dead", "retry", "--all", "--queue", "mail") == "retried 3 dead jobs\n"
    assert dead.quick("dead", "drop", "--all") == "dropped 0 dead jobs\n"
    assert sorted(ids(dead.json("jobs", "list", "--stage", "waiting"))) == ["bad 0", "bad 1", "bad 2"]


def test_a_blocked_job_is_listed_and_shown_with_what_it_waits_for(tocsin: Tool) -> None:
    async def put(app: Tocsin) -> None:
        await app.enqueue(shop.quick, 1, id="first", delay="1h")
        await app.enqueue(shop.quick, 2, id="second", after=["first"])

    tocsin.do(put)
    assert ids(tocsin.json("jobs", "list", "--stage", "blocked")) == ["second"]
    assert tocsin.json("jobs", "show", "second")["after"] == [{"queue": "mail", "id": "first"}]
    assert 'after:        [{"queue":"mail","id":"first"}]' in tocsin("jobs", "show", "second")
    assert tocsin.json("jobs", "show", "first")["after"] == []
