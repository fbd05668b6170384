"""The bytes that Redis holds beside records: claims, scores, places in `ready`, tenants, outcomes, events, sessions,
entries of the outbox.

Each section names the Lua file that reads and writes the same layout. No other Python file counts bytes of these, or
knows what a score says below its millisecond.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from msgspec import Struct

from tocsin.model import msgpack
from tocsin.model.durations import Millis
from tocsin.model.ids import EXTRA
from tocsin.model.nesting import MOST_LEVELS
from tocsin.model.outcome import OUTCOMES, UNKNOWN, Outcome
from tocsin.model.skipped_ticks import SkippedTicks
from tocsin.store.keys import BANDS
from tocsin.store.numbers import is_whole, time_of, whole

# A member with this byte is an extra run. Bytes find a number at once, and a text only after an exception.
EXTRA_MARK = ord(EXTRA)

# Codes: a script answers with one digit for each item that it was given.

_CODES = bytes.maketrans(b"0123456789", bytes(range(10)))


def codes_of(digits: bytes) -> bytes:
    """The codes themselves: b"012" is 0, 1 and 2."""
    return digits.translate(_CODES)


# Claims (lua/lib/claim.lua)

_CLAIM = struct.Struct(">QQIHBB")
_PUT_INTENT = 4
CANCEL_INTENT = 8
# The due time of an entry. Above it the entry keeps the job's place in line; in a queue of order `due`, the first byte
# of that is the number of successes that the record lacks.
DUE_MASK = (1 << 48) - 1
_UNCOUNTED = 56
# The bytes between the tenant and the record of an edit: two due times.
_EDIT_DUES = 16


class ClaimEntry(Struct, frozen=True):
    """What `claims` holds of an unfinished run."""

    token: int
    due: Millis
    attempt: int
    recoveries: int
    intent: int
    owner: str
    pending: bytes | None
    uncounted: int = 0


def decode_claim_entry(raw: bytes) -> ClaimEntry:
    """Raises struct.error for garbage, where lua/lib/claim.lua does."""
    token, due, attempt, recoveries, intent, size = _CLAIM.unpack_from(raw)
    end = _CLAIM.size + size
    after_tenant = end + 1 + (raw[end] if len(raw) > end else 255)
    if len(raw) < after_tenant + (_EDIT_DUES if intent & _PUT_INTENT else 0):
        raise struct.error("a claim is longer")
    pending = raw[after_tenant + _EDIT_DUES :] if intent & _PUT_INTENT else None
    owner = raw[_CLAIM.size : end].decode(errors="replace")
    return ClaimEntry(token, due & DUE_MASK, attempt, recoveries, intent, owner, pending, due >> _UNCOUNTED)


def claim_entry_or_none(raw: bytes | None) -> ClaimEntry | None:
    """None also for garbage: a job is shown without its claim if nobody can read that."""
    try:
        return None if raw is None else decode_claim_entry(raw)
    except struct.error:
        return None


# The runs in the answer of a claim script: due (to be masked), attempt, recoveries and intent of each.
iter_claim_stamps = struct.Struct(">QIHB").iter_unpack

_SKIP = struct.Struct(">QQB")


def encode_skips(skips: Sequence[SkippedTicks]) -> bytes:
    """Ranges of ticks, as lua/lib/events.lua writes them into the event."""
    return b"".join([_SKIP.pack(skip.first, skip.until, skip.why) for skip in skips])


# Digests of handlers and agents

_DIGEST = struct.Struct(">I")
LARGEST_DIGEST = 0xFFFF_FFFF
# In `parked`, suspects have a score half above the digest of their handler.
SUSPECT_PARKED = 0.5


def encode_digests(digests: Sequence[int]) -> bytes:
    return struct.pack(f">{len(digests)}I", *digests)


def decode_digests(packed: bytes) -> list[int]:
    return [digest for (digest,) in _DIGEST.iter_unpack(packed)]


def parked_digest(score: float) -> int:
    """The digest of the handler that a parked job waits for. 0: no worker could read it; its score is then 0, or the
    time of the next try, which is beyond all digests."""
    digest = int(score)
    return 0 if digest > LARGEST_DIGEST else digest


# Scores. A score in `waiting` is a time in ms. Below the ms, in a queue of order `due`, are the successes that the
# record lacks, in sixteenths (lib/counts.lua). A score in `ready`, in a queue of order `priority`, has there the
# place of the job among those of the same ms, in 4096ths (lua/lib/ordered.lua).

_MOST_UNCOUNTED = 16
_LAST_PLACE = 4095 / 4096


def due_score_bound(now: Millis) -> str:
    """The upper bound of all scores that are due: every fraction of the present ms is."""
    return f"({now + 1}"


def is_due_score(score: float, now: Millis) -> bool:
    return score < now + 1


def uncounted_in(score: float) -> int:
    """How many successes the record lacks, by the job's score in `waiting`. 0 for a score that is no time."""
    at = time_of(score)
    return int((score - at) * _MOST_UNCOUNTED) if at <= score < at + 1 else 0


def last_ready_score(due: Millis) -> float:
    """Behind all others of that millisecond."""
    return due + _LAST_PLACE


# Scores of suspects (lua/lib/score.lua says why): runs that were recovered twice are in `waiting` before all others, by
# their band and due time.

_BAND = 1 << 48
_FIRST = -(1 << 52)
_LAST = -(1 << 51)
# The bounds of the scores of suspects, and the lower bound of all others.
APART = ("-inf", str(_LAST))
OTHERS = f"({_LAST}"


def is_apart(score: float) -> bool:
    return score <= _LAST


def not_before(score: float) -> float:
    """The time in a score in `waiting`, also of a suspect. Scores that are not ours may be anything, also -inf."""
    if not is_apart(score):
        return score
    return (score - _FIRST) % _BAND if math.isfinite(score) else 0.0


def apart_of_band(band: int) -> tuple[str, str]:
    """The bounds of the scores of a priority's suspects, in an ordered queue."""
    return str(_FIRST + band * _BAND), f"({_FIRST + (band + 1) * _BAND}"


# Places in `ready` of a fair queue (lua/lib/tenant.lua). A member is tenant, due, place and id, with NUL between
# them. `spots` has the band as a digit, then the member without the id. Tenants have no NUL; ids of strangers may.

_MEMBER_PARTS = 4
_BAND_DIGITS = tuple(b"%d" % band for band in range(len(BANDS)))


def band_of_spot(spot: bytes) -> int | None:
    """None for garbage."""
    return int(spot[:1]) if spot[:1] in _BAND_DIGITS else None


def tenant_of_spot(spot: bytes) -> bytes:
    return spot[1:].rsplit(b"\0", 2)[0]


def due_of_spot(spot: bytes) -> Millis:
    """0 for garbage."""
    parts = spot.rsplit(b"\0", 2)
    return whole(parts[1]) if len(parts) == 3 else 0


def member_of_spot(spot: bytes, job_id: bytes) -> bytes:
    """The member of `ready` to which a job's spot refers."""
    return spot[1:] + b"\0" + job_id


def last_ready_member(tenant: bytes, due: Millis) -> bytes:
    """Behind all of the tenant's jobs of that millisecond."""
    return tenant + b"\0%013d\1" % due


def tenant_of_member(member: bytes) -> bytes:
    """Garbage has a tenant as well: all of it, if it has no NUL."""
    return member.partition(b"\0")[0]


def due_of_member(member: bytes) -> Millis | None:
    """None for garbage."""
    parts = member.split(b"\0", _MEMBER_PARTS - 1)
    return whole(parts[1]) if len(parts) == _MEMBER_PARTS and is_whole(parts[1]) else None


def id_of_member(member: bytes) -> bytes:
    return member.split(b"\0", _MEMBER_PARTS - 1)[-1]


def members_under(name: bytes) -> tuple[bytes, bytes]:
    """The bounds, for a range by name, of all members that begin with `name` and a NUL: a tenant's jobs in `ready`, or
    those that watch a job."""
    return b"[" + name + b"\0", b"(" + name + b"\1"


# Tenants (lua/lib/tenant.lua): active runs, the time up to which the rate is used, five finish tags.

_TENANT = struct.Struct(">I6d")


def decode_tenant(raw: bytes | None) -> tuple[int, float]:
    """Active runs, and the time up to which the rate is used; zeros for none and for garbage."""
    if raw is None or len(raw) != _TENANT.size:
        return 0, 0.0
    active, rated, *_ = _TENANT.unpack(raw)
    return active, rated


# Outcomes (lua/lib/outcome.lua): code, time, and the result in msgpack.

_RESULT_AT = 9


def lost_result(why: str) -> bytes:
    """The bytes in the place of a result that could not be kept. Alone, the first of them says that nobody asked for
    the result."""
    return msgpack.NO_VALUE + msgpack.encode(why)


def decode_outcome(raw: bytes) -> Outcome:
    if len(raw) < _RESULT_AT or raw[0] >= len(OUTCOMES):
        return Outcome(UNKNOWN, 0, None, lost="how it ended is garbled")
    name, at, result = OUTCOMES[raw[0]], int.from_bytes(raw[1:_RESULT_AT], "big"), raw[_RESULT_AT:]
    try:
        if result[:1] == msgpack.NO_VALUE:
            lost = str(msgpack.decode(result[1:])) if len(result) > 1 else ""
            return Outcome(name, at, None, kept=bool(lost), lost=lost)
        if msgpack.is_nested_deeper(result, MOST_LEVELS):
            return Outcome(name, at, None, lost=f"it is nested more than {MOST_LEVELS} levels deep")
        return Outcome(name, at, msgpack.decode(result) if result else None)
    except msgpack.UNREADABLE as error:
        return Outcome(name, at, None, lost=f"it cannot be read: {error}")


# Events (lua/lib/events.lua): of each run that a call ended, due (to be masked), attempt and outcome.

_EVENT_RUN = struct.Struct(">QIB")


def event_runs(raw: bytes) -> list[tuple[Millis, int, int]]:
    """Due time, attempt and outcome of each. Raises ValueError for garbage."""
    if len(raw) % _EVENT_RUN.size:
        raise ValueError("the runs of an event have another length")
    return [(due & DUE_MASK, attempt, outcome) for due, attempt, outcome in _EVENT_RUN.iter_unpack(raw)]


# Sessions (lua/lib/session_entry.lua): seq and time of the last call, and its answer.

_OF_EPOCH = b"|"

_MARK_SIZE = 16


def session_mark(raw: bytes) -> bytes:
    """Seq and time as stored: they change with each call."""
    return raw[:_MARK_SIZE]


def session_time(raw: bytes) -> Millis:
    return int.from_bytes(raw[8:_MARK_SIZE], "big")


def kept_session(session: bytes, epoch: bytes) -> bytes:
    """The name under which partition 0 keeps the last call of a session in a partition of an earlier layout."""
    return session + _OF_EPOCH + epoch


def is_kept_session(session: bytes) -> bool:
    return _OF_EPOCH in session


# Dependencies (lib/outbox.lua), with NUL between the parts. The outbox has two kinds of entries: E announces the
# end of a job (the job, its outcome); W asks to watch a job (the job that waits, the life of its wait, and the source:
# the queue and the job that it waits for). A watcher is the upstream job, then queue, job and life of the waiting one.

_ENDS = tuple(b"\0%d" % outcome for outcome in range(len(OUTCOMES)))


def source_of(queue: bytes, job: bytes) -> bytes:
    return queue + b"\0" + job


def decode_source(source: str) -> tuple[str, str]:
    """Queue and job."""
    queue, _, job = source.partition("\0")
    return queue, job


def is_end(entry: bytes) -> bool:
    return entry[:2] == b"E\0" and entry.count(b"\0") == 2 and entry[-2:] in _ENDS


def is_ask(entry: bytes) -> bool:
    return entry[:2] == b"W\0" and entry.count(b"\0") == 4


def is_watcher(watcher: bytes) -> bool:
    return watcher.count(b"\0") == 3


def job_of_entry(entry: bytes) -> bytes:
    """The job of this partition to which an entry of the outbox belongs: the one that ended, or that waits. b"" for
    garbage that names none."""
    return entry.split(b"\0", 2)[1] if b"\0" in entry else b""


def outcome_of_end(entry: bytes) -> int:
    return int(entry[-1:])


def encode_ask(member: str, life: str, source: str) -> bytes:
    return f"W\0{member}\0{life}\0{source}".encode()


def decode_ask(entry: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """The job that waits, its life, and the queue and the job that it waits for."""
    _, member, life, queue, upstream = entry.split(b"\0")
    return member, life, queue, upstream


def upstream_of_watcher(watcher: bytes) -> bytes:
    return watcher.partition(b"\0")[0]


def encode_watcher(queue: bytes, member: bytes, life: bytes) -> bytes:
    """Without the upstream job, which dependency_watch.lua adds."""
    return b"\0".join((queue, member, life))


def decode_watcher(watcher: bytes) -> tuple[bytes, bytes, bytes]:
    """Queue, job and life of the one that waits."""
    _, queue, member, life = watcher.split(b"\0")
    return queue, member, life
