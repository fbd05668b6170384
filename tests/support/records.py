"""Records of jobs that do nothing, and the items of the calls that put them."""

from __future__ import annotations

import msgspec

from tocsin.model import msgpack
from tocsin.model.job import NORMAL, Header, Retry, Spec
from tocsin.model.outcome import IGNORE
from tocsin.model.record import encode_record, handler_digest, trigger_digest
from tocsin.model.trigger import Every

HANDLER = "tests.handler"
STRANGE = "tests.strange"


def record(
    *,
    every: float | None = None,
    keep: int = 0,
    timeout: int = 60_000,
    args: tuple[object, ...] = (),
    handler: str = HANDLER,
    recurring: bool = True,
    band: int = NORMAL,
    tenant: str = "",
    unnamed: bool = False,
    cost: int = 1,
    retry: Retry | None = None,
) -> bytes:
    """A job of HANDLER that does nothing, as bytes. An extra run has a trigger and is not recurring."""
    spec = Spec(handler, args, {}, None if every is None else Every(every), retry)
    header = Header(
        recurring=recurring and every is not None,
        timeout=timeout,
        handler=handler_digest(handler),
        trigger=trigger_digest(spec),
        keep=keep,
        band=band,
        tenant=tenant,
        cost=cost,
        unnamed=unnamed,
    )
    return encode_record(header, spec)


def packed(
    member: str, record: bytes, due: int, relative: bool = False, mode: int = IGNORE, expected: int = 0
) -> bytes:
    """The items of job_put, for calls that do not go through `Jobs`."""
    values = [msgspec.msgpack.encode(value) for value in (due, int(relative), mode, expected)]
    return b"\x96" + msgpack.text(member.encode()) + b"".join(values) + msgpack.text(record)


def packed_block(
    member: str, record: bytes, due: int, life: str, *sources: str, anyway: bool = False, mode: int = IGNORE
) -> bytes:
    """The items of dependency_block, likewise; sources are queue NUL upstream."""
    needs = msgspec.msgpack.encode([life, int(anyway), *sources])
    values = [msgspec.msgpack.encode(value) for value in (due, 0, mode)]
    return b"\x96" + msgpack.text(member.encode()) + b"".join(values) + msgpack.text(record) + msgpack.text(needs)
