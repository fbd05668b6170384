"""What is said of a job in each stage, each from a state that is really there."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tests.support.lost_writes import Snapshot
from tests.support.worker_steps import claim, drain, put_inside
from tocsin import Every, Retry
from tocsin.inspection.why import JobExplainer
from tocsin.model.ids import extra_member
from tocsin.testing import run_until_idle


async def kinds(app, job_id, queue=None):
    return (await app.why(job_id, queue=queue)).kinds


# Not in line


async def test_a_job_that_is_not_due_says_when_it_is(tocsin_app, tocsin_clock, mail, make_worker):
    await make_worker()
    await tocsin_app.enqueue(mail, id="j", delay="10m")
    answer = await tocsin_app.why("j")
    assert (answer.queue, answer.kinds, answer.known) == ("mail", ["not_due"], True)
    assert answer.reasons[0].facts == {"not_before": tocsin_clock.now + timedelta(minutes=10)}
    assert "not due until" in str(answer)
    assert "(in 10m)" in str(answer)


async def test_a_job_that_is_not_due_also_says_what_will_be_in_its_way(tocsin_app, mail):
    await tocsin_app.enqueue(mail, id="j", delay="10m")
    await tocsin_app.pause_queue("mail")
    assert await kinds(tocsin_app, "j") == ["not_due", "queue_paused", "no_worker"]


async def test_a_failed_run_waits_for_its_retry(tocsin_app, tocsin_clock, mail, make_worker):
    worker = await make_worker()
    await tocsin_app.enqueue(mail, id="j", fail="no\n such host", retry=Retry(3, "1m"))
    await drain(worker)
    retry, error = (await tocsin_app.why("j")).reasons
    assert (retry.kind, retry.facts["attempt"], retry.facts["attempts"]) == ("retry", 2, 4)
    assert retry.facts["not_before"] == tocsin_clock.now + timedelta(minutes=1)
    assert "waits for attempt 2 of 4" in retry.says
    assert (error.kind, error.facts["error"]) == ("last_error", "ValueError: no\n such host")
    assert error.says.endswith("ValueError: no such host")
    assert error.do == ("tocsin jobs show j --queue mail",)


async def test_a_recurring_job_that_failed_says_so_while_it_waits_for_its_next_time(tocsin_app, mail, make_worker):
    worker = await make_worker()
    await tocsin_app.schedule(mail, Every("1h"), id="j", fail="again")
    tocsin_app.store.clock.advance("1h")
    await drain(worker)
    assert await kinds(tocsin_app, "j") == ["not_due", "last_error"]


async def test_a_paused_job_says_how_it_is_resumed(tocsin_app, mail):
    await tocsin_app.enqueue(mail, id="j")
    await tocsin_app.pause("j")
    [paused] = (await tocsin_app.why("j")).reasons
    assert paused.kind == "paused"
    assert paused.do == ("tocsin jobs resume j --queue mail",)


async def test_a_blocked_job_says_what_it_waits_for(tocsin_app, mail):
    for n in range(5):
        await tocsin_app.enqueue(mail, id=f"{n}", delay="1h")
    await tocsin_app.enqueue(mail, id="j", after=[f"{n}" for n in range(5)])
    [blocked] = (await tocsin_app.why("j")).reasons
    assert blocked.kind == "blocked"
    assert blocked.says == "it waits for '0' of queue mail, '1' of queue mail, '2' of queue mail, 2 more"
    assert [each["id"] for each in blocked.facts["after"]] == ["0", "1", "2", "3", "4"]
    assert blocked.do[0] == "tocsin why 0 --queue mail"


async def test_a_blocked_job_that_nothing_would_tell_says_what_has_become_of_what_it_waits_for(tocsin_app, mail, gate):
    """Its server lost its last writes: it was told before, and is blocked again."""
    tocsin_app.queue("other", partitions=1)
    for name in ("done", "dead", "gone", "there"):
        await tocsin_app.enqueue(
            mail, id=name, fail="bad" if name == "dead" else "", delay="1h" if name == "there" else 0
        )
    await tocsin_app.enqueue(
        mail, id="j", queue="other", after=["done", "dead", "gone", "there"], on_upstream_failure="run"
    )
    snapshot = Snapshot(tocsin_app.store, "other")
    await snapshot.take()
    gate.open()
    await tocsin_app.remove("gone")
    await run_until_idle(tocsin_app)
    await snapshot.put_back()
    blocked, unheard = (await tocsin_app.why("j")).reasons
    assert (blocked.kind, unheard.kind) == ("blocked", "unheard")
    assert {each["id"]: each["state"] for each in unheard.facts["unheard"]} == {
        "done": "succeeded", "dead": "failed", "gone": "unknown",
    }  # fmt: skip
    assert "'dead' of queue mail has ended (failed)" in unheard.says
    assert "'gone' of queue mail is not known any more" in unheard.says
    assert unheard.do == ("tocsin doctor --repair   # to repair it now",)


async def test_a_dead_job_says_its_last_error_and_how_it_is_revived(tocsin_app, mail, make_worker):
    worker = await make_worker()
    job_id = "a 'b'\n"
    await tocsin_app.enqueue(mail, id=job_id, fail="for good", retry=Retry(1, 0))
    await drain(worker)
    answer = await tocsin_app.why(job_id)
    [dead] = answer.reasons
    assert (dead.kind, dead.facts["error"]) == ("dead", "ValueError: for good")
    assert (dead.facts["attempt"], dead.facts["attempts"]) == (2, 2)
    assert "after attempt 2 of 2: ValueError: for good" in dead.says
    # What is said can be typed, whatever the id holds.
    assert dead.do[0].startswith("tocsin dead retry $'a \\'b\\'\\x0a' --queue mail")


# Parked


async def test_a_parked_job_says_that_nobody_knows_its_handler(tocsin_app, mail, stranger, make_worker):
    stranger.queue("mail", partitions=1)
    other = await make_worker(stranger, queues=["mail"])
    await tocsin_app.enqueue(mail, id="j")
    await drain(other)
    parked, unknown = (await tocsin_app.why("j")).reasons
    assert (parked.kind, parked.facts["handler"]) == ("parked", "mail")
    assert (unknown.kind, unknown.facts["workers"]) == ("unknown_handler", [other.name])


async def test_a_parked_job_whose_handler_is_known_again_says_who_takes_it(tocsin_app, mail, stranger, make_worker):
    stranger.queue("mail", partitions=1)
    await tocsin_app.enqueue(mail, id="j")
    await drain(await make_worker(stranger, queues=["mail"]))
    worker = await make_worker(queues=["mail"])
    parked, known = (await tocsin_app.why("j")).reasons
    assert (parked.kind, known.kind, known.facts["workers"]) == ("parked", "known_again", [worker.name])


@pytest.mark.parametrize("at", [0, -1], ids=["header", "body"])
async def test_a_job_whose_record_cannot_be_read_is_parked_with_the_error(tocsin_app, mail, make_worker, at):
    worker = await make_worker()
    handle = await tocsin_app.enqueue(mail, id="j", fail="x")
    jobs = (await tocsin_app.store.find_queue(handle.queue)).keys[0]["jobs"]
    record = bytearray(await tocsin_app.store.client.hget(jobs, "j"))
    record[at] = 0xC1
    await tocsin_app.store.client.hset(jobs, "j", bytes(record))
    assert await kinds(tocsin_app, "j") == ["in_line", "unreadable"]
    await drain(worker)
    [unreadable] = (await tocsin_app.why("j")).reasons
    assert unreadable.kind == "unreadable"
    assert "a record" in unreadable.facts["error"]
    assert "start a worker that has the version" in unreadable.do[0]
    assert "tocsin jobs unpark j --queue mail" in unreadable.do[1]


# Running


async def test_a_running_job_says_by_whom_since_when_and_until_when(tocsin_app, tocsin_clock, mail, make_worker, gate):
    worker = await make_worker()
    await tocsin_app.enqueue(mail, id="j")
    await put_inside(worker, gate)
    started = tocsin_clock.now
    tocsin_clock.advance("5s")
    [running] = (await tocsin_app.why("j")).reasons
    assert (running.kind, running.facts["worker"]) == ("running", worker.name)
    assert running.facts["since"] == started
    assert running.facts["deadline"] == started + timedelta(seconds=30)
    assert f"run by {worker.name} since" in running.says


async def test_what_was_asked_for_meanwhile_is_told_of_a_running_job(tocsin_app, mail, make_worker, gate):
    worker = await make_worker()
    await tocsin_app.schedule(mail, Every("1h"), id="j")
    tocsin_app.store.clock.advance("1h")
    await put_inside(worker, gate)
    due = (await tocsin_app.get("j")).due_ms
    await tocsin_app.pause("j")
    await tocsin_app.update("j", timeout="1m")
    await tocsin_app.cancel(f"j@{due}")
    assert await kinds(tocsin_app, "j") == ["running", "pausing", "changing", "cancelling"]
    await tocsin_app.remove("j")
    assert "removing" in await kinds(tocsin_app, "j")


async def test_a_run_past_its_deadline_says_so(tocsin_app, tocsin_clock, mail, make_worker, gate):
    worker = await make_worker()
    await tocsin_app.enqueue(mail, id="j")
    await put_inside(worker, gate)
    tocsin_clock.advance("45s")
    running, past = (await tocsin_app.why("j")).reasons
    assert (running.kind, past.kind) == ("running", "past_deadline")
    assert "15s ago" in past.says


@pytest.mark.agents
async def test_an_agent_past_its_deadline_says_that_it_may_go_on(tocsin_app, tocsin_clock, make_worker, gate):
    @tocsin_app.agent(every="1m", timeout="30s", name="a")
    async def agent():
        await gate.enter()

    worker = await make_worker(queues=["agents"])
    await worker.reconciler.step()
    await put_inside(worker, gate)
    tocsin_clock.advance("45s")
    _, past = (await tocsin_app.why("a")).reasons
    assert past.kind == "past_deadline"
    assert "zombie-cleanup.threshold-ms" in past.says


async def test_a_run_whose_worker_is_silent_or_gone_says_so(tocsin_app, tocsin_clock, mail, make_worker, gate):
    worker = await make_worker(beats=False)
    await tocsin_app.enqueue(mail, id="j")
    await put_inside(worker, gate)
    tocsin_clock.advance("3s")
    why = JobExplainer(tocsin_app.store, patience_s=0.05)
    assert (await why.ask("j")).kinds == ["running", "worker_silent"]
    assert await worker.parts.fleet.declare_dead(worker.name, b"1", 10_000)
    assert (await why.ask("j")).kinds == ["running", "worker_gone"]


async def test_a_run_that_was_brought_back_says_how_often(tocsin_app, tocsin_clock, mail, make_worker, gate):
    await tocsin_app.enqueue(mail, id="j")
    dead = await make_worker(beats=False)
    for _ in range(2):
        await asyncio.to_thread(dead.heart.beat)
        await claim(dead)
        tocsin_clock.advance("1h")
        assert await dead.parts.incarnation.runs.recover(dead.queues[-1], 0, "") == 1
    worker = await make_worker(queues=["mail"])
    suspect = (await JobExplainer(tocsin_app.store, patience_s=0.05).ask("j")).reasons[1]
    assert (suspect.kind, suspect.facts) == ("suspect", {"recoveries": 2})
    await claim(worker)
    assert (await JobExplainer(tocsin_app.store, patience_s=0.05).ask("j")).kinds == ["running", "recovered"]


# Ended, unknown, several


async def test_a_job_that_is_done_says_how_it_ended(tocsin_app, tocsin_clock, mail, make_worker, gate):
    gate.open()
    await tocsin_app.enqueue(mail, id="j")
    await run_until_idle(tocsin_app)
    ended = tocsin_clock.now
    tocsin_clock.advance("1m")
    answer = await tocsin_app.why("j")
    assert (answer.kinds, answer.queue) == (["done"], "mail")
    assert answer.reasons[0].facts == {"outcome": "succeeded", "at": ended}


async def test_a_job_that_ended_and_is_not_remembered_is_told_from_the_events(tocsin_app, mail, gate):
    gate.open()
    handle = await tocsin_app.enqueue(mail, keep=0)
    await run_until_idle(tocsin_app)
    answer = await tocsin_app.why(handle.id)
    assert (answer.kinds, answer.known) == (["gone"], True)
    assert answer.reasons[0].facts["outcome"] == "succeeded"


async def test_a_job_that_nobody_knows_is_unknown(tocsin_app, mail):
    assert (await tocsin_app.why("nobody")).known is False
    await tocsin_app.enqueue(mail, id="j", delay="1h")
    await tocsin_app.remove("j")
    answer = await tocsin_app.why("j")
    assert (answer.kinds, answer.known, answer.queue) == (["unknown"], False, None)
    assert "never existed, was removed, or has ended and its outcome was not kept" in str(answer)


async def test_a_job_in_two_queues_says_how_to_choose(tocsin_app, mail):
    tocsin_app.queue("post", partitions=1)
    for queue in ("mail", "post"):
        await tocsin_app.enqueue(mail, id="j", queue=queue, delay="1h")
    answer = await tocsin_app.why("j")
    assert (answer.kinds, answer.known) == (["several"], True)
    assert answer.reasons[0].do == ("tocsin why j --queue mail", "tocsin why j --queue post")
    assert (await tocsin_app.why("j", queue="post")).queue == "post"


async def test_an_extra_run_is_found_by_its_run_id(tocsin_app, mail, make_worker):
    await make_worker()
    await tocsin_app.schedule(mail, Every("1h"), id="j")
    due = (await tocsin_app.get("j")).due_ms
    run = await tocsin_app.fire("j")
    for name in (run.id, extra_member("j", int(run.due.timestamp() * 1000))):
        answer = await tocsin_app.why(name)
        assert answer.kinds == ["due", "extra_run"]
        assert answer.reasons[1].facts["job"] == "j"
    assert await kinds(tocsin_app, f"j@{due}") == ["not_due"]
    assert await kinds(tocsin_app, f"j@{due + 1}") == ["unknown"]


# Asking


async def test_asking_changes_nothing(tocsin_app, mail):
    await tocsin_app.enqueue(mail, id="j")
    client, every = tocsin_app.store.client, f"{tocsin_app.store.keys.prefix}*"
    before = {key: await client.dump(key) async for key in client.scan_iter(every)}
    await tocsin_app.why("j")
    await tocsin_app.why("nobody")
    assert {key: await client.dump(key) async for key in client.scan_iter(every)} == before


async def test_it_can_be_asked_without_an_event_loop(tocsin_app, mail):
    await tocsin_app.enqueue(mail, id="j", delay="1h")
    try:
        answer = await asyncio.to_thread(lambda: tocsin_app.sync.why("j"))
    finally:
        await asyncio.to_thread(tocsin_app.sync.close)
    assert answer.kinds == ["not_due", "no_worker"]
