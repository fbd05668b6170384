"""Every error that Tocsin raises.

TocsinError
├── InvalidArgument          a value that cannot be: id, duration, time, option, payload (also a ValueError)
│   ├── InvalidTrigger       a trigger that cannot fire
│   │   └── TriggerFailed    the next time of a trigger cannot be worked out
│   └── InvalidConfig        configuration, or a queue declared differently from what Redis holds
├── UnknownJob               no job has that id
├── ConflictingJobs          an id exists in several queues and no queue was named
├── ClaimLost                the run was taken over by another worker; nothing was changed
├── RunCancelled             a run was cancelled by a person (raised by Handle.result)
├── RunFailed                a run ended in failure (raised by Handle.result)
├── ResultLost               a run succeeded, and what it returned could not be kept (raised by Handle.result)
├── DeliveryFailed           a request, message or program did not do what it was for (model/delivery.py)
├── ResultTimeout            no result within the given time (also a TimeoutError)
├── InvalidSignature         a request that nobody who knows the secret has sent at about this time
├── StillRunning             the first request with this key has no answer yet; try again
├── KeyReused                the key came with another request before
├── TurnLost                 what was done for a key took so long that another did it too; nothing was remembered
└── StoreError
    ├── StoreUnavailable     the server cannot be reached, or refuses to serve for now; try again
    │   ├── NodeUnavailable  one node of a cluster, or one slot, cannot be reached, and others can; try again
    │   ├── StoreFull        the server is out of memory; nothing was written
    │   └── StoreTimeout     the server did not answer in time; it may have done what was asked
    ├── StoreRefused         the server will never do: version, password, replica, eviction policy
    ├── StoreChanged         the epoch is not the one this process opened: wiped, restored or another server
    │   ├── QueueRepartitioning  the queue is being repartitioned; try again
    │   └── QueueRepartitioned   the queue has other partitions by now, and the call was not made
    ├── ClockDisagrees       the server's time is not what the caller took it for; nothing was changed
    ├── WrongKeyType         a key holds another kind of data than Tocsin keeps there
    └── RecordUnreadable     a record of an unknown schema, or garbage
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TocsinError(Exception):
    """The root of the tree above."""


class InvalidArgument(TocsinError, ValueError):
    """The caller passed something that cannot be."""


class InvalidTrigger(InvalidArgument):
    """The trigger can never fire, or does not say when."""


class TriggerFailed(InvalidTrigger):
    """The next time of a trigger cannot be worked out, or not in reasonable time."""


class InvalidConfig(InvalidArgument):
    """A setting is wrong, or contradicts what the server already holds."""


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
    """The last attempt of a job failed: with an exception of class `type` that said `message`, and the worker's
    `traceback`; after so many `attempts`. `type` is "" where no exception was raised."""

    def __init__(self, error: str, *, type: str = "", attempts: int = 0, traceback: str = "") -> None:
        super().__init__(error)
        self.type = type
        self.message = error.removeprefix(f"{type}: ") if type else error
        self.attempts = attempts
        self.traceback = traceback


class ResultLost(TocsinError):
    """The run has succeeded, and what it returned is too large or cannot be packed."""

    def __init__(self, job_id: str, why: str) -> None:
        super().__init__(f"job {job_id!r} has succeeded, and what it returned was not kept: {why}")
        self.job_id = job_id
        self.why = why


class ResultTimeout(TocsinError, TimeoutError):
    """The run has not ended yet."""


class InvalidSignature(TocsinError):
    """The request is not signed, or by somebody else, or was signed too long ago."""


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
    """Something between us and the server. `written`: how many rows of a bulk call were written before it stopped;
    None for any other call."""

    written: int | None = None


class StoreUnavailable(StoreError):
    """The server cannot be reached, or refuses to serve for now."""


class NodeUnavailable(StoreUnavailable):
    """One node of a cluster cannot be reached, or one slot is on its way to another. The others answer, so work that
    is not there goes on."""


class StoreFull(StoreUnavailable):
    """The server is at its maxmemory; what was asked for was not written."""


class StoreTimeout(StoreUnavailable):
    """The server did not answer in time; it may have done what was asked."""


class StoreRefused(StoreError):
    """This server cannot be used, and trying again will not help."""


class StoreChanged(StoreError):
    """The queue was wiped, restored, sealed or replaced since this process opened it."""


class QueueRepartitioning(StoreChanged):
    """The queue is being repartitioned, or with 0 partitions deleted, or whoever did it was stopped half-way."""

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
    """The queue was given other partitions; what was asked of one of the old ones was not done."""


class ClockDisagrees(StoreError):
    """Another time than the fleet's: its clock was set a moment ago, or the nodes of a cluster have different times."""

    def __init__(self, ahead: int) -> None:
        super().__init__(
            f"this server's clock is {ahead / 1000:+.1f} s off from that of the server with the heartbeats: "
            "keep the clocks of all servers together (NTP)"
        )
        self.ahead = ahead


class WrongKeyType(StoreError):
    """Somebody else writes to Tocsin's keys."""

    def __init__(self, key: str, holds: str, kept: str) -> None:
        super().__init__(
            f"the key {key!r} holds a {holds} where Tocsin keeps a {kept}: `tocsin doctor --repair` sets it aside; "
            "then find out who else writes to Tocsin's keys"
        )
        self.key = key


class RecordUnreadable(StoreError):
    """The bytes of a record are not a job that this version can read."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error message: what the user probably meant, or what there is."""
    words = sorted(known)
    close = difflib.get_close_matches(word, words, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(words)}"
