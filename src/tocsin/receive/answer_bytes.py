"""Answers as bytes: JSON values and bytes, so that what comes back is what was given."""

from __future__ import annotations

from typing import Any

import msgspec

from tocsin.model.errors import InvalidArgument

_BYTES, _JSON = b"b", b"j"


def packed(answer: Any) -> bytes:
    if isinstance(answer, (bytes, bytearray, memoryview)):
        return _BYTES + bytes(answer)
    try:
        return _JSON + msgspec.json.encode(answer)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise InvalidArgument(
            f"an answer that is remembered is bytes or a JSON value ({error}): the key is free again, and what was "
            "done for it will be done again"
        ) from error


def unpacked(remembered: bytes) -> Any:
    kind, rest = remembered[:1], remembered[1:]
    return rest if kind == _BYTES else msgspec.json.decode(rest)
