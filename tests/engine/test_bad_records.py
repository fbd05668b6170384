"""Records that cannot be dealt with are set aside, and take no other run of their claim along."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import pytest

from tests.support.waiting import run_dry
from tocsin import Every, Http, InvalidArgument, Message, Subprocess
from tocsin.inspection.doctor import Doctor
from tocsin.model import msgpack
from tocsin.model.errors import RecordUnreadable
from tocsin.model.job import Policy, Spec
from tocsin.model.record import body_of
from tocsin.patterns import DelayQueue, ExecutionQueue
from tocsin.store.transitions.fleet import Fleet
from tocsin.store.views.audit import AuditReader


def nested(levels: int) -> object:
    value: object = 0
    for _ in range(levels):
        value = [value]
    return value


async def overwrite(app, job_id: str, body: bytes) -> None:
    """The body of a record, as a program wrote it that knew no better."""
    queue = await app.store.find_queue("default")
    key = queue.keys[queue.partition_of(job_id)]["jobs"]
    record = await app.store.client.hget(key, job_id)
    header = record[: len(record) - len(body_of(record))]
    await app.store.client.hset(key, job_id, header + body)


@pytest.fixture
def seen():
    return []


@pytest.fixture
def see(tocsin_app, seen):
    tocsin_app.queue("default", partitions=1)

    @tocsin_app.job(name="see")
    async def see(x=None):
        seen.append(x)

    return see


async def test_a_record_nested_too_deep_for_a_worker_is_parked_and_the_others_of_its_claim_run(
    tocsin_app, make_worker, see, seen
):
    await tocsin_app.enqueue(see, id="deep")
    body = msgpack.encode(Spec("see", ()))
    # One argument instead of none: a list in a list, and so on.
    await overwrite(tocsin_app, "deep", body.replace(b"\xa3see\x90", b"\xa3see\x91" + b"\x91" * 2000 + b"\x00"))
    await tocsin_app.enqueue_many(see, [(n,) for n in range(50)])
    await run_dry(await make_worker(concurrency=100))
    assert sorted(seen) == list(range(50))
    deep = await tocsin_app.get("deep")
    assert (deep.stage, "cannot be read" in deep.failure.error) == ("parked", True)
    assert [job.id async for job in tocsin_app.jobs()] == ["deep"]


async def test_a_schedule_whose_rules_make_no_sense_is_parked_and_the_others_of_its_claim_run(
    tocsin_app, tocsin_clock, make_worker, see, seen
):
    await tocsin_app.schedule(see, Every("1m"), id="odd", misfire="skip")
    rules = Policy(misfire="skip", grace=math.nan)
    await overwrite(tocsin_app, "odd", msgpack.encode(Spec("see", trigger=Every("1m"), policy=rules)))
    tocsin_clock.advance("1h")
    await tocsin_app.enqueue_many(see, [(n,) for n in range(50)])
    await run_dry(await make_worker(concurrency=100))
    assert sorted(seen) == list(range(50))
    assert (await tocsin_app.get("odd")).stage == "parked"


def event(payload: object) -> dict[str, object]:
    return {"execution_id": "e", "priority": "normal", "user_id": "u", "payload": payload}


WAYS_IN = {
    "enqueue": lambda app, see, value: app.enqueue(see, value),
    "enqueue by name": lambda app, see, value: app.enqueue(see, x=value),
    "enqueue what is bound": lambda app, see, value: app.enqueue(see.bind(value)),
    "enqueue after another": lambda app, see, value: app.enqueue(see, value, after=["there"]),
    "enqueue many": lambda app, see, value: app.enqueue_many(see, [(value,)]),
    "schedule": lambda app, see, value: app.schedule(see, Every("1h"), value, id="s"),
    "schedule many": lambda app, see, value: app.schedule_many(see, [("s", Every("1h"), (value,))]),
    "update args": lambda app, see, value: app.update("there", args=(value,)),
    "update kwargs": lambda app, see, value: app.update("there", kwargs={"x": value}),
    "a request": lambda app, see, value: app.enqueue(Http.post("https://example.org/", json=value)),
    "a message": lambda app, see, value: app.enqueue(Message("redis:///stream", value=value)),
    "a program": lambda app, see, value: app.enqueue(Subprocess(["true", value])),
    "rows of requests": lambda app, see, value: app.enqueue_many(Http, [value]),
    "a delay queue": lambda app, see, value: DelayQueue(app, "dq").enqueue(value, datetime(2030, 1, 1, tzinfo=UTC)),
    "an execution queue": lambda app, see, value: ExecutionQueue(app, "eq").enqueue(event(value)),
}


@pytest.mark.parametrize("way", WAYS_IN)
@pytest.mark.parametrize("levels", [67, 900, 100_000, None])
async def test_arguments_that_a_worker_could_not_decode_are_refused_in_each_way_in(tocsin_app, see, way, levels):
    await tocsin_app.enqueue(see, id="there", delay="1h")
    value = nested(levels or 0)
    if levels is None:
        value = []
        value.append(value)
    with pytest.raises(InvalidArgument):
        await WAYS_IN[way](tocsin_app, see, value)


@dataclass(frozen=True)
class Point:
    x: int = 1


# What can be encoded, and nobody can decode. What is sent elsewhere is JSON before it is stored.
SENT_ELSEWHERE = ("a request", "a message", "a program", "rows of requests")
ONE_WAY = {
    "a dataclass as a key": {Point(): 1},
    "a dataclass in a key": {(1, Point()): 1},
    "no msgpack": [msgspec.Raw(b"\xc1")],
    "msgpack that was cut off": msgspec.Raw(b"\x92"),
    "a time that is none": msgspec.msgpack.Ext(-1, b"x"),
}


@pytest.mark.parametrize("way", [way for way in WAYS_IN if way not in SENT_ELSEWHERE])
@pytest.mark.parametrize("kind", ONE_WAY)
async def test_arguments_that_can_be_written_and_not_read_are_refused_in_each_way_in(tocsin_app, see, way, kind):
    await tocsin_app.enqueue(see, id="there", delay="1h")
    with pytest.raises(InvalidArgument):
        await WAYS_IN[way](tocsin_app, see, ONE_WAY[kind])


async def test_arguments_may_be_nested_64_levels_deep(tocsin_app, make_worker, see, seen):
    await tocsin_app.enqueue(see, nested(64), id="deepest")
    with pytest.raises(InvalidArgument, match="nested more than 64 levels"):
        await tocsin_app.enqueue(see, nested(65))
    Http.post("https://example.org/", json=nested(64))
    with pytest.raises(InvalidArgument, match="nested more than 64 levels"):
        Http.post("https://example.org/", json=nested(65))
    await run_dry(await make_worker())
    assert seen == [nested(64)]


@pytest.mark.parametrize("levels", [65, 500, 2000])
async def test_a_record_that_somebody_nested_too_deep_is_shown_as_unreadable_everywhere(tocsin_app, see, levels):
    await tocsin_app.enqueue(see, id="deep")
    body = msgpack.encode(Spec("see", ()))
    deep = body.replace(b"\xa3see\x90", b"\xa3see\x91" + b"\x91" * levels + b"\x00")
    await overwrite(tocsin_app, "deep", deep)
    assert "cannot be read" in (await tocsin_app.get("deep")).failure.error
    assert [job.name async for job in tocsin_app.jobs()] == ["?"]
    assert await tocsin_app.handle("deep").status() == "waiting"
    report = await Doctor(AuditReader(tocsin_app.store), Fleet(tocsin_app.store), patience_s=0).run()
    assert [found.examples for found in report.findings if found.kind == "unreadable-record"] == [["deep"]]
    with pytest.raises(RecordUnreadable, match="cannot be read, and so not be changed"):
        await tocsin_app.update("deep", timeout="5s")
    assert (await body_in(tocsin_app, "deep")) == deep
    assert await tocsin_app.remove("deep")


def rules(**changed) -> list:
    """Of a record, as no version of Tocsin writes them."""
    names = ("misfire", "grace", "catch_up", "starts", "ends", "jitter", "error_interval", "agent", "criticality")
    usual = dict(zip(names, ("skip", None, None, None, None, 0.0, None, False, 0), strict=True))
    return ["see", [], {}, ["every", 60.0], None, [*(usual | changed).values(), "skip"]]


ODD_NUMBERS = [math.nan, math.inf, -math.inf, -1.0, 1e300]
ODD_BODIES = [
    *(rules(**{name: n}) for name in ("grace", "catch_up", "jitter", "error_interval") for n in ODD_NUMBERS),
    *(rules(**{name: n}) for name in ("starts", "ends") for n in (10**15, -(10**15))),
    rules(criticality=2**40),
    *(["see", [], {}, None, [3, *retry], None] for n in ODD_NUMBERS for retry in ([n], [1.0, n])),
    *(["see", [], {}, None, [3, 1.0, 0.0, factor], None] for factor in (math.nan, math.inf, 0.5)),
    ["see", [], {}, None, [-1, 1.0], None],
    *(["see", [], {}, ["every", n], None, None] for n in (*ODD_NUMBERS, 0.0)),
]


@pytest.mark.parametrize("body", ODD_BODIES, ids=range(len(ODD_BODIES)))
async def test_numbers_that_nobody_can_have_meant_make_a_record_unreadable_and_harm_nobody(
    tocsin_app, tocsin_clock, make_worker, see, seen, body
):
    await tocsin_app.schedule(see, Every("1m"), id="odd", misfire="skip")
    await overwrite(tocsin_app, "odd", msgpack.encode(body))
    tocsin_clock.advance("1h")
    await tocsin_app.enqueue_many(see, [(n,) for n in range(5)])
    await run_dry(await make_worker(concurrency=100))
    assert sorted(seen) == list(range(5))
    odd = await tocsin_app.get("odd")
    assert (odd.stage, odd.name, "cannot be read" in odd.failure.error) == ("parked", "?", True)


@pytest.mark.parametrize(("at", "value"), [(2, b"\x05"), (2, b"\xff")])
async def test_a_priority_that_there_is_not_makes_a_record_unreadable(tocsin_app, make_worker, see, seen, at, value):
    await tocsin_app.enqueue(see, 1, id="odd")
    queue = await tocsin_app.store.find_queue("default")
    record = await tocsin_app.store.client.hget(queue.keys[0]["jobs"], "odd")
    await tocsin_app.store.client.hset(queue.keys[0]["jobs"], "odd", record[:at] + value + record[at + 1 :])
    await tocsin_app.enqueue(see, 2)
    await run_dry(await make_worker())
    assert seen == [2]
    assert (await tocsin_app.get("odd")).stage == "parked"


async def wreck(app, job_id: str) -> None:
    """As a worker sees a record of which it lacks the package, the zone or the version."""
    await overwrite(app, job_id, b"\xc1")


async def body_in(app, job_id: str) -> bytes:
    queue = await app.store.find_queue("default")
    return body_of(await app.store.client.hget(queue.keys[queue.partition_of(job_id)]["jobs"], job_id))


async def test_what_one_worker_cannot_read_is_tried_by_the_next(tocsin_app, tocsin_clock, make_worker, see, seen):
    await tocsin_app.enqueue(see, 1, id="odd")
    body = await body_in(tocsin_app, "odd")
    await wreck(tocsin_app, "odd")
    poor = await make_worker()
    for seconds in (0, 11, 12, 14):
        tocsin_clock.advance(seconds)
        await look(poor)
        assert (await tocsin_app.get("odd")).stage == "parked"
    # One that can read it.
    await overwrite(tocsin_app, "odd", body)
    rich = await make_worker()
    await look(rich)
    assert seen == []
    tocsin_clock.advance(8)
    await look(rich)
    assert seen == [1]
    assert await tocsin_app.get("odd") is None


async def test_what_nobody_can_read_is_tried_less_and_less_often(tocsin_app, tocsin_clock, make_worker, see):
    await tocsin_app.enqueue(see, id="odd")
    await wreck(tocsin_app, "odd")
    worker, tries = await make_worker(), []
    for second in range(1200):
        before = worker.finisher.outcomes.count
        await look(worker, settle=False)
        if worker.finisher.outcomes.count > before:
            tries.append(second)
        while not worker.finisher.idle():
            await worker.finisher.step()
        tocsin_clock.advance(1)
    # After 1 s, 2 s, 4 s, up to 256 s; and others would have had 10 s each time before it tries again.
    assert tries == [0, 11, 23, 37, 55, 81, 123, 197, 335, 601, 867, 1133]


@pytest.mark.parametrize("order", ["due", "priority", "fair"])
async def test_those_who_can_read_a_schedule_run_it_however_many_cannot(
    tocsin_app, tocsin_clock, make_worker, order, seen
):
    tocsin_app.queue("mixed", order=order)

    @tocsin_app.job(name="run", queue="mixed")
    async def run():
        seen.append(tocsin_clock.ms)

    await tocsin_app.schedule(run, Every("5s"), id="odd")
    queue = await tocsin_app.store.find_queue("mixed")
    poor, rich = [await make_worker() for _ in range(5)], await make_worker()
    key = queue.keys[0]["jobs"]
    body = body_of(await tocsin_app.store.client.hget(key, "odd"))

    async def write(as_seen: bytes) -> None:
        record = await tocsin_app.store.client.hget(key, "odd")
        await tocsin_app.store.client.hset(key, "odd", record[: len(record) - len(body)] + as_seen)

    for _ in range(120):
        # As a worker that lacks something sees it.
        await write(b"\xc1" * len(body))
        for worker in poor:
            await look(worker, queue="mixed")
        await write(body)
        await look(rich, queue="mixed")
        tocsin_clock.advance(1)
    assert len(seen) >= 20


async def test_any_number_of_unreadable_jobs_hides_no_readable_one(tocsin_app, tocsin_clock, make_worker, see, seen):
    ids = [f"a{n:03}" for n in range(120)]
    await tocsin_app.enqueue_many(see, [(n,) for n in range(120)], ids=ids)
    for job_id in ids:
        await wreck(tocsin_app, job_id)
    await tocsin_app.enqueue(see, "last", id="z")
    body = await body_in(tocsin_app, "z")
    await wreck(tocsin_app, "z")
    worker = await make_worker(concurrency=200)
    await look(worker)
    await overwrite(tocsin_app, "z", body)
    for _ in range(5):
        tocsin_clock.advance(4)
        await look(worker)
    assert seen == ["last"]


async def look(worker, *, settle: bool = True, queue: str = "default") -> None:
    """Ask the partition once, and write down what came of it."""
    await asyncio.to_thread(worker.heart.beat)
    worker.served[queue].expect_all([0.0])
    await worker.fetcher.step()
    while settle and (worker.pool.busy or not worker.finisher.idle()):
        await asyncio.sleep(0)
        await worker.finisher.step()
