"""Data written by release 0.1, before its files and classes got other names: this version opens it and goes on.

`data/release_0_1.json` holds every key of one namespace: jobs of each stage and each order of a queue, half way through
their runs. Its `jobs` are what that release itself said of them.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins
from redis.asyncio import Redis

from tocsin import Retry, Run, Tocsin
from tocsin.inspection.doctor import Doctor
from tocsin.model.durations import moment
from tocsin.model.ids import job_of
from tocsin.store.transitions.claims import Runs
from tocsin.store.transitions.fleet import Fleet
from tocsin.store.views.audit import AuditReader
from tocsin.testing import ManualClock, run_until_idle

# Idempotency keys depend on it.
PREFIX = "release-0-1:"
STORED = json.loads((Path(__file__).parent / "data" / "release_0_1.json").read_text())


async def restore(client: Redis, key: str, kind: str, value: Any) -> None:
    if kind == "hash":
        await client.hset(key, mapping={b64decode(field): b64decode(text) for field, text in value.items()})
    elif kind == "zset":
        await client.zadd(key, {b64decode(member): float(score) for member, score in value})
    elif kind == "stream":
        for entry, fields in value:
            await client.xadd(key, {b64decode(name): b64decode(text) for name, text in fields.items()}, id=entry)
    elif kind == "list":
        await client.rpush(key, *map(b64decode, value))
    else:
        await client.set(key, b64decode(value))


@pytest.fixture
async def shop(tocsin_server) -> AsyncIterator[tuple[Tocsin, Counter[tuple[str, str]]]]:
    """The program whose data it is, and the runs that it has started: job and idempotency key."""
    clock, started = ManualClock(moment(STORED["now"])), Counter[tuple[str, str]]()
    async with Tocsin(tocsin_server.url, prefix=PREFIX, clock=clock) as owner:
        client = owner.store.client
        await client.delete(*[PREFIX + name for name in STORED["keys"]])
        for name, key in STORED["keys"].items():
            await restore(client, PREFIX + name, key["type"], key["value"])
    app = Tocsin(tocsin_server.url, prefix=PREFIX, clock=clock)
    app.queue("mail", order="priority", max_active=5)
    app.queue("shared", order="fair", tenant_max_active=2)
    app.queue("wide", partitions=3)
    app.queue("misc")

    @app.job(name="shop.note")
    async def note(text: str, run: Run) -> str:
        started[job_of(run.job_id), run.idempotency_key] += 1
        return text

    @app.job(name="shop.fail", retry=Retry(3, "10m"))
    async def fail(text: str, run: Run) -> None:
        started[run.job_id, run.idempotency_key] += 1

    @app.job(name="shop.doomed")
    async def doomed(text: str) -> None: ...

    @app.agent(every="10m", name="stock")
    async def stock() -> None: ...

    async with app:
        yield app, started
        await client_of(app).delete(*await client_of(app).keys(f"{PREFIX}*"))


def client_of(app: Tocsin) -> Redis:
    return app.store.client


async def test_jobs_are_read_as_the_release_that_wrote_them_read_them(shop):
    app, _ = shop
    found = {(job.queue, job.id): job async for job in app.jobs()}
    assert len(found) == len(STORED["jobs"]) == 34
    for said in STORED["jobs"]:
        job = found[said["queue"], said["id"]]
        assert to_builtins(job.header) == said["header"]
        now = {name: getattr(job, name) for name in ("due_ms", "not_before_ms", "attempt", "recoveries")}
        assert {"stage": str(job.stage), **now} == {name: said[name] for name in ("stage", *now)}
    assert await app.handle("kept result").result() == "kept"


async def test_the_doctor_finds_nothing_wrong_with_them(shop):
    app, _ = shop
    report = await Doctor(AuditReader(app.store), Fleet(app.store), patience_s=0).run()
    assert [(finding.kind, finding.where) for finding in report.findings if finding.level != "note"] == []


async def test_what_was_ready_waiting_claimed_or_blocked_runs_under_the_keys_of_that_release(shop):
    app, started = shop
    worker, reaper = await app.worker(), Runs(app.store, "next release")
    for queue, owner, runs in (("default", "ghost", 1), ("shared", "ghost2", 3)):
        assert await reaper.recover(worker.served[queue].queue, 0, owner) == runs
    await run_until_idle(app)
    # A pass tries one suspect of one partition: here there is only one.
    await run_until_idle(app, queues=["default"])
    runs_now = {"ready", "working"}
    expected = {
        (job_of(said["id"]), said["key"])
        for said in STORED["jobs"]
        if said["stage"] in runs_now or (said["stage"] == "waiting" and said["due_ms"] <= STORED["now"])
    }
    assert {run for run in started if run[0] != "retrying"} == expected - {("retrying", said_key("retrying"))}
    app.store.clock.advance("3h")  # type: ignore[attr-defined]
    await run_until_idle(app)
    assert {"later", "dependent", "minutely", "retrying"} <= {job for job, _ in started}
    assert ("retrying", said_key("retrying")) in started
    assert set(started.values()) == {1}
    assert (await app.get("minutely")).header.succeeded == 5 + [job for job, _ in started].count("minutely")


def said_key(job_id: str) -> str:
    [key] = [said["key"] for said in STORED["jobs"] if said["id"] == job_id]
    return str(key)
