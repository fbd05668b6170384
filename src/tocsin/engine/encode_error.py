"""Encode what a run left behind, its error or its result: limited in size, and never itself a reason to fail."""

from __future__ import annotations

import math
import traceback
from collections.abc import Sequence
from typing import Any

from tocsin.model import msgpack
from tocsin.model.clock import monotonic
from tocsin.model.delivery import DeliveryFailed
from tocsin.model.durations import Millis
from tocsin.model.job import Failure, Spec
from tocsin.model.nesting import MOST_LEVELS
from tocsin.model.outcome import LARGEST_RESULT
from tocsin.model.record import encode_failure
from tocsin.model.run import Claim
from tocsin.resilience.evidence import STRANGE
from tocsin.store.formats import lost_result
from tocsin.telemetry.logs import get_logger

log = get_logger("tocsin.finish")

LONGEST_ERROR = 1000
LONGEST_TRACEBACK = 4000
LONGEST_KIND = 200
# A longer message is left out of the traceback.
LONGEST_MESSAGE = 100_000
# The log names a handler whose results are lost at most this often.
WARN_EVERY_S = 60.0


def encode_error(error: BaseException, at: float) -> bytes:
    """An error as the record keeps it."""
    kind = type(error).__name__[:LONGEST_KIND]
    message = _message_of(error)
    text = kind if message is None else f"{kind}: {message[:LONGEST_ERROR]}"
    # The message of a remote failure says enough; the trace would only name our own code.
    trace = "" if isinstance(error, DeliveryFailed) else _trace(error, message)
    return encode_failure(
        Failure(_clean(text[:LONGEST_ERROR]), _clean(trace[-LONGEST_TRACEBACK:]), int(at), type=_clean(kind))
    )


def _message_of(error: BaseException) -> str | None:
    """None if the exception cannot be shown: its class is the program's and may fail itself."""
    try:
        return str(error)
    except STRANGE:
        return None


def _trace(error: BaseException, message: str | None) -> str:
    try:
        if message is None or len(message) > LONGEST_MESSAGE:
            # Keeping the end of a long message would mean writing all of it.
            return "".join(traceback.format_tb(error.__traceback__))
        return "".join(traceback.format_exception(error))
    except STRANGE:
        return ""


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


class ResultEncoder:
    """Packs what handlers return for callers that ask for results. A result that cannot be packed, or is too large, is
    lost: the run has succeeded anyway, the log says so, and callers get the reason instead of the result."""

    def __init__(self, largest: int = LARGEST_RESULT) -> None:
        self._largest = largest
        # By handler: when the log named it last, and how many of its results were lost since.
        self._warned: dict[str, tuple[float, int]] = {}

    def packed(self, value: Any, spec: Spec) -> bytes:
        try:
            data = msgpack.encode(value)
        except STRANGE as error:
            # Any error here is the handler's: some results are computed only while they are packed.
            why = f"it cannot be packed ({_clean((_message_of(error) or type(error).__name__)[:LONGEST_ERROR])})"
            return self._lost(spec.name, f"{why}: return plain data, or a reference to it")
        if len(data) > self._largest:
            size = f"it takes {len(data)} bytes, the limit is {self._largest}"
            return self._lost(spec.name, f"{size} (limits.result-bytes): store it elsewhere and return a reference")
        if msgpack.is_nested_deeper(data, MOST_LEVELS):
            return self._lost(spec.name, f"it is nested more than {MOST_LEVELS} levels deep: make it flatter")
        return data

    def _lost(self, handler: str, why: str) -> bytes:
        now = monotonic()
        warned, count = self._warned.get(handler, (-math.inf, 0))
        count += 1
        if now - warned >= WARN_EVERY_S:
            log.warning(
                "result lost: the run has succeeded, what it returned is not kept", handler=handler, why=why, lost=count
            )
            warned, count = now, 0
        self._warned[handler] = warned, count
        return lost_result(why)


def timed_out(claim: Claim, now: Millis) -> bytes:
    past_s = (now - claim.deadline) / 1000
    text = f"timed out {past_s:.1f} s past its deadline" if past_s > 0 else "timed out"
    return encode_failure(Failure(text, at=now, type="TimeoutError"))


def batch_outcomes(handler: str, runs: int, returned: Any) -> Sequence[Any]:
    """The outcomes of a batch, one for each run: an exception fails its run, None means that all succeeded. Raises
    TypeError."""
    if returned is None:
        return [None] * runs
    if isinstance(returned, list | tuple) and len(returned) == runs:
        return returned
    # Name types, not values: what a handler returns has no place in an error.
    shape = f"a {type(returned).__name__}" + (f" of {len(returned)}" if isinstance(returned, list | tuple) else "")
    raise TypeError(f"{handler} must return None or a list of {runs} outcomes, not {shape}")
