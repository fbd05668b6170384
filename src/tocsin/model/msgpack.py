"""msgpack, whole values and in pieces: arguments of scripts are put together from values that are encoded already."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import msgspec

from tocsin.model.nesting import is_deeper

# What decoding raises, also from the checks of what was decoded; RecursionError for what is nested too deep.
UNREADABLE = (msgspec.MsgspecError, IndexError, ValueError, TypeError, RecursionError)
NIL, FALSE = b"\xc0", b"\xc2"
ARRAY_OF_3 = b"\x93"
# No msgpack value begins with this byte.
NO_VALUE = b"\xc1"

_LONG_TEXT = struct.Struct(">BI")
_HEAD_SIZES = {0xD9: 2, 0xDA: 3, 0xDB: 5}
# How a text of so many bytes begins. Each run sends some, so these are made once.
TEXT_HEADS = [bytes((0xA0 | size,)) if size < 32 else _LONG_TEXT.pack(0xDB, size) for size in range(256)]
# The head of a text of 8 bytes, and such a text from a number: `pack_long_text(LONG_TEXT, number)`.
LONG_TEXT = 0xA8
pack_long_text = struct.Struct(">BQ").pack

# Bytes that begin no list and no dict.
_NO_CONTAINER = bytes([byte for byte in range(256) if not (0x80 <= byte <= 0x9F or 0xDC <= byte <= 0xDF)])

encode = msgspec.msgpack.Encoder().encode


def decode(data: bytes) -> Any:
    return msgspec.msgpack.decode(data)


def is_nested_deeper(data: bytes, levels: int) -> bool:
    """Whether lists and dicts are nested more than so many levels deep. Few values have so many bytes that could begin
    a list or a dict, so the count of those bytes mostly answers without decoding."""
    if len(data) <= levels or len(data.translate(None, _NO_CONTAINER)) <= levels:
        return False
    try:
        return is_deeper(decode(data), levels)
    except RecursionError:
        return True


def text(data: bytes) -> bytes:
    """Any bytes as a msgpack str. cmsgpack in scripts reads a str without refusing it as `bin`."""
    size = len(data)
    return (TEXT_HEADS[size] if size < 256 else _LONG_TEXT.pack(0xDB, size)) + data


def data_of(packed: bytes) -> bytes:
    """The bytes of a msgpack str, as packed here or by a script."""
    return packed[_HEAD_SIZES.get(packed[0], 1) :]


def integer(value: int) -> bytes:
    return b"\xcf" + value.to_bytes(8, "big")


def small(value: int) -> bytes:
    """An integer from 0 to 127 in one byte."""
    return bytes((value,))


def array(size: int, parts: Iterable[bytes]) -> bytes:
    """An array of `size` values that are encoded already."""
    return b"\xdd" + size.to_bytes(4, "big") + b"".join(parts)


def texts(some: Iterable[bytes]) -> bytes:
    """An array of texts."""
    packed = [text(each) for each in some]
    return array(len(packed), packed)
