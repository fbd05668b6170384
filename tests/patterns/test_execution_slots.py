"""The execution queue: slots. Who holds one, until when, and that there are never more than allowed."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.execution_queue_users import enqueue_all, event, process, schedule_all, status
from tests.support.proxy import CUTS, Proxy
from tocsin import InvalidArgument, Tocsin
from tocsin.model.errors import InvalidConfig
from tocsin.model.run import MAX_RECOVERIES
from tocsin.patterns import ExecutionQueue
from tocsin.store.store import LARGEST_BATCH
from tocsin.store.transitions.claims import ClaimRequest, Runs


@pytest.fixture
def executions(tocsin_app):
    return ExecutionQueue(tocsin_app)


@pytest.fixture
def other(tocsin_app):
    """Another process's view of the same queue."""
    return ExecutionQueue(tocsin_app)


@pytest.fixture
async def foreign(tocsin_app, tocsin_server, tocsin_clock):
    """Another program in the same namespace, which takes the queue for one of its own."""
    return Tocsin(tocsin_server.url, prefix=tocsin_app.store.keys.prefix, clock=tocsin_clock)


class TestConcurrency:
    async def test_fifty_concurrent_callers_never_exceed_the_cap(self, tocsin_app):
        queues = [ExecutionQueue(tocsin_app) for _ in range(50)]
        names = [f"{n}" for n in range(200)]
        await enqueue_all(queues[0], *names)
        done, inside, most = [], set(), 0

        async def orchestrate(queue):
            nonlocal most
            while len(done) < len(names):
                found = await queue.try_schedule(7)
                if found is None:
                    continue
                inside.add(found[0])
                most = max(most, len(inside))
                assert (await queue.get_queue_status())["active_count"] <= 7
                inside.remove(found[0])
                done.append(found[0])
                assert await queue.release(found[0])

        await asyncio.gather(*map(orchestrate, queues))
        assert sorted(done) == sorted(names)
        assert most <= 7
        assert await status(queues[0]) == (0, 0)

    async def test_callers_in_two_processes_never_exceed_the_cap(self, tocsin_app, tocsin_server, executions):
        await enqueue_all(executions, *(f"{n}" for n in range(60)))
        queues = [ExecutionQueue(tocsin_app) for _ in range(25)]
        async with process(tocsin_server.url, tocsin_app, callers=25, max_active=12) as child:
            child.go()
            here = await asyncio.gather(*(queue.try_schedule(12) for queue in queues))
            there = await child.got()
            got = [found[0] for found in here if found is not None] + there
            assert sorted(got, key=int) == [f"{n}" for n in range(12)]
            assert await status(executions) == (48, 12)

    async def test_callers_of_one_queue_get_different_executions(self, executions):
        await enqueue_all(executions, *(f"{n}" for n in range(20)))
        got = await asyncio.gather(*(executions.try_schedule(15) for _ in range(30)))
        assert len({found[0] for found in got if found is not None}) == 15
        assert await status(executions) == (5, 15)


class TestRelease:
    async def test_a_release_frees_the_slot_once(self, executions):
        await enqueue_all(executions, "a", "b")
        await executions.try_schedule(1)
        assert await executions.release("a") is True
        assert await executions.release("a") is False
        assert await status(executions) == (1, 0)

    async def test_what_is_not_active_cannot_be_released(self, executions):
        await enqueue_all(executions, "a")
        assert await executions.release("a") is False
        assert await executions.release("unknown") is False
        assert await executions.try_schedule(1) == ("a", event("a"))

    async def test_any_process_can_release_what_is_active(self, executions, other):
        await enqueue_all(executions, "a")
        await executions.try_schedule(1)
        assert await other.release("a") is True
        assert await executions.release("a") is False
        assert await status(executions) == (0, 0)

    async def test_a_late_release_does_not_free_the_slot_of_the_next_attempt(self, executions, other, tocsin_clock):
        await enqueue_all(executions, "a")
        await executions.try_schedule(1)
        tocsin_clock.advance("1h")
        assert await other.try_schedule(1) == ("a", event("a"))
        assert await executions.release("a") is False
        assert await executions.release("a") is False
        assert await status(other) == (0, 1)
        assert await other.release("a") is True

    async def test_a_token_says_which_attempt_is_over_in_any_process(self, tocsin_app, executions, other, tocsin_clock):
        third = ExecutionQueue(tocsin_app)
        await enqueue_all(executions, "a")
        await executions.try_schedule(1)
        tocsin_clock.advance("1h")
        await other.try_schedule(1)
        assert await third.release("a", token=executions.token("a")) is False
        assert await status(executions) == (0, 1)
        assert await executions.release("a", token=other.token("a")) is True
        assert third.token("a") is None

    async def test_so_many_tokens_are_remembered(self, executions, monkeypatch):
        monkeypatch.setattr("tocsin.patterns.execution_queue._MOST_REMEMBERED", 2)
        await enqueue_all(executions, "a", "b", "c")
        await schedule_all(executions)
        assert [executions.token(name) is None for name in "abc"] == [True, False, False]
        assert [await executions.release(name) for name in "abc"] == [True] * 3

    async def test_a_release_after_the_timeout_counts_while_nobody_else_has_the_slot(self, executions, tocsin_clock):
        await enqueue_all(executions, "a")
        await executions.try_schedule(1)
        tocsin_clock.advance("2h")
        assert await executions.release("a") is True
        assert await executions.try_schedule(1) is None


class TestTimeout:
    async def test_a_slot_that_is_not_released_in_time_returns_to_the_line_with_its_place(
        self, executions, other, tocsin_clock
    ):
        await enqueue_all(executions, "first", "second", "third")
        await executions.try_schedule(1)
        tocsin_clock.advance("3599999ms")
        await enqueue_all(executions, "younger")
        assert await other.try_schedule(1) is None
        tocsin_clock.advance("1ms")
        assert await schedule_all(other) == ["first", "second", "third", "younger"]

    async def test_the_timeout_is_as_given(self, tocsin_app, tocsin_clock):
        executions = ExecutionQueue(tocsin_app, "short", "10s")
        await enqueue_all(executions, "a")
        await executions.try_schedule(1)
        tocsin_clock.advance("10s")
        assert await executions.try_schedule(1) == ("a", event("a"))

    async def test_each_call_sees_a_slot_that_has_returned(self, executions, tocsin_clock):
        await enqueue_all(executions, "a", priority="low")

        async def lose():
            assert await executions.try_schedule(1) is not None
            tocsin_clock.advance("1h")

        await lose()
        assert await executions.get_queue_status() == {"queue_depth": 1, "active_count": 0}
        await lose()
        assert (await executions.get_pending_by_priority())["low"] == 1
        await lose()
        assert await executions.enqueue(event("a")) == 0
        await lose()
        assert await executions.update_priority("a", "high")

    async def test_any_number_of_slots_returns_at_once(self, executions, tocsin_app, tocsin_clock):
        await asyncio.gather(*(executions.enqueue(event(f"{n}")) for n in range(LARGEST_BATCH + 1)))
        queue = await tocsin_app.store.find_queue("exec_queue")
        holder = Runs(tocsin_app.store, "holder")
        for limit in (LARGEST_BATCH, 1):
            await holder.claim([ClaimRequest(queue, 0, limit)], lease=1e15)
        tocsin_clock.advance("1h")
        assert await status(executions) == (LARGEST_BATCH + 1, 0)

    async def test_a_holder_that_is_killed_loses_its_slots_with_time(
        self, tocsin_app, tocsin_server, executions, tocsin_clock
    ):
        await enqueue_all(executions, "a", "b", "c")
        async with process(tocsin_server.url, tocsin_app, callers=2, max_active=2) as child:
            child.go()
            assert sorted(await child.got()) == ["a", "b"]
        assert await executions.try_schedule(2) is None
        tocsin_clock.advance("1h")
        assert await schedule_all(executions, max_active=2) == ["a", "b"]

    async def test_one_that_is_never_released_becomes_a_dead_letter(self, executions, tocsin_app, tocsin_clock):
        await enqueue_all(executions, "poison", "good")
        for _ in range(MAX_RECOVERIES):
            assert (await executions.try_schedule(1))[0] == "poison"
            tocsin_clock.advance("1h")
        assert await schedule_all(executions, max_active=1) == ["good"]
        [dead] = [job async for job in tocsin_app.dead(queue="exec_queue")]
        assert (dead.id, dead.failure.error) == ("poison", "scheduled 5 times and never released")
        assert await executions.enqueue(event("poison")) is None


class TestQueue:
    async def test_a_queue_that_workers_serve_cannot_be_an_execution_queue(self, tocsin_app):
        with pytest.raises(InvalidArgument, match="declared"):
            ExecutionQueue(tocsin_app, "default")

    async def test_a_queue_of_another_order_is_refused(self, tocsin_app, foreign):
        foreign.queue("plain", partitions=1)
        job = foreign.job(queue="plain", name="foreign")(lambda: None)
        async with foreign:
            await foreign.enqueue(job)
        with pytest.raises(InvalidConfig, match="order 'due'"):
            await ExecutionQueue(tocsin_app, "plain").enqueue(event("a"))

    @pytest.mark.parametrize("about", [{"name": "{x}"}, {"timeout": "0s"}, {"timeout": "soon"}, {"keep": "-1s"}])
    async def test_a_queue_that_cannot_be_is_refused(self, tocsin_app, about):
        with pytest.raises(InvalidArgument):
            ExecutionQueue(tocsin_app, **about)

    async def test_jobs_of_others_are_set_aside(self, executions, tocsin_app, foreign):
        foreign.queue("exec_queue", order="priority")
        job = foreign.job(queue="exec_queue", name="foreign")(lambda what: None)
        async with foreign:
            await foreign.enqueue(job, "one argument", id="theirs", priority="critical")
        await enqueue_all(executions, "ours")
        assert await schedule_all(executions) == ["ours"]
        assert [each.id async for each in tocsin_app.jobs(stage="parked")] == ["theirs"]

    async def test_an_app_that_is_opened_again_goes_on(self, tocsin_app):
        app = tocsin_app.with_same_declarations(prefix=tocsin_app.store.keys.prefix)
        executions = ExecutionQueue(app)
        async with app:
            await enqueue_all(executions, "a", "b")
            await executions.try_schedule(1)
        async with app:
            assert await executions.release("a") is True
            assert await schedule_all(executions) == ["b"]

    async def test_a_wiped_server_is_an_empty_queue(self, executions, tocsin_app):
        await enqueue_all(executions, "a")
        client = tocsin_app.store.client
        async for key in client.scan_iter(match=f"{tocsin_app.store.keys.prefix}*"):
            await client.delete(key)
        assert await executions.try_schedule(1) is None
        assert await enqueue_all(executions, "b") == [0]

    @pytest.mark.parametrize("when", CUTS)
    @pytest.mark.parametrize("name", ["job_put", "run_claim_ordered", "run_finish", "job_cancel"])
    @pytest.mark.one_server(reason="the proxy stands before one server")
    async def test_a_call_whose_reply_is_lost_is_made_once(self, valkey, tocsin_clock, name, when):
        prefix = f"lost-{name}-{when}:"
        async with Proxy(valkey) as proxy, Tocsin(proxy.url, prefix=prefix, clock=tocsin_clock) as app:
            executions = ExecutionQueue(app)
            await executions.get_queue_status()
            proxy.cut(when, name, "priority")
            assert await enqueue_all(executions, "a", "b", "c") == [0, 1, 2]
            assert [await executions.try_schedule(2) for _ in range(3)] == [("a", event("a")), ("b", event("b")), None]
            assert await executions.release("a") is True
            assert await executions.remove("b") is True
            assert proxy.cuts == 1
            assert await status(executions) == (1, 0)
