"""Workers on queues with an order and limits: who runs first, how many at once, and who is woken for what is left."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter

import pytest

from tests.support.waiting import Gate, eventually, run_dry
from tocsin import Run

NEVER_POLLS = 600.0


@pytest.fixture
def gate() -> Gate:
    return Gate()


async def calls_of(app, worker, queue: str) -> int:
    """How many calls of its own the worker has made, as the queue remembers them."""
    where = await app.store.find_queue(queue)
    found = await app.store.client.hgetall(where.keys[0]["sessions"])
    mine = [raw for session, raw in found.items() if session.startswith(worker.name.encode())]
    return max(struct.unpack_from(">Q", raw)[0] for raw in mine)


async def working(app, queue: str) -> int:
    where = await app.store.find_queue(queue)
    return await app.store.client.zcard(where.keys[0]["working"])


class TestPriority:
    async def test_one_runner_takes_the_most_urgent_first(self, tocsin_app, make_worker):
        ran = []
        tocsin_app.queue("line", order="priority")

        @tocsin_app.job(queue="line")
        async def job(n):
            ran.append(n)

        for n, priority in enumerate(["background", "low", "normal", "high", "critical"] * 2):
            await tocsin_app.enqueue(job, n, priority=priority)
        await run_dry(await make_worker(queues=["line"], concurrency=1))
        assert ran == [4, 9, 3, 8, 2, 7, 1, 6, 0, 5]

    async def test_a_job_moves_in_its_line_and_keeps_its_age(self, tocsin_app, make_worker):
        ran = []
        tocsin_app.queue("line", order="priority")

        @tocsin_app.job(queue="line")
        async def job(name):
            ran.append(name)

        for name in "abcd":
            await tocsin_app.enqueue(job, name, id=name)
        assert await tocsin_app.reprioritize("c", "high")
        assert await tocsin_app.reprioritize("b", "high")
        assert not await tocsin_app.reprioritize("nobody", "high")
        assert (await tocsin_app.get("c")).priority == "high"
        await run_dry(await make_worker(queues=["line"], concurrency=1))
        assert ran == ["b", "c", "a", "d"]

    async def test_many_are_put_and_run_in_their_order(self, tocsin_app, make_worker):
        ran = []
        tocsin_app.queue("line", order="priority")

        @tocsin_app.job(queue="line")
        async def job(n):
            ran.append(n)

        await tocsin_app.enqueue_many(job, [(n,) for n in range(2500)])
        await run_dry(await make_worker(queues=["line"], concurrency=1))
        assert ran == list(range(2500))


class TestCap:
    async def test_it_holds_across_workers(self, live_app, make_worker, gate):
        live_app.queue("line", order="priority", max_active=3)

        @live_app.job(queue="line")
        async def job(n):
            await gate.enter(n)

        await live_app.enqueue_many(job, [(n,) for n in range(40)])
        workers = [await make_worker(live_app, start=True, poll_s=NEVER_POLLS) for _ in range(2)]
        await eventually(lambda: len(gate.inside) == 3, "the cap is reached")
        for passed in range(1, 20):
            gate.let_go(1)
            await eventually(lambda passed=passed: gate.passed >= passed, "one has ended")
            assert await working(live_app, "line") <= 3
        gate.open()
        await eventually(lambda: gate.passed == 40, "all have run")
        assert gate.most == 3
        assert sum(worker.stats().ran for worker in workers) == 40

    @pytest.mark.parametrize("order", ["due", "priority", "fair"])
    async def test_it_is_drained_without_a_poll(self, live_app, make_worker, order):
        """The answer to a finish tells the fetcher that there is room again."""
        live_app.queue("line", order=order, max_active=2)
        ran = []

        @live_app.job(queue="line")
        async def job(n):
            ran.append(n)

        await make_worker(live_app, start=True, poll_s=NEVER_POLLS)
        await live_app.enqueue_many(job, [(n,) for n in range(200)])
        await eventually(lambda: len(ran) == 200, "all have run")

    async def test_a_worker_that_stops_wakes_another_for_the_slots_that_it_frees(self, live_app, make_worker, gate):
        live_app.queue("line", order="priority", max_active=2)

        @live_app.job(queue="line")
        async def job(n):
            await gate.enter(n)

        await live_app.enqueue_many(job, [(n,) for n in range(6)])
        leaving = await make_worker(live_app, start=True, poll_s=NEVER_POLLS)
        await eventually(lambda: len(gate.inside) == 2, "it has both slots")
        staying = await make_worker(live_app, start=True, poll_s=NEVER_POLLS)
        await eventually(lambda: found_nothing(staying, "line"), "the other has found nothing")
        await leaving.quiet()
        gate.let_go(1)
        await eventually(lambda: staying.running == 1, "the freed slot is taken by the other")
        gate.open()
        await eventually(lambda: gate.passed == 6, "all have run")

    async def test_a_worker_without_a_permit_wakes_another(self, live_app, make_worker, gate):
        """Its only permit goes to the other queue when the slot comes free."""
        slow = Gate()
        live_app.queue("line", order="priority", max_active=1)
        live_app.queue("long", partitions=1)

        @live_app.job(queue="line")
        async def job(n):
            await gate.enter(n)

        @live_app.job(queue="long")
        async def long(n):
            await slow.enter(n)

        await live_app.enqueue_many(job, [(n,) for n in range(3)])
        busy = await make_worker(live_app, start=True, poll_s=NEVER_POLLS, queues=["line", "long"], concurrency=1)
        await eventually(lambda: len(gate.inside) == 1, "it has the slot")
        await live_app.enqueue_many(long, [(n,) for n in range(2)])
        idle = await make_worker(live_app, start=True, poll_s=NEVER_POLLS, queues=["line"], concurrency=5)
        await eventually(lambda: found_nothing(idle, "line"), "the other has found nothing")
        gate.open()
        await eventually(lambda: gate.passed == 3, "all of the capped queue have run")
        slow.open()
        await eventually(lambda: slow.passed == 2, "all others have run")
        assert busy.stats().ran + idle.stats().ran == 5

    async def test_raising_it_wakes_workers(self, live_app, make_worker, gate):
        live_app.queue("line", order="fair", max_active=1, tenant_max_active=1)

        @live_app.job(queue="line")
        async def job(n):
            await gate.enter(n)

        await make_worker(live_app, start=True, poll_s=NEVER_POLLS)
        await live_app.enqueue_many(job, [(n,) for n in range(9)], tenant="t")
        await eventually(lambda: len(gate.inside) == 1, "the cap is reached")
        await live_app.queue_update("line", max_active=4)
        await live_app.queue_update("line", tenant_max_active=3)
        await eventually(lambda: len(gate.inside) == 3, "the tenant's cap is reached")
        await live_app.queue_update("line", tenant_max_active=None)
        await eventually(lambda: len(gate.inside) == 4, "the queue's cap is reached")
        gate.open()
        await eventually(lambda: gate.passed == 9, "all have run")


def found_nothing(worker, queue: str) -> bool:
    """Whether it has asked the queue, and asks no more until it hears something."""
    served = worker.served[queue]
    return not served.ripe and not served.asked


class TestFair:
    async def test_each_tenant_keeps_to_its_cap_and_all_is_drained_without_a_poll(self, live_app, make_worker):
        live_app.queue("line", order="fair", tenant_max_active=2)
        inside: Counter[str] = Counter()
        most: Counter[str] = Counter()
        ran = []

        @live_app.job(queue="line")
        async def job(run: Run):
            inside[run.tenant] += 1
            most[run.tenant] = max(most[run.tenant], inside[run.tenant])
            await asyncio.sleep(0)
            inside[run.tenant] -= 1
            ran.append(run.tenant)

        for _ in range(2):
            await make_worker(live_app, start=True, poll_s=NEVER_POLLS)
        for tenant in "abc":
            await live_app.enqueue_many(job, [()] * 60, tenant=tenant)
        await eventually(lambda: len(ran) == 180, "all have run")
        assert Counter(ran) == {"a": 60, "b": 60, "c": 60}
        assert max(most.values()) <= 2

    async def test_a_newcomer_does_not_wait_for_a_thousand(self, tocsin_app, make_worker):
        ran = []
        tocsin_app.queue("line", order="fair")

        @tocsin_app.job(queue="line")
        async def job(run: Run):
            ran.append(run.tenant)

        await tocsin_app.enqueue_many(job, [()] * 1000, tenant="many")
        await tocsin_app.enqueue(job, tenant="new")
        await run_dry(await make_worker(queues=["line"], concurrency=1))
        assert "new" in ran[:2]
        assert len(ran) == 1001


class TestRate:
    async def test_it_is_kept_and_the_worker_does_not_spin(self, live_app, make_worker):
        live_app.queue("line", order="priority", rate="100/s")
        started = []

        @live_app.job(queue="line")
        async def job():
            started.append(live_app.store.clock.server_ms())

        worker = await make_worker(live_app, start=True, queues=["line"], poll_s=NEVER_POLLS)
        await live_app.enqueue_many(job, [()] * 60)
        await eventually(lambda: len(started) == 60, "all have run")
        # 10 at once, the other 50 each 10 ms.
        assert started[-1] - started[0] >= 490
        # A claim and a finish for each, and a few more around.
        assert await calls_of(live_app, worker, "line") <= 2 * 60 + 40


class TestWholeQueue:
    @pytest.mark.parametrize("order", ["priority", "fair"])
    async def test_paused_and_resumed(self, live_app, make_worker, order):
        live_app.queue("line", order=order)
        live_app.queue("open", order=order)
        ran = []

        @live_app.job(queue="line")
        async def job(n):
            ran.append(n)

        await make_worker(live_app, start=True, poll_s=NEVER_POLLS)
        assert await live_app.pause_queue("line")
        assert not await live_app.pause_queue("line")
        for n in range(5):
            await live_app.enqueue(job, n, priority="high")
        handle = await live_app.enqueue(job, "other", queue="open", id="other")
        await handle.result("10s")
        assert ran == ["other"]
        assert await live_app.resume_queue("line")
        await eventually(lambda: len(ran) == 6, "all have run")

    async def test_what_an_operator_has_set_outlives_the_program_that_declares(self, tocsin_app, other_app):
        tocsin_app.queue("line", order="fair", max_active=5, tenant_max_active=2)
        await tocsin_app.queue_update("line", weights={"acme": 3})
        assert not await tocsin_app.queue_update("nowhere", max_active=1)

        @tocsin_app.job(queue="line")
        async def job():
            pass

        await tocsin_app.enqueue(job)
        assert await tocsin_app.queue_update("line", max_active=1)

        @other_app.job(queue="line", name="other")
        async def other():
            pass

        other_app.queue("line", order="fair", max_active=7, tenant_max_active=3)
        await other_app.enqueue(other)
        where = await other_app.store.find_queue("line")
        found = await other_app.store.client.hmget(where.keys[0]["meta"], "max_active", "tenant_max_active")
        assert found == [b"1", b"3"]
