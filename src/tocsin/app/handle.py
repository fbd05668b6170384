"""The handle of an enqueued job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tocsin.model.clock import monotonic
from tocsin.model.durations import Duration, seconds
from tocsin.model.errors import ResultTimeout, RunCancelled, RunFailed, UnknownJob
from tocsin.model.job import Stage
from tocsin.store.jobs import Jobs
from tocsin.store.store import OpenQueue

# A result is looked for soon at first, then less and less often.
SHORTEST_S = 0.005
LONGEST_S = 0.5


class Handle:
    """`new` says whether the call made the job, or found it there."""

    def __init__(
        self, job_id: str, new: bool, queue: OpenQueue, jobs: Jobs, cancel: Callable[[str, str], Awaitable[bool]]
    ) -> None:
        self.id = job_id
        self.new = new
        self.queue = queue.name
        self._queue = queue
        self._jobs = jobs
        self._cancel = cancel

    async def status(self) -> str:
        """A stage, the outcome of a remembered job (succeeded, failed, cancelled), or 'unknown'."""
        job = await self._jobs.get(self._queue, self.id)
        if job is not None:
            return job.stage.value
        outcome = await self._jobs.outcome(self._queue, self.id)
        return "unknown" if outcome is None else outcome.name

    async def result(self, timeout: Duration | None = None) -> Any:
        """What the handler returned. Jobs with an explicit id or `keep` are remembered; others only until they end.

        Raises RunFailed, RunCancelled, ResultTimeout, or UnknownJob if nobody remembers it.
        """
        give_up = None if timeout is None else monotonic() + seconds(timeout, "timeout")
        pause = SHORTEST_S
        while True:
            outcome = await self._jobs.outcome(self._queue, self.id)
            if outcome is not None:
                if outcome.name == "cancelled":
                    # What came of it is why, where it was not a person.
                    why = f": {outcome.result}" if outcome.result else ""
                    raise RunCancelled(f"job {self.id!r} was cancelled{why}")
                if not outcome.kept:
                    raise UnknownJob(self.id, "it succeeded, and what it returned was not kept: enqueue it with keep=")
                return outcome.result
            await self._raise_if_dead_or_gone()
            if give_up is not None and monotonic() + pause > give_up:
                raise ResultTimeout(f"job {self.id!r} has not ended within {timeout}")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LONGEST_S)

    async def cancel(self) -> bool:
        """Withdraw it, or ask its worker to stop. False if there is nothing to cancel."""
        return await self._cancel(self.id, self.queue)

    async def _raise_if_dead_or_gone(self) -> None:
        job = await self._jobs.get(self._queue, self.id)
        if job is None:
            # It may have ended between the two looks.
            if await self._jobs.outcome(self._queue, self.id) is None:
                raise UnknownJob(self.id)
        elif job.stage is Stage.DEAD:
            raise RunFailed(job.failure.error if job.failure else f"job {self.id!r} is dead")

    def __repr__(self) -> str:
        return f"<Handle {self.id!r} {'new' if self.new else 'existing'}>"
