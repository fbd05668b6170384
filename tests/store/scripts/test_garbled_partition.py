"""What somebody else wrote into the bookkeeping of a partition stops none of its scripts."""

from __future__ import annotations

import struct

import pytest

from tests.support.one_queue import Line
from tests.support.records import record
from tests.support.script_examples import CHANGES, in_each_order
from tocsin.model.outcome import NEW
from tocsin.store.sessions import prune_sessions
from tocsin.store.transitions.jobs import PutItem
from tocsin.store.views.garbage import NUMBERS

GARBAGE = [b"\xff\xfe", b"nan", b"-1e400", b"9" * 400]
SCRIPTS = list(CHANGES)
each_script = pytest.mark.parametrize(("name", "queue"), in_each_order(SCRIPTS), indirect=["queue"])


async def garble(line: Line, value: bytes) -> None:
    counters = [field for field in NUMBERS if field not in ("max_active", "every", "tenant_max_active", "tenant_every")]
    await line.store.client.hset(line.keys["meta"], mapping=dict.fromkeys([*counters, "seq"], value))


@each_script
@pytest.mark.parametrize("value", GARBAGE)
async def test_counters_that_are_no_numbers_begin_anew(name, value, line: Line):
    args = await CHANGES[name](line)
    await garble(line, value)
    assert (await line.raw(name, args, seq=7))[0] == 1
    meta = await line.store.client.hgetall(line.keys["meta"])
    # Tokens and versions are above all that were given before.
    assert int(meta[b"fence"]) >= line.now * 1000
    assert int(meta[b"seq"]) > line.now
    after = await line.dump()
    assert (await line.raw(name, args, seq=7))[0] == 1
    assert await line.dump() == after


@each_script
@pytest.mark.parametrize(
    "entry", [b"", b"\x00" * 15, b"\xff" * 16, b"\xff" * 60, struct.pack(">QQ", 2**63, 0) + b"\xc0"]
)
async def test_a_session_that_cannot_be_read_is_as_good_as_none(name, entry, line: Line):
    args = await CHANGES[name](line)
    await line.store.client.hset(line.keys["sessions"], "s", entry)
    assert (await line.raw(name, args, session="s", seq=7))[0] == 1
    assert (await line.raw(name, args, session="s", seq=6)) == [-2]


@each_script
async def test_another_kind_of_data_in_the_place_of_events_stops_no_call(name, line: Line):
    args = await CHANGES[name](line)
    await line.store.client.delete(line.keys["events"])
    await line.store.client.set(line.keys["events"], "not ours")
    assert (await line.raw(name, args))[0] == 1


async def test_sessions_that_cannot_be_read_are_pruned(line: Line):
    sessions = line.keys["sessions"]
    await line.store.client.hset(
        sessions, mapping={b"\xff": b"", "short": b"x" * 16, "kept": struct.pack(">QQ", 1, line.now) + b"\xc0"}
    )
    assert await prune_sessions(line.store, line.queue, 0) == 2
    assert await line.store.client.hkeys(sessions) == [b"kept"]


async def test_a_claim_that_was_cut_off_loses_its_run_and_no_other(line: Line):
    """As its holder would find it: the token is there, and nothing behind it can be read."""
    for name in "abc":
        await line.put(name)
    claims = [await line.take(name) for name in "abc"]
    raw = await line.store.client.hget(line.keys["claims"], "b")
    await line.store.client.hset(line.keys["claims"], "b", raw[:20])
    assert await line.finish_all(claims) == ["b"]
    assert await line.stage("a") is None
    assert await line.stage("c") is None


async def test_a_put_that_names_a_time_that_is_over_is_due_now(line: Line):
    put = PutItem("a", record(), line.now - 1000, now_if_past=True)
    assert (await line.jobs.put(line.queue, put))[0] == NEW
    assert (await line.job("a")).due_ms == line.now
    assert (await line.jobs.put(line.queue, PutItem("b", record(), line.now - 1000)))[0] == NEW
    assert (await line.job("b")).due_ms == line.now - 1000
