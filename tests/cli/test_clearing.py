"""`jobs remove` by a filter, `purge`, `queues delete`: shown first, then done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.support.apps import shop
from tests.support.command_line import APPS, Tool
from tocsin import Tocsin


async def fill(app: Tocsin) -> None:
    for n in range(7):
        await app.enqueue(shop.quick, n, id=f"later {n}", delay="1h", tenant="acme")
    await app.enqueue(shop.slow, 1, id="slow", delay="1d")


@pytest.fixture
def some(tocsin: Tool) -> Tool:
    tocsin.do(fill)
    return tocsin


def ids(tool: Tool) -> list[str]:
    return [job["id"] for job in tool.json("jobs", "list")]


def test_without_yes_it_is_only_shown_what_would_go(some: Tool) -> None:
    said = some.quick("jobs", "remove", "--name", "shop.quick", code=2)
    assert "7 jobs match: later " in said
    assert said.count("later ") == 5
    assert "nothing was changed: say --yes to do it" in said
    assert "queue mail has 8 jobs: 8 waiting" in some.quick("purge", "mail", code=2)
    assert "queue mail has 8 jobs: 8 waiting" in some.quick("queues", "delete", "mail", "--purge", code=2)
    preview = some.json("jobs", "remove", "--tenant", "acme", code=2)
    assert (preview["would_remove"], len(preview["first"])) == (7, 5)
    assert len(ids(some)) == 8


def test_all_that_match_are_removed(some: Tool) -> None:
    assert some("jobs", "remove", "--due-before", "+2h", "--tenant", "acme", "--yes") == "removed 7 jobs\n"
    assert ids(some) == ["slow"]
    assert some.json("jobs", "remove", "--stage", "waiting", "--yes") == {"removed": 1, "running": 0}
    # With nothing to remove there is nothing to ask.
    assert some.quick("jobs", "remove", "--stage", "waiting") == "removed 0 jobs\n"
    assert some.json("jobs", "remove", "--stage", "waiting") == {"would_remove": 0, "first": []}


def test_one_job_is_removed_by_its_id_without_being_asked_for(some: Tool) -> None:
    assert some.quick("jobs", "remove", "slow") == "removed slow\n"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "name one job by its id, or say which"),
        (("slow", "--name", "shop.slow"), "name one job by its id, or say which"),
        (("--queue", "mail"), "name one job by its id, or say which"),
        (("--stage", "waitign"), "did you mean 'waiting'?"),
        (("--due-before", "soon"), "is not a time"),
    ],
)
def test_what_says_nothing_or_too_much_is_wrong_usage(some: Tool, words: tuple[str, ...], why: str) -> None:
    assert why in some.quick("jobs", "remove", *words, "--yes", code=2)
    assert len(ids(some)) == 8


@pytest.mark.parametrize("words", [("purge", "mail"), ("queues", "purge", "mail")])
def test_a_purged_queue_has_no_jobs(some: Tool, words: tuple[str, ...]) -> None:
    assert some.quick(*words, "--yes") == "removed 8 jobs\n"
    assert ids(some) == []
    assert some.json(*words, "--yes") == {"queue": "mail", "removed": 0, "running": 0}
    assert "did you mean 'mail'?" in some.quick("purge", "mial", "--yes", code=1)


def test_on_a_terminal_it_asks(some: Tool) -> None:
    for answer, left in ((b"n\n", 8), (b"\n", 8), (b"y\n", 0)):
        ours, theirs = os.openpty()
        line = [sys.executable, "-m", "tocsin.cli", "purge", "mail", *some.where]
        process = subprocess.Popen(line, cwd=APPS, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs)
        os.close(theirs)
        os.write(ours, answer)
        said, _ = process.communicate(timeout=20)
        os.close(ours)
        assert process.returncode == (0 if not left else 1)
        assert said == (b"" if left else b"removed 8 jobs\n")
        assert len(ids(some)) == left


def test_a_deleted_queue_is_not_listed(some: Tool) -> None:
    assert "has 8 jobs: purge it first" in some.quick("queues", "delete", "mail", "--yes", code=1)
    assert some("queues", "delete", "mail", "--purge", "--yes") == "deleted queue mail\n"
    assert [queue["name"] for queue in some.json("queues", "list")] == []
    assert "nothing is wrong" in some.quick("doctor")


def test_a_queue_that_a_worker_serves_is_not_deleted_unless_it_is_forced(tocsin: Tool) -> None:
    worker = tocsin.worker()
    assert "is served by" in tocsin.quick("queues", "delete", "mail", "--yes", code=1)
    assert tocsin.json("queues", "delete", "mail", "--yes", "--force")["deleted"]
    # The worker's program declares it, so it is there again, and works.
    assert tocsin.do(_run_one) == 3
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


async def _run_one(app: Tocsin) -> object:
    return await (await app.enqueue(shop.quick, 3, id="three")).result(timeout=20)
