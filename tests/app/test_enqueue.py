"""`enqueue`: a one-shot job, and each of its options."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from tocsin import InvalidArgument, Retry, Run
from tocsin.model.ids import idempotency_key
from tocsin.testing import run_until_idle


async def test_a_job_runs_with_its_arguments(tocsin_app, note, runs):
    handle = await tocsin_app.enqueue(note, "a", id="j")
    assert handle.new
    assert (handle.id, handle.queue) == ("j", "default")
    assert await run_until_idle(tocsin_app) == 1
    assert (runs[0].args, runs[0].kwargs) == (("a",), {})


async def test_arguments_come_as_they_were_sent(tocsin_app):
    seen = []

    @tocsin_app.job
    async def handler(a, b=2, *rest, c, **more):
        seen.append((a, b, rest, c, more))

    await tocsin_app.enqueue(handler, [1, {"x": None}], c=b"\x00bytes", word="🔔", number=2**60)
    await run_until_idle(tocsin_app)
    assert seen == [([1, {"x": None}], 2, (), b"\x00bytes", {"word": "🔔", "number": 2**60})]


async def test_a_run_knows_everything_about_itself(tocsin_app, tocsin_clock, note, runs, prefix):
    await tocsin_app.enqueue(note, 1, id="j", tenant="acme", timeout="90s", delay="1m")
    due = tocsin_clock.now + timedelta(minutes=1)
    tocsin_clock.advance("61s")
    await run_until_idle(tocsin_app)
    [run] = runs
    due_ms = tocsin_clock.ms - 1000
    assert (run.id, run.job_id, run.queue, run.name) == (f"j@{due_ms}", "j", "default", "note")
    assert (run.due, run.deadline) == (due, tocsin_clock.now + timedelta(seconds=90))
    assert (run.attempt, run.recoveries, run.cancelled) == (1, 0, False)
    assert (run.tenant, run.priority, run.args, run.kwargs) == ("acme", "normal", (1,), {})
    assert run.idempotency_key == idempotency_key(prefix, "default", "j", due_ms)
    assert run.token > 0
    assert repr(run) == f"Run('j@{due_ms}', attempt=1)"


async def test_a_delayed_job_runs_after_its_delay_and_not_before(tocsin_app, tocsin_clock, note, ran):
    await tocsin_app.enqueue(note, "later", delay="10m")
    assert await run_until_idle(tocsin_app) == 0
    tocsin_clock.advance(timedelta(minutes=10) - timedelta(milliseconds=1))
    assert await run_until_idle(tocsin_app) == 0
    tocsin_clock.advance("1ms")
    assert await run_until_idle(tocsin_app) == 1
    assert ran == ["later"]


async def test_a_job_at_a_time_runs_at_that_time_in_whatever_zone_it_was_said(tocsin_app, tocsin_clock, note):
    at = tocsin_clock.now + timedelta(hours=1, microseconds=1)
    await tocsin_app.enqueue(note, id="j", at=at.astimezone(timezone(timedelta(hours=-7))))
    job = await tocsin_app.get("j")
    # Rounded up to the millisecond: never early.
    assert job.due == tocsin_clock.now + timedelta(hours=1, milliseconds=1)


async def test_a_time_in_the_past_is_due_when_it_is_put(tocsin_app, tocsin_clock, note, runs):
    put = tocsin_clock.now
    await tocsin_app.enqueue(note, id="j", at=datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC))
    await tocsin_app.enqueue(note, id="k", at=datetime(1, 1, 1, tzinfo=UTC))
    tocsin_clock.advance("1m")
    await run_until_idle(tocsin_app)
    assert {run.job_id: run.due for run in runs} == {"j": put, "k": put}


async def test_jobs_run_in_the_order_in_which_they_are_due(tocsin_app, tocsin_clock):
    seen = []
    tocsin_app.queue("line", partitions=1)

    @tocsin_app.job(queue="line")
    async def handler(n):
        seen.append(n)

    for n in (3, 1, 2):
        await tocsin_app.enqueue(handler, n, delay=n)
    tocsin_clock.advance("5s")
    await run_until_idle(tocsin_app, concurrency=1)
    assert seen == [1, 2, 3]


async def test_a_job_goes_to_the_queue_that_is_named_or_else_to_its_handlers(tocsin_app, note):
    tocsin_app.queue("mail")
    tocsin_app.queue("slow", partitions=2)

    @tocsin_app.job(queue="mail")
    async def send():
        pass

    assert (await tocsin_app.enqueue(send, id="a")).queue == "mail"
    assert (await tocsin_app.enqueue(send, id="b", queue="slow")).queue == "slow"
    assert (await tocsin_app.enqueue(note, id="c")).queue == "default"
    assert await run_until_idle(tocsin_app, queues=["slow"]) == 1
    assert [job.id async for job in tocsin_app.jobs(queue="mail")] == ["a"]


async def test_retries_and_timeout_of_the_call_go_before_those_of_the_handler(tocsin_app):
    @tocsin_app.job(timeout="1m", retry=Retry(1, "1s"))
    async def handler():
        pass

    await tocsin_app.enqueue(handler, id="as declared")
    await tocsin_app.enqueue(handler, id="as called", timeout="5s", retry=Retry(9, "2s"))
    declared, called = await tocsin_app.get("as declared"), await tocsin_app.get("as called")
    assert (declared.timeout, declared.retry) == (60, Retry(1, "1s"))
    assert (called.timeout, called.retry) == (5, Retry(9, "2s"))


async def test_a_job_shows_its_criticality_cost_and_tenant(tocsin_app, note):
    await tocsin_app.enqueue(note, id="j", criticality=-3, cost=7, tenant="acme")
    job = await tocsin_app.get("j")
    assert (job.criticality, job.header.cost, job.tenant, job.priority) == (-3, 7, "acme", "normal")


async def test_a_job_without_an_id_gets_one_of_its_own(tocsin_app, note):
    handles = [await tocsin_app.enqueue(note) for _ in range(5)]
    assert len({handle.id for handle in handles}) == 5
    assert all(handle.new for handle in handles)


@pytest.mark.parametrize(
    "job_id",
    ["{braces}", "}{tag", "a\nb\r\n", "🔔", " ", "a@b@3", "a:b", "\x01\x7f", "x" * 512, "é" * 256, "-", "'\";--"],
    ids=lambda job_id: ascii(job_id)[:12],
)
async def test_a_job_with_an_odd_id_runs_from_end_to_end(tocsin_app, note, runs, tocsin_clock, job_id):
    handle = await tocsin_app.enqueue(note, "odd", id=job_id, delay="1s")
    assert (await tocsin_app.get(job_id)).id == job_id
    tocsin_clock.advance("1s")
    assert await run_until_idle(tocsin_app) == 1
    assert await handle.result() == "odd"
    assert (runs[0].job_id, runs[0].id) == (job_id, f"{job_id}@{tocsin_clock.ms}")


async def test_failed_attempts_follow_the_retry_policy_and_share_id_and_key(tocsin_app, tocsin_clock):
    seen = []

    @tocsin_app.job(retry=Retry(3, "200ms"))
    async def flaky(run: Run):
        seen.append((run.attempt, run.id, run.idempotency_key, tocsin_clock.ms))
        if run.attempt < 4:
            raise ValueError("again")
        return "at last"

    handle = await tocsin_app.enqueue(flaky, id="j")
    begun = tocsin_clock.ms
    for wait in ("0s", "200ms", "400ms", "800ms"):
        tocsin_clock.advance(wait)
        assert await run_until_idle(tocsin_app) == 1
        assert await run_until_idle(tocsin_app) == 0
    assert [attempt for attempt, *_ in seen] == [1, 2, 3, 4]
    assert len({(run_id, key) for _, run_id, key, _ in seen}) == 1
    assert [at - begun for *_, at in seen] == [0, 200, 600, 1400]
    assert await handle.result() == "at last"


async def test_out_of_retries_a_one_shot_is_dead_with_its_error(tocsin_app, tocsin_clock, note, ran):
    handle = await tocsin_app.enqueue(note, id="j", fail="too bad", retry=Retry(1, "1s"))
    await run_until_idle(tocsin_app)
    assert await handle.status() == "waiting"
    tocsin_clock.advance("1s")
    await run_until_idle(tocsin_app)
    job = await tocsin_app.get("j")
    assert (job.stage, job.attempts, job.failed, job.succeeded) == ("dead", 2, 1, 0)
    assert job.failure.error == "ValueError: too bad"
    assert job.failure.at == tocsin_clock.ms
    assert 'ValueError("too bad")' not in job.failure.error
    assert "raise ValueError(fail)" in job.failure.traceback


@pytest.mark.parametrize("priority", ["high", "normal"])
async def test_a_priority_is_refused_where_the_queue_has_none(tocsin_app, note, priority):
    with pytest.raises(InvalidArgument, match="leave priority out"):
        await tocsin_app.enqueue(note, priority=priority)
