"""The audit finds what raw commands broke, mends what is safe to mend, and is silent on what is in order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.audit_bench import Bench, one_in_each_stage
from tocsin import Every
from tocsin.inspection.doctor import Doctor
from tocsin.inspection.findings import diagnose
from tocsin.model import msgpack
from tocsin.model.outcome import EDIT
from tocsin.model.queue import Queue
from tocsin.store.formats import decode_claim_entry
from tocsin.store.store import Store
from tocsin.store.transitions.claims import Runs
from tocsin.store.transitions.fleet import Fleet
from tocsin.store.transitions.settle import retry_item
from tocsin.store.views.audit import AuditReader, JobPresence
from tocsin.testing import ManualClock


async def test_a_job_in_each_stage_is_in_order(bench: Bench) -> None:
    await one_in_each_stage(bench)
    assert await bench.kinds() == {"dead": (1, 0), "parked": (1, 0)}
    report = await bench.audit(repair=True)
    assert not report.wrong
    [size] = report.queues
    assert size.counts | {"claims": 0, "sessions": 0} == {
        "ready": 0, "waiting": 3, "working": 1, "blocked": 0, "paused": 1, "parked": 1, "dead": 1, "done": 1,
        "overdue": 0,
        "claims": 0, "sessions": 0,
    }  # fmt: skip
    assert size.bytes
    assert size.bytes > 500


# Each breaks a job "a" that waits, or is worked on, and says what should be found.


async def lose_its_place(bench: Bench) -> str:
    await bench.put("a", 5000)
    await bench.redis.zrem(bench.keys["waiting"], "a")
    return "no-stage"


async def lose_its_record(bench: Bench) -> str:
    await bench.put("a")
    await bench.redis.hdel(bench.keys["jobs"], "a")
    return "no-record"


async def lose_the_record_of_a_run(bench: Bench) -> str:
    await bench.put("a")
    await bench.take("a")
    await bench.redis.hdel(bench.keys["jobs"], "a")
    return "no-record"


async def wait_while_working(bench: Bench) -> str:
    await bench.put("a")
    await bench.take("a")
    await bench.redis.zadd(bench.keys["waiting"], {"a": 1})
    return "two-stages"


async def wait_while_held(bench: Bench) -> str:
    await bench.put("a")
    await bench.take("a")
    await bench.redis.zrem(bench.keys["working"], "a")
    await bench.redis.zadd(bench.keys["waiting"], {"a": 1})
    return "held-not-working"


async def lose_the_claim(bench: Bench) -> str:
    await bench.put("a")
    await bench.take("a")
    await bench.redis.hdel(bench.keys["claims"], "a")
    return "working-unclaimed"


async def spoil_the_claim(bench: Bench) -> str:
    await bench.put("a")
    await bench.redis.hset(bench.keys["claims"], "a", "junk")
    return "unreadable-claim"


async def lose_place_and_record(bench: Bench) -> str:
    await bench.put("a")
    await bench.settle("retry", retry_item(await bench.take("a"), 9000, b"\x91\xa3bad"))
    await bench.redis.zrem(bench.keys["waiting"], "a")
    await bench.redis.hdel(bench.keys["jobs"], "a")
    return "left-over"


async def leave_an_error(bench: Bench) -> str:
    await bench.redis.hset(bench.keys["errors"], "a", b"\x91\xa3bad")
    return "left-over"


async def forget_without_its_result(bench: Bench) -> str:
    await bench.put("a", keep=60)
    await bench.finish(await bench.take("a"), keep=60)
    await bench.redis.zrem(bench.keys["done"], "a")
    return "result-without-done"


async def forget_all_but_its_age(bench: Bench) -> str:
    await bench.redis.zadd(bench.keys["unnamed"], {"a": 1})
    return "result-without-done"


Break = Callable[[Bench], Awaitable[str]]

MENDED: list[Break] = [
    lose_its_place, lose_its_record, lose_the_record_of_a_run, wait_while_working, wait_while_held, lose_the_claim,
    spoil_the_claim, lose_place_and_record, leave_an_error, forget_without_its_result,
    forget_all_but_its_age,
]  # fmt: skip


@pytest.mark.parametrize("damage", MENDED, ids=lambda damage: damage.__name__)
async def test_what_is_broken_is_found_mended_and_then_in_order(bench: Bench, damage: Break) -> None:
    await one_in_each_stage(bench)
    usual = {"dead": (1, 0), "parked": (1, 0)}
    kind = await damage(bench)
    assert await bench.kinds() == usual | {kind: (1, 0)}
    assert await bench.kinds(repair=True) == usual | {kind: (1, 1)}
    assert await bench.kinds() == usual


async def lose_a_result(bench: Bench) -> str:
    await bench.put("a", keep=60)
    await bench.finish(await bench.take("a"), keep=60)
    await bench.redis.hdel(bench.keys["results"], "a")
    return "done-without-result"


async def pause_and_wait(bench: Bench) -> str:
    await bench.put("a")
    await bench.redis.zadd(bench.keys["paused"], {"a": 1})
    return "two-stages"


async def live_after_the_end(bench: Bench) -> str:
    await bench.put("a")
    await bench.redis.zadd(bench.keys["done"], {"a": 1e14})
    await bench.redis.hset(bench.keys["results"], "a", b"\x01" + bytes(8))
    return "done-and-alive"


async def disagree_about_partitions(bench: Bench) -> str:
    await bench.redis.hset(bench.keys["meta"], "partitions", 7)
    return "settings"


async def lose_the_epoch(bench: Bench) -> str:
    await bench.put("a")
    await bench.redis.hdel(bench.keys["meta"], "epoch")
    return "no-settings"


async def spoil_the_record(bench: Bench) -> str:
    await bench.put("a")
    await bench.redis.hset(bench.keys["jobs"], "a", "junk")
    return "unreadable-record"


async def ring_too_often(bench: Bench) -> str:
    await bench.redis.rpush(bench.store.keys.bell(bench.queue.name), 0, 0)
    return "bell"


async def register_as_a_newer_version_may(bench: Bench) -> str:
    entry = msgpack.encode({"order": "by colour", "partitions": 3})
    await bench.redis.hset(bench.store.keys.fleet()["queues"], "odd", entry)
    return "unreadable-queue"


TOLD: list[Break] = [
    lose_a_result, pause_and_wait, live_after_the_end, disagree_about_partitions, lose_the_epoch, spoil_the_record,
    ring_too_often, register_as_a_newer_version_may,
]  # fmt: skip


@pytest.mark.parametrize("damage", TOLD, ids=lambda damage: damage.__name__)
async def test_what_only_a_person_can_decide_is_told_and_left_alone(bench: Bench, damage: Break) -> None:
    kind = await damage(bench)
    assert await bench.kinds() == {kind: (1, 0)}
    assert await bench.kinds(repair=True) == {kind: (1, 0)}
    assert await bench.kinds() == {kind: (1, 0)}


async def test_a_job_without_a_place_waits_again(bench: Bench, clock: ManualClock) -> None:
    await lose_its_place(bench)
    await bench.audit(repair=True)
    assert await bench.waits_until("a") == clock.ms
    assert (await bench.take("a")).attempt == 1


async def test_a_retry_without_a_place_keeps_its_due_time_and_its_attempt(bench: Bench, clock: ManualClock) -> None:
    await bench.put("a")
    claim = await bench.take("a")
    await bench.settle("retry", retry_item(claim, 9000, b"\x91\xa3bad"))
    await bench.redis.zrem(bench.keys["waiting"], "a")
    clock.advance("1s")
    await bench.audit(repair=True)
    again = await bench.take("a")
    assert (again.due, again.attempt) == (claim.due, 2)


async def test_a_run_whose_worker_may_be_at_it_is_not_started_twice(bench: Bench, clock: ManualClock) -> None:
    await bench.put("a", timeout=60_000)
    claim = await bench.take("a")
    await bench.redis.zrem(bench.keys["working"], "a")
    assert await bench.kinds(repair=True) == {"no-stage": (1, 1)}
    assert await bench.stages("a") == ["working"]
    assert await bench.redis.zscore(bench.keys["working"], "a") == clock.ms + 60_000
    assert await bench.finish(claim) == []
    assert await bench.kinds() == {}


async def test_who_holds_a_claim_on_a_waiting_job_can_no_longer_end_it(bench: Bench, other_runs: Runs) -> None:
    await bench.put("a")
    claim = await bench.take("a")
    await bench.redis.zrem(bench.keys["working"], "a")
    await bench.redis.zadd(bench.keys["waiting"], {"a": claim.due})
    await bench.audit(repair=True)
    again = await bench.take("a", other_runs)
    assert (again.due, again.attempt) == (claim.due, 1)
    assert await bench.finish(claim) == [b"a"]


async def test_an_edit_that_waits_in_a_claim_is_not_lost_with_it(bench: Bench, make_put: Any) -> None:
    await bench.put("a", every=10)
    claim = await bench.take("a")
    await bench.jobs.put(bench.queue, make_put("a", every=20, relative=False, mode=EDIT))
    await bench.redis.zrem(bench.keys["working"], "a")
    await bench.redis.zadd(bench.keys["waiting"], {"a": claim.due})
    assert await bench.kinds(repair=True) == {"held-not-working": (1, 1)}
    job = await bench.jobs.get(bench.queue, "a")
    assert job is not None
    assert job.trigger == Every(20)
    raw = await bench.redis.hget(bench.keys["claims"], "a")
    assert raw is None or decode_claim_entry(raw).pending is None


async def test_a_removal_that_waits_in_a_claim_happens(bench: Bench) -> None:
    await bench.put("a")
    await bench.take("a")
    await bench.jobs.delete(bench.queue, "a")
    await bench.redis.hdel(bench.keys["claims"], "b")
    await bench.redis.zrem(bench.keys["working"], "a")
    await bench.redis.zadd(bench.keys["waiting"], {"a": 1})
    await bench.audit(repair=True)
    assert await bench.jobs.get(bench.queue, "a") is None
    assert await bench.kinds() == {}


async def test_a_job_in_a_partition_that_is_not_its_own_is_told(store: Store, make_put: Any) -> None:

    queue = await store.open_queue(Queue("two", partitions=2))
    member = next(str(n) for n in range(100) if queue.partition_of(str(n)) == 1)
    put = make_put(member)
    await store.client.hset(queue.keys[0]["jobs"], member, put.record)  # type: ignore[misc]
    await store.client.zadd(queue.keys[0]["waiting"], {member: 1})
    report = await Doctor(AuditReader(store), Fleet(store), patience_s=0).run()
    assert [(found.kind, found.examples) for found in report.findings if found.level == "wrong"] == [
        ("wrong-partition", [member])
    ]


async def test_many_are_counted_and_a_few_are_named(bench: Bench) -> None:
    for n in range(600):
        await bench.put(f"job {n}")
    await bench.redis.delete(bench.keys["waiting"])
    [found] = [found for found in (await bench.audit()).findings if found.kind == "no-stage"]
    assert found.count == 600
    assert len(found.examples) == 5
    assert await bench.kinds(repair=True) == {"no-stage": (600, 600)}
    assert await bench.redis.zcard(bench.keys["waiting"]) == 600


async def test_ids_of_any_bytes_are_told_and_mended(bench: Bench) -> None:
    await bench.redis.zadd(bench.keys["waiting"], {b"\xff\xfe{}\n": 1})
    assert await bench.kinds(repair=True) == {"no-record": (1, 1)}
    assert await bench.kinds() == {}


# The table behind it

S = JobPresence


@pytest.mark.parametrize(
    ("standing", "kind"),
    [
        (S(0), None),
        (S.RECORD | S.WAITING, None),
        (S.RECORD | S.WAITING | S.CLAIM | S.ERROR, None),
        (S.RECORD | S.WORKING | S.CLAIM | S.HELD, None),
        (S.DONE | S.RESULT, None),
        (S.RECORD, "no-stage"),
        (S.RECORD | S.CLAIM | S.HELD, "no-stage"),
        (S.RECORD | S.WAITING | S.DEAD, "two-stages"),
        (S.RECORD | S.WORKING, "working-unclaimed"),
        (S.RECORD | S.WORKING | S.CLAIM, "working-unclaimed"),
        (S.RECORD | S.PARKED | S.CLAIM | S.HELD, "held-not-working"),
        (S.RECORD | S.WAITING | S.DONE | S.RESULT, "done-and-alive"),
        (S.WAITING, "no-record"),
        (S.WORKING | S.CLAIM | S.HELD, "no-record"),
        (S.CLAIM, "left-over"),
        (S.ERROR, "left-over"),
        (S.DONE, "done-without-result"),
        (S.RESULT, "result-without-done"),
        (S.UNNAMED, "result-without-done"),
        (S.UNNAMED | S.DONE | S.RESULT, None),
        (S.RECORD | S.WAITING | S.CLAIM | S.UNREADABLE, "unreadable-claim"),
    ],
)
def test_what_is_wrong_with_a_standing(standing: JobPresence, kind: str | None) -> None:
    assert diagnose(standing) == kind


# A part of it


async def test_a_sample_is_bounded_and_finds_what_is_everywhere(bench: Bench, make_put: Any) -> None:
    for first in range(0, 3000, 1000):
        await bench.jobs.put_many(bench.queue, [make_put(f"j{n}", 5000) for n in range(first, first + 1000)])
    await bench.redis.delete(bench.keys["waiting"])
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))

    async def lost(survey: AuditReader) -> int:
        report = await Doctor(survey, Fleet(bench.store), progress=progress, patience_s=0).run()
        [found] = [finding for finding in report.findings if finding.kind == "no-stage"]
        return found.count

    assert 1000 <= await lost(AuditReader(bench.store, most=1000)) < 2000
    assert seen[-1] == (1000, 1000)
    assert await lost(AuditReader(bench.store)) == 3000
    assert (1000, 3000) < seen[-2] <= seen[-1] == (3000, 3000)


async def test_only_the_queues_that_were_named_are_looked_at(bench: Bench) -> None:
    other = await bench.store.open_queue(Queue("other", partitions=1))
    await lose_its_place(bench)
    await bench.redis.zadd(other.keys[0]["waiting"], {"nobody": 1})

    async def found(*names: str) -> set[tuple[str, str]]:
        report = await Doctor(AuditReader(bench.store), Fleet(bench.store), queues=names, patience_s=0).run()
        assert sorted(queue.name for queue in report.queues) == sorted(names)
        return {(finding.kind, finding.where) for finding in report.findings if finding.level == "wrong"}

    assert await found("line") == {("no-stage", "line")}
    assert await found("other") == {("no-record", "other")}
    assert await found("line", "other") == {("no-stage", "line"), ("no-record", "other")}
