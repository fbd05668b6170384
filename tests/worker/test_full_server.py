"""A server at its maxmemory: workers go on and come up, and what was refused is said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.support.servers import Server, flavours
from tests.support.waiting import eventually
from tocsin import InvalidArgument, StoreFull, Tocsin
from tocsin.engine.handlers import Handler
from tocsin.inspection.doctor import Doctor
from tocsin.store.transitions.fleet import BellReader, Fleet
from tocsin.store.transitions.jobs import Jobs
from tocsin.store.transitions.leadership import LeaderKey
from tocsin.store.views.audit import AuditReader


@pytest.fixture(scope="module", params=flavours())
def small_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with getattr(Server, request.param)() as server:
        yield server


def program(server: Server, ran: list[Any], *queues: str) -> Tocsin:
    """One release of a program: the same job and agents, and perhaps a queue that the last one did not have."""
    app = Tocsin(server.url)

    @app.job(name="work")
    async def work(n: int) -> None:
        ran.append(n)

    for name in ("a", "b"):

        @app.agent(every="1h", name=name)
        async def agent(name: str = name) -> None:
            ran.append(name)

    for queue in queues:
        app.queue(queue)
    return app


@pytest.fixture
async def app(small_server: Server) -> AsyncIterator[Tocsin]:
    async with program(small_server, []) as app:
        await app.store.client.flushall()
        yield app
        await app.store.client.config_set("maxmemory", 0)


def work_of(app: Tocsin) -> Handler:
    return next(handler for handler in app.declarations.catalog if handler.name == "work")


async def fill(app: Tocsin) -> None:
    await app.store.client.config_set("maxmemory", 1)


async def test_a_beat_renews_the_lease(app, make_worker):
    worker = await make_worker(app)
    await fill(app)
    worker.heart.lease.until = 0.0
    beat = await asyncio.to_thread(worker.heart.beat)
    assert beat is not None
    assert (beat.accepted, beat.workers) == (True, 1)
    assert worker.heart.lease.until > app.store.clock.server_ms()


async def test_a_worker_that_starts_now_runs_what_is_there(app, small_server, make_worker):
    work = work_of(app)
    await app.enqueue_many(work, [(n,) for n in range(500)])
    first = await make_worker(app, queues=["agents"])
    assert first.reconciler is not None
    await first.reconciler.step()
    await fill(app)
    ran: list[Any] = []
    async with program(small_server, ran, "release2") as new:
        worker = await make_worker(new, start=True)
        assert "release2" in worker.served
        await eventually(lambda: len(ran) == 502, "all ran")
        assert sorted(n for n in ran if isinstance(n, int)) == list(range(500))
        await eventually(worker.finisher.idle, "all outcomes are written")
        assert worker.name in [each.id for each in await Fleet(new.store).workers()]
        assert worker.parts.upkeep.elector is None or worker.parts.upkeep.elector.leading()
        assert await worker.stop() == 0
        assert worker.name not in [each.id for each in await Fleet(new.store).workers()]


async def test_a_worker_starts_although_its_agents_cannot_be_added_yet(app, make_worker):
    await app.store.open_queue(app.declarations.queues["agents"])
    await fill(app)
    worker = await make_worker(app, queues=["agents"])
    assert worker.reconciler is not None
    with pytest.raises(StoreFull):
        await worker.reconciler.step()
    await app.store.client.config_set("maxmemory", 0)
    while not worker.reconciler.added:
        await worker.reconciler.step()
    assert worker.reconciler.added == 2


async def test_bells_and_mail_are_heard(app, make_worker):
    worker = await make_worker(app)
    await fill(app)
    fleet, ear = Fleet(app.store), BellReader(app.store, worker.name, ["default"])
    try:
        for _ in range(2):
            await fleet.ring_all([("default", 3)])
            await fleet.post(worker.name, {"cancel": "j", "token": 1})
        heard = [await ear.listen(1, bells=False), await ear.listen(1)]
        assert heard == [{"cancel": "j", "token": 1}, ("default", 3)]
        assert await ear.take() == []
    finally:
        await ear.close()


async def test_a_worker_can_lead_and_note_by_which_zones_it_planned(app):
    await fill(app)
    assert (await LeaderKey(app.store).take("w", 60_000)).holder == "w"
    fleet = Fleet(app.store)
    await fleet.set_zone_version("2026a")
    assert await fleet.zones() == "2026a"


async def test_health_names_the_cause(app, make_worker):
    worker = await make_worker(app)
    await worker.telemetry.check.step()
    assert not worker.telemetry.health().degraded
    await fill(app)
    another = await make_worker(app)
    await another.telemetry.check.step()
    health = another.telemetry.health()
    assert health.degraded
    assert any("is at its maxmemory and refuses new jobs: raise maxmemory" in reason for reason in health.reasons)


async def test_rows_that_were_written_are_counted_when_the_server_is_full_half_way(app):
    async def rows() -> AsyncIterator[tuple[int]]:
        for n in range(30_000):
            if n == 20_000:
                await fill(app)
            yield (n,)

    with pytest.raises(StoreFull) as caught:
        await app.enqueue_many(work_of(app), rows())
    queue = await app.store.find_queue("default")
    assert queue is not None
    there = sum((await Jobs(app.store).count(queue)).values())
    assert 0 < there < 20_001
    assert caught.value.written == there
    assert f"{there} rows were written" in str(caught.value)


async def test_the_advice_for_a_full_server_can_be_followed(app):
    work = work_of(app)
    await app.enqueue_many(work, [(n,) for n in range(100)], ids=[f"j{n}" for n in range(100)])
    await fill(app)
    with pytest.raises(StoreFull, match=r"raise maxmemory.*`tocsin purge`, `tocsin jobs remove`"):
        await app.enqueue(work, 1)
    assert await app.remove("j0")
    assert (await app.remove_many(name="work")).removed == 99
    assert (await app.purge_queue("default")).removed == 0


async def test_an_empty_queue_can_be_deleted_and_one_with_jobs_stays_as_it_was(app):
    work = work_of(app)
    await app.enqueue(work, 1, id="j")
    await fill(app)
    with pytest.raises(InvalidArgument, match="has 1 jobs"):
        await app.delete_queue("default")
    assert await app.remove("j")
    await app.delete_queue("default")
    assert await app.store.queues.names() == []


async def test_a_repartitioning_does_not_begin(app):
    await app.enqueue(work_of(app), 1, id="j")
    await fill(app)
    with pytest.raises(StoreFull):
        await app.repartition_queue("default", 2)
    assert await app.remove("j")


@pytest.mark.parametrize("order", ["due", "priority", "fair"])
async def test_why_and_doctor_answer(app, order):
    line = app.queue(order, order=order, partitions=1)
    await app.enqueue_many(work_of(app), [(n,) for n in range(3)], ids=["a", "b", "c"], queue=line.name)
    await fill(app)
    assert (await app.why("b", queue=order)).known
    report = await Doctor(AuditReader(app.store), Fleet(app.store)).run()
    assert not report.wrong


async def test_a_job_that_waits_for_others_runs(app, make_worker):
    work = work_of(app)
    await app.enqueue(work, 1, id="first")
    last = await app.enqueue(work, 2, id="last", after=["first"])
    await fill(app)
    await make_worker(app, start=True)

    async def ended() -> bool:
        return await last.status() == "succeeded"

    await eventually(ended, "the job that waited ran")
