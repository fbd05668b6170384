"""Claims: how a worker gets runs, keeps them, ends them, and brings back those of the dead.

Each call belongs to a session of the worker, and is repeated under the same seq until it is answered.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec

from tocsin.model import msgpack
from tocsin.model.durations import Millis
from tocsin.model.errors import (
    ClaimLost,
    ClockDisagrees,
    StoreChanged,
    StoreError,
    StoreUnavailable,
)
from tocsin.model.record import TIMEOUT
from tocsin.model.run import Claim
from tocsin.store.formats import CANCEL_INTENT, DUE_MASK, encode_digests, iter_claim_stamps
from tocsin.store.sessions import end_sessions
from tocsin.store.store import LARGEST_BATCH, Call, OpenQueue, Store
from tocsin.store.transitions.settle import VERBS, Item, bounds, columns

LEASE_OVER = -3

_texts = msgspec.msgpack.Decoder(list[str]).decode
_raws = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
# The place of the argument that says whether the claim was sent before.
_REPEATED = 5
_from_bytes = int.from_bytes


class ClaimReply(msgspec.Struct, frozen=True):
    """The answer to one claim."""

    claims: list[Claim]
    now: Millis
    next_due: Millis
    parked: int
    # How many more jobs were due at that time.
    left: int = 0
    lease_over: bool = False
    # For a claim by ids: the ids (those of the earlier request, if that was repeated), and until when each waits; below
    # 0 if it does not wait.
    members: Sequence[str] = ()
    dues: Sequence[Millis] = ()
    # How long ago the claim was made: a while, if the first answer was lost. The deadlines count from then.
    age: Millis = 0


class ClaimRequest(msgspec.Struct, frozen=True):
    """A partition to claim from, and how many runs at most; with `members`, only runs of these jobs."""

    queue: OpenQueue
    partition: int
    limit: int
    members: Sequence[str] = ()
    # How many of the runs may be suspects: runs that were recovered before, and may be what kills workers.
    suspects: int = LARGEST_BATCH
    # The cap on runs at work in the partition, whichever worker has them; None: the cap of the queue's settings.
    max_active: int | None = None
    # The layout of the queue when the request was made. The caller compares it when the answer is there.
    layout: str = ""


class Deadlines(msgspec.Struct, frozen=True):
    """Which deadlines count as passed: those of `overdue` ms ago, if the server's time is about `now`."""

    overdue: Millis = 0
    # None: any time of the server will do.
    now: Millis | None = None
    # By how much the server's clock was set, and when (clock_steps.lua): claims from before have that much more time.
    steps: bytes = b""

    def args(self, items: bytes = b"") -> list[Any]:
        """Arguments of run_recover. `items`: the members that it may bring back, or none for all."""
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
        # Unanswered claims on partitions that have changed since. They may have been made.
        self._doubtful: list[Call] = []
        # Digests of handlers whose records this worker could not read lately. Other workers get those records first.
        self.unread = b""
        self.set_handlers(handlers)

    def set_handlers(self, handlers: Sequence[int] | None) -> None:
        """The digests of the handlers that this worker knows; None: it takes runs of any handler."""
        # No handler has the digest 0. An empty list would mean any handler.
        digests = [] if handlers is None else (handlers or [0])
        self._handlers = encode_digests(digests)

    @property
    def unanswered(self) -> bool:
        """Whether some claim was sent and not answered: it may have been made."""
        return bool(self._unanswered or self._doubtful)

    def asking(self, queue: str, partition: int) -> int | None:
        """The seq of the claim that was sent to the partition and is not answered yet."""
        asked = self._unanswered.get((queue, partition))
        return None if asked is None else asked[1].seq

    def sessions(self) -> list[str]:
        return [f"{self.owner}:{verb}" for verb in ("claim", "recover", *VERBS)]

    async def claim(
        self, requests: Sequence[ClaimRequest], lease: float, timeout: Millis = 0
    ) -> list[ClaimReply | StoreError]:
        """One answer per request. Where an earlier claim is not answered yet, that one is sent again under its own seq,
        and gives the answer."""
        calls, again = [], []
        for request in requests:
            key = (request.queue.name, request.partition)
            known = self._unanswered.get(key)
            again.append(known is not None)
            if known is None:
                self._unanswered[key] = (request, self._claim_call(request, lease, timeout, next(self._seq)))
            elif known[0].max_active != request.max_active:
                # If the earlier claim was never made, it must be made with the present cap.
                call = self._claim_call(request, lease, timeout, known[1].seq)
                self._unanswered[key] = (request, _repeated(call))
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

    def _claim_call(self, request: ClaimRequest, lease: float, timeout: Millis, seq: int) -> Call:
        args = [self.owner, int(lease), self._handlers, timeout, request.suspects, ""]
        last: bytes | int = min(request.limit, LARGEST_BATCH)
        if request.members:
            last = msgpack.encode(list(request.members[:LARGEST_BATCH]))
        name = "run_claim" if request.queue.queue.order == "due" else "run_claim_ordered"
        if request.members:
            name = "run_claim_ids"
        cap: int | str = "" if request.max_active is None else request.max_active
        most = (request.limit,) if request.members else (cap, self.unread)
        return request.queue.call(name, request.partition, f"{self.owner}:claim", seq, [*args, last, *most])

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
            # The claim may have been made a while ago. The answer then has the time of that moment.
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

    def unanswered_claims(self, queue: OpenQueue) -> list[Call]:
        """Claims that were not answered before the queue was repartitioned: they may have been made."""
        for key, (request, call) in list(self._unanswered.items()):
            if request.queue is queue and call.layout != queue.layout and key not in self._in_flight:
                del self._unanswered[key]
                self._doubtful.append(call)
        return [call for call in self._doubtful if call.queue is queue and call.layout != queue.layout]

    async def read_unseen_claims(self, call: Call) -> list[tuple[bytes, int]]:
        """The runs of an unanswered claim, as (member, token), if it was made. No worker runs them. Answers once."""
        answer = await self._store.find_kept_answer(call)
        if call not in self._doubtful:
            return []
        self._doubtful.remove(call)
        return [] if answer is None else [(key, int(answer[1])) for key in _keys(answer[2])]

    def forget_doubts(self, queue: OpenQueue) -> None:
        """Call this when the queue was opened again with the same partitions: the server was wiped, and our claims with
        it."""
        self._doubtful = [call for call in self._doubtful if call.queue is not queue or call.layout != queue.layout]

    def settle(self, verb: str, queue: OpenQueue, partition: int, items: Sequence[Item]) -> Call:
        """The call that ends at most 1000 claims of one partition. Items: see settle.py."""
        session, seq = f"{self.owner}:{verb}", next(self._seq)
        args = [self.owner, columns(items, verb), *bounds(self._store, queue, verb)]
        return queue.call(f"run_{verb}", partition, session, seq, args)

    async def extend(self, queue: OpenQueue, claim: Claim, by: Millis) -> Millis:
        """The new deadline. Raises ClaimLost if another worker has the run."""
        answer = await self._store.change("run_extend", queue, claim.key, self.owner, claim.key, claim.token, by)
        if not answer[1]:
            raise ClaimLost(claim.run_id)
        return int(answer[1])

    async def recover(self, queue: OpenQueue, partition: int, owner: str, deadlines: Deadlines = ANY_DEADLINE) -> int:
        """Bring back the runs of a dead worker, or with owner '' all runs past their deadline. Returns how many. Raises
        ClockDisagrees if the server's time is not the one that `deadlines` was made for."""
        cursor, brought = b"0", 0
        while True:
            session, seq = f"{self.owner}:recover", next(self._seq)
            args = [owner.encode(errors="surrogateescape"), cursor, *deadlines.args()]
            answer = await self._store.call(queue.call("run_recover", partition, session, seq, args))
            check_clock(answer, deadlines)
            cursor, brought = answer[1], brought + len(answer[2])
            # A search by deadline has no cursor: after a full page there may be more.
            if cursor == b"0" and (owner or len(answer[2]) < LARGEST_BATCH):
                return brought

    async def forget_sessions(self, queue: OpenQueue) -> None:
        await end_sessions(self._store, queue, self.sessions())

    async def reopen(self, queue: OpenQueue) -> None:
        await self._store.reopen(queue)


def _repeated(call: Call) -> Call:
    """The call, marked as sent before: the script then keeps its answer even if it finds nothing."""
    args = list(call.args)
    args[_REPEATED] = "1"
    return msgspec.structs.replace(call, args=args)


def check_clock(answer: list[Any], deadlines: Deadlines) -> None:
    if len(answer) > 4 and deadlines.now is not None:
        raise ClockDisagrees(int(answer[4]) - deadlines.now)


def _keys(packed: bytes) -> list[bytes]:
    try:
        return [key.encode() for key in _texts(packed)]
    except UnicodeDecodeError:
        # Another program put an id that is no UTF-8. It is a key all the same.
        return [msgpack.data_of(bytes(key)) for key in _raws(packed)]


def _claims(call: Call, answer: list[Any], now: Millis, held_since: Millis | None) -> list[Claim]:
    """All runs of an answer in one loop. Each line here costs time per run."""
    name, partition, given = call.queue.name, call.partition, call.args[3]
    _, _, token, packed, records, stamps, *_ = answer
    claims = []
    runs = zip(_keys(packed), records, iter_claim_stamps(stamps), strict=True)
    for key, record, (due, attempt, recoveries, intent) in runs:
        deadline = now + (given or _from_bytes(record[TIMEOUT], "big"))
        cancelled = intent & CANCEL_INTENT != 0
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
