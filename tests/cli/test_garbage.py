"""Garbage in any key ends no command in a traceback: it shows what it can read, or says in one sentence what it
cannot."""

from __future__ import annotations

import asyncio
import contextlib
import io
from typing import Any

import pytest

from tests.support.command_line import Tool
from tests.support.servers import Server
from tocsin import Cron, Every, Tocsin
from tocsin.cli.main import run
from tocsin.store.keys import BANDS, FLEET_KEYS, LEADER_KEY, PARTITION_KEYS, TURNS, TYPES, Keys
from tocsin.upkeep import silent_workers

VALUES = [b"", b"\xff\xfe", b"nan", b"1e400", b"-1", b"9" * 5000, b"\xc1" * 60, b"\x00" * 30, b"\x91" * 2000]
SCORES = ["inf", "-inf", "1e300", "-1", "1e15", "9e15", "0.5", "4e9", "2.5e14"]
NAMES = [b"\xff\xfe", b"", b"x\x00y", b"z\x1fq", b"a\x00b\x00c\x00d", b"E\x00x\x00", b"\x1b[2J", b"\n", b"j"]
COMMANDS = [
    "jobs list",
    "jobs list --json",
    "jobs show {queue}-later --queue {queue}",
    "jobs show {queue}-later --queue {queue} --json",
    "queues list",
    "queues show {queue}",
    "dead list",
    "why {queue}-due --queue {queue}",
    "why {queue}-later --queue {queue}",
    "workers",
    "doctor --quick",
]
# Of the five bands one is looked at; keys of a line in each order that has them.
ORDERS = {base: "d" for base in PARTITION_KEYS if base not in (*BANDS, *TURNS)}
ORDERS |= dict.fromkeys(("meta", "jobs", "waiting", "claims"), "dpf") | {"ready2": "pf"}
ORDERS |= dict.fromkeys(("tenants", "spots", "resting", "weights", "turns2"), "f")


async def put_all_kinds(app: Tocsin) -> None:
    app.queue("d", partitions=1)
    app.queue("p", order="priority", aging="30s")
    app.queue("f", order="fair", tenant_max_active=3)

    @app.job(name="job")
    async def job(x: object = None) -> None: ...

    async with app:
        for queue in "dpf":
            tenant: Any = {"tenant": "t"} if queue == "f" else {}
            await app.enqueue(job, {"a": [1]}, id=f"{queue}-due", queue=queue, **tenant)
            await app.enqueue(job, id=f"{queue}-later", queue=queue, delay="1h", **tenant)
            await app.enqueue(job, id=f"{queue}-paused", queue=queue, delay="1h", **tenant)
            await app.pause(f"{queue}-paused", queue=queue)
            await app.enqueue(job, id=f"{queue}-blocked", queue=queue, after=[f"{queue}-later"], **tenant)
        await app.schedule(job, Every("1h"), id="every", queue="d")
        await app.schedule(job, Cron("0 9 * * *"), id="cron", queue="d")
        await app.queue_update("f", weights={"t": 3})


@pytest.fixture
def jobs_of_all_kinds(tocsin: Tool) -> Tool:
    asyncio.run(put_all_kinds(Tocsin(tocsin.url, prefix=tocsin.prefix, hash_tag=tocsin.hash_tag)))
    return tocsin


def garble(client: Any, key: str, base: str, n: int) -> None:
    """The n-th kind of garbage, in what is there and beside it."""
    kind = TYPES[base]
    if kind == "hash":
        for field in [*client.hkeys(key), NAMES[n], "d-later", "done", "capped", "max_active", "spent", "every"]:
            client.hset(key, field, VALUES[n])
    elif kind == "zset":
        for member in [*client.zrange(key, 0, -1), NAMES[n], "d-later"]:
            client.zadd(key, {member: SCORES[n]})
    elif kind == "stream":
        client.xadd(key, {NAMES[n] or b"x": VALUES[n]})
        client.xadd(key, dict.fromkeys(("seq", "kind", "at", "ids", "runs", "skips", "notes"), VALUES[n]))
        client.xadd(key, {"kind": "finish", "at": "1", "ids": VALUES[n], "runs": VALUES[n], "skips": VALUES[n]})
    elif kind == "string":
        client.set(key, VALUES[n])
    else:
        client.rpush(key, VALUES[n])


def misuse(client: Any, key: str, base: str) -> None:
    client.delete(key)
    client.rpush(key, "not ours") if TYPES[base] == "string" else client.set(key, "not ours")


def ask_everything(tool: Tool, queue: str, commands: list[str] = COMMANDS) -> None:
    for command in commands:
        words = command.format(queue=queue).split()
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as said:
            code = run([*words, *tool.where])
        assert code in (0, 1), (command, said.getvalue())
        assert "Traceback" not in said.getvalue()
        if code == 1 and "doctor" not in command:
            # One sentence, and no part of an answer before it.
            assert said.getvalue().startswith("tocsin: "), (command, said.getvalue())
            assert said.getvalue().count("\n") == 1, (command, said.getvalue())
            assert out.getvalue() == ""


def keys_of(tool: Tool) -> Keys:
    return Keys(tool.prefix, tool.hash_tag)


@pytest.mark.parametrize(("base", "queue"), [(base, queue) for base, queues in ORDERS.items() for queue in queues])
def test_garbage_in_a_key_of_a_queue_ends_no_command_in_a_traceback(
    jobs_of_all_kinds: Tool, valkey: Server, base: str, queue: str
) -> None:
    key = keys_of(jobs_of_all_kinds).partition(queue, 0)[base]
    with valkey.client() as client:
        for n in range(len(VALUES)):
            garble(client, key, base, n)
            if n % 4 == 3:
                ask_everything(jobs_of_all_kinds, queue)
        misuse(client, key, base)
        ask_everything(jobs_of_all_kinds, queue)
        said = jobs_of_all_kinds.json("doctor", "--quick", code=1)
    [finding] = [finding for finding in said["findings"] if finding["kind"] == "wrong-type"]
    assert finding["examples"] == [f"{key} holds a string"]


@pytest.mark.parametrize("base", [*FLEET_KEYS, LEADER_KEY, "bell", "mail"])
def test_garbage_in_a_key_of_the_fleet_ends_no_command_in_a_traceback(
    jobs_of_all_kinds: Tool, valkey: Server, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = keys_of(jobs_of_all_kinds)
    monkeypatch.setattr(silent_workers, "PATIENCE_S", 0.2)
    others = {LEADER_KEY: keys.leader(), "bell": keys.bell("d"), "mail": keys.mail("w")}
    key = (keys.fleet() | others)[base]
    with valkey.client() as client:
        for n in range(len(VALUES)):
            garble(client, key, base, n)
        # The doctor listens for workers that are silent, which takes its time; its own tests do that quicker.
        ask_everything(jobs_of_all_kinds, "d", COMMANDS[:-1])
        misuse(client, key, base)
        ask_everything(jobs_of_all_kinds, "d")


def test_a_register_with_one_bad_byte_ends_no_command_in_a_traceback(jobs_of_all_kinds: Tool, valkey: Server) -> None:
    key = keys_of(jobs_of_all_kinds).fleet()["queues"]
    with valkey.client() as client:
        entry = client.hget(key, "d")
        client.hset(key, "d", entry.replace(b"due", b"\x98ue"))
        ask_everything(jobs_of_all_kinds, "d")
        [garbled] = [each for each in jobs_of_all_kinds.json("doctor", code=1)["findings"] if each["level"] == "wrong"]
        assert (garbled["kind"], garbled["examples"]) == ("unreadable-queue", ["d"])
        jobs_of_all_kinds.json("doctor", "--repair")
        assert client.hget(key, "d") == entry


def test_a_worker_of_which_nothing_can_be_read_is_shown_as_that(
    jobs_of_all_kinds: Tool, valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silent_workers, "PATIENCE_S", 0.2)
    keys = keys_of(jobs_of_all_kinds).fleet()
    with valkey.client() as client:
        client.hset(keys["workers"], b"w\xff", b"\xc1")
        client.hset(keys["beats"], b"w\xff", "1")
    [shown] = jobs_of_all_kinds.json("workers")
    assert (shown["id"], shown["host"], shown["state"]) == ("w\ufffd", "?", "missing")
