"""A record: a fixed header, which scripts read, and a msgpack body, which they never touch.

Header, big-endian: schema, flags (1 recurring, 2 nobody chose its id), band, cost u16, timeout ms u32, keep s u32,
version u48, handler digest u32, trigger digest u32, succeeded u32, failed u32, attempts u32, tenant length u8, tenant.
lua/lib/record.lua reads and writes the same layout; a test holds the two together.
"""

from __future__ import annotations

import struct
import sys

import msgspec

from tocsin.model.errors import InvalidArgument, RecordUnreadable
from tocsin.model.ids import digest
from tocsin.model.job import PRIORITIES, Failure, Header, Spec
from tocsin.model.msgpack import UNREADABLE, encode, is_nested_deeper
from tocsin.model.nesting import MOST_LEVELS

SCHEMA = 1
RECURRING = 1
UNNAMED = 2
LARGEST_PAYLOAD = 512 * 1024

# Where the fields are. Code that runs once per run reads them without a call, as `record[FLAGS] & RECURRING`; all other
# code uses the readers below.
FLAGS, BAND, TIMEOUT, KEEP, HANDLER = 1, 2, slice(5, 9), slice(9, 13), slice(19, 23)
# The bytes of a `keep` of 0: nobody asked for the outcome.
NOT_KEPT = bytes(4)

_FIXED = struct.Struct(">BBBHIIHIIIIIIB")
FIXED_SIZE = _FIXED.size
# The last byte of the fixed part is the length of the tenant.
_TENANT_SIZE = FIXED_SIZE - 1
_LAST_BAND = len(PRIORITIES) - 1

_decode_spec = msgspec.msgpack.Decoder(Spec).decode
_failure_decoder = msgspec.msgpack.Decoder(Failure)


def is_recurring(record: bytes) -> bool:
    return record[FLAGS] & RECURRING != 0


def is_unnamed(record: bytes) -> bool:
    """Whether nobody chose the id of the job."""
    return record[FLAGS] & UNNAMED != 0


def band_of(record: bytes) -> int:
    return record[BAND]


def timeout_of(record: bytes) -> int:
    """In ms."""
    return int.from_bytes(record[TIMEOUT], "big")


def keep_of(record: bytes) -> int:
    """For how many seconds the end of the job is remembered."""
    return int.from_bytes(record[KEEP], "big")


def encode_spec(spec: Spec, largest: int = LARGEST_PAYLOAD) -> bytes:
    try:
        body = encode(spec)
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
    # Two levels more: the spec, and its list of arguments.
    if is_nested_deeper(body, MOST_LEVELS + 2):
        raise InvalidArgument(
            f"the arguments of {spec.name} are nested more than {MOST_LEVELS} levels deep: make them flatter, "
            "or store them elsewhere and pass a reference"
        )
    try:
        # Decode it as a worker will. Some values encode and do not decode: a dict whose key is a dataclass comes back
        # with a dict as its key.
        _decode_spec(body)
    except UNREADABLE as error:
        raise InvalidArgument(
            f"the arguments of {spec.name} could be stored, but no worker could read them ({error}): use None, bool, "
            "int, float or str as keys, and no encoded msgpack"
        ) from None
    return body


def decode_spec(record: bytes) -> Spec:
    try:
        if record[BAND] > _LAST_BAND:
            raise ValueError(f"it has priority {record[BAND]}, the last is {_LAST_BAND}")
        # body_of, inlined: one call less per run.
        return _decode_spec(record[FIXED_SIZE + record[_TENANT_SIZE] :])
    except UNREADABLE as error:
        raise RecordUnreadable(f"a record cannot be read: {error}") from None


def read_record(record: bytes) -> tuple[Header, Spec]:
    """A record for people to see. Also checks what a worker only notices when it runs the job."""
    header, spec = decode_header(record), decode_spec(record)
    if not header.timeout or not header.cost:
        raise RecordUnreadable("a record cannot be read: it has no timeout, or no cost")
    # Two levels more, as in encode_spec.
    if is_nested_deeper(body_of(record), MOST_LEVELS + 2):
        raise RecordUnreadable(f"a record cannot be read: its arguments are nested more than {MOST_LEVELS} levels deep")
    return header, spec


def encode_record(header: Header, spec: Spec, largest: int = sys.maxsize) -> bytes:
    """`largest`: the limit in bytes of arguments that a caller has just given. Those of a job that exists passed it
    before."""
    return encode_header(header) + encode_spec(spec, largest)


def header_of(record: bytes) -> bytes:
    return record[: FIXED_SIZE + record[_TENANT_SIZE]]


def body_of(record: bytes) -> bytes:
    """The encoded spec, which follows the header."""
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
    """Changes when the recurrence does. An update that does not change it keeps the due time."""
    if spec.trigger is None:
        return 0
    rules = spec.rules
    return digest(encode((spec.trigger, rules.starts, rules.jitter)))


def handler_digest(name: str) -> int:
    return digest(name.encode())


def encode_failure(failure: Failure) -> bytes:
    return encode(failure)


def decode_failure(data: bytes) -> Failure:
    try:
        return _failure_decoder.decode(data)
    except UNREADABLE:
        return Failure(error=repr(data[:200]))
