"""`tocsin doctor` on a live system: silent, then broken with raw commands, then mended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import redis

from tests.support.apps import shop
from tests.support.command_line import APPS, Tool
from tests.support.servers import Server
from tocsin import Tocsin


def test_it_finds_and_mends_what_raw_commands_broke(tocsin: Tool, valkey: Server, monkeypatch) -> None:
    # The worker would take out the name without a record as well, at a time of its own.
    monkeypatch.setenv("TOCSIN_REDIS__SCHEDULER__ORPHAN_CLEANUP__ENABLED", "false")
    worker = tocsin.worker()

    async def fill(app: Tocsin) -> list[str]:
        for n in range(20):
            await app.enqueue(shop.quick, n, id=f"job {n}", delay="1h")
        queue = await app.store.find_queue("mail")
        assert queue is not None
        return [queue.keys[queue.partition_of(f"job {n}")]["waiting"] for n in (1, 2)]

    first, second = tocsin.do(fill)
    assert "nothing is wrong: 1 worker, 3 queues" in tocsin.quick("doctor")
    with valkey.client() as client:
        client.zrem(first, "job 1")
        client.hdel(second.replace("waiting", "jobs"), "job 2")
    report = tocsin.json("doctor", code=1)
    assert report["wrong"]
    found = {finding["kind"]: finding["examples"] for finding in report["findings"] if finding["level"] == "wrong"}
    assert found == {"no-stage": ["job 1"], "no-record": ["job 2"]}

    said = tocsin("doctor", "--repair")
    assert "wrong: jobs are in no stage and would never run: 1 in mail (job 1); 1 mended" in said
    # Back in line, and its bell was rung: the worker runs it.
    result = tocsin.do(lambda app: _result(app, "job 1"))
    assert result == 1
    report = tocsin.json("doctor")
    assert [finding["kind"] for finding in report["findings"]] == ["no-aof"]
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


async def _result(app: Tocsin, job_id: str) -> object:
    return await (await app.enqueue(shop.quick, 0, id=job_id)).result(timeout=20)


def test_what_is_wrong_is_told_with_what_to_do(tocsin: Tool, valkey: Server) -> None:
    tocsin.do(lambda app: app.enqueue(shop.quick, 1, id="a", delay="1h"))
    with valkey.client() as client:
        _twice(client, tocsin.prefix)
    # On stdout: it is what was asked for.
    ran = tocsin.process("doctor")
    assert ran.returncode == 1
    said = ran.stdout
    assert "wrong: jobs are in two stages at once: 1 in mail (a)" in said
    assert "-> `tocsin doctor --repair`" in said
    assert said.endswith("something is wrong\n")


def _twice(client: redis.Redis, prefix: str) -> None:
    [waiting] = client.scan_iter(match=f"{prefix}waiting*")
    client.zadd(waiting.replace(b"waiting", b"dead"), {"a": 1})


async def _many(app: Tocsin) -> None:
    await app.enqueue_many(shop.quick, ((n,) for n in range(6000)), delay="1h")


def test_how_far_it_has_come_is_told_in_lines_or_by_a_bar(tocsin: Tool) -> None:
    tocsin.do(_many)
    ran = tocsin.process("doctor")
    assert ran.returncode == 0
    lines = [line for line in ran.stderr.splitlines() if line.startswith("looking at jobs: ")]
    assert len(lines) == 10
    assert lines[-1] == "looking at jobs: 12000 of 12000"
    assert b"looking at jobs" in on_terminal(tocsin, "doctor")


def test_a_quick_look_says_that_it_was_one(tocsin: Tool) -> None:
    tocsin.do(_many)
    ran = tocsin.process("doctor", "--quick")
    assert "looking at jobs" not in ran.stderr
    assert ran.stdout.endswith("this was a quick look: it covers at most 1000 entries of each key\n")
    assert tocsin.json("doctor", "--quick")["quick"] is True


def test_only_some_queues_are_looked_at(tocsin: Tool, valkey: Server) -> None:
    tocsin.do(lambda app: app.enqueue(shop.quick, 1, id="a", delay="1h"))
    tocsin.do(lambda app: app.enqueue(shop.quick, 1, id="b", delay="1h", queue="default"))
    with valkey.client() as client:
        for key in client.scan_iter(match=f"{tocsin.prefix}waiting:default*"):
            client.delete(key)
    assert "nothing is wrong" in tocsin.quick("doctor", "--queue", "mail")
    report = tocsin.json("doctor", "--queue", "mail,default", code=1)
    assert [queue["name"] for queue in report["queues"]] == ["default", "mail"]
    assert not tocsin.json("doctor", "--queue", "default", "--queue", "mail", code=1)["quick"]
    assert "did you mean 'mail'?" in tocsin.quick("doctor", "--queue", "mial", code=1)


def on_terminal(tool: Tool, *words: str) -> bytes:
    """What it says to a terminal beside its output."""
    ours, theirs = os.openpty()
    line = [sys.executable, "-m", "tocsin.cli", *words, *tool.where]
    env = os.environ | {"COLUMNS": "120", "TERM": "xterm"}
    process = subprocess.Popen(line, cwd=APPS, stdout=subprocess.DEVNULL, stderr=theirs, env=env)
    os.close(theirs)
    said = b""
    while True:
        try:
            more = os.read(ours, 4096)
        except OSError:
            # The last who could write has ended.
            break
        said += more
    os.close(ours)
    assert process.wait(20) == 0
    return said
