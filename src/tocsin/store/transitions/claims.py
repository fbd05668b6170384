"""Claims: what a worker may do to runs.

Every call belongs to a session of this worker and is repeated under the same seq until it is answered.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from tocsin.model import codec
from tocsin.model.codec import TEXT_HEADS, text
from tocsin.model.durations import Millis
from tocsin.model.errors import (
    ClaimLost,
    ClockDisagrees,
    QueueRepartitioned,
    StoreChanged,
    StoreError,
    StoreUnavailable,
)
from tocsin.model.ids import EXTRA
from tocsin.model.run import Claim
from tocsin.model.skipped_ticks import SkippedTicks
from tocsin.store.store import LARGEST_BATCH, Call, OpenQueue, Store
from tocsin.store.transitions.jobs import DUE_MASK

LEASE_OVER = -3
FAILED, SUCCEEDED, SKIPPED, CANCELLED = range(4)
# Of a run that is parked before it has ended.
NOT_ENDED = 4

_RANGE = struct.Struct(">QQB")
# Of an entry in `claims`: due, attempt, recoveries and intent, which stand behind the token.
# Of each run of a claim: place and due, attempt, recoveries, intent.
_stamps = struct.Struct(">QIHB").iter_unpack
_number = int.from_bytes
_texts = msgspec.msgpack.Decoder(list[str]).decode
_raws = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
# A text of 8 bytes.
_token = struct.Struct(">BQ").pack
_CANCEL_INTENT = 8
# Of one settling call.
LARGEST_BYTES = 2 * 1024 * 1024
# Where the arguments of a claim say whether it was sent before.
_REPEATED = 5
VERBS = ("finish", "plan", "retry", "release", "bury", "park", "advance")
# An item of a settling call: msgpack values, each for a column of its own, the first the member.
Item = tuple[bytes, ...]
# What run_finish adds to an outcome.
_EXTRA_RUN = 8
# As a number: bytes look for one at once, and for bytes only after an exception of their own.
_EXTRA_MARK = ord(EXTRA)
_OUTCOMES = [bytes((outcome,)) for outcome in range(16)]
_SUCCEEDED = _OUTCOMES[SUCCEEDED]
_NIL = b"\xc0"
# An array of three.
_KEPT_HEAD = b"\x93"
_ALONE = frozenset((_NIL, *_OUTCOMES))


class ClaimReply(msgspec.Struct, frozen=True):
    """What one claim gave."""

    claims: list[Claim]
    now: Millis
    next_due: Millis
    parked: int
    # How many more were due at that time.
    left: int = 0
    lease_over: bool = False
    # Of a claim by ids: which they were (not those of the wish if an earlier call was repeated), and until when each
    # waits, below 0 if it does not.
    members: Sequence[str] = ()
    dues: Sequence[Millis] = ()
    # How long ago it was made: a while, if the first answer was lost. The deadlines count from then.
    age: Millis = 0


class ClaimRequest(msgspec.Struct, frozen=True):
    """A partition to claim from, and how many at most; if there are members, of these."""

    queue: OpenQueue
    partition: int
    limit: int
    members: Sequence[str] = ()
    # How many of them may be runs that were recovered before: they may be what kills workers.
    suspects: int = LARGEST_BATCH
    # No more than so many at work in the partition, whoever claimed them; None: as the queue's settings say.
    max_active: int | None = None
    # The layout of the queue that the partition belongs to, for who wants to know it when the answer is there.
    layout: str = ""


class Deadlines(msgspec.Struct, frozen=True):
    """Which deadlines have passed: those of `overdue` ms ago, if the server's time is about `now`."""

    overdue: Millis = 0
    # None: whatever it is.
    now: Millis | None = None
    # How the server's clock was set (lua/lib/clock_steps.lua): claims that were made before have that much more time.
    steps: bytes = b""

    def args(self, items: bytes = b"") -> list[Any]:
        """What run_recover wants, with the members that it may bring back, or none for all."""
        return [self.overdue, LARGEST_BATCH, items, "" if self.now is None else self.now, self.steps]


ANY_DEADLINE = Deadlines()


class Runs:
    """The claims of one incarnation of a worker."""

    def __init__(self, store: Store, owner: str, handlers: Sequence[int] | None = None) -> None:
        self.owner = owner
        self._store = store
        self._seq = itertools.count(1)
        self._unanswered: dict[tuple[str, int], tuple[ClaimRequest, Call]] = {}
        self._in_flight: set[tuple[str, int]] = set()
        # Claims that may have been made, unseen, in partitions that have changed since.
        self._doubtful: list[Call] = []
        # Digests of handlers whose records this worker could not read lately: others get those records first.
        self.unread = b""
        self.learn(handlers)

    def learn(self, handlers: Sequence[int] | None) -> None:
        """The digests of the handlers that this worker knows; None: it takes whatever there is."""
        # No handler has the digest 0; an empty text would mean any.
        digests = [] if handlers is None else (handlers or [0])
        self._handlers = struct.pack(f">{len(digests)}I", *digests)

    @property
    def unanswered(self) -> bool:
        """Whether some claim was sent and may have been made, unseen."""
        return bool(self._unanswered or self._doubtful)

    def asking(self, queue: str, partition: int) -> int | None:
        """The number of the claim that was sent there and not answered yet."""
        asked = self._unanswered.get((queue, partition))
        return None if asked is None else asked[1].seq

    def sessions(self) -> list[str]:
        return [f"{self.owner}:{verb}" for verb in ("claim", "recover", *VERBS)]

    async def claim(
        self, wishes: Sequence[ClaimRequest], lease: float, timeout: Millis = 0
    ) -> list[ClaimReply | StoreError]:
        """One answer per wish. What was not answered before is asked again first, under its own seq."""
        calls, again = [], []
        for wish in wishes:
            key = (wish.queue.name, wish.partition)
            known = self._unanswered.get(key)
            again.append(known is not None)
            if known is None:
                self._unanswered[key] = (wish, self._claim_call(wish, lease, timeout, next(self._seq)))
            elif known[0].max_active != wish.max_active:
                # If it was never made, it is to be made with the cap of now.
                call = self._claim_call(wish, lease, timeout, known[1].seq)
                self._unanswered[key] = (wish, _repeated(call))
            else:
                self._unanswered[key] = (known[0], _repeated(known[1]))
            calls.append(self._unanswered[key][1])
        sent = self._store.clock.monotonic()
        keys = {(call.queue.name, call.partition) for call in calls}
        self._in_flight |= keys
        try:
            answers = await self._store.call_all(calls)
        finally:
            self._in_flight -= keys
        received = self._store.clock.monotonic()
        return [self._claimed(*each, sent, received) for each in zip(calls, answers, again, strict=True)]

    def _claim_call(self, wish: ClaimRequest, lease: float, timeout: Millis, seq: int) -> Call:
        args = [self.owner, int(lease), self._handlers, timeout, wish.suspects, ""]
        last: bytes | int = min(wish.limit, LARGEST_BATCH)
        if wish.members:
            last = codec.encode(list(wish.members[:LARGEST_BATCH]))
        name = "run_claim" if wish.queue.queue.order == "due" else "run_claim_ordered"
        if wish.members:
            name = "run_claim_ids"
        cap: int | str = "" if wish.max_active is None else wish.max_active
        most = (wish.limit,) if wish.members else (cap, self.unread)
        return wish.queue.call(name, wish.partition, f"{self.owner}:claim", seq, [*args, last, *most])

    def _claimed(
        self, call: Call, answer: list[Any] | StoreError, again: bool, sent: float, received: float
    ) -> ClaimReply | StoreError:
        if isinstance(answer, StoreUnavailable):
            return answer
        asked = self._unanswered.pop((call.queue.name, call.partition), None)
        if isinstance(answer, StoreError):
            if isinstance(answer, StoreChanged) and again:
                self._doubtful.append(call)
            return answer
        made_at = now = int(answer[1])
        if again:
            # It may tell of a claim that was made a while ago, and then of the time at which it was.
            now = int(self._store.clock.server_ms())
        else:
            self._store.clock.observe(now, sent, received)
        if answer[0] == LEASE_OVER:
            return ClaimReply([], now, -1, 0, lease_over=True)
        next_due, parked, left, *rest = answer[6:]
        dues, held_since = (rest[0] if rest else ()), (rest[1] if len(rest) > 1 else None)
        members = asked[0].members if asked and dues else ()
        claims = _claims(call, answer, made_at, held_since)
        age = max(now - made_at, 0)
        return ClaimReply(claims, now, int(next_due), int(parked), int(left), False, members, dues, age)

    def in_doubt(self, queue: OpenQueue) -> list[Call]:
        """Claims that may have been made, unseen, before the queue was given the partitions it has."""
        for key, (wish, call) in list(self._unanswered.items()):
            if wish.queue is queue and call.layout != queue.layout and key not in self._in_flight:
                del self._unanswered[key]
                self._doubtful.append(call)
        return [call for call in self._doubtful if call.queue is queue and call.layout != queue.layout]

    async def claimed_unseen(self, call: Call) -> list[tuple[bytes, int]]:
        """What a claim in doubt gave us, as (member, token): nobody runs it. Told once."""
        answer = await self._store.answer_of(call)
        if call not in self._doubtful:
            return []
        self._doubtful.remove(call)
        return [] if answer is None else [(key, int(answer[1])) for key in _keys(answer[2])]

    def forget_doubts(self, queue: OpenQueue) -> None:
        """It was opened again and has the partitions that it had: its server was wiped, and our claims with it."""
        self._doubtful = [call for call in self._doubtful if call.queue is not queue or call.layout != queue.layout]

    def settle(self, verb: str, queue: OpenQueue, partition: int, items: Sequence[Item]) -> Call:
        """The call that ends at most 1000 claims of one partition; items as packed below."""
        session, seq = f"{self.owner}:{verb}", next(self._seq)
        args = [self.owner, columns(items, verb), *_bounds(self._store, queue, verb)]
        return queue.call(f"run_{verb}", partition, session, seq, args)

    async def extend(self, queue: OpenQueue, claim: Claim, by: Millis) -> Millis:
        """The new deadline. Raises ClaimLost if another worker has the run."""
        args = [self.owner, claim.key, claim.token, by]
        while True:
            try:
                answer = await self._store.change("run_extend", queue, queue.partition_of_key(claim.key), *args)
            except QueueRepartitioned:
                continue
            if not answer[1]:
                raise ClaimLost(claim.run_id)
            return int(answer[1])

    async def recover(self, queue: OpenQueue, partition: int, owner: str, deadlines: Deadlines = ANY_DEADLINE) -> int:
        """Bring back the runs of a dead worker, or with owner '' those past their deadline. How many.
        Raises ClockDisagrees where the server's time is not what the deadlines are meant for."""
        cursor, brought = b"0", 0
        while True:
            session, seq = f"{self.owner}:recover", next(self._seq)
            args = [owner.encode(errors="surrogateescape"), cursor, *deadlines.args()]
            answer = await self._store.call(queue.call("run_recover", partition, session, seq, args))
            check_clock(answer, deadlines)
            cursor, brought = answer[1], brought + len(answer[2])
            # By deadline there is no cursor: a full page means that there may be more.
            if cursor == b"0" and (owner or len(answer[2]) < LARGEST_BATCH):
                return brought

    async def forget_sessions(self, queue: OpenQueue) -> None:
        await self._store.end_sessions(queue, self.sessions())

    async def reopen(self, queue: OpenQueue) -> None:
        await self._store.reopen(queue)


def _repeated(call: Call) -> Call:
    """A claim that was sent before: the script then remembers it also if it finds nothing."""
    args = list(call.args)
    args[_REPEATED] = "1"
    return msgspec.structs.replace(call, args=args)


def check_clock(answer: list[Any], deadlines: Deadlines) -> None:
    if len(answer) > 4 and deadlines.now is not None:
        raise ClockDisagrees(int(answer[4]) - deadlines.now)


async def settle_as(store: Store, owner: str, verb: str, queue: OpenQueue, item: Item) -> bool:
    """End a claim for its owner, as a call of this program. False if the owner holds it no longer."""
    while True:
        try:
            partition = queue.partition_of_key(key_of(item))
            args = [owner, columns([item]), *_bounds(store, queue, verb)]
            answer = await store.change(f"run_{verb}", queue, partition, *args)
            return not answer[1]
        except QueueRepartitioned:
            continue


def _bounds(store: Store, queue: OpenQueue, verb: str) -> list[int]:
    """Only a finish adds outcomes in great numbers, and drops what is too much."""
    return [store.most_unnamed(queue)] if verb == "finish" else []


def _keys(packed: bytes) -> list[bytes]:
    try:
        return [key.encode() for key in _texts(packed)]
    except UnicodeDecodeError:
        # Put by somebody else, and no text: a key all the same.
        return [codec.data_of(bytes(key)) for key in _raws(packed)]


def _claims(call: Call, answer: list[Any], now: Millis, held_since: Millis | None) -> list[Claim]:
    """All of an answer in one loop: what is done here is done for each run."""
    name, partition, given = call.queue.name, call.partition, call.args[3]
    _, _, token, packed, records, stamps, *_ = answer
    claims = []
    for key, record, (due, attempt, recoveries, intent) in zip(_keys(packed), records, _stamps(stamps), strict=True):
        deadline = now + (given or _number(record[5:9], "big"))
        cancelled = intent & _CANCEL_INTENT != 0
        claims.append(
            Claim(
                name,
                partition,
                key,
                token,
                due & DUE_MASK,
                attempt,
                recoveries,
                cancelled,
                deadline,
                record,
                held_since,
            )
        )
    return claims


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
    """`keep`: for how many seconds the end of a one-shot is remembered; `unnamed`: as long as there is room for it."""
    key = claim.key
    if _EXTRA_MARK in key:
        outcome |= _EXTRA_RUN
    due, more = b"%d" % next_due if next_due else b"", _NIL
    if error or skips or note:
        parts = (*_kept(keep, unnamed), text(result), text(error), _ranges(skips), text(note))
        more = codec.array(6, parts)
    elif keep:
        more = _KEPT_HEAD + b"".join(_kept(keep, unnamed)) + text(result)
    member = TEXT_HEADS[len(key)] + key if len(key) < len(TEXT_HEADS) else text(key)
    return member, _token(0xA8, claim.token), TEXT_HEADS[len(due)] + due, _OUTCOMES[outcome], more


def _kept(keep: int, unnamed: bool) -> tuple[bytes, bytes]:
    return codec.integer(keep), b"\x01" if unnamed else b"\x00"


def next_item(claim: Claim, next_due: Millis) -> Item:
    """finish_item for a schedule's success of which nothing is to be told: most runs end so, and only this is done."""
    key, due = claim.key, b"%d" % next_due
    member = TEXT_HEADS[len(key)] + key if len(key) < 256 else text(key)
    return member, _token(0xA8, claim.token), TEXT_HEADS[len(due)] + due, _SUCCEEDED, _NIL


def plan_item(claim: Claim, next_due: Millis, alone: bool, skips: Sequence[SkippedTicks] = ()) -> Item:
    """A run of its own for the claimed occurrence; `alone`: in the place of the last such run of the job."""
    return *_held(claim), codec.integer(next_due), _OUTCOMES[alone], _ranges(skips)


def columns(items: Sequence[Item], verb: str = "") -> bytes:
    """What a settling script reads: the values of all items, one array for each column. Of a finish, one value for a
    column in which all have the same: nearly always all succeed, and there is nothing more to say."""
    arrays = []
    for column in zip(*items, strict=True):
        first = column[0]
        alone = verb == "finish" and first in _ALONE and column.count(first) == len(column)
        arrays.append(first if alone else codec.array(len(items), column))
    return codec.array(len(arrays), arrays)


def fitting(items: Sequence[Item], most: int) -> int:
    """How many of the first items one call takes: results may be large, and a call never carries more than about 2 MiB,
    or one item."""
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
    return codec.data_of(item[0])


def retry_item(claim: Claim, delay: Millis, error: bytes, note: bytes = b"") -> Item:
    return *_held(claim), codec.integer(delay), text(error), text(note)


def release_item(claim: Claim, delay: Millis = 0) -> Item:
    return *_held(claim), codec.integer(delay)


def failed_item(claim: Claim, error: bytes, note: bytes = b"") -> Item:
    """For bury, and for park where no run has ended."""
    return *_held(claim), text(error), text(note)


def park_item(claim: Claim, error: bytes, note: bytes = b"", outcome: int = NOT_ENDED, wait: Millis = 0) -> Item:
    """`wait`: until somebody tries again; 0: as long as is usual for records that cannot be read."""
    return *_held(claim), text(error), text(note), _OUTCOMES[outcome], codec.integer(wait)


def advance_item(claim: Claim, next_due: Millis, skips: Sequence[SkippedTicks] = ()) -> Item:
    """For a run that has ended before, and whose job can go on now; 0: it ends."""
    return *_held(claim), codec.integer(next_due), _ranges(skips)


def _ranges(skips: Sequence[SkippedTicks]) -> bytes:
    return text(b"".join([_RANGE.pack(skip.first, skip.until, skip.why) for skip in skips]))


def _held(claim: Claim) -> tuple[bytes, bytes]:
    return text(claim.key), codec.integer(claim.token)
