"""`tocsin doctor` on a live system: silent, then broken with raw commands, then mended."""

from __future__ import annotations

import signal

import redis
import shop
from commandline import Tool

from servers import Server
from tocsin import Tocsin


def test_it_finds_and_mends_what_raw_commands_broke(tocsin: Tool, valkey: Server) -> None:
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
