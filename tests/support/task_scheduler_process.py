"""A process with a task scheduler: `python -m tests.support.task_scheduler_process ORDER`, where ORDER is JSON.

Its handler writes each task into the diary. SIGTERM stops the scheduler, and the diary says how that went.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
from types import SimpleNamespace
from typing import Any

from tests.support.worker_handlers import note
from tocsin import Tocsin
from tocsin.patterns import Task, TaskQueue, TaskScheduler
from tocsin.worker import WorkerSettings

QUEUE = "tasks"
# What a fleet is told to start processes of this program.
CLERK: dict[str, Any] = {"program": "tests.support.task_scheduler_process", "queues": [QUEUE]}


def handle(task: Task) -> None:
    note("start", SimpleNamespace(id=task.task_id, attempt=1, recoveries=0, token=0))  # type: ignore[arg-type]


def work(order: dict[str, Any]) -> None:
    # Before any thread is there, so that all of them inherit it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    app = Tocsin(order["url"], prefix=order["prefix"])
    settings = WorkerSettings(concurrency=order["concurrency"], **order["settings"])
    scheduler = TaskScheduler(TaskQueue(app, QUEUE, handle), f"clerk-{os.getpid()}", settings=settings)
    scheduler.start()
    note("ready", worker=scheduler.scheduler_id)
    signal.sigwait([signal.SIGTERM])
    note("stopped", worker=scheduler.stop(order["grace"]))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    if sys.platform == "linux":
        # PR_SET_PDEATHSIG: not to outlive a test run that was killed.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    given = json.loads(sys.argv[1])
    if os.getppid() == given["parent"]:
        work(given)
