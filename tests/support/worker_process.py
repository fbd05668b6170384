"""A worker process of these tests: `python -m tests.support.worker_process ORDER`, where ORDER is JSON."""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import signal
import sys
from typing import Any

import msgspec

from tests.support.worker_handlers import declare, note
from tocsin import Tocsin
from tocsin.app.run_worker import caught
from tocsin.targets.external import TargetPermissions
from tocsin.worker import WorkerSettings


async def work(order: dict[str, Any]) -> None:
    app = Tocsin(order["url"], prefix=order["prefix"], hash_tag=order["hash_tag"])
    declare(app, order["handlers"], order["agent_every"])
    async with app:
        if order["settings"] is None:
            await app.work(queues=order["queues"], concurrency=order["concurrency"], grace=order["grace"], signals=True)
        else:
            await work_as_told(app, order)


async def work_as_told(app: Tocsin, order: dict[str, Any]) -> None:
    """As `app.work` does, with settings that it does not take; SIGUSR1 asks for a line in the diary."""
    stop, hurry = asyncio.Event(), asyncio.Event()
    with caught(stop, hurry):
        reach = msgspec.convert(order["reach"], TargetPermissions)
        settings = WorkerSettings(concurrency=order["concurrency"], reach=reach, **order["settings"])
        worker = await app.worker(queues=order["queues"], settings=settings)
        await worker.start()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, lambda: note("stats", **msgspec.to_builtins(worker.stats())))
        note("ready", worker=worker.name)
        await stop.wait()
        await worker.stop(order["grace"], hurry)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    if sys.platform == "linux":
        # PR_SET_PDEATHSIG: not to outlive a test run that was killed.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    given = json.loads(sys.argv[1])
    if os.getppid() == given["parent"]:
        asyncio.run(work(given))
