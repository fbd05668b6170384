"""What is told of a run that ended: its error or its result, bounded, and never itself a reason to fail."""

from __future__ import annotations

import traceback
from typing import Any

from tocsin.model import codec
from tocsin.model.delivery import DeliveryFailed
from tocsin.model.job import Failure, Spec
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.finish")

LONGEST_ERROR = 1000
LONGEST_TRACEBACK = 4000
LARGEST_RESULT = 64 * 1024


def describe(error: BaseException, at: float) -> bytes:
    """An error for the record."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = type(error).__name__
    try:
        # What failed elsewhere is told by its message; the trace would only name our own code.
        trace = "" if isinstance(error, DeliveryFailed) else "".join(traceback.format_exception(error))
    except Exception:
        trace = ""
    failure = Failure(_clean(text)[:LONGEST_ERROR], _clean(trace)[-LONGEST_TRACEBACK:], int(at))
    return codec.encode_failure(failure)


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def stored_result(value: Any, spec: Spec) -> bytes:
    """What cannot be stored, or is too large, is left out."""
    try:
        data = codec.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        log.warning("result cannot be stored", handler=spec.name, error=str(error))
        return b""
    if len(data) > LARGEST_RESULT:
        log.warning("result too large to be stored", handler=spec.name, bytes=len(data), limit=LARGEST_RESULT)
        return b""
    return data


def keep_of(record: bytes) -> int:
    """For how many seconds its end is to be remembered."""
    return int.from_bytes(record[9:13], "big")
