"""`queues list|show|set|pause|resume`, and ready jobs in `jobs list|show`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import redis

from tests.support.command_line import Tool
from tests.support.servers import Server
from tocsin import Run, Tocsin


async def note(n: int, run: Run) -> None:
    """Nobody runs it here."""


def do(tool: Tool, work: Callable[[Tocsin, Any], Coroutine[Any, Any, Any]]) -> Any:
    """With a program that declares a queue of each order, and one of two partitions."""

    async def opened() -> Any:
        app = Tocsin(tool.url, prefix=tool.prefix, hash_tag=tool.hash_tag)
        app.queue("fair", order="fair", tenant_max_active=5, aging="30s")
        app.queue("priority", order="priority", max_active=10)
        app.queue("wide", partitions=2)
        async with app:
            return await work(app, app.job(name="note")(note))

    return asyncio.run(opened())


@pytest.fixture
def lines(tocsin: Tool) -> Tool:
    async def fill(app: Tocsin, note: Any) -> None:
        await app.enqueue(note, 0, id="wide", queue="wide")
        for n in range(3):
            await app.enqueue(note, n, id=f"p{n}", queue="priority", priority="high")
        await app.enqueue(note, 3, id="p3", queue="priority", priority="background")
        await app.enqueue(note, 4, id="later", queue="priority", delay="1h")
        for tenant in ("acme", "other"):
            for n in range(2):
                await app.enqueue(note, n, id=f"{tenant} {n}", queue="fair", tenant=tenant)

    do(tocsin, fill)
    return tocsin


def test_a_list_shows_order_bands_and_settings(lines: Tool) -> None:
    found = {queue["name"]: queue for queue in lines.json("queues", "list")}
    priority, fair, wide = found["priority"], found["fair"], found["wide"]
    assert (priority["order"], priority["settings"]) == ("priority", {"max_active": 10})
    assert priority["ready"] == {"critical": 0, "high": 3, "normal": 0, "low": 0, "background": 1}
    assert (priority["due"], priority["stages"]["ready"], priority["stages"]["waiting"]) == (4, 4, 1)
    assert (fair["ready"]["normal"], fair["settings"]) == (4, {"tenant_max_active": 5, "aging": "30s"})
    assert (wide["ready"], wide["due"], wide["stages"]["ready"], wide["settings"]) == ({}, 1, 0, {})
    said = lines.quick("queues", "list")
    assert "high 3, background 1" in said
    assert "tenant_max_active=5 aging=30s" in said


def test_ready_jobs_are_listed_and_shown_with_how_many_are_ahead(lines: Tool) -> None:
    listed = lines.json("jobs", "list", "--stage", "ready", "--queue", "priority")
    assert [(job["id"], job["priority"]) for job in listed] == [
        ("p0", "high"), ("p1", "high"), ("p2", "high"), ("p3", "background"),
    ]  # fmt: skip
    assert len(lines.json("jobs", "list", "--stage", "ready")) == 8
    assert [lines.json("jobs", "show", name)["ahead"] for name in ("p0", "p2", "p3", "other 1", "wide", "later")] == [
        0, 2, 0, 1, None, None,
    ]  # fmt: skip
    assert "ahead:        2" in lines.quick("jobs", "show", "p2")
    assert "there is no stage 'redy'; did you mean 'ready'?" in lines.quick("jobs", "list", "--stage", "redy", code=2)


def test_one_queue_is_shown_with_its_tenants(lines: Tool) -> None:
    shown = lines.json("queues", "show", "fair")
    assert [(t["name"], t["weight"], t["active"], t["ready"], t["resting"]) for t in shown["tenants"]] == [
        ("acme", 1.0, 0, 2, False), ("other", 1.0, 0, 2, False),
    ]  # fmt: skip
    assert shown["other_tenants"] == 0
    assert "tenants" not in lines.json("queues", "show", "priority")
    said = lines.quick("queues", "show", "fair")
    assert "tenant_max_active: 5\n" in said
    assert "acme    1       0       2" in said
    assert "there is no queue 'fare'; did you mean 'fair'?" in lines.quick("queues", "show", "fare", code=1)


def test_tenants_at_their_cap_or_ahead_of_their_rate_are_said_to_rest(lines: Tool, valkey: Server) -> None:
    with valkey.client() as client:
        resting = _key(client, lines, "spots").replace(b"spots", b"resting")
        client.zadd(resting, {"acme": float("inf"), "other": 4e12})
    shown = {tenant["name"]: tenant for tenant in lines.json("queues", "show", "fair")["tenants"]}
    assert (shown["acme"]["resting"], shown["acme"]["rested"]) == (True, None)
    assert shown["other"]["rested"] == "2096-10-02T07:06:40.000Z"
    said = lines.quick("queues", "show", "fair")
    assert "at its cap" in said
    assert "ahead of its rate, until in " in said


def test_only_some_of_many_tenants_are_shown_and_the_others_counted(lines: Tool, valkey: Server) -> None:
    with valkey.client() as client:
        turns = _key(client, lines, "spots").replace(b"spots", b"turns2")
        client.zadd(turns, {f"t{n}": 10 + n for n in range(50)})
    shown = lines.json("queues", "show", "fair")
    assert [tenant["name"] for tenant in shown["tenants"]] == ["acme", "other", *(f"t{n}" for n in range(18))]
    assert shown["other_tenants"] == 32
    with valkey.client() as client:
        client.zadd(turns, {f"t{n}": 10 + n for n in range(2000)})
    assert "and at least 981 other tenants" in lines.process("queues", "show", "fair").stderr


def test_the_tenants_of_several_partitions_are_shown_as_one_queues(tocsin: Tool) -> None:
    async def fill(app: Tocsin, note: Any) -> None:
        app.queue("many", order="fair", partitions=3)
        for n in range(20):
            await app.enqueue(note, n, queue="many", tenant="acme", priority="low" if n % 2 else None)

    do(tocsin, fill)
    shown = tocsin.json("queues", "set", "many", "--weight", "acme=3")
    assert [(t["name"], t["weight"], t["ready"]) for t in shown["tenants"]] == [("acme", 3.0, 20)]
    assert shown["ready"] == {"critical": 0, "high": 0, "normal": 10, "low": 10, "background": 0}


def _key(client: redis.Redis, tool: Tool, base: str) -> bytes:
    [key] = client.scan_iter(match=f"{tool.prefix}{base}*")
    return bytes(key)


# Changing


def test_settings_and_weights_are_set_shown_and_taken_away(lines: Tool) -> None:
    words = ["max_active=50", "rate=100/s", "--weight", "acme=10", "--weight", "a=b=2.5"]
    shown = lines.json("queues", "set", "fair", *words)
    assert shown["settings"] == {"max_active": 50, "rate": "100/s", "tenant_max_active": 5, "aging": "30s"}
    assert {tenant["name"]: tenant["weight"] for tenant in shown["tenants"]} == {"acme": 10.0, "other": 1.0, "a=b": 2.5}
    said = lines("queues", "set", "fair", "max_active=none", "tenant_max_active=None", "--weight", "acme=none")
    assert "rate:              100/s\naging:             30s\n" in said
    assert "max_active" not in said
    assert "acme    1       0       2" in said


def test_what_an_operator_set_a_program_does_not_change(lines: Tool) -> None:
    lines.quick("queues", "set", "priority", "max_active=3")

    async def enqueue(app: Tocsin, note: Any) -> None:
        await app.enqueue(note, 1, queue="priority")

    do(lines, enqueue)
    assert lines.json("queues", "show", "priority")["settings"] == {"max_active": 3}


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (["fare", "max_active=1"], "there is no queue 'fare'; did you mean 'fair'?", 1),
        (["fair", "max_activ=1"], "a queue has no setting 'max_activ'; did you mean 'max_active'?", 2),
        (["fair", "name=1"], "a queue has no setting 'name'", 2),
        (["fair", "weights=1"], "a queue has no setting 'weights'; did you mean '--weight'?", 2),
        (["fair", "max_active"], "'max_active' is not a setting with a value: write it like max_active=50", 2),
        (["fair", "max_active="], "'max_active=' is not a setting with a value", 2),
        (["fair", "max_active=0"], "max_active must be a whole number from 1, or None for no limit, not 0", 2),
        (["fair", "max_active=many"], "max_active must be a whole number from 1", 2),
        (["fair", "rate=fast"], "a rate is text like '100/s'", 2),
        (["fair"], "say what to set, like max_active=50 or --weight acme=10", 2),
        (["fair", "--weight", "acme"], "'acme' is not a setting with a value: write it like --weight acme=10", 2),
        (["fair", "--weight", "acme=much"], "a weight is a number, or none to remove it, not 'much'", 2),
        (["fair", "--weight", "acme=0"], "a weight is a number from 0.000001 to 1000000", 2),
        (["priority", "--weight", "acme=2"], "weights are for queues of order 'fair'", 2),
        (["priority", "tenant_rate=1/s"], "tenant_rate is for queues of order fair", 2),
        (["wide", "aging=30s"], "aging is for queues of order priority or fair", 2),
        (["wide", "max_active=3"], "max_active needs a queue of one partition, 'wide' has 2", 2),
    ],
)
def test_what_cannot_be_set_is_refused_and_changes_nothing(lines: Tool, words: list[str], said: str, code: int) -> None:
    before = lines.json("queues", "list")
    assert said in lines.quick("queues", "set", *words, code=code)
    assert lines.json("queues", "list") == before


def test_a_queue_is_paused_and_resumed(lines: Tool) -> None:
    assert lines.quick("queues", "pause", "fair") == "queue fair is paused\n"
    assert lines.quick("queues", "pause", "fair") == "queue fair was paused already\n"
    assert [queue["name"] for queue in lines.json("queues", "list") if queue["paused"]] == ["fair"]
    assert lines.json("queues", "resume", "fair") == {"queue": "fair", "paused": False, "changed": True}
    assert lines.quick("queues", "resume", "fair") == "queue fair was open already\n"
    assert "there is no queue 'fare'" in lines.quick("queues", "pause", "fare", code=1)


def test_the_doctor_counts_what_is_ready_and_mends_a_broken_line(lines: Tool, valkey: Server) -> None:
    with valkey.client() as client:
        client.hdel(_key(client, lines, "spots"), "acme 1")
    report = lines.json("doctor", code=1)
    assert {queue["name"]: queue["counts"]["ready"] for queue in report["queues"]} == {
        "fair": 4,
        "priority": 4,
        "wide": 0,
    }
    assert [finding["examples"] for finding in report["findings"] if finding["level"] == "wrong"] == [["acme 1"]]
    assert "places in line belong to no job, or to a job that has another place: 1 in fair (acme 1); 1 mended" in lines(
        "doctor", "--repair"
    )
    assert "nothing is wrong" in lines.quick("doctor")
