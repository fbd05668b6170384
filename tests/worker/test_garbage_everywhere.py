"""Somebody else writes garbage into one key of a live system: the other queues are served, the worker lives and beats,
the doctor names the key, and after `--repair` the queue works again."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.support.captured_logs import capture_logs
from tests.support.waiting import eventually
from tocsin import Every
from tocsin.inspection.doctor import Doctor
from tocsin.model.errors import TocsinError
from tocsin.store.keys import BANDS, FLEET_KEYS, LEADER_KEY, PARTITION_KEYS, TURNS, TYPES
from tocsin.store.transitions.fleet import Fleet
from tocsin.store.views.audit import AuditReader

VALUES = [b"", b"\xff\xfe", b"nan", b"1e400", b"-1", b"many", b"\x00" * 3, b"\xc1" * 60, b"9" * 400, b"\x91" * 2000]
NAMES = [
    b"\xff\xfe",
    b"",
    b"x\x00y",
    b"z\x1fq",
    b"a\x00b\x00c\x00d",
    b"E\x00x\x00",
    b"E\x00x\x00zz",
    b"W\x00x\x00y",
    b"\n",
]
SCORES = ["inf", "-inf", "1e300", "-1", "0.5", "1e15", "4e9", "9e15", "2e14"]
NUMBERS = ["put", "claimed", "succeeded", "recovered", "seq", "fence", "max_active", "every", "spent", "aging", "v2"]
# Of the five bands one is looked at.
PLACES = [("d", base) for base in PARTITION_KEYS if base not in (*BANDS, *TURNS)]
PLACES += [(queue, base) for queue in "pf" for base in ("meta", "jobs", "waiting", "claims", "ready2")]
PLACES += [("f", base) for base in ("turns2", "tenants", "spots", "resting", "weights")]
OTHERS = [("", base) for base in (*FLEET_KEYS, LEADER_KEY, "bell", "mail")]


class System:
    """An app with queues of each order, all of them in use, and a worker that serves them."""

    def __init__(self, app, worker) -> None:
        self.app, self.worker, self.client = app, worker, app.store.client
        self.ran: set[str] = set()

    def key(self, queue: str, base: str) -> str:
        keys = self.app.store.keys
        others = {LEADER_KEY: keys.leader(), "bell": keys.bell("d"), "mail": keys.mail(self.worker.name)}
        return keys.partition(queue, 0)[base] if queue else (keys.fleet() | others)[base]

    async def garble(self, key: str, base: str) -> None:
        """What is there, and beside it."""
        client, kind = self.client, TYPES[base]
        if base == "meta":
            # Its epoch, order and number of partitions are looked at in test_faults.py.
            await client.hset(key, mapping={field: VALUES[n % 5] for n, field in enumerate(NUMBERS)})
        elif kind == "hash":
            for n, field in enumerate([*await client.hkeys(key), *NAMES]):
                await client.hset(key, field, VALUES[n % len(VALUES)])
        elif kind == "zset":
            for n, member in enumerate([*await client.zrange(key, 0, -1), *NAMES]):
                await client.zadd(key, {member: SCORES[n % len(SCORES)]})
        elif kind == "stream":
            await client.xadd(key, dict.fromkeys(("seq", "kind", "at", "ids", "runs", "skips"), VALUES[1]))
        elif kind == "string":
            await client.set(key, VALUES[1])
        else:
            await client.rpush(key, *VALUES)

    async def misuse(self, key: str, base: str) -> None:
        await self.client.delete(key)
        await (self.client.rpush(key, "x") if TYPES[base] == "string" else self.client.set(key, "not ours"))


@pytest.fixture
async def system(live_app, make_worker):
    app = live_app
    app.queue("d", partitions=1)
    app.queue("p", order="priority", aging="30s")
    app.queue("f", order="fair", tenant_max_active=50)
    app.queue("other", partitions=1)
    made = []

    @app.job(name="note")
    async def note(x):
        made[0].ran.add(x)

    @app.job(name="fails")
    async def fails():
        raise ValueError("no")

    @app.job(name="sleeps")
    async def sleeps():
        await asyncio.sleep(3600)

    for queue in "dpf":
        await app.enqueue(note, "never", queue=queue, id=f"{queue}-later", delay="1h")
        await app.enqueue(note, "never", queue=queue, id=f"{queue}-paused", delay="1h")
        await app.pause(f"{queue}-paused", queue=queue)
        await app.enqueue(fails, queue=queue, id=f"{queue}-dead")
        await app.enqueue(sleeps, queue=queue, id=f"{queue}-working")
        await app.enqueue(note, "done", queue=queue, id=f"{queue}-done")
        await app.enqueue(note, "never", queue=queue, id=f"{queue}-blocked", after=[f"{queue}-later"])
    await app.schedule(note, Every("1h"), "never", id="every", queue="d")
    await app.queue_update("f", weights={"t": 3})
    worker = await make_worker(app, start=True, beat_s=0.05, poll_s=0.1)
    system = System(app, worker)
    made.append(system)
    system.note = note
    await eventually(lambda: worker.stats().ran >= 6, "all that is due has run")
    return system


async def others_are_served(system: System, why: str) -> None:
    """Again and again, while every part of the worker looks at what is garbled."""
    worker, app = system.worker, system.app
    for n in range(4):
        for queue in "dpf":
            worker.served[queue].mark_due_or_parked(0)
            with contextlib.suppress(TocsinError):
                await app.enqueue(system.note, "into garbage", queue=queue)
        for part in (
            worker.parts.upkeep.reaper,
            worker.parts.upkeep.unheld_runs,
            worker.parts.upkeep.orphan_cleaner,
            worker.parts.upkeep.outcome_expiry,
        ):
            part.wake.set()
        x = f"{why} {n}"
        await app.enqueue(system.note, x, queue="other")
        await eventually(lambda x=x: x in system.ran, f"the other queue runs {x}")
    lease = worker.heart.lease.until
    await eventually(lambda: worker.heart.lease.until > lease, "the worker beats")
    assert [name for name, task in worker._tasks.items() if task.done() and name != "reincarnate"] == []
    assert worker.stats().acquisition_breaker.trips == worker.stats().redis_breaker.trips == 0


async def doctor(app, *, repair: bool) -> dict[str, list[str]]:
    report = await Doctor(AuditReader(app.store), Fleet(app.store), repair=repair, patience_s=0).run()
    return {found.kind: found.examples for found in report.findings if found.level == "wrong"}


@pytest.mark.parametrize(("queue", "base"), [*PLACES, *OTHERS])
async def test_garbage_in_one_key_stops_nobody_else(system: System, queue, base):
    key = system.key(queue, base)
    with capture_logs() as logs:
        await system.garble(key, base)
        await others_are_served(system, "beside garbage")
        await doctor(system.app, repair=True)

        key = system.key(queue, base)
        await system.misuse(key, base)
        found = await doctor(system.app, repair=False)
        # Workers clear the places of beats, bells and mail themselves.
        if base not in ("beats", "workers", "pulses", "buried", "steps", "bell", "mail"):
            assert any(example.startswith(f"{key} holds a ") for example in found["wrong-type"])
        await others_are_served(system, "beside another kind of data")
    said = [line["event"] for line in logs if line["log_level"] in ("warning", "error")]
    assert len(said) <= 20, said

    await doctor(system.app, repair=True)
    for where in ("d", "p", "f", "other"):
        x = f"mended {where}"
        await system.app.enqueue(system.note, x, queue=where)
        await eventually(lambda x=x: x in system.ran, f"queue {where} runs what is put", within=40)
