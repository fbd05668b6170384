"""The exceptions that Tocsin raises, as a tree.

TocsinError
├── InvalidArgument          an impossible value: id, duration, time, option, payload (also a ValueError)
│   ├── InvalidTrigger       a trigger that cannot fire
│   │   └── TriggerFailed    the next time of a trigger cannot be computed
│   └── InvalidConfig        wrong configuration, or a queue declared differently from what Redis holds
├── UnknownJob               no job has this id
├── ConflictingJobs          an id exists in several queues and no queue was named
├── ClaimLost                another worker took over the run; nothing was changed
├── RunCancelled             a person cancelled the run (raised by Handle.result)
├── RunFailed                the run failed (raised by Handle.result)
├── ResultLost               the run succeeded, but its result could not be stored (raised by Handle.result)
├── DeliveryFailed           a request, message or program failed (model/delivery.py)
├── ResultTimeout            no result within the given time (also a TimeoutError)
├── InvalidSignature         the request has no valid signature with a known secret and a recent time
├── StillRunning             the first request with this key has no answer yet; try again
├── KeyReused                a different request has used this key
├── TurnLost                 the work for a key outlasted its lease and another caller did it too; nothing was stored
└── StoreError
    ├── StoreUnavailable     the server cannot be reached, or refuses calls for now; try again
    │   ├── NodeUnavailable  one node or slot of a cluster cannot be reached, the others can; try again
    │   ├── StoreFull        the server is out of memory; nothing was written
    │   └── StoreTimeout     the server did not answer in time; it may have executed the call
    ├── StoreRefused         the server is unsuitable: version, password, replica, eviction policy
    ├── StoreChanged         the epoch differs from the one this process opened: wiped, restored or another server
    │   ├── QueueRepartitioning  the queue is being repartitioned; try again
    │   └── QueueRepartitioned   the queue has other partitions now; the call was not made
    ├── ClockDisagrees       the server's time differs from what the caller assumed; nothing was changed
    ├── WrongKeyType         a key holds a type of data that Tocsin does not store there
    └── RecordUnreadable     a record has an unknown schema, or is garbage
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TocsinError(Exception):
    """The root of the tree above."""


class InvalidArgument(TocsinError, ValueError):
    """The caller passed an impossible value."""


class InvalidTrigger(InvalidArgument):
    """The trigger can never fire, or is incomplete."""


class TriggerFailed(InvalidTrigger):
    """The next time of a trigger cannot be computed, or not in reasonable time."""


class InvalidConfig(InvalidArgument):
    """A setting is wrong, or contradicts what Redis already holds."""


class UnknownJob(TocsinError):
    def __init__(self, job_id: str, advice: str = "`tocsin jobs list` shows those there are") -> None:
        super().__init__(f"there is no job {job_id!r}; {advice}")
        self.job_id = job_id


class ConflictingJobs(TocsinError):
    def __init__(self, job_id: str, queues: list[str], advice: str = "say which with queue=") -> None:
        super().__init__(f"job {job_id!r} exists in the queues {', '.join(queues)}: {advice}")
        self.job_id = job_id
        self.queues = queues


class ClaimLost(TocsinError):
    def __init__(self, run_id: str) -> None:
        super().__init__(f"the claim on run {run_id!r} was lost to another worker; nothing was changed")
        self.run_id = run_id


class RunCancelled(TocsinError):
    """The run was cancelled before it could succeed."""


class RunFailed(TocsinError):
    """The last attempt of a job failed. `type` is the class of the exception, `message` its text, `traceback` the
    worker's traceback and `attempts` the number of attempts. `type` is "" if no exception was raised."""

    def __init__(self, error: str, *, type: str = "", attempts: int = 0, traceback: str = "") -> None:
        super().__init__(error)
        self.type = type
        self.message = error.removeprefix(f"{type}: ") if type else error
        self.attempts = attempts
        self.traceback = traceback


class ResultLost(TocsinError):
    """The run succeeded, but its result is too large or cannot be packed."""

    def __init__(self, job_id: str, why: str) -> None:
        super().__init__(f"job {job_id!r} has succeeded, and what it returned was not kept: {why}")
        self.job_id = job_id
        self.why = why


class ResultTimeout(TocsinError, TimeoutError):
    """The run has not ended yet."""


class InvalidSignature(TocsinError):
    """The request is unsigned, signed with an unknown secret, or signed too long ago."""


class StillRunning(TocsinError):
    def __init__(self, key: str, retry_after_s: float) -> None:
        super().__init__(f"the first request with the key {key!r} is still at work: try again in {retry_after_s:.1f} s")
        self.key = key
        self.retry_after_s = retry_after_s


class KeyReused(TocsinError):
    def __init__(self, key: str) -> None:
        super().__init__(f"the key {key!r} came with another request before: a new request needs a key of its own")
        self.key = key


class TurnLost(TocsinError):
    def __init__(self, key: str) -> None:
        super().__init__(
            f"the turn of the key {key!r} was lost to another, so this answer was not remembered: "
            "do not block the event loop for longer than the lease, or make the lease longer"
        )
        self.key = key


class StoreError(TocsinError):
    """A problem with the server or the connection to it. `written` is the number of rows that a bulk call wrote before
    it stopped, and None for any other call."""

    written: int | None = None


class StoreUnavailable(StoreError):
    """The server cannot be reached, or refuses calls for now."""


class NodeUnavailable(StoreUnavailable):
    """One node of a cluster cannot be reached, or one slot is being moved. The other nodes answer, so work on them goes
    on."""


class StoreFull(StoreUnavailable):
    """The server has reached its maxmemory and wrote nothing."""


class StoreTimeout(StoreUnavailable):
    """The server did not answer in time. It may have executed the call."""


class StoreRefused(StoreError):
    """This server cannot be used, and trying again will not help."""


class StoreChanged(StoreError):
    """The queue was wiped, restored, sealed or replaced since this process opened it."""


class QueueRepartitioning(StoreChanged):
    """The queue is being repartitioned (deleted, if `partitions` is 0), or the process doing it stopped half-way."""

    def __init__(self, queue: str, partitions: int) -> None:
        doing, command = "is being repartitioned: try again", f"repartition {queue} {partitions}"
        if not partitions:
            doing, command = "is being deleted: try again", f"delete {queue}"
        super().__init__(
            f"queue {queue!r} {doing}; if nobody does it any more, "
            f"run `tocsin queues {command}` again, which goes on where it was left"
        )
        self.queue = queue
        self.partitions = partitions


class QueueRepartitioned(StoreChanged):
    """The queue has other partitions now. A call on one of the old ones was not made."""


class ClockDisagrees(StoreError):
    """A server's time differs from the fleet's: its clock was just set, or nodes of a cluster have different times."""

    def __init__(self, ahead: int) -> None:
        super().__init__(
            f"this server's clock is {ahead / 1000:+.1f} s off from that of the server with the heartbeats: "
            "keep the clocks of all servers together (NTP)"
        )
        self.ahead = ahead


class WrongKeyType(StoreError):
    """A key has a Redis type that Tocsin does not store there: another program writes to Tocsin's keys."""

    def __init__(self, key: str, holds: str, kept: str) -> None:
        super().__init__(
            f"the key {key!r} holds a {holds} where Tocsin keeps a {kept}: `tocsin doctor --repair` sets it aside; "
            "then find out who else writes to Tocsin's keys"
        )
        self.key = key


class RecordUnreadable(StoreError):
    """This version cannot read the bytes of a record as a job."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error message: the most similar known word, or a list of all of them."""
    words = sorted(known)
    close = difflib.get_close_matches(word, words, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(words)}"
