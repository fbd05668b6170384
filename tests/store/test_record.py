"""Records: Python and Lua read the same header; what cannot be stored or read is said so."""

from __future__ import annotations

import contextlib
import datetime
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from tests.support.one_queue import FOR_EVER, Line
from tests.support.records import HANDLER
from tocsin.model import msgpack
from tocsin.model.errors import InvalidArgument, RecordUnreadable
from tocsin.model.job import Failure, Header, Policy, Retry, Spec
from tocsin.model.nesting import MOST_LEVELS
from tocsin.model.outcome import EDIT, FAILED, UPDATE
from tocsin.model.record import (
    FIXED_SIZE,
    LARGEST_PAYLOAD,
    decode_failure,
    decode_header,
    decode_spec,
    encode_header,
    encode_record,
    encode_spec,
    handler_digest,
    trigger_digest,
)
from tocsin.model.trigger import Every, Once
from tocsin.store.transitions.claims import Runs
from tocsin.store.transitions.jobs import PutItem

U32 = 0xFFFF_FFFF
KNOWN = handler_digest(HANDLER)
SMALL = Header(recurring=False, timeout=1, handler=1, trigger=0, band=0, cost=1)
LARGE = Header(
    recurring=True, timeout=U32, handler=U32, trigger=U32, band=4, cost=0xFFFF, keep=U32, tenant="t" * 250,
    succeeded=U32 - 9, failed=U32 - 9, attempts=U32 - 9,
)  # fmt: skip
MIXED = Header(
    recurring=True, timeout=0x01020304, handler=0x05060708, trigger=0x090A0B0C, band=1, cost=0x0D0E, keep=0x0F101112,
    tenant="zürich ☃", succeeded=0x13141516, failed=0x1718191A, attempts=0x1B1C1D1E,
)  # fmt: skip
HEADERS = {"small": SMALL, "large": LARGE, "mixed": MIXED}

u32 = st.integers(0, U32)
headers = st.builds(
    Header,
    recurring=st.booleans(),
    timeout=u32,
    handler=u32,
    trigger=u32,
    band=st.integers(0, 4),
    cost=st.integers(0, 0xFFFF),
    keep=u32,
    tenant=st.text(st.characters(codec="utf-8"), max_size=60),
    version=st.integers(0, 2**48 - 1),
    succeeded=u32,
    failed=u32,
    attempts=u32,
)


@given(headers)
def test_a_header_is_read_as_it_was_written(header: Header):
    record = encode_header(header) + encode_spec(Spec("name", (1,)))
    assert decode_header(record) == header
    assert decode_spec(record) == Spec("name", (1,))


@pytest.mark.parametrize("name", HEADERS)
class TestScriptsReadTheHeader:
    """Each field that a script uses, through the script that uses it."""

    async def put(self, line: Line, header: Header, member: str = "a", **options) -> int:
        spec = Spec(HANDLER, (b"\0\xff", "ü"))
        return (await line.jobs.put(line.queue, PutItem(member, encode_record(header, spec), line.now, **options)))[0]

    async def header(self, line: Line) -> Header:
        return (await line.job("a")).header

    async def test_a_put_changes_the_version_and_nothing_else(self, line: Line, name: str):
        header = HEADERS[name]
        # Beyond 32 bits: the version has 48.
        await line.store.client.hset(line.keys["meta"], "seq", 2**40 + 5)
        await self.put(line, header)
        assert await self.header(line) == replace(header, version=2**40 + 6)
        assert (await line.job("a")).args == (b"\0\xff", "ü")
        assert await self.put(line, header, mode=EDIT, expected=2**40 + 5) == 4
        assert await self.put(line, header, mode=EDIT, expected=2**40 + 6) == 2

    async def test_timeout_and_handler(self, line: Line, name: str):
        header = HEADERS[name]
        await self.put(line, header)
        assert (await line.ask(Runs(line.store, "w1", [header.handler ^ 1]))).parked == 1
        [claim] = await line.claim(Runs(line.store, "w2", [3, header.handler]))
        assert claim.deadline == line.now + header.timeout
        assert await line.store.client.zscore(line.keys["working"], "a") == line.now + header.timeout

    async def test_recurring_and_keep(self, line: Line, name: str):
        header = replace(HEADERS[name], keep=HEADERS[name].keep or 1)
        await self.put(line, header)
        assert await line.cancel("a") == (0 if header.recurring else 1)
        await line.delete("a")
        await self.put(line, replace(header, recurring=False), "b")
        assert await line.cancel("b") == 1
        assert await line.store.client.zscore(line.keys["done"], "b") == line.now + header.keep * 1000

    async def test_the_trigger_decides_whether_an_update_keeps_the_due_time(self, line: Line, name: str):
        header = HEADERS[name]
        await self.put(line, header)
        put = PutItem("a", encode_record(header, Spec(HANDLER, (3,))), line.now + 9, mode=UPDATE)
        await line.jobs.put(line.queue, put)
        assert await line.not_before("a") == line.now
        other = encode_record(replace(header, trigger=header.trigger ^ 1), Spec(HANDLER, (3,)))
        await line.jobs.put(line.queue, PutItem("a", other, line.now + 9, mode=UPDATE))
        assert await line.not_before("a") == line.now + 9

    async def test_counters(self, line: Line, name: str):
        header = HEADERS[name]
        await self.put(line, header)
        anyone = Runs(line.store, "w")
        [claim] = await line.claim(anyone)
        await line.finish(claim, line.now + 5, runs=anyone)
        line.clock.advance("5ms")
        [claim] = await line.claim(anyone)
        await line.finish(claim, line.now + 5, FAILED, runs=anyone)
        counted = await self.header(line)
        assert asdict(counted) == asdict(header) | {
            "version": 1,
            "succeeded": header.succeeded + 1,
            "failed": header.failed + 1,
            "attempts": header.attempts + 2,
        }

    async def test_an_extra_run_has_the_body_and_none_of_the_counters(self, line: Line, name: str):
        header = HEADERS[name]
        await self.put(line, header)
        [due] = await line.fire("a")
        extra = await line.job(f"a\x1f{due}")
        assert extra.header == replace(header, recurring=False, keep=0, version=2, succeeded=0, failed=0, attempts=0)
        assert extra.args == (b"\0\xff", "ü")


@pytest.mark.parametrize("size", [1, 31, 32, 255, 256, 512])
async def test_ids_of_any_length_survive_all_ways(line: Line, size: int):
    member = "é" * (size // 2) + "x" * (size % 2)
    await line.put(member)
    claim = await line.take(member)
    assert claim.member == member
    await line.retry(claim, delay=0)
    [claim] = await line.claim(lease=FOR_EVER)
    assert await line.finish(claim) == []
    assert await line.stage(member) is None


class TestUnreadable:
    @pytest.mark.parametrize("data", [b"", b"\x01", b"\x01" * (FIXED_SIZE - 1)])
    def test_a_record_without_a_whole_header(self, data: bytes):
        with pytest.raises(RecordUnreadable, match="no readable header"):
            decode_header(data)

    def test_a_schema_of_a_later_version_says_what_to_do(self):
        record = b"\x02" + encode_header(SMALL)[1:]
        with pytest.raises(RecordUnreadable, match=r"schema 2.*upgrade"):
            decode_header(record)

    def test_a_tenant_that_is_no_text(self):
        record = encode_header(replace(SMALL, tenant="t"))[:-1] + b"\xff"
        with pytest.raises(RecordUnreadable):
            decode_header(record)

    @pytest.mark.parametrize("body", [b"", b"\xc1", b"\x91\x01", b"\xa3abc", msgpack.encode(["n", 5])])
    def test_a_body_that_is_no_job(self, body: bytes):
        with pytest.raises(RecordUnreadable):
            decode_spec(encode_header(SMALL) + body)

    @given(st.binary(max_size=200))
    def test_garbage_is_unreadable_or_read_never_anything_else(self, data: bytes):
        for read in (decode_header, decode_spec):
            with contextlib.suppress(RecordUnreadable):
                read(data)

    def test_a_failure_that_cannot_be_read_is_shown_as_it_is(self):
        assert decode_failure(b"\xc1junk") == Failure(error=repr(b"\xc1junk"))


class TestLimits:
    def test_arguments_up_to_the_limit_are_stored(self):
        room = LARGEST_PAYLOAD - len(encode_spec(Spec("n", ("x" * 100_000,)))) + 100_000
        encode_spec(Spec("n", ("x" * room,)))
        with pytest.raises(InvalidArgument, match=r"524289 bytes, the limit is 524288"):
            encode_spec(Spec("n", ("x" * (room + 1),)))

    @pytest.mark.parametrize(
        "value",
        [object(), lambda: None, 2**70, "\ud800", 1j, [{1: {2: object()}}]],
        ids=["object", "function", "number", "surrogate", "complex", "nested"],
    )
    def test_arguments_that_cannot_be_stored_are_refused_with_what_can(self, value: object):
        with pytest.raises(InvalidArgument, match=r"arguments of n cannot be stored .*use None, bool, int"):
            encode_spec(Spec("n", (value,)))

    def test_arguments_that_hold_themselves_are_refused(self):
        endless: list[object] = []
        endless.append(endless)
        with pytest.raises(InvalidArgument):
            encode_spec(Spec("n", (endless,)))

    @pytest.mark.parametrize("wrap", [lambda x: [x], lambda x: {"k": x}, lambda x: ["é" * 70, x]])
    def test_arguments_up_to_64_levels_deep_are_stored(self, wrap: Callable[[object], object]):
        value: object = 0
        for _ in range(MOST_LEVELS):
            value = wrap(value)
        body = encode_spec(Spec("n", (value,)))
        assert decode_spec(encode_header(SMALL) + body).args
        for args in [{"args": (wrap(value),)}, {"kwargs": {"x": wrap(value)}}]:
            with pytest.raises(InvalidArgument, match="arguments of n are nested more than 64 levels deep"):
                encode_spec(Spec("n", **args))

    def test_broad_arguments_are_not_deep(self):
        encode_spec(Spec("n", ([[{"k": [n]}] for n in range(5000)],)))

    def test_a_tenant_has_at_most_250_bytes(self):
        encode_header(replace(SMALL, tenant="é" * 125))
        with pytest.raises(InvalidArgument, match=r"250 bytes.*has 252"):
            encode_header(replace(SMALL, tenant="é" * 126))


def test_a_body_keeps_everything_that_a_job_says():
    at = datetime.datetime(2030, 1, 2, tzinfo=datetime.UTC)
    policy = Policy(misfire="all", starts=5, ends=9, jitter=0.5, error_interval=3.0, agent=True, criticality=2)
    spec = Spec("n", (1, "a", b"b", None, [1.5]), {"k": {"x": True}}, Every(5), Retry(3, 1, 2, 3, 4), policy)
    assert decode_spec(encode_header(SMALL) + encode_spec(spec)) == spec
    once = Spec("n", trigger=Once(at))
    assert decode_spec(encode_header(SMALL) + encode_spec(once)) == once


def test_the_trigger_digest_changes_with_what_moves_the_due_times_only():
    spec = Spec("n", trigger=Every(5))
    digests = [
        trigger_digest(each)
        for each in (
            spec,
            replace(spec, args=(1,), retry=Retry(1, 1), policy=Policy(misfire="skip", ends=7)),
            replace(spec, trigger=Every(6)),
            replace(spec, policy=Policy(starts=7)),
            replace(spec, policy=Policy(jitter=7.0)),
        )
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 4
    assert trigger_digest(Spec("n")) == 0
    assert 0 not in digests


@pytest.mark.parametrize("size", [0, 31, 32, 70_000])
def test_text_of_any_length_is_msgpack(size: int):
    data = b"x" * size
    assert msgpack.decode(msgpack.text(data)) == data.decode()
    assert msgpack.decode(msgpack.integer(size)) == size


def test_the_fixed_part_is_as_long_as_lua_takes_it_for():
    assert FIXED_SIZE == 40 == struct.calcsize(">BBBHIIHIIIIIIB")
