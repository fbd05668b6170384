"""Another process of an execution queue: `execution_queue_process URL PREFIX CALLERS MAX_ACTIVE`.

As many callers at once ask for one execution each when a line comes in; what they got goes out as JSON. Then it holds
on to it until it is told to go, or killed.
"""

from __future__ import annotations

import asyncio
import json
import sys

from tocsin import Tocsin
from tocsin.patterns import ExecutionQueue
from tocsin.testing import ManualClock


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def schedule(url: str, prefix: str, callers: int, max_active: int) -> None:
    async with Tocsin(url, prefix=prefix, clock=ManualClock()) as app:
        queues = [ExecutionQueue(app) for _ in range(callers)]
        await queues[0].get_queue_status()
        say("ready")
        await asyncio.to_thread(sys.stdin.readline)
        got = await asyncio.gather(*(queue.try_schedule(max_active) for queue in queues))
        say(json.dumps([each[0] for each in got if each is not None]))
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(schedule(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
