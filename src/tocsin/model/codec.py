"""The one codec: a record is a fixed header, which scripts read, and a msgpack body, which they never touch.

Header, big-endian: schema, flags (1 recurring, 2 nobody chose its id), band, cost u16, timeout ms u32, keep s u32,
version u48, handler digest u32, trigger digest u32, succeeded u32, failed u32, attempts u32, tenant length u8, tenant.
lua/lib/record.lua reads and writes the same layout; a test holds the two together.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import msgspec

from tocsin.model.errors import InvalidArgument, RecordUnreadable
from tocsin.model.ids import digest
from tocsin.model.job import PRIORITIES, Failure, Header, Spec
from tocsin.model.nesting import MOST_LEVELS as MOST_LEVELS
from tocsin.model.nesting import is_deeper

SCHEMA = 1
RECURRING = 1
UNNAMED = 2
LARGEST_PAYLOAD = 512 * 1024
LARGEST_RESULT = 512 * 1024
# What decoding raises, also from the checks of what was decoded; RecursionError for what is nested too deep.
UNREADABLE = (msgspec.MsgspecError, IndexError, ValueError, TypeError, RecursionError)
# No msgpack begins so. Alone in the place of a result: nobody asked for one. With a text: it was lost, and why.
NO_RESULT = b"\xc1"

_FIXED = struct.Struct(">BBBHIIHIIIIIIB")
FIXED_SIZE = _FIXED.size
# Where the length of the tenant stands, which follows.
_TENANT_SIZE = FIXED_SIZE - 1
# Where the band stands, and the last there is.
_BAND = 2
_LAST_BAND = len(PRIORITIES) - 1
_LONG_TEXT = struct.Struct(">BI")
_HEAD_SIZES = {0xD9: 2, 0xDA: 3, 0xDB: 5}
# How a text of so many bytes begins: made once, because each run has some.
TEXT_HEADS = [bytes((0xA0 | size,)) if size < 32 else _LONG_TEXT.pack(0xDB, size) for size in range(256)]

# Bytes that begin no list and no dict, in msgpack.
_NO_CONTAINER = bytes([byte for byte in range(256) if not (0x80 <= byte <= 0x9F or 0xDC <= byte <= 0xDF)])

_encoder = msgspec.msgpack.Encoder()
_decode_spec = msgspec.msgpack.Decoder(Spec).decode
_failure_decoder = msgspec.msgpack.Decoder(Failure)

encode = _encoder.encode


def decode(data: bytes) -> Any:
    return msgspec.msgpack.decode(data)


def encode_spec(spec: Spec, largest: int = LARGEST_PAYLOAD) -> bytes:
    try:
        body = _encoder.encode(spec)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidArgument(
            f"the arguments of {spec.name} cannot be stored ({error}): use None, bool, int, float, str, bytes, "
            "datetime, lists and dicts of these, or dataclasses"
        ) from None
    if len(body) > largest:
        raise InvalidArgument(
            f"the arguments of {spec.name} take {len(body)} bytes, the limit is {largest} (limits.arguments-bytes): "
            "store them elsewhere and pass a reference"
        )
    # Around each argument are the spec and the list of arguments.
    if is_nested_deeper(body, MOST_LEVELS + 2):
        raise InvalidArgument(
            f"the arguments of {spec.name} are nested more than {MOST_LEVELS} levels deep: make them flatter, "
            "or store them elsewhere and pass a reference"
        )
    try:
        # What a worker will do. A dict, for example, may have a dataclass as a key, which comes back as a dict.
        _decode_spec(body)
    except UNREADABLE as error:
        raise InvalidArgument(
            f"the arguments of {spec.name} could be stored, but no worker could read them ({error}): use None, bool, "
            "int, float or str as keys, and no encoded msgpack"
        ) from None
    return body


def is_nested_deeper(data: bytes, levels: int) -> bool:
    """Whether lists and dicts stand in each other more than so many levels deep. All are looked at only if there are
    bytes enough that could begin one; mostly there are not."""
    if len(data) <= levels or len(data.translate(None, _NO_CONTAINER)) <= levels:
        return False
    try:
        return is_deeper(decode(data), levels)
    except RecursionError:
        return True


def decode_spec(record: bytes) -> Spec:
    try:
        if record[_BAND] > _LAST_BAND:
            raise ValueError(f"it has priority {record[_BAND]}, the last is {_LAST_BAND}")
        # As body_of: a call for each run less.
        return _decode_spec(record[FIXED_SIZE + record[_TENANT_SIZE] :])
    except UNREADABLE as error:
        raise RecordUnreadable(f"a record cannot be read: {error}") from None


def read_record(record: bytes) -> tuple[Header, Spec]:
    """For people: all of it is looked at, also what a worker would only find out when it runs the job."""
    header, spec = decode_header(record), decode_spec(record)
    if not header.timeout or not header.cost:
        raise RecordUnreadable("a record cannot be read: it has no timeout, or no cost")
    # As encode_spec counts.
    if is_nested_deeper(body_of(record), MOST_LEVELS + 2):
        raise RecordUnreadable(f"a record cannot be read: its arguments are nested more than {MOST_LEVELS} levels deep")
    return header, spec


def body_of(record: bytes) -> bytes:
    """What stands behind the header: the encoded spec."""
    return record[FIXED_SIZE + record[_TENANT_SIZE] :]


def encode_header(header: Header) -> bytes:
    tenant = header.tenant.encode()
    if len(tenant) > 250:
        raise InvalidArgument(f"a tenant's name has at most 250 bytes, {header.tenant[:40]!r}… has {len(tenant)}")
    return (
        _FIXED.pack(
            SCHEMA,
            (RECURRING if header.recurring else 0) | (UNNAMED if header.unnamed else 0),
            header.band,
            header.cost,
            header.timeout,
            header.keep,
            header.version >> 32,
            header.version & 0xFFFF_FFFF,
            header.handler,
            header.trigger,
            header.succeeded,
            header.failed,
            header.attempts,
            len(tenant),
        )
        + tenant
    )


def decode_header(record: bytes) -> Header:
    try:
        (
            schema, flags, band, cost, timeout, keep, high, low, handler, trigger,
            succeeded, failed, attempts, size,
        ) = _FIXED.unpack_from(record)  # fmt: skip
        tenant = record[FIXED_SIZE : FIXED_SIZE + size].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise RecordUnreadable(f"a record has no readable header: {error}") from None
    if schema != SCHEMA:
        raise RecordUnreadable(f"a record has schema {schema}, this version reads {SCHEMA}: upgrade this process")
    return Header(
        recurring=bool(flags & RECURRING), timeout=timeout, handler=handler, trigger=trigger, band=band,
        cost=cost, keep=keep, tenant=tenant, version=(high << 32) | low, succeeded=succeeded, failed=failed,
        attempts=attempts, unnamed=bool(flags & UNNAMED),
    )  # fmt: skip


def trigger_digest(spec: Spec) -> int:
    """Changes when the recurrence does; an update that leaves it alone keeps the due time."""
    if spec.trigger is None:
        return 0
    rules = spec.rules
    return digest(_encoder.encode((spec.trigger, rules.starts, rules.jitter)))


def handler_digest(name: str) -> int:
    return digest(name.encode())


def encode_failure(failure: Failure) -> bytes:
    return _encoder.encode(failure)


def decode_failure(data: bytes) -> Failure:
    try:
        return _failure_decoder.decode(data)
    except UNREADABLE:
        return Failure(error=repr(data[:200]))


def lost_result(why: str) -> bytes:
    """In the place of a result that could not be kept."""
    return NO_RESULT + _encoder.encode(why)


def text(data: bytes) -> bytes:
    """Any bytes as a msgpack str: what cmsgpack in scripts reads without refusing it as `bin`."""
    size = len(data)
    return (TEXT_HEADS[size] if size < 256 else _LONG_TEXT.pack(0xDB, size)) + data


def data_of(packed: bytes) -> bytes:
    """The bytes of a msgpack str, as packed here or by a script."""
    return packed[_HEAD_SIZES.get(packed[0], 1) :]


def integer(value: int) -> bytes:
    return b"\xcf" + value.to_bytes(8, "big")


def array(size: int, parts: Iterable[bytes]) -> bytes:
    """A msgpack array of `size` values that are encoded already."""
    return b"\xdd" + size.to_bytes(4, "big") + b"".join(parts)
