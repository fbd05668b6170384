"""Task queues and schedulers whose passes a test calls itself."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.support.waiting import run_dry
from tocsin import Tocsin
from tocsin.patterns import Task, TaskQueue, TaskScheduler
from tocsin.testing import ManualClock, run_until_idle
from tocsin.worker import Worker

START = datetime(2030, 1, 1, tzinfo=UTC)
SCHEDULES = "tasks.schedules"


def at(text: str) -> datetime:
    """On the first day."""
    return datetime.fromisoformat(f"2030-01-01T{text}+00:00")


def dues(tasks: list[Task]) -> list[datetime]:
    """When each was due, by the occurrence that its id names."""
    return [datetime.fromtimestamp(int(task.task_id.split("@")[1]) / 1000, UTC) for task in tasks]


class Desk:
    """A queue, the tasks that were handled in their order, and schedulers of it, each with the worker that pushes."""

    def __init__(self, app: Tocsin, clock: ManualClock) -> None:
        self.app = app
        self.clock = clock
        self.tasks: list[Task] = []
        self.queue = TaskQueue(app, "tasks", self._handle)
        self.workers: list[Worker] = []

    async def _handle(self, task: Task) -> None:
        self.tasks.append(task)

    async def scheduler(self, name: str = "s1", **options) -> tuple[TaskScheduler, Worker]:
        made = TaskScheduler(self.queue, name, **options)
        worker = await made.worker(self.app)
        self.workers.append(worker)
        return made, worker

    async def push(self, *workers: Worker) -> None:
        """Everything that is due, by this worker or all, each until it finds no more."""
        for worker in workers or self.workers:
            for served in worker.served.values():
                served.forget_dues()
            await run_dry(worker)

    async def handle(self) -> list[Task]:
        """What is in line is handled, one after the other. What was handled since this was asked last."""
        before = len(self.tasks)
        await run_until_idle(self.app, queues=["tasks"], concurrency=1)
        return self.tasks[before:]

    async def close(self) -> None:
        for worker in self.workers:
            await worker.kill()
        self.app.sync.close()
