"""A process that uses an execution queue and shows its metrics: `execution_metrics_process URL PREFIX PORT`.

It enqueues three executions, schedules two of them after two seconds and releases one; after each line that comes in it
asks for another one that it cannot have.
"""

from __future__ import annotations

import asyncio
import sys

from tocsin import Tocsin
from tocsin.patterns import ExecutionQueue
from tocsin.telemetry.prometheus import serve_metrics
from tocsin.testing import ManualClock


async def measure(url: str, prefix: str) -> None:
    clock = ManualClock()
    async with Tocsin(url, prefix=prefix, clock=clock) as app:
        executions = ExecutionQueue(app)
        for name, priority in (("a", "critical"), ("b", "low"), ("c", "low")):
            await executions.enqueue({"execution_id": name, "priority": priority, "user_id": "ada", "payload": {}})
        clock.advance("2s")
        assert await executions.try_schedule(2)
        assert await executions.try_schedule(2)
        await executions.release("a")
        while True:
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            if not await asyncio.to_thread(sys.stdin.readline):
                return
            clock.advance("1s")
            assert await executions.try_schedule(1) is None


if __name__ == "__main__":
    serve_metrics("127.0.0.1", int(sys.argv[3]))
    asyncio.run(measure(sys.argv[1], sys.argv[2]))
