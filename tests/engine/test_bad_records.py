"""Records that cannot be dealt with are set aside, and take no other run of their claim along."""

from __future__ import annotations

import asyncio
import math

import pytest

from engine.waiting import run_dry
from tocsin import Every, InvalidArgument
from tocsin.model import codec
from tocsin.model.job import Policy, Spec


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
    header = record[: len(record) - len(codec.body_of(record))]
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
    body = codec.encode(Spec("see", ()))
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
    await overwrite(tocsin_app, "odd", codec.encode(Spec("see", trigger=Every("1m"), policy=rules)))
    tocsin_clock.advance("1h")
    await tocsin_app.enqueue_many(see, [(n,) for n in range(50)])
    await run_dry(await make_worker(concurrency=100))
    assert sorted(seen) == list(range(50))
    assert (await tocsin_app.get("odd")).stage == "parked"


async def test_arguments_that_a_worker_could_not_decode_are_refused_when_they_are_put(
    tocsin_app, make_worker, see, seen
):
    await tocsin_app.enqueue(see, nested(64), id="deepest")
    for levels in (65, 900):
        with pytest.raises(InvalidArgument, match=r"nested more than 64 levels|cannot be stored"):
            await tocsin_app.enqueue(see, nested(levels))
        with pytest.raises(InvalidArgument, match=r"nested more than 64 levels|cannot be stored"):
            await tocsin_app.enqueue_many(see, [(nested(levels),)])
    await run_dry(await make_worker())
    assert seen == [nested(64)]


async def wreck(app, job_id: str) -> None:
    """As a worker sees a record of which it lacks the package, the zone or the version."""
    await overwrite(app, job_id, b"\xc1")


async def body_in(app, job_id: str) -> bytes:
    queue = await app.store.find_queue("default")
    return codec.body_of(await app.store.client.hget(queue.keys[queue.partition_of(job_id)]["jobs"], job_id))


async def test_what_one_worker_cannot_read_is_tried_by_the_next(tocsin_app, tocsin_clock, make_worker, see, seen):
    await tocsin_app.enqueue(see, 1, id="odd")
    body = await body_in(tocsin_app, "odd")
    await wreck(tocsin_app, "odd")
    poor = await make_worker()
    for seconds in (0, 1, 2, 4):
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
        before = worker.finisher.unwritten.count
        await look(worker, settle=False)
        if worker.finisher.unwritten.count > before:
            tries.append(second)
        while not worker.finisher.idle():
            await worker.finisher.step()
        tocsin_clock.advance(1)
    assert tries == [0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 767, 1023]


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
        tocsin_clock.advance(1)
        await look(worker)
    assert seen == ["last"]


async def look(worker, *, settle: bool = True) -> None:
    """Ask the partition once, and write down what came of it."""
    await asyncio.to_thread(worker.heart.beat)
    worker.lanes["default"].expect_all([0.0])
    await worker.fetcher.step()
    while settle and (worker.pool.busy or not worker.finisher.idle()):
        await asyncio.sleep(0)
        await worker.finisher.step()
