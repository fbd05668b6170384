"""A schedule, a worker whose passes the test calls, and runs that go on until the test ends them."""

from __future__ import annotations

import asyncio
from typing import Any

from tocsin import Every, Run, Tocsin
from tocsin.engine.bells_and_mail import Listener
from tocsin.model.ids import run_id
from tocsin.store.transitions.claims import Runs
from tocsin.store.views.events import Decision
from tocsin.testing import ManualClock
from tocsin.worker import Worker

QUEUE = "line"
JOB = "j"


class ScheduleBench:
    """One job with the id j. Times are seconds since the test began."""

    def __init__(self, app: Tocsin, clock: ManualClock) -> None:
        self.app = app
        self.clock = clock
        self.begun = clock.ms
        # By run id and token: a run that was lost goes on beside the one that took its place.
        self.running: dict[tuple[str, int], asyncio.Future[str]] = {}
        # All that ever started, and the most at a time.
        self.started: list[float] = []
        self.most = 0
        self.worker: Worker
        app.queue(QUEUE, partitions=1)

        @app.job(name="slow", queue=QUEUE, timeout="1d")
        async def slow(what: Any = None, *, run: Run) -> None:
            self.started.append(self.at(int(run.due.timestamp() * 1000)))
            end = self.running[run.id, run.token] = asyncio.get_running_loop().create_future()
            self.most = max(self.most, len(self.running))
            try:
                if await end == "fail":
                    raise ValueError("told to")
            finally:
                del self.running[run.id, run.token]

        self.handler = slow

    def at(self, ms: int) -> float:
        return (ms - self.begun) / 1000

    async def schedule(self, seconds: float = 10, **rules: Any) -> None:
        """First due after one interval."""
        await self.app.schedule(self.handler, Every(seconds), id=JOB, **rules)

    async def work(self, seconds: float = 0) -> None:
        """Time passes, then a worker looks, until there is nothing more to start or to write down."""
        self.clock.advance(seconds)
        await asyncio.to_thread(self.worker.heart.beat)
        for served in self.worker.served.values():
            served.forget_dues()
        while any(min(served.next_due) <= self.clock.ms for served in self.worker.served.values()):
            await self.worker.fetcher.step()
            await self.write()

    async def write(self) -> None:
        """Let handlers go as far as they go by themselves, and write down what ended."""
        for _ in range(20):
            await asyncio.sleep(0)
        while not self.worker.finisher.idle():
            await self.worker.finisher.step()

    async def end(self, due: float | None = None, how: str = "well") -> None:
        """End the run of that due time, or the one that started first."""
        wanted = None if due is None else run_id(JOB, self.begun + round(due * 1000))
        which = next(key for key in self.running if wanted in (None, key[0]))
        self.running[which].set_result(how)
        await self.write()

    async def read_mail(self) -> None:
        """One letter, which must be there."""
        await Listener(self.worker.bells, self.worker.served, self.worker.pool, self.worker.fetcher).step()
        await self.write()

    async def lose_worker(self) -> None:
        """Others believe it dead, and take its runs back."""
        queue = await self.app.store.find_queue(QUEUE)
        assert queue is not None
        await Runs(self.app.store, "another.1").recover(queue, 0, self.worker.name)

    async def decisions(self) -> list[Decision]:
        return [decision async for decision in self.app.decisions(JOB)][::-1]

    async def told(self) -> list[tuple[float, float, str]]:
        """Oldest first, in seconds: first and until, a run with its due time as both; then why, or how it ended."""
        return [
            (self.at(d.first_ms), self.at(d.until_ms if d.what != "ran" else d.first_ms), d.why or d.what)
            for d in await self.decisions()
        ]

    async def next_due(self) -> float | None:
        job = await self.app.get(JOB)
        return None if job is None else self.at(job.due_ms)

    async def close(self) -> None:
        for end in list(self.running.values()):
            end.cancel()
        await self.worker.kill()
