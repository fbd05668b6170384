"""The slow net: what raw commands broke in `waiting` and `working` is mended, and no valid job is lost over it."""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from logged import capture_logs
from proxy import CUTS, Proxy
from servers import Server, cluster
from store.line import Line, record
from tocsin.model.errors import StoreUnavailable
from tocsin.model.outcome import EDIT
from tocsin.model.queue import Queue
from tocsin.store import calls
from tocsin.store.store import OpenQueue, Store
from tocsin.store.transitions.claims import Deadlines
from tocsin.store.transitions.jobs import PutItem
from tocsin.store.transitions.leadership import LeaderKey
from tocsin.store.views import strays as strays_module
from tocsin.store.views.audit import AuditReader
from tocsin.store.views.strays import StrayPage, StrayReader
from tocsin.testing import ManualClock
from tocsin.upkeep.elector import Elector
from tocsin.upkeep.orphan_cleaner import OrphanCleaner, OrphanRules

CENTURY = 100 * 366 * 86_400_000
YEAR_2500 = 16_725_225_600_000
HOUR = 3_600_000


class Cleaner(OrphanCleaner):
    """Orphans with what a test may turn."""

    def __init__(self, store: Store, queues: list[OpenQueue], clock: ManualClock, **settings: Any) -> None:
        self.leading: Callable[[], bool] = lambda: True
        self.believes = True
        self.steps = b""
        self.own: Callable[[str], bool] = lambda member: True
        self.heard: list[tuple[str, int]] = []

        async def registered() -> list[OpenQueue]:
            return queues

        super().__init__(
            StrayReader(store), AuditReader(store), registered, clock, OrphanRules(**settings),
            leading=lambda: self.leading(), owns=lambda _, member: self.own(member),
            deadlines=lambda overdue: Deadlines(overdue, clock.ms, self.steps) if self.believes else None,
            look_again=lambda queue, partition: self.heard.append((queue.name, partition)),
        )  # fmt: skip

    @property
    def done(self) -> dict[str, int]:
        return {kind: count for kind, count in self.cleaned.items() if count}


@pytest.fixture
def line(store: Store, queue: OpenQueue, clock: ManualClock) -> Line:
    return Line(store, queue, clock)


@pytest.fixture
def cleaner(line: Line) -> Cleaner:
    return Cleaner(line.store, [line.queue], line.clock)


async def zadd(line: Line, stage: str, member: str | bytes, score: float) -> None:
    await line.store.client.zadd(line.keys[stage], {member: score})


async def score(line: Line, stage: str, member: str) -> float | None:
    found: float | None = await line.store.client.zscore(line.keys[stage], member)
    return found


async def state(line: Line) -> dict[str, Any]:
    """All that is in Redis, without who called when."""
    return {key: value for key, value in (await line.dump()).items() if not key.startswith("sessions")}


@pytest.fixture
def after_look(monkeypatch) -> Callable[[Callable[[], Awaitable[Any]]], None]:
    """Let something happen between the look that found a stray and what is done about it."""

    def arrange(happens: Callable[[], Awaitable[Any]]) -> None:
        look = StrayReader.look

        async def look_then(self: StrayReader, *args: Any) -> StrayPage:
            page = await look(self, *args)
            if page.found:
                await happens()
            return page

        monkeypatch.setattr(StrayReader, "look", look_then)

    return arrange


# Each makes a stray "a", and says what should be done about it.


async def name_without_a_job(line: Line) -> str:
    await zadd(line, "waiting", "a", line.now + 5000)
    return "no_record"


async def work_without_a_job(line: Line) -> str:
    await zadd(line, "working", "a", line.now + 5000)
    return "no_record"


async def retry_without_a_record(line: Line) -> str:
    await line.put("a")
    await line.retry(await line.take("a"))
    await line.store.client.hdel(line.keys["jobs"], "a")
    return "no_record"


async def work_overdue(line: Line) -> str:
    await line.put("a", timeout=1000)
    await line.take("a")
    line.clock.advance("11m")
    return "recovered"


async def work_overdue_without_a_claim(line: Line) -> str:
    await work_overdue(line)
    await line.store.client.hdel(line.keys["claims"], "a")
    return "recovered"


async def work_overdue_with_a_spoilt_claim(line: Line) -> str:
    await work_overdue(line)
    await line.store.client.hset(line.keys["claims"], "a", "junk")
    return "claim"


async def wait_in_seconds(line: Line) -> str:
    await line.put("a", 5000, every=10)
    await zadd(line, "waiting", "a", line.now // 1000)
    return "score"


async def work_in_seconds(line: Line) -> str:
    await line.put("a")
    await line.take("a")
    await zadd(line, "working", "a", line.now // 1000)
    return "score"


Break = Callable[[Line], Awaitable[str]]
STRAYS: list[Break] = [
    name_without_a_job, work_without_a_job, retry_without_a_record, work_overdue, work_overdue_without_a_claim,
    work_overdue_with_a_spoilt_claim, wait_in_seconds, work_in_seconds,
]  # fmt: skip


@pytest.mark.parametrize("damage", STRAYS, ids=lambda damage: damage.__name__)
async def test_a_stray_is_mended_once_counted_and_told(line: Line, cleaner: Cleaner, damage: Break):
    kind = await damage(line)
    with capture_logs() as logs:
        assert await cleaner.step() == 300.0
        after = await state(line)
        await cleaner.step()
    assert cleaner.done == {kind: 1}
    assert [(said["event"], said[kind]) for said in logs] == [("orphans cleaned up", 1)]
    assert await state(line) == after
    stage = "working" if damage is work_in_seconds else None if kind == "no_record" else "waiting"
    assert await line.stage("a") == stage
    assert cleaner.heard == ([] if kind == "no_record" else [("line", 0)])


@pytest.mark.parametrize("damage", STRAYS, ids=lambda damage: damage.__name__)
async def test_who_does_not_lead_touches_nothing(line: Line, cleaner: Cleaner, damage: Break):
    await damage(line)
    before = await line.dump()
    cleaner.leading = lambda: False
    assert await cleaner.step() == 300.0
    assert await line.dump() == before
    assert cleaner.done == {}


@pytest.mark.parametrize("damage", STRAYS, ids=lambda damage: damage.__name__)
async def test_what_belongs_to_another_shard_is_left_to_it(line: Line, cleaner: Cleaner, damage: Break):
    kind = await damage(line)
    before = await line.dump()
    asked: list[str] = []
    cleaner.own = lambda member: asked.append(member) is not None
    await cleaner.step()
    assert await line.dump() == before
    assert asked == ["a"]
    cleaner.own = lambda member: member == "a"
    await cleaner.step()
    assert cleaner.done == {kind: 1}


@pytest.mark.one_server(reason="the proxy stands before one server")
@pytest.mark.parametrize("when", CUTS)
@pytest.mark.parametrize("damage", STRAYS, ids=lambda damage: damage.__name__)
async def test_a_lost_reply_mends_nothing_twice(valkey: Server, damage: Break, when: str, clock: ManualClock):
    async with Proxy(valkey) as proxy:
        store = Store(proxy.url, prefix=f"t{secrets.token_hex(4)}:", clock=clock)
        await store.open()
        try:
            line = Line(store, await store.open_queue(Queue("line", partitions=1)), clock)
            kind = await damage(line)
            cleaner = Cleaner(store, [line.queue], clock)
            proxy.cut(when, {"score": "score_mend", "recovered": "run_recover"}.get(kind, "audit_mend"))
            await cleaner.step()
            assert proxy.cuts == 1
            assert cleaner.done == {kind: 1}
        finally:
            await store.close()


async def test_a_valid_job_in_any_stage_is_left_alone(line: Line, cleaner: Cleaner):
    for member in ("waiting", "paused", "held", "retried", "buried", "parked", "4711"):
        await line.put(member)
    await line.put("recurring", 5000, every=10)
    await line.put("strange", handler="of.another.worker")
    await line.put("far", YEAR_2500 - line.now)
    await line.spoil("waiting", b"written by a later version")
    await line.pause("paused")
    await line.take("held")
    await line.retry(await line.take("retried"), delay=9000)
    await line.bury(await line.take("buried"))
    await line.park(await line.take("parked"))
    await line.fire("recurring")
    before = await state(line)
    await cleaner.step()
    assert await state(line) == before
    assert cleaner.done == {}


# Overdue


@pytest.mark.parametrize(
    ("past", "step", "comes_back"),
    [
        (599_999, 0, False),
        (600_000, 0, True),
        (HOUR, 0, True),
        # The server's clock was set ahead by an hour since: so much more time has what was claimed before.
        (HOUR, HOUR, False),
        (HOUR + 599_999, HOUR, False),
        (HOUR + 600_000, HOUR, True),
        (24 * HOUR, None, False),
    ],
)
async def test_a_run_comes_back_when_it_is_past_its_deadline_by_the_threshold(
    line: Line, cleaner: Cleaner, past: int, step: int | None, comes_back: bool
):
    await line.put("a", timeout=1000)
    due = line.now
    await line.take("a")
    line.clock.advance((1000 + past) / 1000)
    cleaner.believes = step is not None
    cleaner.steps = b"%d %d %d" % (step, line.now, step) if step else b""
    await cleaner.step()
    assert await line.stage("a") == ("waiting" if comes_back else "working")
    if comes_back:
        again = await line.take("a", line.other)
        assert (again.due, again.attempt, again.recoveries) == (due, 1, 1)


async def test_a_job_that_waits_for_long_is_no_orphan(line: Line, cleaner: Cleaner):
    await line.put("a")
    line.clock.advance("2d")
    asked: list[str] = []
    cleaner.own = lambda member: asked.append(member) is None
    await cleaner.step()
    assert asked == []


async def test_an_old_holder_cannot_end_a_run_that_came_back(line: Line, cleaner: Cleaner):
    await line.put("a", timeout=1000)
    claim = await line.take("a")
    line.clock.advance("11m")
    await cleaner.step()
    assert await line.finish(claim) == ["a"]
    assert await line.stage("a") == "waiting"


async def test_a_run_that_was_extended_meanwhile_stays(line: Line, cleaner: Cleaner, after_look):
    await line.put("a", timeout=1000)
    claim = await line.take("a")
    line.clock.advance("11m")
    after_look(lambda: line.runs.extend(line.queue, claim, 60_000))
    await cleaner.step()
    assert await score(line, "working", "a") == line.now + 60_000
    assert cleaner.done == {}


async def test_a_spoilt_claim_keeps_no_other_run_from_coming_back(line: Line, cleaner: Cleaner):
    for member in "abc":
        await line.put(member, timeout=1000)
        await line.take(member)
    await line.store.client.hset(line.keys["claims"], "b", "junk")
    line.clock.advance("11m")
    await cleaner.step()
    assert [await line.stage(member) for member in "abc"] == ["waiting"] * 3
    assert cleaner.done == {"recovered": 2, "claim": 1}


async def test_what_a_person_wished_meanwhile_is_obeyed(line: Line, cleaner: Cleaner):
    for member in ("paused", "removed"):
        await line.put(member, timeout=1000)
        await line.take(member)
    await line.pause("paused")
    await line.delete("removed")
    line.clock.advance("11m")
    await cleaner.step()
    assert await line.stage("paused") == "paused"
    assert await line.stage("removed") is None


# Names without a job


@pytest.mark.parametrize(
    ("member", "numeric"),
    [
        ("4711", True),
        ("1900000000", True),
        ("0", True),
        ("4711a", False),
        ("-4711", False),
        ("47.11", False),
        (" 4711", False),
        ("٤٧", False),
        ("a\x1f1900000000000", False),
        (b"\xff\xfe", False),
    ],
)
@pytest.mark.parametrize("stage", ["waiting", "working"])
async def test_names_of_digits_are_a_kind_of_their_own(line: Line, stage: str, member: str | bytes, numeric: bool):
    await zadd(line, stage, member, line.now)
    kept = Cleaner(line.store, [line.queue], line.clock, remove_numeric_only=False)
    await kept.step()
    assert kept.done == ({} if numeric else {"no_record": 1})
    await zadd(line, stage, member, line.now)
    cleaner = Cleaner(line.store, [line.queue], line.clock)
    await cleaner.step()
    assert cleaner.done == {"numeric" if numeric else "no_record": 1}
    assert await line.store.client.zcard(line.keys[stage]) == 0


async def test_a_job_whose_id_is_digits_is_a_job(line: Line, cleaner: Cleaner):
    await line.put("4711", every=10)
    await zadd(line, "waiting", "4712", line.now)
    await cleaner.step()
    assert [claim.member for claim in await line.claim()] == ["4711"]
    assert cleaner.done == {"numeric": 1}


async def test_whoever_holds_a_run_without_a_record_may_end_it(line: Line, cleaner: Cleaner):
    await line.put("a")
    claim = await line.take("a")
    await line.store.client.hdel(line.keys["jobs"], "a")
    await cleaner.step()
    assert await line.finish(claim) == []
    assert await line.stage("a") is None


async def test_an_edit_that_waits_in_a_claim_is_a_record_too(line: Line, cleaner: Cleaner):
    await line.put("a", every=10)
    await line.take("a")
    await line.put("a", 1000, mode=EDIT, every=20)
    await line.store.client.hdel(line.keys["jobs"], "a")
    line.clock.advance("1h")
    await cleaner.step()
    assert await line.stage("a") == "waiting"


async def test_a_name_that_got_its_job_meanwhile_stays(line: Line, cleaner: Cleaner, after_look):
    await zadd(line, "waiting", "a", line.now)
    after_look(lambda: line.put("a", 5000, every=10))
    await cleaner.step()
    assert await score(line, "waiting", "a") == line.now + 5000
    assert cleaner.done == {}


# Scores that are not ours

ODD = [-math.inf, -1e18, -5.0, -1.0, 0.0, 1.0, 1_893_456_000.0, 9_999_999_999.0, 1.9e15, 1.9e18, math.inf]


@pytest.mark.parametrize("odd", [*ODD, 1_893_456_000_000.0 + 2 * CENTURY])
async def test_an_agent_with_such_a_score_is_due_now(line: Line, cleaner: Cleaner, odd: float):
    await line.put("a", 5000, every=10)
    await zadd(line, "waiting", "a", odd)
    line.clock.advance("1s")
    await cleaner.step()
    assert cleaner.done == {"score": 1}
    assert await score(line, "waiting", "a") == line.now
    assert (await line.take("a")).due == line.now


@pytest.mark.parametrize("odd", ODD)
async def test_a_run_that_was_tried_keeps_its_due_time_and_attempt(line: Line, cleaner: Cleaner, odd: float):
    await line.put("a", every=10)
    due = line.now
    await line.retry(await line.take("a"), delay=9000)
    await zadd(line, "waiting", "a", odd)
    line.clock.advance("1s")
    await cleaner.step()
    assert await score(line, "waiting", "a") == due
    again = await line.take("a")
    assert (again.due, again.attempt) == (due, 2)


@pytest.mark.parametrize("odd", ODD)
async def test_a_deadline_like_that_is_set_anew_for_who_holds_the_run(line: Line, cleaner: Cleaner, odd: float):
    await line.put("a", timeout=60_000)
    claim = await line.take("a")
    await zadd(line, "working", "a", odd)
    line.clock.advance("1s")
    await cleaner.step()
    assert cleaner.done == {"score": 1}
    assert await score(line, "working", "a") == line.now + 60_000
    assert await line.finish(claim) == []


async def test_a_deadline_that_nobody_holds_comes_back_when_it_is_over(line: Line, cleaner: Cleaner):
    await line.put("a", timeout=60_000)
    await line.take("a")
    await line.store.client.hdel(line.keys["claims"], "a")
    await zadd(line, "working", "a", math.inf)
    await cleaner.step()
    line.clock.advance("11m")
    await cleaner.step()
    assert await line.stage("a") == "waiting"


@pytest.mark.parametrize(
    ("far", "every", "runs_now"),
    [
        (YEAR_2500, None, False),
        (YEAR_2500, 10, True),
        (253_402_300_799_999, None, False),
        (253_402_300_800_000, None, True),
    ],
)
async def test_a_far_century_is_believed_of_single_runs_only(
    line: Line, cleaner: Cleaner, far: int, every: float | None, runs_now: bool
):
    await line.put("a", 5000, every=every)
    await zadd(line, "waiting", "a", far)
    await cleaner.step()
    assert await score(line, "waiting", "a") == (line.now if runs_now else far)


async def test_a_due_time_of_long_ago_that_was_claimed_keeps_its_run_id(line: Line, cleaner: Cleaner):
    await line.jobs.put(line.queue, PutItem("a", record(), 1000))
    await line.take("a")
    await line.recover()
    await cleaner.step()
    again = await line.take("a")
    assert (again.due, again.recoveries) == (1000, 1)
    assert cleaner.done == {}


async def test_a_due_time_in_a_claim_that_can_never_come_is_set_anew(line: Line, cleaner: Cleaner):
    await line.put("a", every=10)
    await line.retry(await line.take("a"))
    raw = bytearray(await line.store.client.hget(line.keys["claims"], "a"))
    raw[8:16] = b"\xff" * 8
    await line.store.client.hset(line.keys["claims"], "a", bytes(raw))
    await zadd(line, "waiting", "a", -1)
    await cleaner.step()
    again = await line.take("a")
    assert (again.due, again.attempt) == (line.now, 2)


# Budgets and pages


async def many(line: Line, count: int) -> None:
    for first in range(0, count, 1000):
        await line.store.client.zadd(line.keys["waiting"], {f"x{n}": line.now for n in range(first, first + 1000)})


class Ticking(ManualClock):
    """A clock on which each look takes a second."""

    def monotonic(self) -> float:
        self.advance("1s")
        return super().monotonic()


@pytest.fixture
def small_pages(monkeypatch) -> None:
    monkeypatch.setattr(strays_module, "PAGE", 100)


@pytest.mark.usefixtures("small_pages")
async def test_a_pass_ends_with_its_budget_and_the_next_goes_on_there(line: Line):
    await many(line, 3000)
    cleaner = Cleaner(line.store, [line.queue], Ticking(), run_budget_ms=4000)
    done = []
    while sum(done) < 3000:
        before = cleaner.done.get("no_record", 0)
        assert await cleaner.step() == 300.0
        done.append(cleaner.done["no_record"] - before)
        assert 0 < done[-1] < 2000
    assert len(done) > 3
    assert sum(done) == 3000


@pytest.mark.usefixtures("small_pages")
async def test_without_a_budget_a_pass_goes_all_the_way(line: Line):
    await many(line, 3000)
    cleaner = Cleaner(line.store, [line.queue], Ticking(), run_budget_ms=0)
    await cleaner.step()
    assert cleaner.done == {"no_record": 3000}


@pytest.mark.usefixtures("small_pages")
async def test_a_small_budget_reaches_every_place_in_the_end(store: Store, clock: ManualClock):
    queues = [await store.open_queue(Queue(name, partitions=n)) for name, n in (("one", 3), ("other", 1))]
    for queue in queues:
        for keys in queue.keys:
            for stage in ("waiting", "working"):
                await store.client.zadd(keys[stage], {stage: clock.ms})
    cleaner = Cleaner(store, queues, Ticking(), run_budget_ms=1)
    for _ in range(8):
        await cleaner.step()
    assert cleaner.done == {"no_record": 8}


@pytest.mark.usefixtures("small_pages")
async def test_what_is_in_order_is_passed_by(line: Line):
    for first in range(0, 3000, 1000):
        await line.jobs.put_many(line.queue, [PutItem(f"{first + n}", record(), line.now) for n in range(1000)])
    await zadd(line, "working", "stray", line.now)
    cleaner = Cleaner(line.store, [line.queue], Ticking(), run_budget_ms=1)
    passes = 0
    while not cleaner.done:
        passes += 1
        assert passes < 60
        await cleaner.step()
    assert passes > 10


@pytest.mark.usefixtures("small_pages")
async def test_a_leader_whose_term_ends_stops_between_two_pages(line: Line):
    await many(line, 3000)
    cleaner = Cleaner(line.store, [line.queue], line.clock)
    cleaner.leading = lambda: cleaner.done.get("no_record", 0) < 200
    await cleaner.step()
    done = cleaner.done["no_record"]
    assert 200 <= done < 1000
    await cleaner.step()
    assert cleaner.done["no_record"] == done
    cleaner.leading = lambda: True
    await cleaner.step()
    await cleaner.step()
    assert cleaner.done == {"no_record": 3000}


async def test_a_leader_that_was_stopped_during_its_look_does_not_act_on_it(line: Line, after_look):
    """Its clock has gone on meanwhile, and another was elected."""
    here, there = ManualClock(), ManualClock()
    one = Elector(LeaderKey(line.store), lambda: "one", here, 120_000)
    two = Elector(LeaderKey(line.store), lambda: "two", there, 120_000)
    old, new = (Cleaner(line.store, [line.queue], line.clock) for _ in range(2))
    old.leading, new.leading = one.leading, two.leading
    await one.step()
    await zadd(line, "waiting", "a", line.now)

    async def stop_and_elect() -> None:
        if not two.leading():
            here.advance("3m")
            await line.store.client.delete(line.store.keys.leader())
            await two.step()

    after_look(stop_and_elect)
    await old.step()
    await one.step()
    await old.step()
    assert old.done == {}
    await new.step()
    assert new.done == {"no_record": 1}


# Trouble


async def test_with_the_server_away_the_next_pass_goes_on_where_this_one_ended(monkeypatch, clock: ManualClock):
    monkeypatch.setattr(calls, "PATIENCE_S", 0.0)
    with Server.valkey(aof=True) as server:
        store = Store(server.url, clock=clock)
        await store.open()
        try:
            line = Line(store, await store.open_queue(Queue("line", partitions=1)), clock)
            await zadd(line, "working", "a", line.now)
            cleaner = Cleaner(store, [line.queue], clock)
            server.kill()
            with pytest.raises(StoreUnavailable):
                await cleaner.step()
            server.start()
            with contextlib.suppress(StoreUnavailable):
                await cleaner.step()
            await cleaner.step()
            assert cleaner.done == {"no_record": 1}
        finally:
            await store.close()


async def test_a_broken_partition_keeps_no_other_from_being_cleaned(store: Store, clock: ManualClock):
    queue = await store.open_queue(Queue("three", partitions=3))
    for keys in queue.keys:
        await store.client.zadd(keys["waiting"], {"x": clock.ms})
    await store.client.delete(queue.keys[1]["waiting"])
    await store.client.set(queue.keys[1]["waiting"], "not a sorted set")
    cleaner = Cleaner(store, [queue], clock)
    with capture_logs() as logs:
        await cleaner.step()
    assert cleaner.done == {"no_record": 2}
    assert [(said["event"], said.get("partition")) for said in logs] == [
        ("cannot clean up", 1),
        ("orphans cleaned up", None),
    ]


async def test_a_server_that_was_emptied_is_cleaned_all_the_same(line: Line, cleaner: Cleaner):
    await line.store.client.delete(*line.keys.values())
    await zadd(line, "waiting", "a", line.now)
    await cleaner.step()
    assert cleaner.done == {"no_record": 1}


async def test_on_a_cluster_one_worker_is_elected_and_cleans_up_on_all_nodes(clock: ManualClock):
    with cluster() as nodes:
        store = Store(nodes.url, prefix="myapp:", hash_tag="ps", clock=clock)
        await store.open()
        try:
            queues = [await store.open_queue(Queue(name, partitions=p)) for name, p in (("agents", 1), ("wide", 6))]
            for queue in queues:
                for keys in queue.keys:
                    await store.client.zadd(keys["waiting"], {"4711": clock.ms, "x": clock.ms})
            elections = [Elector(LeaderKey(store), lambda n=n: n, clock, 120_000) for n in ("one", "two")]
            cleaners = [Cleaner(store, queues, clock) for _ in elections]
            for election, cleaner in zip(elections, cleaners, strict=True):
                await election.step()
                cleaner.leading = election.leading
                await cleaner.step()
            assert await store.client.get("myapp:cleanup-leader{ps}") == b"one"
            assert [cleaner.done for cleaner in cleaners] == [{"numeric": 7, "no_record": 7}, {}]
        finally:
            await store.close()


# Suspects stand apart, with a score that no other has


async def set_apart(line: Line, member: str) -> float:
    """A run that was recovered twice. Its score."""
    await line.put(member)
    for _ in range(2):
        await line.take(member)
        await line.recover()
    found = await score(line, "waiting", member)
    assert found is not None
    assert found < -(2**51)
    return found


async def test_a_suspect_stays_where_it_is(line: Line, cleaner: Cleaner):
    at = await set_apart(line, "a")
    await cleaner.step()
    assert (cleaner.done, await score(line, "waiting", "a")) == ({}, at)
    assert not (await line.store.change("score_mend", line.queue, 0, b"\x91\xa1a"))[1].count(b"1")


@pytest.mark.parametrize("off_by", [1, 10**12, math.inf])
async def test_one_whose_score_is_not_that_of_its_run_gets_its_due_time(line: Line, cleaner: Cleaner, off_by: float):
    at, due = await set_apart(line, "a"), line.now
    await zadd(line, "waiting", "a", at - off_by)
    await cleaner.step()
    assert (cleaner.done, await score(line, "waiting", "a")) == ({"score": 1}, due)


async def test_a_job_that_is_no_suspect_gets_its_time_back(line: Line, cleaner: Cleaner):
    at = await set_apart(line, "a")
    await line.put("b")
    await zadd(line, "waiting", "b", at)
    await cleaner.step()
    assert await score(line, "waiting", "b") == line.now
    assert await line.names() == ["a", "b"]
