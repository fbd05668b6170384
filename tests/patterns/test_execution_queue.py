"""The execution queue: its seven calls, and what they return."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from types import SimpleNamespace

import pytest
from msgspec import Struct

from tests.support.execution_queue_users import enqueue_all, event, schedule_all, status
from tocsin import InvalidArgument, Stage
from tocsin.model.job import PRIORITIES
from tocsin.patterns import ExecutionQueue


@pytest.fixture
def executions(tocsin_app):
    return ExecutionQueue(tocsin_app)


@pytest.fixture
def other(tocsin_app):
    """Another process's view of the same queue."""
    return ExecutionQueue(tocsin_app)


class TestEnqueue:
    async def test_the_position_is_how_many_of_the_whole_line_go_before_it(self, executions):
        assert await enqueue_all(executions, "l1", "l2", priority="low") == [0, 1]
        assert await enqueue_all(executions, "c1", "c2", priority="critical") == [0, 1]
        assert await enqueue_all(executions, "n1") == [2]
        assert await enqueue_all(executions, "b1", priority="background") == [5]

    async def test_an_event_delivered_again_changes_nothing_and_has_its_position(self, executions):
        await enqueue_all(executions, "a", "b", "c")
        assert await executions.enqueue(event("b", "critical", payload="another")) == 1
        assert await executions.get_queue_status() == {"queue_depth": 3, "active_count": 0}
        assert await schedule_all(executions) == ["a", "b", "c"]

    async def test_an_event_delivered_again_while_its_execution_is_active_takes_no_slot(self, executions):
        await enqueue_all(executions, "a")
        await executions.try_schedule(10)
        assert await executions.enqueue(event("a")) is None
        assert await status(executions) == (0, 1)
        assert await executions.try_schedule(10) is None

    async def test_an_event_delivered_again_after_its_execution_takes_no_slot(self, executions, tocsin_clock):
        await enqueue_all(executions, "a")
        await executions.try_schedule(10)
        await executions.release("a")
        tocsin_clock.advance("23h")
        assert await executions.enqueue(event("a")) is None
        assert await executions.try_schedule(10) is None

    async def test_what_is_over_is_remembered_for_keep(self, tocsin_app, tocsin_clock):
        executions = ExecutionQueue(tocsin_app, keep="1h")
        await enqueue_all(executions, "a")
        await executions.try_schedule(10)
        await executions.release("a")
        tocsin_clock.advance("59m")
        assert await executions.enqueue(event("a")) is None
        tocsin_clock.advance("1m")
        assert await executions.enqueue(event("a")) == 0

    async def test_an_event_waits_as_long_as_its_execution(self, executions, tocsin_clock):
        await enqueue_all(executions, "a")
        tocsin_clock.advance("90d")
        assert await executions.try_schedule(1) == ("a", event("a"))

    async def test_lists_tell_executions_apart_by_user_status_and_priority(self, executions, tocsin_app):
        async def listed(**wanted):
            return {job.id async for job in tocsin_app.jobs(queue="exec_queue", **wanted)}

        await executions.enqueue(event("a", "critical", user_id="ada"))
        await executions.enqueue(event("b", "low", user_id="bob"))
        await executions.enqueue(event("c", "low", user_id="ada"))
        assert await executions.try_schedule(1) is not None
        assert (await listed(tenant="ada"), await listed(tenant="bob")) == ({"a", "c"}, {"b"})
        assert (await listed(stage="working"), await listed(stage="ready")) == ({"a"}, {"b", "c"})
        assert await listed(stage="ready", tenant="ada") == {"c"}
        low = {job.id async for job in tocsin_app.jobs(queue="exec_queue") if job.priority == "low"}
        assert low == {"b", "c"}


@dataclass
class Requested:
    execution_id: str
    priority: str
    user_id: str
    payload: tuple[int, ...]
    language: str = "python"


@dataclass(slots=True)
class SlottedRequest:
    execution_id: str
    user_id: str


class StructRequest(Struct):
    execution_id: str
    payload: dict[str, int]


class Level(Enum):
    HIGH = "HIGH"


class TestEvents:
    async def test_a_mapping_comes_back_as_it_was_given(self, executions):
        given = event("a", at=datetime(2030, 1, 1, tzinfo=UTC), script=b"\x00\xff", deep=[{"x": None}], n=2**40)
        await executions.enqueue(given)
        assert await executions.try_schedule(1) == ("a", given)

    @pytest.mark.parametrize(
        ("given", "back"),
        [
            (
                Requested("a", "High", "ada", (1, 2)),
                {
                    "execution_id": "a",
                    "priority": "High",
                    "user_id": "ada",
                    "payload": [1, 2],
                    "language": "python",
                },
            ),
            (SlottedRequest("a", "ada"), {"execution_id": "a", "user_id": "ada"}),
            (StructRequest("a", {"x": 1}), {"execution_id": "a", "payload": {"x": 1}}),
            (
                SimpleNamespace(execution_id="a", priority=Level.HIGH, _private=object()),
                {"execution_id": "a", "priority": "HIGH"},
            ),
        ],
        ids=lambda each: type(each).__name__,
    )
    async def test_an_object_comes_back_as_the_dict_of_its_attributes(self, executions, given, back):
        await executions.enqueue(given)
        assert await executions.try_schedule(1) == ("a", back)

    @pytest.mark.parametrize("priority", ["HIGH", "high", Level.HIGH])
    async def test_priorities_are_names_in_any_case(self, executions, priority):
        await executions.enqueue(event("a", priority))
        assert (await executions.get_pending_by_priority())["high"] == 1

    async def test_an_event_without_a_priority_is_normal(self, executions):
        await executions.enqueue({"execution_id": "a"})
        assert (await executions.get_pending_by_priority())["normal"] == 1

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({"priority": "high"}, "has an execution_id"),
            ("just text", "has an execution_id"),
            (None, "has an execution_id"),
            (event(7), "execution_id of an event: .* text"),
            (event(""), "execution_id of an event: .* 1 to 512"),
            (event("a\x1fb"), "execution_id of an event"),
            (event("a", "hihg"), "did you mean 'high'"),
            (event("a", 1), "no priority"),
            (event("a", user_id=42), "user_id of an event: .* text"),
            (event("a", payload=object()), "cannot be stored"),
            (event("a", payload="x" * 600_000), "limit"),
        ],
    )
    async def test_what_cannot_be_an_event_is_refused(self, executions, given, says):
        with pytest.raises(InvalidArgument, match=says):
            await executions.enqueue(given)
        assert await status(executions) == (0, 0)


class TestSchedule:
    async def test_the_first_of_the_highest_priority_comes_first(self, executions):
        for n in range(3):
            for priority in reversed(PRIORITIES):
                await executions.enqueue(event(f"{priority} {n}", priority))
        assert await schedule_all(executions) == [f"{priority} {n}" for priority in PRIORITIES for n in range(3)]

    async def test_first_come_first_served_in_a_band_also_in_one_millisecond(self, executions, tocsin_clock):
        names = [f"{n * 7919 % 100}" for n in range(100)]
        await enqueue_all(executions, *names[:60])
        tocsin_clock.advance("1ms")
        await enqueue_all(executions, *names[60:])
        assert await schedule_all(executions) == names

    async def test_nothing_is_scheduled_when_there_is_nothing(self, executions):
        assert await executions.try_schedule(10) is None

    async def test_no_more_than_max_active_are_active(self, executions):
        await enqueue_all(executions, "a", "b", "c")
        assert await schedule_all(executions, max_active=2) == ["a", "b"]
        assert await executions.get_queue_status() == {"queue_depth": 1, "active_count": 2}
        assert await executions.release("a")
        assert await schedule_all(executions, max_active=2) == ["c"]

    async def test_the_cap_is_the_one_of_each_call(self, executions):
        await enqueue_all(executions, *"abcdef")
        assert await schedule_all(executions, max_active=3) == ["a", "b", "c"]
        assert await schedule_all(executions, max_active=1) == []
        assert await schedule_all(executions, max_active=0) == []
        assert await schedule_all(executions, max_active=5) == ["d", "e"]

    async def test_the_cap_that_an_operator_set_holds_too(self, executions, tocsin_app):
        await enqueue_all(executions, "a", "b", "c")
        await tocsin_app.queue_update("exec_queue", max_active=1)
        assert await schedule_all(executions, max_active=10) == ["a"]
        await tocsin_app.queue_update("exec_queue", max_active=None)
        assert await schedule_all(executions, max_active=2) == ["b"]

    async def test_nothing_is_scheduled_from_a_paused_queue(self, executions, tocsin_app):
        await enqueue_all(executions, "a")
        await tocsin_app.pause_queue("exec_queue")
        assert await executions.try_schedule(10) is None
        await tocsin_app.resume_queue("exec_queue")
        assert await schedule_all(executions) == ["a"]

    async def test_age_counts_where_an_operator_wants_it(self, executions, tocsin_app, tocsin_clock):
        await enqueue_all(executions, "old", priority="background")
        await tocsin_app.queue_update("exec_queue", aging="10m")
        tocsin_clock.advance("20m")
        await enqueue_all(executions, "as old as that")
        tocsin_clock.advance("1ms")
        await enqueue_all(executions, "younger")
        assert await schedule_all(executions) == ["as old as that", "old", "younger"]

    @pytest.mark.parametrize("max_active", [-1, 1.5, "10", None, True])
    async def test_a_cap_is_a_whole_number(self, executions, max_active):
        with pytest.raises(InvalidArgument, match="max_active"):
            await executions.try_schedule(max_active)

    async def test_one_that_cannot_be_read_holds_nobody_up(self, executions, tocsin_app):
        await enqueue_all(executions, "bad", "good")
        client, keys = tocsin_app.store.client, (await tocsin_app.store.find_queue("exec_queue")).keys[0]
        record = await client.hget(keys["jobs"], "bad")
        await client.hset(keys["jobs"], "bad", record[:43] + b"\xc1garbage")
        assert await schedule_all(executions) == ["good"]
        assert [(job.id, job.stage) async for job in tocsin_app.jobs(stage="parked")] == [("bad", Stage.PARKED)]
        assert await status(executions) == (0, 1)


class TestPriority:
    async def test_a_new_priority_keeps_the_age(self, executions, tocsin_clock):
        await enqueue_all(executions, "old", priority="background")
        tocsin_clock.advance("1s")
        await enqueue_all(executions, "n1", "n2")
        assert await executions.update_priority("n2", "low") is True
        assert await executions.update_priority("old", "NORMAL") is True
        assert await executions.enqueue(event("old")) == 0
        assert await schedule_all(executions) == ["old", "n1", "n2"]

    async def test_the_same_priority_again_changes_no_place(self, executions):
        await enqueue_all(executions, "a", "b", "c")
        assert await executions.update_priority("a", "normal") is True
        assert await schedule_all(executions) == ["a", "b", "c"]

    async def test_only_what_is_pending_can_have_another_priority(self, executions):
        await enqueue_all(executions, "active", "over", "gone")
        await schedule_all(executions)
        await executions.release("over")
        await executions.remove("gone")
        for name in ("active", "over", "gone", "unknown"):
            assert await executions.update_priority(name, "critical") is False

    async def test_one_that_returns_to_the_line_has_its_new_priority(self, executions, tocsin_clock):
        await enqueue_all(executions, "a", priority="low")
        await executions.update_priority("a", "high")
        await executions.try_schedule(1)
        await enqueue_all(executions, "h", priority="high")
        tocsin_clock.advance("1h")
        assert (await executions.get_pending_by_priority())["high"] == 2
        assert await schedule_all(executions) == ["a", "h"]

    async def test_the_event_is_the_same_with_another_priority(self, executions):
        await enqueue_all(executions, "a")
        await executions.update_priority("a", "critical")
        assert await executions.try_schedule(1) == ("a", event("a"))

    async def test_changes_at_the_same_time_are_all_made(self, executions, other, tocsin_app):
        await enqueue_all(executions, "a")
        wishes = [queue.update_priority("a", priority) for queue in (executions, other) for priority in PRIORITIES]
        assert await asyncio.gather(*wishes) == [True] * 10
        assert sum((await executions.get_pending_by_priority()).values()) == 1
        events = (await tocsin_app.store.find_queue("exec_queue")).keys[0]["events"]
        kinds = [fields[b"kind"] for _, fields in await tocsin_app.store.client.xrange(events)]
        assert kinds == [b"put"] * 11

    async def test_a_record_that_cannot_be_read_is_left_as_it_is(self, executions, tocsin_app):
        await enqueue_all(executions, "bad")
        client, keys = tocsin_app.store.client, (await tocsin_app.store.find_queue("exec_queue")).keys[0]
        garbage = (await client.hget(keys["jobs"], "bad"))[:43] + b"\xc1garbage"
        await client.hset(keys["jobs"], "bad", garbage)
        assert await executions.update_priority("bad", "critical") is False
        assert await client.hget(keys["jobs"], "bad") == garbage

    async def test_a_priority_that_there_is_not_is_refused(self, executions):
        await enqueue_all(executions, "a")
        with pytest.raises(InvalidArgument, match="did you mean 'low'"):
            await executions.update_priority("a", "lwo")


class TestRemove:
    async def test_a_pending_one_is_taken_out_of_the_line(self, executions):
        await enqueue_all(executions, "a", "b")
        assert await executions.remove("a") is True
        assert await executions.remove("a") is False
        assert await schedule_all(executions) == ["b"]

    async def test_an_active_one_frees_its_slot_whoever_holds_it(self, executions, other):
        await enqueue_all(executions, "a", "b")
        await executions.try_schedule(1)
        assert await other.remove("a") is True
        assert await executions.release("a") is False
        assert await schedule_all(other, max_active=1) == ["b"]

    async def test_nothing_to_remove(self, executions):
        assert await executions.remove("unknown") is False
        await enqueue_all(executions, "a")
        await executions.try_schedule(1)
        await executions.release("a")
        assert await executions.remove("a") is False

    @pytest.mark.parametrize("active", [False, True])
    async def test_an_event_delivered_again_does_not_bring_it_back(self, executions, active):
        await enqueue_all(executions, "a")
        if active:
            await executions.try_schedule(1)
        await executions.remove("a")
        assert await executions.enqueue(event("a")) is None
        assert await status(executions) == (0, 0)

    async def test_one_that_was_cancelled_while_active_is_not_scheduled_again(
        self, executions, tocsin_app, tocsin_clock
    ):
        await enqueue_all(executions, "a", "b")
        due = tocsin_clock.ms
        await executions.try_schedule(1)
        assert await tocsin_app.cancel(f"a@{due}")
        tocsin_clock.advance("1h")
        assert await schedule_all(executions) == ["b"]
        assert await executions.enqueue(event("a")) is None


class TestCounts:
    async def test_all_five_priorities_are_counted(self, executions):
        assert await executions.get_pending_by_priority() == dict.fromkeys(PRIORITIES, 0)
        for n, priority in enumerate(PRIORITIES, 1):
            await enqueue_all(executions, *(f"{priority} {i}" for i in range(n)), priority=priority)
        assert await executions.get_pending_by_priority() == {
            "critical": 1,
            "high": 2,
            "normal": 3,
            "low": 4,
            "background": 5,
        }
        await executions.try_schedule(10)
        assert (await executions.get_pending_by_priority())["critical"] == 0
        assert await executions.get_queue_status() == {"queue_depth": 14, "active_count": 1}

    async def test_an_empty_queue_has_no_depth(self, executions):
        assert await executions.get_queue_status() == {"queue_depth": 0, "active_count": 0}
