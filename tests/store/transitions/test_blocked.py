"""Blocked jobs: what is put, who watches whom, and who is told of which end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from tests.support.blocked_jobs import block
from tests.support.one_queue import Line
from tocsin.model.outcome import CANCELLED, EDIT, FAILED, IGNORE, POSTPONE, REPLACE, SKIPPED, SUCCEEDED
from tocsin.store.store import RESULTS_MAX
from tocsin.store.transitions.dependencies import DependencyWait, Outbox, Upstream, UpstreamEnd
from tocsin.store.transitions.settle import columns, finish_item

encode = msgspec.msgpack.encode
U, V = "line\0u", "line\0v"


async def watch(line: Line, upstream: str = "u", member: str = "d", life: str = "1") -> str:
    return (await line.raw("dependency_watch", [encode([upstream, f"line\0{member}\0{life}"])], session="carrier"))[
        1
    ].decode()


async def tell(
    line: Line,
    outcome: int = SUCCEEDED,
    source: str = U,
    member: str = "d",
    life: str = "1",
    carried: tuple[str, ...] = (),
) -> list[Any]:
    items = encode([member, life, source, outcome])
    return await line.raw("dependency_unblock", [items, encode(list(carried))], session="carrier")


async def members(line: Line, key: str) -> list[bytes]:
    return await line.store.client.zrange(line.keys[key], 0, -1)


# Putting


async def test_it_is_blocked_with_its_needs_and_an_entry_for_each(line: Line):
    assert await block(line, "d", U, V, delay=5000) == "1"
    assert await line.stage("d") == "blocked"
    assert await members(line, "outbox") == [b"W\0d\x001\0line\0u", b"W\0d\x001\0line\0v"]
    outbox = Outbox(line.store)
    wait = await outbox.wait_of(line.queue, "d")
    assert wait == DependencyWait("1", False, [Upstream("line", "u"), Upstream("line", "v")])
    assert wait.entries("d") == await members(line, "outbox")
    job = await line.job("d")
    assert (job.due_ms, job.not_before_ms) == (line.now + 5000, line.now + 5000)
    line.clock.advance("1h")
    assert await line.claim() == []
    assert (await line.meta())["put"] == 1


@pytest.mark.parametrize(
    ("mode", "code"), [(IGNORE, "0"), (REPLACE, "2"), (POSTPONE, "2")], ids=["ignore", "replace", "postpone"]
)
@pytest.mark.parametrize("stage", ["waiting", "paused", "parked", "dead", "blocked"])
async def test_one_that_is_there_is_blocked_as_its_mode_says(line: Line, stage: str, mode: int, code: str):
    if stage == "blocked":
        await block(line, "d", V, life="0")
    else:
        await line.put("d")
    if stage == "paused":
        await line.pause("d")
    elif stage == "parked":
        await line.park(await line.take("d"))
    elif stage == "dead":
        await line.bury(await line.take("d"))
    assert await block(line, "d", mode=mode, args=(2,)) == code
    assert await line.stage("d") == ("blocked" if code == "2" else stage)
    if code == "2":
        assert await line.entry("d") is None
        assert (await line.job("d")).args == (2,)
        assert (await tell(line))[1] == b"2"
        assert await line.stage("d") == "waiting"


async def test_one_that_is_working_is_left_alone(line: Line):
    await line.put("d")
    claim = await line.take("d")
    assert await block(line, mode=REPLACE) == "6"
    assert await line.stage("d") == "working"
    assert await line.finish(claim) == []


async def test_one_that_is_remembered_stays_so_unless_it_is_replaced(line: Line):
    await line.put("d", keep=60)
    await line.finish(await line.take("d"), keep=60)
    assert await block(line) == "3"
    assert await block(line, mode=REPLACE) == "1"
    assert await line.outcome("d") is None
    assert await line.stage("d") == "blocked"


async def test_an_edit_leaves_it_blocked_and_a_put_does_not(line: Line):
    await block(line, delay=5000)
    await line.put("d", mode=EDIT, args=(3,))
    assert await line.stage("d") == "blocked"
    await line.put("d", 9000, mode=POSTPONE, args=(4,))
    assert ((await line.job("d")).due_ms, await line.stage("d")) == (line.now + 9000, "blocked")
    await line.put("d", mode=REPLACE, args=(5,))
    assert await line.stage("d") == "waiting"
    assert await line.store.client.exists(line.keys["needs"]) == 0
    assert (await tell(line))[1] == b"0"


# Watching


async def test_who_is_there_is_watched_once(line: Line):
    await line.put("u")
    assert [await watch(line), await watch(line)] == ["w", "w"]
    assert await members(line, "watchers") == [b"u\0line\0d\x001"]


async def test_who_has_ended_says_how(line: Line):
    for outcome in (FAILED, SUCCEEDED, SKIPPED, CANCELLED):
        await line.put("u", keep=60, mode=REPLACE)
        await line.finish(await line.take("u"), outcome=outcome, keep=60)
        assert await watch(line) == f"{outcome}"
    await line.put("u", mode=REPLACE)
    await line.bury(await line.take("u"))
    assert await watch(line) == "0"
    await line.put("often", every=5)
    assert await watch(line, "often") == "r"
    assert await watch(line, "nobody") == "g"
    assert await line.store.client.exists(line.keys["watchers"]) == 0


async def test_who_is_there_anew_is_watched_when_the_earlier_end_is_told(line: Line):
    await line.put("u")
    await watch(line)
    await line.delete("u")
    assert await watch(line) == "3"
    await line.put("u")
    assert await watch(line, member="e") == "l"
    await line.delete("u")
    assert await members(line, "outbox") == [b"E\0u\x003"]
    await line.put("u")
    end = [encode([["E\0u\x003", "u", "u\0line\0d\x001"]])]
    assert await line.raw("dependency_end", end) == [1, 0]
    assert await watch(line, member="e") == "w"
    assert await line.raw("dependency_end", end) == [1, 1]
    assert await members(line, "watchers") == [b"u\0line\0e\x001"]


async def test_names_that_begin_alike_are_not_mixed_up(line: Line):
    for upstream in ("u", "u\x01", "uu"):
        await line.put(upstream)
    await watch(line, "uu")
    await watch(line, "u\x01")
    await line.delete("u")
    assert await members(line, "outbox") == []
    await line.delete("uu")
    assert await members(line, "outbox") == [b"E\0uu\x003"]


# Ending

Ending = Callable[[Line], Awaitable[Any]]


async def _settled(line: Line, verb: str, **options: Any) -> Any:
    return await getattr(line, verb)(await line.take("u"), **options)


async def _after(line: Line, wish: str, verb: str) -> None:
    claim = await line.take("u")
    await getattr(line, wish)("u")
    await getattr(line, verb)(claim)


async def _recovered(line: Line) -> None:
    await line.take("u")
    await line.delete("u")
    await line.recover()


ENDS: dict[str, tuple[Ending, int]] = {
    "succeeded": (lambda line: _settled(line, "finish"), SUCCEEDED),
    "succeeded, kept": (lambda line: _settled(line, "finish", keep=5), SUCCEEDED),
    "failed": (lambda line: _settled(line, "finish", outcome=FAILED), FAILED),
    "skipped": (lambda line: _settled(line, "finish", outcome=SKIPPED), SKIPPED),
    "cancelled": (lambda line: _settled(line, "finish", outcome=CANCELLED), CANCELLED),
    "buried": (lambda line: _settled(line, "bury"), FAILED),
    "withdrawn": (lambda line: line.cancel("u"), CANCELLED),
    "removed": (lambda line: line.delete("u"), CANCELLED),
    "cancelled at a retry": (lambda line: _after(line, "cancel", "retry"), CANCELLED),
    "cancelled at its burial": (lambda line: _after(line, "cancel", "bury"), CANCELLED),
    "removed at its end": (lambda line: _after(line, "delete", "finish"), CANCELLED),
    "removed at a retry": (lambda line: _after(line, "delete", "retry"), CANCELLED),
    "removed at its release": (lambda line: _after(line, "delete", "release"), CANCELLED),
    "removed when it is parked": (lambda line: _after(line, "delete", "park"), CANCELLED),
    "removed when it is buried": (lambda line: _after(line, "delete", "bury"), CANCELLED),
    "removed when it is recovered": (_recovered, CANCELLED),
}


@pytest.mark.parametrize("how", ENDS)
async def test_each_end_is_told(line: Line, how: str):
    act, outcome = ENDS[how]
    await line.put("u")
    await line.put("other")
    await watch(line)
    await act(line)
    assert await members(line, "outbox") == [b"E\0u\0%d" % outcome]
    assert await watch(line, member="late") == f"{outcome}"
    if outcome == SUCCEEDED:
        until = await line.store.client.zscore(line.keys["done"], "u")
        assert until == line.now + 3_600_000


@pytest.mark.parametrize("how", ENDS)
async def test_an_end_that_nobody_waits_for_is_told_to_nobody(line: Line, how: str):
    act, _ = ENDS[how]
    await line.put("u")
    await line.put("v")
    await watch(line, "v")
    await act(line)
    assert await members(line, "outbox") == []
    remembered = await line.store.client.zscore(line.keys["done"], "u")
    assert remembered == (line.now + 5000 if "kept" in how else None)


async def test_the_answer_says_that_there_is_something_to_carry(line: Line):
    for upstream in ("u", "v", "w", "x"):
        await line.put(upstream)
        if upstream != "x":
            await watch(line, upstream)
    assert (await line.raw("job_delete", ["", encode(["x"])]))[2] == 0
    assert (await line.raw("job_delete", ["", encode(["u"])]))[2] == 1
    assert (await line.raw("job_cancel", ["v", 0, RESULTS_MAX]))[4] == 1
    claim = await line.take("w")
    items = columns([finish_item(claim, 0, SUCCEEDED)])
    assert (await line.raw("run_finish", [line.runs.owner, items, RESULTS_MAX]))[3] == 1


# Being told


async def test_it_is_free_when_all_have_succeeded(line: Line):
    await block(line, "d", U, V)
    line.clock.advance("5s")
    assert await tell(line, carried=("W\0d\x001\0line\0u",)) == [1, b"1", -1, 0]
    assert await line.stage("d") == "blocked"
    assert await members(line, "outbox") == [b"W\0d\x001\0line\0v"]
    assert (await tell(line))[1] == b"0"
    assert await tell(line, source=V) == [1, b"2", line.now, 0]
    assert await line.not_before("d") == line.now
    assert (await tell(line, source=V))[1] == b"0"
    assert [claim.due for claim in await line.claim()] == [line.now]
    assert await line.store.client.exists(line.keys["needs"]) == 0


async def test_several_ends_may_come_at_once(line: Line):
    await block(line, "d", U, V)
    await block(line, "e", U, V, anyway=True)
    tellings = [
        UpstreamEnd(member, b"1", source.encode(), outcome)
        for member in (b"d", b"e")
        for source, outcome in ((U, SUCCEEDED), (V, FAILED), (V, SUCCEEDED))
    ]
    [told] = [told async for told in Outbox(line.store).unblock(line.queue, tellings)]
    assert (told.codes, told.head) == (b"130120", line.now)
    assert await line.stage("d") is None
    assert await line.stage("e") == "waiting"


@pytest.mark.parametrize("outcome", [FAILED, SKIPPED, CANCELLED])
async def test_it_is_cancelled_with_those_that_wait_for_it(line: Line, outcome: int):
    await block(line, keep=60)
    await watch(line, "d", "e")
    assert await tell(line, outcome) == [1, b"3", -1, 1]
    assert (await line.stage("d"), await line.outcome("d")) == (None, "cancelled")
    assert b"E\0d\x003" in await members(line, "outbox")
    assert (await line.meta())["cancelled"] == 1
    assert (await tell(line, outcome))[1] == b"0"


async def test_it_runs_anyway_if_that_was_asked_for(line: Line):
    await block(line, anyway=True)
    assert (await tell(line, FAILED))[1] == b"2"


async def test_who_is_told_of_an_earlier_wait_waits_on(line: Line):
    await block(line, life="1")
    await block(line, life="2", mode=REPLACE)
    assert (await tell(line, CANCELLED, life="1"))[1] == b"0"
    assert await line.stage("d") == "blocked"
    await line.delete("d")
    assert (await tell(line, CANCELLED, life="2"))[1] == b"0"


async def test_garbage_among_the_needs_stops_nobody(line: Line):
    await block(line, "d")
    await block(line, "e")
    await line.store.client.hset(line.keys["needs"], "d", b"\xc1garbage")
    tellings = [UpstreamEnd(member, b"1", U.encode(), SUCCEEDED) for member in (b"d", b"e")]
    [told] = [told async for told in Outbox(line.store).unblock(line.queue, tellings)]
    assert told.codes == b"02"


# A person


async def test_a_pause_waits_until_it_is_free(line: Line):
    await block(line, delay=5000)
    assert [await line.pause("d"), await line.pause("d")] == [2, 2]
    assert await line.stage("d") == "blocked"
    await tell(line)
    assert await line.stage("d") == "paused"
    assert await line.resume("d") == 1
    assert await line.not_before("d") == line.now + 5000


async def test_a_pause_is_taken_back(line: Line):
    await block(line)
    await line.pause("d")
    assert [await line.resume("d"), await line.resume("d")] == [2, 3]
    await tell(line)
    assert await line.stage("d") == "waiting"


async def test_it_is_cancelled_or_removed_by_a_person(line: Line):
    await block(line, "d", keep=60)
    await block(line, "e")
    due = (await line.job("d")).due_ms
    assert [await line.cancel("d", due + 1), await line.cancel("d", due)] == [0, 1]
    assert await line.delete("e")
    assert [await line.stage("d"), await line.stage("e"), await line.outcome("d")] == [None, None, "cancelled"]
    assert await line.store.client.exists(line.keys["blocked"], line.keys["needs"]) == 0


async def test_what_it_waits_for_is_asked_for_anew(line: Line):
    await block(line, "d", U, V)
    entries = await members(line, "outbox")
    await line.store.client.delete(line.keys["outbox"])
    assert await Outbox(line.store).renew(line.queue, [b"d", b"nobody"]) == 1
    assert await members(line, "outbox") == entries
