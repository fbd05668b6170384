"""`tocsin why`: what a job is doing, why it is not running, and what to type."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.support.apps import shop
from tests.support.command_line import Tool
from tests.support.waiting import until
from tocsin import Tocsin


@pytest.fixture(scope="module")
def asked(module_tool: Tool) -> Iterator[Tool]:
    """A worker, and jobs that wait, run, are dead and are done."""
    worker = module_tool.worker()

    async def fill(app: Tocsin) -> None:
        await app.enqueue(shop.quick, 1, id="later", delay="1h")
        await app.enqueue(shop.slow, 600, id="long")
        await app.enqueue(shop.hopeless, id="bad [x]\x1b")
        done = await app.enqueue(shop.quick, 5, id="five")
        assert await done.result(timeout=20) == 5

    module_tool.do(fill)
    until(lambda: module_tool.json("why", "long")["reasons"][0]["kind"] == "running", "it runs", within=20)
    until(lambda: module_tool.json("why", "bad [x]\x1b")["reasons"][0]["kind"] == "dead", "it is dead", within=20)
    yield module_tool
    worker.signal(signal.SIGKILL)
    worker.wait()


def test_first_comes_what_it_is_doing(asked: Tool) -> None:
    [line] = asked("why", "later").splitlines()
    assert line.startswith("'later' in queue mail: it is not due until ")


def test_a_running_job_names_its_worker(asked: Tool) -> None:
    [worker] = asked.json("workers")
    assert f"it is being run by {worker['id']} since " in asked.quick("why", "long")


def test_a_dead_job_tells_what_to_type_and_nothing_escapes(asked: Tool) -> None:
    said = asked.quick("why", "bad [x]\x1b", "--queue", "mail")
    assert "ValueError: never" in said
    assert "do:  tocsin dead retry $'bad [x]\\x1b' --queue mail" in said
    assert "\x1b" not in said


def test_as_json_it_has_kinds_and_facts(asked: Tool) -> None:
    answer = asked.json("why", "five")
    assert (answer["id"], answer["queue"], answer["known"]) == ("five", "mail", True)
    [done] = answer["reasons"]
    assert (done["kind"], done["facts"]["outcome"], done["do"]) == ("done", "succeeded", [])
    assert done["facts"]["at"].endswith("Z")


def test_a_job_that_nobody_knows_is_told_with_exit_code_1(asked: Tool) -> None:
    ran = asked.process("why", "nobody")
    assert ran.returncode == 1
    assert ran.stdout.startswith("'nobody': there is no such job in agents, default, mail: ")
    assert "do:  tocsin jobs list" in ran.stdout
    assert asked.json("why", "nobody", code=1)["known"] is False


def test_a_queue_that_does_not_exist_names_the_nearest(asked: Tool) -> None:
    assert "there is no queue 'mial'; did you mean 'mail'?" in asked.quick("why", "five", "--queue", "mial", code=1)


def test_without_workers_it_says_how_to_start_one(tocsin: Tool) -> None:
    tocsin.do(lambda app: app.enqueue(shop.quick, 1, id="j"))
    doing, why, do = tocsin.quick("why", "j").splitlines()
    assert "it has been due since" in doing
    assert (why, do) == ("why: no worker serves queue mail", "do:  tocsin worker MODULE:APP --queues mail")
