"""The handle of a job: its status, its result, and a way to cancel it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tocsin.app.lookup import Found, Lookup
from tocsin.model.clock import monotonic
from tocsin.model.durations import Duration, seconds
from tocsin.model.errors import (
    InvalidArgument,
    RecordUnreadable,
    ResultLost,
    ResultTimeout,
    RunCancelled,
    RunFailed,
    UnknownJob,
)
from tocsin.model.job import Job, Stage
from tocsin.model.outcome import UNKNOWN, Outcome

# `result` asks soon at first, then less and less often.
SHORTEST_S = 0.005
LONGEST_S = 0.5

_GONE = (
    "it was never put or was removed, or it has ended and its outcome is no longer kept: "
    "`keep` of enqueue or @app.job, and `results.keep`, say for how long"
)


class Handle:
    """`new` says whether the call made the job or found it. `queue` is None in a handle that `app.handle` made without
    a queue, until the handle has found its job."""

    def __init__(
        self, job_id: str, new: bool, queue: str | None, lookup: Lookup, cancel: Callable[[str, str], Awaitable[bool]]
    ) -> None:
        self.id = job_id
        self.new = new
        self.queue = queue
        self._lookup = lookup
        self._cancel = cancel

    async def status(self) -> str:
        """`succeeded`, `failed` or `cancelled`; before it has ended its stage: `waiting`, `working`, also `ready`,
        `paused`, `parked` or `blocked`. `unknown`: no such job exists, or its outcome is no longer kept."""
        found = await self._find()
        if found is None:
            return "unknown"
        if found.job is not None:
            return "failed" if found.job.stage is Stage.DEAD else found.job.stage.value
        return "unknown" if found.outcome is None else found.outcome.name

    async def result(self, timeout: Duration | None = None) -> Any:
        """What the handler returned, as plain data, as soon as the job has ended.

        Raises RunFailed, RunCancelled, ResultLost, ResultTimeout, UnknownJob if its outcome is not kept, or
        RecordUnreadable if another program garbled it.
        """
        give_up = None if timeout is None else monotonic() + seconds(timeout, "timeout")
        pause = SHORTEST_S
        while True:
            found = await self._find()
            if found is None:
                raise UnknownJob(self.id, _GONE)
            if found.outcome is not None:
                return _result(self.id, found.outcome)
            if found.job is not None:
                _refuse_to_wait(found.job)
            if give_up is not None and monotonic() + pause > give_up:
                raise ResultTimeout(f"job {self.id!r} has not ended within {timeout}")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LONGEST_S)

    async def cancel(self) -> bool:
        """Withdraw it, or ask its worker to stop it. False if the job is not there or has ended."""
        if self.queue is None:
            await self._find()
        return self.queue is not None and await self._cancel(self.id, self.queue)

    async def _find(self) -> Found | None:
        found = await self._lookup.find_any(self.id, self.queue)
        if found is not None:
            self.queue = found.queue.name
        return found

    def __repr__(self) -> str:
        return f"<Handle {self.id!r} {'new' if self.new else 'existing'}>"


def _result(job_id: str, outcome: Outcome) -> Any:
    if outcome.name == "cancelled":
        # If something else than a person cancelled it, the result says why.
        why = f": {outcome.result}" if outcome.result else ""
        raise RunCancelled(f"job {job_id!r} was cancelled{why}")
    if outcome.name == UNKNOWN:
        raise RecordUnreadable(f"job {job_id!r} has ended, and {outcome.lost}: somebody else writes to Tocsin's keys")
    if outcome.lost:
        raise ResultLost(job_id, outcome.lost)
    if not outcome.kept:
        raise UnknownJob(job_id, "it succeeded, and what it returned was not kept: enqueue it with keep=")
    return outcome.result


def _refuse_to_wait(job: Job) -> None:
    """Raise for a job that has failed or never ends."""
    if job.stage is Stage.DEAD:
        if job.failure is None:
            raise RunFailed(f"job {job.id!r} is dead", attempts=job.attempt)
        failure = job.failure
        raise RunFailed(failure.error, type=failure.type, attempts=job.attempt, traceback=failure.traceback)
    if job.recurring:
        raise InvalidArgument(f"job {job.id!r} recurs and never ends, so it has no result: `app.runs` shows its runs")
