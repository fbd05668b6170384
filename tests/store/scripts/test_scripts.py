"""What every script promises: its header is true, a foreign store is left alone, a repeated call changes nothing."""

from __future__ import annotations

import asyncio
import re
from importlib.resources import files

import pytest

from tests.support.lua_code import Chunk
from tests.support.one_queue import FOR_EVER, Line
from tests.support.records import record
from tests.support.script_examples import CHANGES, IDLE, changing_scripts, in_each_order
from tocsin.model import msgpack
from tocsin.model.errors import StoreChanged
from tocsin.model.outcome import NEW, UNCHANGED
from tocsin.model.queue import Queue
from tocsin.store.keys import BANDS, FLEET_KEYS, PARTITION_KEYS, TURNS
from tocsin.store.scripts.script import Script, script, script_names
from tocsin.store.sessions import end_sessions
from tocsin.store.transitions.claims import ClaimRequest
from tocsin.store.transitions.jobs import PutItem

KNOWN_KEYS = {*PARTITION_KEYS, *FLEET_KEYS, "bells*", "parts*", "mail", "leader", "misused", "elsewhere", "garbled"}


def words_of(what: Script) -> set[str]:
    """The names in its code, without the bindings that Python puts before it."""
    binding = re.compile(r"local [\w, ]+ = .*\b(KEYS|ARGV)\b.*")
    code = "\n".join(line for line in what.source.splitlines() if not binding.fullmatch(line))
    return set(re.findall(r"\w+", re.sub(r"'[^']*'", "", code)))


def named(what: Script) -> set[str]:
    """Its keys as the code has them: those of bands together."""
    bands = dict.fromkeys(BANDS, "READY") | dict.fromkeys(TURNS, "TURNS")
    return {bands.get(key, key.removesuffix("*")) for key in what.keys}


def header_of(name: str) -> list[str]:
    text = files("tocsin.store.scripts").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line.startswith("--")]


FORMS = in_each_order(script_names())


@pytest.mark.parametrize(("name", "order"), FORMS)
class TestHeader:
    def test_its_keys_are_known_keys(self, name, order):
        keys = script(name, order).keys
        assert keys
        assert len(set(keys)) == len(keys)
        assert set(keys) <= KNOWN_KEYS

    def test_what_it_declares_is_used(self, name, order):
        what = script(name, order)
        assert {*named(what), *what.args} - words_of(what) == set()

    def test_it_says_what_it_returns(self, name, order):
        assert [line for line in header_of(name) if re.match(r"-- RETURN \S", line)]

    def test_it_uses_no_key_and_no_name_that_it_does_not_have_by_then(self, name, order):
        assert Chunk(script(name, order).source).unknown == set()


def test_a_file_without_its_name_in_the_header_is_refused():
    with pytest.raises(ValueError, match=r"must begin with '-- other: '"):
        Script("other", "-- name: what it does\n-- KEYS   meta  HASH\nreturn 1\n")


def test_each_changing_script_is_tested_here():
    assert sorted(CHANGES) == changing_scripts()


@pytest.mark.parametrize(("name", "queue"), in_each_order(CHANGES), indirect=["queue"])
class TestCall:
    async def test_a_wrong_epoch_changes_nothing(self, name, line: Line):
        args = await CHANGES[name](line)
        before = await line.dump()
        assert await line.raw(name, args, epoch=b"another") == [-1, line.queue.epochs[0]]
        assert await line.dump() == before
        assert (await line.raw(name, args))[0] == 1
        assert await line.dump() != before

    async def test_a_sealed_partition_is_left_alone(self, name, line: Line):
        args = await CHANGES[name](line)
        await line.store.client.hset(line.keys["meta"], "sealed", 1)
        before = await line.dump()
        assert await line.raw(name, args) == [-1, line.queue.epochs[0]]
        assert await line.dump() == before

    async def test_the_same_seq_gets_the_same_answer(self, name, line: Line):
        args = await CHANGES[name](line)
        first = await line.raw(name, args, seq=7)
        after = await line.dump()
        line.clock.advance("1ms")
        assert await line.raw(name, args, seq=7) == first
        assert await line.dump() == after

    async def test_a_lower_seq_is_refused(self, name, line: Line):
        args = await CHANGES[name](line)
        await line.raw("job_unpark", ["z"], session="s", seq=8)
        before = await line.dump()
        assert await line.raw(name, args, session="s", seq=7) == [-2]
        assert await line.dump() == before

    async def test_one_call_is_one_event(self, name, line: Line):
        args = await CHANGES[name](line)
        told = len(await line.events())
        await line.raw(name, args)
        events = await line.events()
        assert len(events) == told + 1
        assert [int(event[b"seq"]) for event in events] == list(range(1, told + 2))
        assert name.split("_")[1] in events[-1][b"kind"].decode()
        assert int(events[-1][b"at"]) == line.now
        assert (await line.meta())["seq"] == told + 1


@pytest.mark.parametrize(("name", "queue"), in_each_order(IDLE), indirect=["queue"])
class TestCallWithNothingToDo:
    async def test_a_late_copy_of_it_is_refused(self, name, line: Line):
        """Its reply came, and a copy of it still sits in a dead connection while there is something to do."""
        assert (await line.raw(name, IDLE[name], session="s", seq=1))[0] == 1
        assert (await line.raw("job_unpark", ["z"], session="s", seq=2))[0] == 1
        await CHANGES[name](line)
        before = await line.dump()
        assert await line.raw(name, IDLE[name], session="s", seq=1) == [-2]
        assert await line.dump() == before

    async def test_it_is_no_event(self, name, line: Line):
        await line.raw(name, IDLE[name])
        assert await line.events() == []
        assert "seq" not in await line.meta()


async def test_sessions_do_not_know_of_each_other(line: Line):
    await line.put("a")
    await line.put("b")
    assert await line.raw("job_pause", ["a"], session="one", seq=9) == [1, 1]
    assert await line.raw("job_pause", ["b"], session="two", seq=3) == [1, 1]


async def test_an_ended_session_leaves_nothing(line: Line):
    await line.put("a")
    await line.claim()
    await line.runs.forget_sessions(line.queue)
    await end_sessions(line.store, line.queue, line.store.sessions.names())
    assert await line.store.client.hlen(line.keys["sessions"]) == 0


async def test_events_are_bounded_by_their_size(line: Line):
    """A stream is trimmed by whole nodes, of a hundred entries each."""
    for n in range(350):
        await line.put(f"{n}", 1000)
    assert len(await line.events()) == 350
    large = b"y" * 600_000
    await line.store.client.zadd(line.keys["waiting"], {large: line.now})
    await line.raw("job_delete", ["", b"\x91\xdb" + len(large).to_bytes(4, "big") + large])
    events = await line.events()
    assert 16 <= len(events) <= 116
    assert int(events[-1][b"seq"]) == 351


async def test_a_program_goes_on_with_a_store_that_was_wiped(line: Line):
    await line.put("a")
    await line.store.client.delete(*line.keys.values())
    assert await line.put("a") == NEW
    assert await line.stage("a") == "waiting"


async def test_a_program_is_told_of_a_partition_that_is_sealed(line: Line):
    await line.store.client.hset(line.keys["meta"], "sealed", 1)
    with pytest.raises(StoreChanged):
        await line.put("a")


async def test_scripts_that_the_server_forgot_are_sent_again(line: Line):
    wide = await line.store.open_queue(Queue("wide", partitions=4))
    await line.store.client.script_flush()
    for n in range(8):
        await line.jobs.put(wide, PutItem(f"{n}", record(), line.now))
    await line.store.client.script_flush()
    answers = await line.runs.claim([ClaimRequest(wide, partition, 9) for partition in range(4)], FOR_EVER)
    assert sorted(claim.member for answer in answers for claim in answer.claims) == [f"{n}" for n in range(8)]


async def test_calls_at_the_same_time_do_not_take_each_other_for_repeated(line: Line):
    codes = await asyncio.gather(*(line.put(f"{n % 100}") for n in range(200)))
    assert sorted(codes) == [UNCHANGED] * 100 + [NEW] * 100
    assert (await line.jobs.count(line.queue))["waiting"] == 100


async def test_an_opened_partition_keeps_what_it_was_created_with(line: Line):
    client, meta = line.store.client, line.keys["meta"]
    again = await script("partition_open")(client, [meta], ["other", "fair", 5])
    assert again == [line.queue.epochs[0], b"due", b"1", b""]


async def test_a_bell_rings_once_until_it_is_heard(line: Line):
    client, bells = line.store.client, [line.store.keys.bell("line"), line.store.keys.bell("other")]
    ring, take = script("bell_ring"), script("bell_take")
    assert [await ring(client, bells[:1], [msgpack.encode([n])]) for n in ("0", "0", "3")] == [1, 0, 1]
    assert await ring(client, [bells[1], bells[0]], [msgpack.encode(["7", "3"])]) == 1
    assert await client.lrange(bells[0], 0, -1) == [b"0", b"3"]
    assert await take(client, bells, []) == [1, b"0", 1, b"3", 2, b"7"]
    assert await take(client, bells, []) == []
