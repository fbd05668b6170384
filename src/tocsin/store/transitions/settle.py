"""Settling: how claims end. An item says what becomes of one claim; a call carries many items, as columns.

Each run makes an item, so items are put together from bytes that are encoded already.
"""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.model import msgpack
from tocsin.model.durations import Millis
from tocsin.model.msgpack import ARRAY_OF_3, LONG_TEXT, NIL, TEXT_HEADS, pack_long_text, small, text
from tocsin.model.outcome import NOT_ENDED, SUCCEEDED
from tocsin.model.run import Claim
from tocsin.model.skipped_ticks import SkippedTicks
from tocsin.store.formats import EXTRA_MARK, encode_skips
from tocsin.store.store import OpenQueue, Store

VERBS = ("finish", "plan", "retry", "release", "bury", "park", "advance")
# One claim in a settling call: encoded msgpack values, each for a column of its own. The first is the member.
Item = tuple[bytes, ...]
# The bit in the outcome of an extra run, for run_finish.
_EXTRA_RUN = 8
_OUTCOMES = [small(outcome) for outcome in range(16)]
_SUCCEEDED = _OUTCOMES[SUCCEEDED]
# The most bytes of one settling call.
LARGEST_BYTES = 2 * 1024 * 1024
# Values that may stand for a whole column.
_ALONE = frozenset((NIL, *_OUTCOMES))


async def settle_for_owner(store: Store, owner: str, verb: str, queue: OpenQueue, item: Item) -> bool:
    """End a claim in the name of its owner, as a call of this program. False if the owner no longer holds it."""
    args = [owner, columns([item]), *bounds(store, queue, verb)]
    answer = await store.change(f"run_{verb}", queue, key_of(item), *args)
    return not answer[1]


def bounds(store: Store, queue: OpenQueue, verb: str) -> list[int]:
    """The last argument of run_finish: how many unnamed outcomes a partition keeps. It drops the surplus; other calls
    add few."""
    return [store.most_unnamed(queue)] if verb == "finish" else []


def finish_item(
    claim: Claim,
    next_due: Millis,
    outcome: int,
    keep: int = 0,
    result: bytes = b"",
    error: bytes = b"",
    skips: Sequence[SkippedTicks] = (),
    note: bytes = b"",
    unnamed: bool = False,
) -> Item:
    """`keep`: for how many seconds the end of a one-shot is remembered; `unnamed`: only while there is room for it."""
    key = claim.key
    if EXTRA_MARK in key:
        outcome |= _EXTRA_RUN
    due, more = b"%d" % next_due if next_due else b"", NIL
    if error or skips or note:
        parts = (*_kept(keep, unnamed), text(result), text(error), _ranges(skips), text(note))
        more = msgpack.array(6, parts)
    elif keep:
        more = ARRAY_OF_3 + b"".join(_kept(keep, unnamed)) + text(result)
    member = TEXT_HEADS[len(key)] + key if len(key) < len(TEXT_HEADS) else text(key)
    return member, pack_long_text(LONG_TEXT, claim.token), TEXT_HEADS[len(due)] + due, _OUTCOMES[outcome], more


def _kept(keep: int, unnamed: bool) -> tuple[bytes, bytes]:
    return msgpack.integer(keep), _OUTCOMES[unnamed]


def on_time_item(claim: Claim, next_due: Millis) -> Item:
    """Fast path of finish_item: a schedule succeeded, without result, skips or note. Most runs end this way."""
    key, due = claim.key, b"%d" % next_due
    member = TEXT_HEADS[len(key)] + key if len(key) < 256 else text(key)
    return member, pack_long_text(LONG_TEXT, claim.token), TEXT_HEADS[len(due)] + due, _SUCCEEDED, NIL


def extra_run_item(claim: Claim, next_due: Millis, alone: bool, skips: Sequence[SkippedTicks] = ()) -> Item:
    """The claimed occurrence becomes an extra run. `alone`: it replaces the last extra run of the job."""
    return *_held(claim), msgpack.integer(next_due), _OUTCOMES[alone], _ranges(skips)


def columns(items: Sequence[Item], verb: str = "") -> bytes:
    """What a settling script reads: one array per column, with the values of all items. For a finish, a column whose
    values are all the same is that one value: nearly always, all runs succeed and have no result."""
    arrays = []
    for column in zip(*items, strict=True):
        first = column[0]
        alone = verb == "finish" and first in _ALONE and column.count(first) == len(column)
        arrays.append(first if alone else msgpack.array(len(items), column))
    return msgpack.array(len(arrays), arrays)


def fitting(items: Sequence[Item], most: int) -> int:
    """How many of the first items fit into one call. Results may be large, so a call carries at most about 2 MiB, or
    one item."""
    some, room = items[:most], LARGEST_BYTES
    if sum([len(item[-1]) for item in some]) <= room:
        return len(some)
    for n, item in enumerate(some):
        room -= len(item[-1])
        if room < 0:
            return max(n, 1)
    return len(some)


def key_of(item: Item) -> bytes:
    """The member that an item is about."""
    return msgpack.data_of(item[0])


def retry_item(claim: Claim, delay: Millis, error: bytes, note: bytes = b"") -> Item:
    return *_held(claim), msgpack.integer(delay), text(error), text(note)


def release_item(claim: Claim, delay: Millis = 0) -> Item:
    return *_held(claim), msgpack.integer(delay)


def bury_or_park_item(claim: Claim, error: bytes, note: bytes = b"") -> Item:
    """For bury, and for a park before the run has ended."""
    return *_held(claim), text(error), text(note)


def park_item(claim: Claim, error: bytes, note: bytes = b"", outcome: int = NOT_ENDED, wait: Millis = 0) -> Item:
    """`wait`: in ms, until a worker tries again; 0: the usual time for records that cannot be read."""
    return *_held(claim), text(error), text(note), _OUTCOMES[outcome], msgpack.integer(wait)


def advance_item(claim: Claim, next_due: Millis, skips: Sequence[SkippedTicks] = ()) -> Item:
    """For a run that ended before the next due time was known. `next_due`: when the job goes on; 0: it ends."""
    return *_held(claim), msgpack.integer(next_due), _ranges(skips)


def _ranges(skips: Sequence[SkippedTicks]) -> bytes:
    return text(encode_skips(skips))


def _held(claim: Claim) -> tuple[bytes, bytes]:
    return text(claim.key), msgpack.integer(claim.token)
